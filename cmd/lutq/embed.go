package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize"
)

// embedWidth is the flag for the bits of a model's token embedding and output head: 0 where it was not given.
type embedWidth int

// What it takes: the widths of tables, that of rings above them, and what leaves both ends as they are.
const (
	leastEmbed = 2
	mostEmbed  = 6
	keptEmbed  = 16
)

func (w *embedWidth) String() string { return strconv.Itoa(int(*w)) }

// Type names the flag's value in help texts.
func (w *embedWidth) Type() string { return "width" }

// Set implements pflag.Value.
func (w *embedWidth) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || (n < leastEmbed || n > mostEmbed) && n != keptEmbed {
		return fmt.Errorf("want %d to %d, or %d, which leaves them as they are", leastEmbed, mostEmbed, keptEmbed)
	}
	*w = embedWidth(n)
	return nil
}

// rule is what the width makes of some tensors whose other layers are stored as a spec says: tables up to 5 bits, and rings
// above them or where all else is rings.
func (w embedWidth) rule(tensor string, of weight.Spec) quantize.Rule {
	r := quantize.Rule{Match: regexp.MustCompile(quantize.Exactly(tensor))}
	if w == keptEmbed {
		r.Keep = true
		return r
	}
	r.Format.Bits = int(w)
	switch {
	case of.Kind == trellis.Name:
	case w > lut.MaxBits:
		r.Format.Codebook = trellis.Pairs
	case of.Kind != "" && of.Kind != lut.Name:
		r.Format.Kind = lut.Name
	}
	return r
}

// embed adds what --embed-bits asks for to a recipe, before its other rules, which so may say otherwise.
func (o *quantizeOptions) embed(r *quantize.Recipe, m *source.Model) error {
	if o.embedBits == 0 {
		return nil
	}
	ends, err := quantize.EndsOf(m)
	if err != nil {
		return err
	}
	all := ends.All()
	if len(all) == 0 {
		return errors.New("--embed-bits: the model has no token embedding or output head that can be quantized")
	}
	var rules []quantize.Rule
	for _, tensor := range all {
		rules = append(rules, o.embedBits.rule(tensor, r.Complete().Default))
	}
	r.Rules = append(rules, r.Rules...)
	return r.Check()
}

// endsLine says what share of the tensors' bytes the embedding and the head take where they stay in 16 bits or more, and what makes
// them smaller. It is empty where they take little.
func endsLine(t quantize.Totals) string {
	const little = 0.05
	share := float64(t.EndBytes) / float64(max(t.BytesOut, 1))
	if share < little {
		return ""
	}
	return fmt.Sprintf("%.0f %% of the bytes (%s), not quantized: --embed-bits 5 takes a third of that", 100*share, formatBytes(t.EndBytes))
}
