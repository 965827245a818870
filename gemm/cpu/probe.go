package cpu

import (
	"encoding/binary"
	"sync/atomic"
)

// ReadOnly reads p on all workers, as fast as the machine can, and does
// nothing with it: the bound that memory sets to every product with weights
// of that size. The result, the exclusive or of p as little-endian 64-bit
// words, the last filled up with zeros, shows that it was read.
func (e *Engine) ReadOnly(p []byte) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	// As many pieces as a product of this size would have, within reason.
	piece := max(256, min(256<<10, ceilDiv(len(p), 4*e.threads)&^255))
	var sum atomic.Uint64
	e.parallel(ceilDiv(len(p), piece), func(_, i int) {
		q := p[i*piece : min((i+1)*piece, len(p))]
		var x uint64
		if whole := len(q) &^ 255; whole > 0 {
			var lanes [8]uint64
			e.isa.read(q[:whole], &lanes)
			for _, v := range lanes {
				x ^= v
			}
			q = q[whole:]
		}
		for len(q) > 0 {
			var word [8]byte
			q = q[copy(word[:], q):]
			x ^= binary.LittleEndian.Uint64(word[:])
		}
		for old := sum.Load(); !sum.CompareAndSwap(old, old^x); old = sum.Load() {
		}
	})
	return sum.Load()
}
