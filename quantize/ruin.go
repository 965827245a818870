package quantize

// RuinError and RuinLayerError are the relative errors, of all layers together
// and of one, above which rounding is likely to have ruined a model. Of five
// models none had an error between 0.25, of the worst table of 3 bits, and 0.32,
// of the best of 2; below, the median perplexity was 1.8 times the original's at
// most, above, 2.7 times at least and up to 34,000. One layer at 0.56 cost 2 to
// 17 times as much as all others did at 4 bits. NOTES.md has the numbers.
const (
	RuinError      = 0.3
	RuinLayerError = 0.45
)

// fittedError is how much larger the errors of weights become by fitting them to a text, where they make up for each other, at the same
// loss or less: rings of 2, 3 and 4 bits have 30.1, 15.4 and 8.0 % in place of 26.3, 13.5 and 7.0 %.
const fittedError = 8. / 7

// Ruined returns the worst of the layers above RuinLayerError, nil where there is
// none, and whether all together are above RuinError. Of layers whose scales were
// learned the error says little: they are judged by the model's predictions.
func (r *Result) Ruined() (worst *LayerResult, all bool) {
	if r.Learn != nil {
		return nil, false
	}
	bound := func(most float64, f Fit) float64 {
		if f.Rows > 0 {
			return most * fittedError
		}
		return most
	}
	for i := range r.Layers {
		if l := &r.Layers[i]; l.Error > bound(RuinLayerError, l.Fit) && (worst == nil || l.Error > worst.Error) {
			worst = l
		}
	}
	return worst, r.Error > bound(RuinError, r.Fit)
}
