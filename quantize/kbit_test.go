package quantize

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/kbit"
	"github.com/lutq/lutq/quantize/rounding"
)

// ruleOf reads a rule.
func ruleOf(t *testing.T, text string) Rule {
	t.Helper()
	r, err := ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestKBit: a container has what the encoder makes of each layer, with the table as it is.
func TestKBit(t *testing.T) {
	racetest.Skip(t)
	p, err := NewPlan(modeltest.Open(t, tiny), Recipe{Default: weight.Spec{Bits: 3, Method: MethodKBit}, Rules: []Rule{ruleOf(t, "down_proj=2:64:nf:absmax:f16::rtn")}})
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := p.Run(context.Background(), out, RunOptions{Threads: 2}); err != nil {
		t.Fatal(err)
	}
	m, err := lutq.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if r, err := m.Verify(context.Background(), lutq.VerifyOptions{Original: p.Source}); err != nil || len(r.Problems) > 0 {
		t.Errorf("verified: %+v, %v", r, err)
	}
	cb, err := lut.NewCodebook("kbit", 3, kbit.Block)
	if err != nil {
		t.Fatal(err)
	}
	q, err := kbit.NewQuantizer(cb)
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, layer := range m.Linears() {
		mat, err := m.Linear(layer)
		if err != nil {
			t.Fatal(err)
		}
		got := mat.(*lut.Matrix)
		if strings.Contains(layer, "down_proj") {
			if got.Bits != 2 || got.ScaleType != weight.F16 {
				t.Errorf("%s has %d bits and scales of %v", layer, got.Bits, got.ScaleType)
			}
			continue
		}
		x, _ := p.Source.Tensor(layer + lutq.WeightSuffix)
		w := make([]float32, x.Elements())
		if err := x.ReadFloat32(w, 0); err != nil {
			t.Fatal(err)
		}
		want := [][]byte{lut.CodebookPart: make([]byte, 4*len(cb.Values)), lut.ScalesPart: make([]byte, len(got.Scales)), lut.CodesPart: make([]byte, len(got.Codes))}
		if err := q.Rows(want, make([]rounding.RowError, got.N), w); err != nil {
			t.Fatal(err)
		}
		q.Shared(want)
		if !slices.EqualFunc(got.Parts(), want, slices.Equal) {
			t.Errorf("%s is encoded in another way", layer)
		}
		made++
	}
	if made == 0 {
		t.Error("no layer is encoded so")
	}
}

// TestKBitRefuses: the encoder makes layers of one kind only.
func TestKBitRefuses(t *testing.T) {
	for _, tt := range []struct {
		spec weight.Spec
		rule string
		want string
	}{
		{spec: weight.Spec{Group: 64}, want: "method bnb-kbit makes 4:32:kbit:absmax:e4m4:lut:bnb-kbit: not 4:64:kbit:absmax:e4m4:lut:bnb-kbit"},
		{spec: weight.Spec{Bits: 6}, want: "bits is 6: want 2 to 5"},
		{rule: "down_proj=::nf", want: `rule "down_proj=::nf": method bnb-kbit makes`},
		{spec: weight.Spec{Kind: "bcq"}, want: "method bnb-kbit makes no weights of kind bcq"},
	} {
		tt.spec.Method = MethodKBit
		r := Recipe{Default: tt.spec}
		if tt.rule != "" {
			r.Rules = []Rule{ruleOf(t, tt.rule)}
		}
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v %s: got error %v, want %q", tt.spec, tt.rule, err, tt.want)
		}
	}
	if _, err := (blockwise{}).Quantizer(Layer{Spec: encoded(weight.Spec{Bits: 4}), K: 40}); err == nil || !strings.Contains(err.Error(), "blocks of 32 weights, which would lie in two rows of 40") {
		t.Errorf("rows of 40: got error %v", err)
	}
}
