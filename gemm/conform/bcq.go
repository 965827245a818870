package conform

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
)

// RandomBCQ returns a matrix of binary codes whose planes are random and whose factors and offsets, if there are any, are those
// of weights, normal with mean 0, but for the factors' signs, which are random. Groups are no longer than rows.
func RandomBCQ(r *rand.Rand, n, k, bits, group int, st weight.ScaleType, offsets bool) *bcq.Matrix {
	m := &bcq.Matrix{N: n, K: k, Bits: bits, Group: min(group, k), ScaleType: st}
	m.Planes = make([]byte, n*bits*m.PlaneBytes())
	for i := range m.Planes {
		if i%8 == 0 && i+8 <= len(m.Planes) {
			binary.LittleEndian.PutUint64(m.Planes[i:], r.Uint64())
		} else if i >= len(m.Planes)/8*8 {
			m.Planes[i] = byte(r.Uint32())
		}
	}
	if rest := k % 8; rest > 0 {
		for i := range n * bits {
			m.Planes[(i+1)*m.PlaneBytes()-1] &= 1<<rest - 1
		}
	}
	encode := func(count int, next func(i int) float64) []byte {
		values := make([]float32, count)
		for i := range values {
			values[i] = float32(next(i))
		}
		data := make([]byte, count*st.Size())
		st.Encode(data, values)
		return data
	}
	m.Alphas = encode(n*m.Groups()*bits, func(i int) float64 {
		alpha := 0.02 * (0.5 + r.Float64()) / float64(int(1)<<(i%bits))
		if r.Uint32()&1 != 0 {
			return -alpha
		}
		return alpha
	})
	if offsets {
		m.Offsets = encode(n*m.Groups(), func(int) float64 { return 0.004 * r.NormFloat64() })
	}
	return m
}
