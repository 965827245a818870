package eval

import "testing"

// TestRuined: either the divergence or the perplexity tells, beyond its bound.
func TestRuined(t *testing.T) {
	mean := func(x float64) sum {
		s := sum{windows: []part{{}}}
		s.add(x)
		return s
	}
	for _, tt := range []struct {
		kl, nll, reference float64
		want               bool
	}{
		{kl: 0, nll: 3, reference: 3},
		{kl: 0.99, nll: 3, reference: 3},
		{kl: 1.01, nll: 3, reference: 3, want: true},
		{kl: 0.5, nll: 3.69, reference: 3}, // 1.99 times the perplexity
		{kl: 0.5, nll: 3.7, reference: 3, want: true},
		{kl: 0.5, nll: 3, reference: 4},
	} {
		got := tally{nll: mean(tt.nll), kl: mean(tt.kl), same: mean(1), kls: []float32{float32(tt.kl)}}
		if c := got.compare(&tally{nll: mean(tt.reference)}, 1); c.Ruined != tt.want {
			t.Errorf("%+v: ruined %v", tt, c.Ruined)
		}
	}
}
