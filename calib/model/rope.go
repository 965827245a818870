package model

import (
	"math"

	"github.com/lutq/lutq/formats/arch"
)

// rope holds cosines and sines of a rotary embedding, floats [positions, half].
type rope struct {
	desc      *arch.Rope // nil: one pair that does not turn, for kernels that always turn some
	stage     int        // of the window whose frequencies they have
	positions int
	cos, sin  Array
}

func (r *rope) half() int {
	if r.desc == nil {
		return 1
	}
	return r.desc.Dim / 2
}

// frequencies are those of a window of so many tokens.
func (r *rope) frequencies(tokens int) []float64 {
	if r.desc == nil {
		return []float64{0}
	}
	return r.desc.Frequencies(tokens)
}

// stageOf tells lengths of windows apart whose frequencies differ.
func (r *rope) stageOf(tokens int) int {
	if r.desc == nil {
		return 0
	}
	return r.desc.Stage(tokens)
}

// extend makes the tables those of a window of n tokens.
func (r *rope) extend(n int, ops Ops) {
	stage := r.stageOf(n)
	if n <= r.positions && stage == r.stage {
		return
	}
	freqs := r.frequencies(n)
	r.fill(n, ops, func(int) []float64 { return freqs })
	r.stage = stage
}

// grow makes the tables those of a text of up to n tokens that grows by one at a time: each has the frequencies of a
// window that ends with it.
func (r *rope) grow(n int, ops Ops) {
	var t turn
	r.fill(n, ops, func(pos int) []float64 { return t.frequencies(r, pos+1) })
}

// fill writes tables of n positions, of which of gives the frequencies.
func (r *rope) fill(n int, ops Ops, of func(pos int) []float64) {
	cos, sin := make([]float32, 0, n*r.half()), make([]float32, 0, n*r.half())
	for pos := range n {
		cos, sin = r.angles(cos, sin, of(pos), pos)
	}
	r.free(ops)
	r.positions, r.cos, r.sin = n, ops.Floats(len(cos)), ops.Floats(len(sin))
	ops.Write(r.cos, cos)
	ops.Write(r.sin, sin)
}

// angles appends cosines and sines of a position.
func (r *rope) angles(cos, sin []float32, freqs []float64, pos int) (newCos, newSin []float32) {
	amplitude := 1.0
	if r.desc != nil {
		amplitude = r.desc.AmplitudeAt(pos)
	}
	for _, f := range freqs {
		s, c := math.Sincos(float64(pos) * f)
		cos, sin = append(cos, float32(c*amplitude)), append(sin, float32(s*amplitude))
	}
	return cos, sin
}

func (r *rope) free(ops Ops) {
	ops.Free(r.cos, r.sin)
	r.positions, r.cos, r.sin = 0, nil, nil
}

// ropes returns the rotary embeddings that the blocks of a decoder share.
func ropes(d *arch.Decoder) map[*arch.Rope]*rope {
	all := make(map[*arch.Rope]*rope)
	for i := range d.Blocks {
		for _, desc := range d.Blocks[i].Mixer.Ropes() {
			if all[desc] == nil {
				all[desc] = &rope{desc: desc}
			}
		}
	}
	return all
}
