package model

import (
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/rtn"
)

// HeadGroup is how many columns of an output head that is quantized while it is read share a scale.
const HeadGroup = 64

// shrink quantizes a matrix that was read as numbers, to be taken so from now on.
func (l *loader) shrink(s *arch.Stored, bits int) {
	r := l.rows(s, 0)
	if l.err != nil {
		return
	}
	if r.packed != nil || r.layout != nil {
		l.fail(fmt.Errorf("%s: %s is quantized already", l.src.Name(), s.Path))
		return
	}
	m, err := nearest(r.dtype, r.matrix, s.N, s.K, bits)
	if err != nil {
		l.fail(fmt.Errorf("%s: %s: %w", l.src.Name(), s.Path, err))
		return
	}
	l.last[s] = rows{packed: m}
}

// nearest quantizes an [n, k] matrix of F32, F16 or BF16 numbers to the values of the normal-float codebook beside the largest of each
// group.
func nearest(t hf.DType, data []byte, n, k, bits int) (*lut.Matrix, error) {
	book, err := lut.NewCodebook("nf", bits, HeadGroup)
	if err != nil {
		return nil, err
	}
	o := lut.Format{Codebook: book, Group: HeadGroup, Scale: weight.Absmax, ScaleType: weight.F16}
	m := &lut.Matrix{N: n, K: k, Bits: bits, Group: HeadGroup, ScaleType: o.ScaleType, Codebook: book.Values}
	m.Codes, m.Scales = make([]byte, n*m.RowBytes()), make([]byte, n*m.Groups()*m.ScaleType.Size())
	var g errgroup.Group
	share := max((n-1)/runtime.GOMAXPROCS(0)+1, 1)
	for from := 0; from < n; from += share {
		g.Go(func() error {
			z, err := rtn.NewQuantizer(o)
			if err != nil {
				return err
			}
			row, size := make([]float32, k), len(data)/n
			codes, scales := len(m.Codes)/n, len(m.Scales)/n
			for i := from; i < min(from+share, n); i++ {
				decode(t, row, data[i*size:])
				parts := [][]byte{lut.ScalesPart: m.Scales[i*scales : (i+1)*scales], lut.CodesPart: m.Codes[i*codes : (i+1)*codes]}
				if err := z.Rows(parts, make([]rounding.RowError, 1), row); err != nil {
					return fmt.Errorf("row %d: %w", i, err)
				}
			}
			return nil
		})
	}
	return m, g.Wait()
}

// decode reads len(v) numbers.
func decode(t hf.DType, v []float32, data []byte) {
	switch t {
	case hf.F32:
		num.DecodeF32(v, data)
	case hf.F16:
		num.DecodeF16(v, data)
	case hf.BF16:
		num.DecodeBF16(v, data)
	}
}
