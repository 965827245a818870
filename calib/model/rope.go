package model

import (
	"math"
	"slices"

	"github.com/lutq/lutq/formats/arch"
)

// rope holds cosines and sines of a rotary embedding, floats [positions, half].
type rope struct {
	desc      *arch.Rope
	freqs     []float64 // radians per position
	positions int
	cos, sin  Array
}

func (r *rope) half() int { return r.desc.Dim / 2 }

// extend makes the tables those of a window of n tokens.
func (r *rope) extend(n int, ops Ops) {
	freqs := r.desc.Frequencies(n)
	if n <= r.positions && slices.Equal(freqs, r.freqs) {
		return
	}
	cos, sin := make([]float32, 0, n*len(freqs)), make([]float32, 0, n*len(freqs))
	for pos := range n {
		cos, sin = r.angles(cos, sin, freqs, pos)
	}
	r.free(ops)
	r.freqs, r.positions, r.cos, r.sin = freqs, n, ops.Floats(len(cos)), ops.Floats(len(sin))
	ops.Write(r.cos, cos)
	ops.Write(r.sin, sin)
}

// angles appends cosines and sines of a position.
func (r *rope) angles(cos, sin []float32, freqs []float64, pos int) (newCos, newSin []float32) {
	for _, f := range freqs {
		s, c := math.Sincos(float64(pos) * f)
		cos, sin = append(cos, float32(c*r.desc.Amplitude)), append(sin, float32(s*r.desc.Amplitude))
	}
	return cos, sin
}

func (r *rope) free(ops Ops) {
	ops.Free(r.cos, r.sin)
	r.freqs, r.positions, r.cos, r.sin = nil, 0, nil, nil
}

// ropes returns the rotary embeddings that the blocks of a decoder share.
func ropes(d *arch.Decoder) map[*arch.Rope]*rope {
	all := make(map[*arch.Rope]*rope)
	for i := range d.Blocks {
		desc := d.Blocks[i].Attn.Rope
		if all[desc] == nil {
			all[desc] = &rope{desc: desc}
		}
	}
	return all
}
