package conform

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// RandomTrellis returns a matrix whose rings are random bits, with a table of its own, of normal numbers, and scales in float32 of such a
// size that weights are those of a layer. Where 64 does not divide its columns, they have factors.
func RandomTrellis(r *rand.Rand, n, k, rate int) *trellis.Matrix {
	return randomTrellis(r, n, k, rate, weight.F32)
}

func randomTrellis(r *rand.Rand, n, k, rate int, st weight.ScaleType) *trellis.Matrix {
	code, err := trellis.NewCode(trellis.Pairs, rate)
	if err != nil {
		panic(err) // of a rate that the caller has from where they are listed
	}
	m := &trellis.Matrix{N: n, K: k, Code: code, Own: true, ScaleType: st}
	code.Table = make([]uint32, len(code.Table))
	half := func(v float64) uint32 { return uint32(num.F32ToF16(float32(v))) }
	for i := range code.Table {
		code.Table[i] = half(r.NormFloat64()) | half(r.NormFloat64())<<16
	}
	l := code.Layout()
	m.Rings = make([]byte, (n+l.Rows-1)/l.Rows*((k+l.Cols-1)/l.Cols)*l.Bytes())
	for i := 0; i < len(m.Rings); i += 8 {
		binary.LittleEndian.PutUint64(m.Rings[i:], r.Uint64())
	}
	scales := make([]float32, n)
	for i := range scales {
		scales[i] = float32(0.02 * (0.5 + r.Float64()) / math.Sqrt(trellis.Block))
	}
	m.Scales = make([]byte, n*st.Size())
	st.Encode(m.Scales, scales)
	if k%64 != 0 {
		for i := range k {
			sign := float64(trellis.Sign(i))
			m.Factors = binary.LittleEndian.AppendUint16(m.Factors, uint16(half(sign*(0.5+r.Float64()))))
		}
	}
	return m
}
