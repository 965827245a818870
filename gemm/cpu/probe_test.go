package cpu

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

func TestReadOnly(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, e := range engines(t) {
		for _, n := range []int{0, 1, 7, 8, 9, 255, 256, 257, 4096, 100_003, 3 << 20} {
			p := make([]byte, n)
			var want uint64
			for i := range p {
				p[i] = byte(r.Uint32())
			}
			padded := append(p[:n:n], make([]byte, 8)...)
			for i := 0; i < n; i += 8 {
				want ^= binary.LittleEndian.Uint64(padded[i:])
			}
			if got := e.ReadOnly(p); got != want {
				t.Errorf("%s, %d bytes: got %x, want %x", e.label(), n, got, want)
			}
		}
	}
}
