package lut

import "github.com/lutq/lutq/quantize/weight"

// fitted are the scales of some rows, [rows, groups].
type fitted struct {
	groups int
	scales []float32
	stored []byte // as they are stored
}

// Fit finds the scales of n rows of weights, as [Quantizer.Rows] does, for
// others to choose codes. They are kept until the next call.
func (q *Quantizer) Fit(w []float32, n int) error {
	k := len(w) / n
	groups, f := weight.GroupsIn(k, q.opt.Group), &q.fitted
	bytes := groups * q.opt.ScaleType.Size()
	if len(f.stored) < n*bytes {
		f.scales, f.stored = make([]float32, n*groups), make([]byte, n*bytes)
	}
	f.groups = groups
	for r := range n {
		if err := q.rowScales(f.stored[r*bytes:(r+1)*bytes], w[r*k:(r+1)*k], r); err != nil {
			return err
		}
		copy(f.scales[r*groups:], q.scales[:groups])
	}
	return nil
}

// Nearest returns the code that [Quantizer.Rows] gives to w in a column of one of
// the rows fitted, and the weight that it stands for. In a group of scale 0
// that is the code of 0.
func (q *Quantizer) Nearest(row, col int, w float32) (code uint8, stored float32) {
	scale := q.fitted.scales[row*q.fitted.groups+col/q.opt.Group]
	if scale == 0 {
		w = 0
	}
	code = q.table.code(float32(w * reciprocal(scale)))
	return code, q.table.values[code&(1<<MaxBits-1)] * scale
}

// Store writes one of the rows fitted, with a code for each column, as row to of parts.
func (q *Quantizer) Store(parts [][]byte, to, row int, codes []uint8) {
	scaleBytes, codeBytes := q.fitted.groups*q.opt.ScaleType.Size(), RowBytes(len(codes), q.bits)
	copy(parts[ScalesPart][to*scaleBytes:], q.fitted.stored[row*scaleBytes:(row+1)*scaleBytes])
	q.pack(parts[CodesPart][to*codeBytes:(to+1)*codeBytes], codes, q.bits)
}
