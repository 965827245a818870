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

// Ruined returns the worst of the layers above RuinLayerError, nil where there is
// none, and whether all together are above RuinError. Of layers whose scales were
// learned the error says little: they are judged by the model's predictions.
func (r *Result) Ruined() (worst *LayerResult, all bool) {
	if r.Learn != nil {
		return nil, false
	}
	for i := range r.Layers {
		if l := &r.Layers[i]; l.Error > RuinLayerError && (worst == nil || l.Error > worst.Error) {
			worst = l
		}
	}
	return worst, r.Error > RuinError
}
