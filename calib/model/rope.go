package model

import (
	"math"

	"github.com/lutq/lutq/formats/hf"
)

// rope holds cosines and sines of the rotary embedding, [position][dim/2].
type rope struct {
	freqs    []float64 // radians per position
	cos, sin []float32
}

func newRope(c *hf.Config) rope { return rope{freqs: frequencies(c)} }

// frequencies returns the head_dim/2 rotary frequencies. Those of type llama3
// are Meta's for Llama 3.1: short wavelengths stay, those beyond the original
// context are stretched by the factor, with a ramp in between. Type linear
// divides positions, which is to divide frequencies.
func frequencies(c *hf.Config) []float64 {
	f := make([]float64, c.HeadDim/2)
	for i := range f {
		f[i] = math.Pow(c.RopeTheta, -2*float64(i)/float64(c.HeadDim))
	}
	r := c.Rope
	switch r.Type {
	case "linear":
		for i := range f {
			f[i] /= r.Factor
		}
	case "llama3":
		old := float64(r.OriginalMaxPositions)
		for i, v := range f {
			wavelength := 2 * math.Pi / v
			switch {
			case wavelength > old/r.LowFreqFactor:
				f[i] = v / r.Factor
			case wavelength >= old/r.HighFreqFactor:
				s := (old/wavelength - r.LowFreqFactor) / (r.HighFreqFactor - r.LowFreqFactor)
				f[i] = v * ((1-s)/r.Factor + s)
			}
		}
	}
	return f
}

// extend makes the table cover positions below n.
func (r *rope) extend(n int) {
	half := len(r.freqs)
	for pos := len(r.cos) / half; pos < n; pos++ {
		for _, f := range r.freqs {
			sin, cos := math.Sincos(float64(pos) * f)
			r.cos = append(r.cos, float32(cos))
			r.sin = append(r.sin, float32(sin))
		}
	}
}

// rotate turns the pairs (x[i], x[i+half]) of one head, scaled by s.
func (r *rope) rotate(x []float32, pos int, s float32) {
	half := len(r.freqs)
	cos, sin := r.cos[pos*half:(pos+1)*half], r.sin[pos*half:(pos+1)*half]
	lo, hi := x[:half], x[half:2*half]
	for i, c := range cos {
		a, b := lo[i], hi[i]
		lo[i] = (float32(a*c) - float32(b*sin[i])) * s
		hi[i] = (float32(b*c) + float32(a*sin[i])) * s
	}
}
