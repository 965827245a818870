package report

import (
	"encoding/csv"
	"io"
	"slices"
	"strconv"
)

// CSV writes what models came to on each text, a line each. A model is best where no other beats it in bytes and divergence.
func (r *Report) CSV(w io.Writer) error {
	out := csv.NewWriter(w)
	lines := [][]string{{
		"text", "model", "bytes", "bits_per_weight", "ppl", "ppl_stderr", "reference_ppl", "ln_ratio", "ln_ratio_low", "ln_ratio_high",
		"kl_mean", "kl_low", "kl_high", "kl_median", "kl_p99", "top1", "best",
	}}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 8, 64) }
	ends := func(ci *[2]float64) []string {
		if ci == nil {
			return []string{"", ""}
		}
		return []string{number(ci[0]), number(ci[1])}
	}
	for i := range r.Texts {
		t := &r.Texts[i]
		best := r.Best(t)
		for j, res := range t.Results {
			m := &r.Models[j]
			line := []string{t.Name, m.Name, strconv.FormatInt(m.Bytes, 10), number(m.BitsPerWeight), number(res.PPL), number(res.PPLStderr)}
			if c := res.Comparison; c != nil {
				line = append(line, number(c.ReferencePPL), number(c.LnRatio))
				line = append(line, ends(c.LnRatioCI)...)
				line = append(line, number(c.KLMean))
				line = append(line, ends(c.KLMeanCI)...)
				line = append(line, number(c.KLMedian), number(c.KLP99), number(c.Top1), strconv.FormatBool(slices.Contains(best, j)))
			}
			for len(line) < len(lines[0]) {
				line = append(line, "")
			}
			lines = append(lines, line)
		}
	}
	return out.WriteAll(lines)
}
