package quantize

import (
	"fmt"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/kbit"
	"github.com/lutq/lutq/quantize/rounding"
)

// MethodKBit is that of package kbit, which encodes as bitsandbytes does.
const MethodKBit = "bnb-kbit"

// encoded returns what a layer is by that method, where a spec does not say otherwise.
func encoded(s weight.Spec) weight.Spec {
	return s.Or(weight.Spec{Kind: lut.Name, Group: kbit.Block, Codebook: "kbit", Method: MethodKBit, Scale: weight.Absmax, ScaleType: weight.E4M4})
}

// blockwise is package kbit. It needs nothing, and is its own state.
type blockwise struct{}

func (blockwise) Name() string                                              { return MethodKBit }
func (blockwise) Kinds() []string                                           { return []string{lut.Name} }
func (blockwise) Needs() Needs                                              { return Nothing }
func (b blockwise) Prepare(rounding.Stats, string, int, int) (State, error) { return b, nil }
func (blockwise) Remark() Remark                                            { return Remark{} }
func (blockwise) Close()                                                    {}

// check reports a complete spec of another layer than the encoder makes.
func (blockwise) check(s weight.Spec) error {
	if want := encoded(weight.Spec{Bits: s.Bits}); s != want {
		return fmt.Errorf("method %s makes %s: not %s", MethodKBit, want.Fields(), s.Fields())
	}
	return nil
}

func (b blockwise) Quantizer(l Layer) (rounding.Quantizer, error) {
	if err := b.check(l.Spec); err != nil {
		return nil, err
	}
	if l.K%kbit.Block != 0 {
		return nil, fmt.Errorf("method %s has blocks of %d weights, which would lie in two rows of %d: keep it with --tensor REGEX=keep", MethodKBit, kbit.Block, l.K)
	}
	return kbit.NewQuantizer(l.Codebook)
}
