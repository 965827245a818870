package cpu

import (
	"math"

	"github.com/lutq/lutq/calib/model"
)

var _ model.RecurrentOps = (*Ops)(nil)

// CopyHeads implements [model.Ops].
func (c *Ops) CopyHeads(dst, src model.Array, s model.HeadsShape) {
	to, from := host(dst), host(src)
	if t, f := s.Spans(); len(to) < t || len(from) < f {
		panic(badSize)
	}
	c.overRows(s.Rows, func(_, first, end int) {
		for r := first; r < end; r++ {
			for h := range s.Heads {
				copy(to[r*s.ToRow+h*s.ToHead:][:s.Width], from[r*s.FromRow+h*s.FromHead:][:s.Width])
			}
		}
	})
}

// channelsPerTask is how many channels of a convolution a task takes, of all tokens.
const channelsPerTask = 256

// convolution is one of the rows of a step.
type convolution struct {
	model.ConvShape
	w, bias []float32
	in      func(row int) (x, by []float32) // inputs of a row, times others or nil
	ring    []float32                       // [slots, Width, Channels], of position p in row p mod Width; nil: nothing is kept
	silu    bool
}

// convolve writes [rows, Channels].
func (c *Ops) convolve(out []float32, at model.Step, s convolution) {
	tasks := (s.Channels + channelsPerTask - 1) / channelsPerTask
	before, row := s.Width-1, 0
	for _, run := range at.Runs {
		first := row
		row += run.Rows
		from := run.From
		if s.ring == nil {
			from = 0
		}
		kept := func(pos int) []float32 { return s.ring[(run.Slot*s.Width+pos%s.Width)*s.Channels:][:s.Channels] }
		c.engine.Parallel(tasks, func(_, task int) {
			lo, hi := task*channelsPerTask, min((task+1)*channelsPerTask, s.Channels)
			for t := range run.Rows {
				to := out[(first+t)*s.Channels+lo : (first+t)*s.Channels+hi]
				clear(to)
				if s.bias != nil {
					copy(to, s.bias[lo:hi])
				}
				for j := range s.Width {
					var x, by []float32
					switch past := t - before + j; {
					case past >= 0:
						x, by = s.in(first + past)
					case from+past < 0:
						continue
					default:
						x = kept(from + past)
					}
					for i, v := range x[lo:hi] {
						if by != nil {
							v *= by[lo+i]
						}
						to[i] += float32(v * s.w[(lo+i)*s.Width+j])
					}
				}
				if s.silu {
					for i, v := range to {
						to[i] = float32(float64(v) * logistic(float64(v)))
					}
				}
			}
			for t := max(run.Rows-before, 0); t < run.Rows && s.ring != nil; t++ {
				x, by := s.in(first + t)
				to := kept(from + t)[lo:hi]
				copy(to, x[lo:hi])
				for i := range to {
					if by != nil {
						to[i] *= by[lo+i]
					}
				}
			}
		})
	}
}

// optional is what an array holds, or nil of none.
func optional(a model.Array) []float32 {
	if a == nil {
		return nil
	}
	return host(a)
}

// Convolve implements [model.RecurrentOps].
func (c *Ops) Convolve(y, x, w, bias, kept model.Array, at model.Step, s model.ConvShape) {
	in := host(x)
	c.convolve(host(y), at, convolution{
		ConvShape: s, w: host(w), bias: optional(bias), ring: optional(kept), silu: true,
		in: func(row int) (x, by []float32) { return in[row*s.Channels:][:s.Channels], nil },
	})
}

// DeltaRule implements [model.RecurrentOps]. States are kept by values: [slots, VHeads, VDim, KDim].
func (c *Ops) DeltaRule(o, x, a, b, aLog, bias, state model.Array, at model.Step, s model.DeltaShape) {
	out, in, alpha, beta, logs, offsets := host(o), host(x), host(a), host(b), host(aLog), host(bias)
	size := s.KDim * s.VDim
	var states []float32
	if state != nil {
		states = host(state)
	}
	keys := s.KHeads * s.KDim
	channels := 2*keys + s.VHeads*s.VDim
	row := 0
	for _, run := range at.Runs {
		first := row
		row += run.Rows
		c.engine.Parallel(s.VHeads, func(worker, h int) {
			var m []float32
			scratch := c.row(worker, size+2*s.KDim)
			q, k := scratch[size:size+s.KDim], scratch[size+s.KDim:]
			if states == nil {
				m = scratch[:size]
			} else {
				m = states[(run.Slot*s.VHeads+h)*size:][:size]
			}
			if states == nil || run.From == 0 {
				clear(m)
			}
			of := h / (s.VHeads / s.KHeads) * s.KDim
			for r := first; r < row; r++ {
				token := in[r*channels : (r+1)*channels]
				unit(q, token[of:of+s.KDim], 1/math.Sqrt(float64(s.KDim)))
				unit(k, token[keys+of:keys+of+s.KDim], 1)
				i := r*s.VHeads + h
				decay := float32(math.Exp(-math.Exp(float64(logs[h])) * softplus(float64(alpha[i])+float64(offsets[h]))))
				deltaStep(out[i*s.VDim:(i+1)*s.VDim], m, q, k, token[2*keys+h*s.VDim:][:s.VDim], decay, float32(logistic(float64(beta[i]))))
			}
		})
	}
}

// unit writes x times by, divided by its length.
func unit(dst, x []float32, by float64) {
	const tiny = 1e-6 // beside the square of a length
	var sum float64
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	f := float32(by / math.Sqrt(sum+tiny))
	for i, v := range x {
		dst[i] = v * f
	}
}

// softplus is ln(1+e^x).
func softplus(x float64) float64 {
	if x > 30 {
		return x
	}
	return math.Log1p(math.Exp(x))
}

// deltaStep takes a state m [len(v), len(k)] a token further and writes what its query finds.
func deltaStep(o, m, q, k, v []float32, decay, beta float32) {
	q = q[:len(k)]
	for j, want := range v {
		row := m[j*len(k) : (j+1)*len(k)]
		var s [4]float32
		i := 0
		for ; i+4 <= len(row); i += 4 {
			r, key := row[i:i+4:i+4], k[i:i+4:i+4]
			r[0], r[1], r[2], r[3] = r[0]*decay, r[1]*decay, r[2]*decay, r[3]*decay
			s[0] += float32(r[0] * key[0])
			s[1] += float32(r[1] * key[1])
			s[2] += float32(r[2] * key[2])
			s[3] += float32(r[3] * key[3])
		}
		for ; i < len(row); i++ {
			row[i] *= decay
			s[0] += float32(row[i] * k[i])
		}
		d := (want - (s[0] + s[1] + s[2] + s[3])) * beta
		s = [4]float32{}
		for i = 0; i+4 <= len(row); i += 4 {
			r, key, query := row[i:i+4:i+4], k[i:i+4:i+4], q[i:i+4:i+4]
			r[0] += float32(d * key[0])
			r[1] += float32(d * key[1])
			r[2] += float32(d * key[2])
			r[3] += float32(d * key[3])
			s[0] += float32(r[0] * query[0])
			s[1] += float32(r[1] * query[1])
			s[2] += float32(r[2] * query[2])
			s[3] += float32(r[3] * query[3])
		}
		for ; i < len(row); i++ {
			row[i] += float32(d * k[i])
			s[0] += float32(row[i] * q[i])
		}
		o[j] = s[0] + s[1] + s[2] + s[3]
	}
}
