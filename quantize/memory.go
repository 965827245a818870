package quantize

import (
	"fmt"
	"runtime"
)

// memory is how a run's buffers are sized.
type memory struct {
	workers int
	block   int // weights that a worker holds at a time
}

// blockWeights is what a worker holds where memory is no concern: enough to
// make a read worth its call, and little enough to stay in cache.
const blockWeights = 1 << 18

// bytesPerWeight bounds what a worker holds for one weight of its block: the
// source's bytes, a float32, a byte of code, packed codes and scales, and the
// latter read back.
const bytesPerWeight = 8 + 4 + 1 + 2*(5.0/8+4.0/32)

// baseRAM is what the program takes besides the workers' buffers.
const baseRAM = 48 << 20

// memory sizes the buffers of a run.
func (p *Plan) memory(o RunOptions) (memory, error) {
	m := memory{workers: o.Threads, block: blockWeights}
	if m.workers <= 0 {
		m.workers = runtime.GOMAXPROCS(0)
	}
	widest := 0
	for i := range p.Items {
		widest = max(widest, p.Items[i].K)
	}
	m.block = max(m.block, widest)
	if o.MaxRAM == 0 {
		return m, nil
	}
	for m.peak() > o.MaxRAM {
		switch {
		case m.block > widest:
			m.block = max(widest, m.block/2)
		case m.workers > 1:
			m.workers--
		default:
			return m, fmt.Errorf("%d bytes of memory are not enough: a row of %d weights needs %d", o.MaxRAM, widest, m.peak())
		}
	}
	return m, nil
}

// peak estimates the resident memory of a run in bytes.
func (m memory) peak() int64 {
	return baseRAM + int64(float64(m.workers)*float64(m.block)*bytesPerWeight)
}
