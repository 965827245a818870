package model

import (
	"math"

	"github.com/lutq/lutq/formats/hf"
)

// rope holds cosines and sines of the rotary embedding, floats [positions, dim/2].
type rope struct {
	freqs     []float64 // radians per position
	positions int
	cos, sin  Array
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

// extend makes the tables cover positions below n.
func (r *rope) extend(n int, ops Ops) {
	if n <= r.positions {
		return
	}
	cos, sin := make([]float32, 0, n*len(r.freqs)), make([]float32, 0, n*len(r.freqs))
	for pos := range n {
		for _, f := range r.freqs {
			s, c := math.Sincos(float64(pos) * f)
			cos, sin = append(cos, float32(c)), append(sin, float32(s))
		}
	}
	r.free(ops)
	r.positions, r.cos, r.sin = n, ops.Floats(len(cos)), ops.Floats(len(sin))
	ops.Write(r.cos, cos)
	ops.Write(r.sin, sin)
}

func (r *rope) free(ops Ops) {
	ops.Free(r.cos, r.sin)
	r.positions, r.cos, r.sin = 0, nil, nil
}
