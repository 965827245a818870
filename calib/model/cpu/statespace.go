package cpu

import (
	"math"

	"github.com/lutq/lutq/calib/model"
)

var (
	_ model.ShortConvOps  = (*Ops)(nil)
	_ model.StateSpaceOps = (*Ops)(nil)
)

// ShortConv implements [model.ShortConvOps].
func (c *Ops) ShortConv(y, made, w, bias, kept model.Array, at model.Step, s model.ConvShape) {
	out, in, n := host(y), host(made), s.Channels
	part := func(row, i int) []float32 { return in[(3*row+i)*n:][:n] }
	c.convolve(out, at, convolution{
		ConvShape: s, w: host(w), bias: optional(bias), ring: optional(kept),
		in: func(row int) (x, by []float32) { return part(row, 2), part(row, 0) },
	})
	c.overRows(len(out)/n, func(_, first, end int) {
		for r := first; r < end; r++ {
			to := out[r*n : (r+1)*n]
			for i, v := range part(r, 1) {
				to[i] *= v
			}
		}
	})
}

// NormGroups implements [model.StateSpaceOps].
func (c *Ops) NormGroups(y, x, w model.Array, rows, groups int, eps float64) {
	out, in, factors := host(y), host(x), host(w)
	width := len(factors) / groups
	c.overRows(rows*groups, func(_, first, end int) {
		for g := first; g < end; g++ {
			to, from, by := out[g*width:(g+1)*width], in[g*width:(g+1)*width], factors[g%groups*width:][:width]
			var sum float64
			for _, v := range from {
				sum += float64(v) * float64(v)
			}
			scale := float32(1 / math.Sqrt(sum/float64(width)+eps))
			for i, v := range from {
				to[i] = v * scale * by[i]
			}
		}
	})
}

// StateSpace implements [model.StateSpaceOps].
func (c *Ops) StateSpace(y, made, room model.Array, w model.StateSpaceWeights, inputs, state model.Array, at model.Step, s model.StateSpaceShape) {
	out, all, in, logs, offsets, direct, states := host(y), host(made), host(room), host(w.ALog), host(w.DtBias), host(w.D), optional(state)
	size, inner, channels := s.Dim*s.State, s.Heads*s.Dim, s.Channels()
	c.convolve(in, at, convolution{
		ConvShape: model.ConvShape{Channels: channels, Width: s.Width}, silu: true,
		w: host(w.Conv), bias: optional(w.ConvBias), ring: optional(inputs),
		in: func(row int) (x, by []float32) { return all[row*s.Made()+inner:][:channels], nil },
	})
	row := 0
	for _, run := range at.Runs {
		first := row
		row += run.Rows
		c.engine.Parallel(s.Heads, func(worker, h int) {
			var m []float32
			if states == nil {
				m = c.row(worker, size)[:size]
			} else {
				m = states[(run.Slot*s.Heads+h)*size:][:size]
			}
			if states == nil || run.From == 0 {
				clear(m)
			}
			of := h / (s.Heads / s.Groups) * s.State
			rate := math.Exp(float64(logs[h]))
			for r := first; r < row; r++ {
				token, made := in[r*channels:(r+1)*channels], all[r*s.Made():(r+1)*s.Made()]
				v, b, q := token[h*s.Dim:(h+1)*s.Dim], token[inner+of:][:s.State], token[inner+s.Groups*s.State+of:][:s.State]
				step := softplus(float64(made[inner+channels+h]) + float64(offsets[h]))
				o := out[r*inner+h*s.Dim:][:s.Dim]
				stateStep(o, m, v, b, q, float32(math.Exp(-step*rate)), float32(step), direct[h])
				for i, z := range made[h*s.Dim : (h+1)*s.Dim] {
					o[i] *= float32(float64(z) * logistic(float64(z)))
				}
			}
		})
	}
}

// stateStep takes a state m [len(v), len(b)] a token further and writes what q finds.
func stateStep(o, m, v, b, q []float32, decay, step, direct float32) {
	q = q[:len(b)]
	for j, x := range v {
		row := m[j*len(b) : (j+1)*len(b)]
		add := x * step
		var s [4]float32
		i := 0
		for ; i+4 <= len(row); i += 4 {
			r, key, query := row[i:i+4:i+4], b[i:i+4:i+4], q[i:i+4:i+4]
			r[0] = float32(r[0]*decay) + float32(add*key[0])
			r[1] = float32(r[1]*decay) + float32(add*key[1])
			r[2] = float32(r[2]*decay) + float32(add*key[2])
			r[3] = float32(r[3]*decay) + float32(add*key[3])
			s[0] += float32(r[0] * query[0])
			s[1] += float32(r[1] * query[1])
			s[2] += float32(r[2] * query[2])
			s[3] += float32(r[3] * query[3])
		}
		for ; i < len(row); i++ {
			row[i] = float32(row[i]*decay) + float32(add*b[i])
			s[0] += float32(row[i] * q[i])
		}
		o[j] = s[0] + s[1] + s[2] + s[3] + float32(direct*x)
	}
}
