package quantize

import (
	"fmt"
	"math"
	"runtime"

	"github.com/lutq/lutq/formats/weight/trellis"
)

// memory is how a run's buffers are sized.
type memory struct {
	workers int
	block   int  // weights that a worker holds at a time
	wide    bool // a device takes many of them best
	devices int  // among which the rows of rings are divided
	// Bytes that are stored of a weight, at most.
	stored float64
	// Bytes that a calibrator takes beside the workers, and a refiner after them; 0 where
	// there is none.
	calibrator, refiner int64
	device              int64 // that a calibrator takes of a device
	tensors             int
	bands               bool // rows are stored together, as rings
	limited             bool // garbage is collected in time
}

// blockWeights is what a worker holds where memory is no concern: enough to
// make a read worth its call, and little enough to stay in cache.
const blockWeights = 1 << 18

// A device that chooses codes of rings takes whole layers best, a column of rings after the other: so many times the weights that it
// takes best of others. Its workers take turns, so that few are enough.
const (
	ringsTimes  = 16
	ringWorkers = 3
)

// sharedBands is how often the rows that are stored together a worker takes at a time.
const sharedBands = 4

// bytesPerWeight bounds what a worker holds for one weight of its block but for what is
// stored: the source's bytes, a float32 and a byte of code.
const bytesPerWeight = 8 + 4 + 1

// storedPerWeight is what is stored of a weight in most formats, at most: 5 bits, and a
// scale in 32 for 32 of them.
const storedPerWeight = 5.0/8 + 4.0/32

// feedbackPerWeight is what a method that feeds errors into later columns holds besides: two
// float32 and two codes.
const feedbackPerWeight = 4 + 4 + 1 + 1

// ringPerWeight is what a quantizer of rings holds besides, with errors fed or not: rows as they are rotated, aimed at, valued by now,
// stored, and times the Hessian's factor. ringRAM is what chooses the codes of one ring: the values of all windows, and the costs
// of all edges at each step.
const (
	ringPerWeight = 6*4 + 2*8
	ringRAM       = 4 << 20
)

// baseRAM is what the program takes besides the workers' buffers, and tensorRAM what it knows of a tensor. Where memory has no
// limit there is garbage beside both: baseGarbage, and as much again for a tensor. Measured with 30 and 18,600 tensors, with a
// tenth more.
const (
	baseRAM     = 40 << 20
	tensorRAM   = 6 << 10
	baseGarbage = 14 << 20
)

// memory sizes the buffers of a run.
func (p *Plan) memory(o RunOptions) (memory, error) {
	m := memory{workers: o.Threads, block: blockWeights, stored: storedPerWeight, tensors: len(p.Items), limited: o.MaxRAM > 0}
	if m.workers <= 0 {
		m.workers = runtime.GOMAXPROCS(0)
	}
	widest, turned := 0, 0 // turned: columns whose statistics are rotated
	for i := range p.Items {
		if it := &p.Items[i]; it.Quantized() {
			widest, m.bands = max(widest, it.unit()*it.K), m.bands || it.per() > 1
			if it.calibrated() && it.Format.Kind == trellis.Name {
				turned = max(turned, it.K)
			}
			m.stored = max(m.stored, float64(it.BytesOut)/float64(it.Tensor.Elements()))
		}
	}
	m.block = max(m.block, widest)
	if r := p.Recipe.Refine; r != nil {
		shapes, err := p.Shapes()
		if err != nil {
			return m, err
		}
		if err := r.Check(shapes); err != nil {
			return m, err
		}
		m.refiner = r.Memory(shapes)
	}
	if c := p.Recipe.Calibrate; c != nil {
		m.calibrator, m.device = c.Memory(p.fitting(m))
		m.block, m.wide, m.devices = max(m.block, c.Block()), c.Block() > 0, c.Devices()
		if m.wide && m.bands {
			m.block, m.workers = max(m.block, ringsTimes*c.Block()), min(m.workers, ringWorkers*m.devices)
		}
		if !m.wide { // a device has them in its own memory
			m.calibrator += 2 * 4 * int64(turned) * int64(turned)
		}
	}
	if o.MaxRAM == 0 {
		return m, nil
	}
	if need := max(m.refiner, m.calibrator); need > o.MaxRAM {
		return m, &MemoryError{Limit: o.MaxRAM, Need: need, Calibrating: m.calibrator > m.refiner}
	}
	for m.peak() > o.MaxRAM {
		switch {
		case m.block > widest:
			m.block = max(widest, m.block/2)
		case m.workers > 1:
			m.workers--
		default:
			return m, fmt.Errorf("%s of memory are not enough: the program and a row of %d weights take %s", megabytes(o.MaxRAM), widest, megabytes(m.peak()))
		}
	}
	return m, nil
}

// CheckMemory returns an error where a run cannot keep to o.MaxRAM.
func (p *Plan) CheckMemory(o RunOptions) error {
	_, err := p.memory(o)
	return err
}

// peak estimates the resident memory of a run in bytes. A refiner and the
// workers take their turns.
func (m memory) peak() int64 {
	each := bytesPerWeight + 2*m.stored // which is read back
	worker := 0.
	switch {
	case m.bands && !m.wide:
		each += ringPerWeight
		worker = ringRAM
	case m.calibrator > 0:
		each += feedbackPerWeight
	}
	base := int64(baseRAM + tensorRAM*m.tensors)
	if !m.limited {
		base += int64(baseGarbage + tensorRAM*m.tensors)
	}
	return max(m.refiner, m.calibrator+base+int64(float64(m.workers)*(worker+float64(m.block)*each)))
}

// MemoryError means that a calibrator or refiner takes more than a run may.
type MemoryError struct {
	Limit, Need int64 // bytes
	Calibrating bool
}

func (e *MemoryError) Error() string {
	what := "learning scales"
	if e.Calibrating {
		what = "running the text"
	}
	return fmt.Sprintf("%s of memory are not enough: %s takes about %s", megabytes(e.Limit), what, megabytes(e.Need))
}

// megabytes prints a size of memory, rounded up.
func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", math.Ceil(float64(n)/1e5)/10) }

// Hint says what takes less.
func (e *MemoryError) Hint() string {
	if e.Calibrating {
		return "fewer and shorter windows take less (--calib-windows, --calib-ctx), and rounding to nearest takes little"
	}
	return "shorter windows take less (--calib-ctx), and rounding without learning takes little"
}
