package quantize

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize/rounding"
)

// Estimate is what a run is expected to take.
type Estimate struct {
	PeakRAM int64   // bytes
	Device  int64   // of a device's memory that a text takes which is run there; 0: none
	Seconds float64 // of wall time
}

// probeBytes is how much of the source is read to tell the disk's speed.
const probeBytes = 64 << 20

// deviceRings is how many seconds a device takes to choose codes of rings, a weight: an H100 at 2 to 4 bits, see package calib/model/cuda.
const deviceRings = 1.3e-8

// Estimate tells what a run of the plan would take. It reads a small part of
// the source and quantizes some random weights in each of the plan's formats,
// which takes a second or so.
func (p *Plan) Estimate(ctx context.Context, o RunOptions) (Estimate, error) {
	mem, err := p.memory(o)
	if err != nil {
		return Estimate{}, err
	}
	e := Estimate{PeakRAM: mem.peak(), Device: mem.device}
	perWeight := make(map[weight.Spec]float64) // seconds
	var work, device float64
	for i := range p.Items {
		it := &p.Items[i]
		if !it.Quantized() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return Estimate{}, err
		}
		if mem.wide && it.per() > 1 && it.calibrated() {
			device += deviceRings * float64(it.Tensor.Elements())
			continue
		}
		s, ok := perWeight[it.Format]
		if !ok {
			if s, err = it.secondsPerWeight(); err != nil {
				return Estimate{}, fmt.Errorf("%s: %w", it.Tensor.Name, err)
			}
			perWeight[it.Format] = s
		}
		work += s * float64(it.Tensor.Elements())
	}
	var read float64
	if o.Shards == nil { // or nobody knows how fast they come
		var err error
		if read, err = p.secondsPerByte(); err != nil {
			return Estimate{}, err
		}
	}
	t := p.Totals()
	e.Seconds = work/float64(mem.workers) + device + read*float64(t.BytesIn+t.BytesOut)
	if c := p.Recipe.Calibrate; c != nil {
		calibrating, err := c.Seconds(ctx, p.fitting(mem))
		if err != nil {
			return Estimate{}, err
		}
		e.Seconds += calibrating
	}
	if r := p.Recipe.Refine; r != nil {
		learning, err := r.Seconds(ctx)
		if err != nil {
			return Estimate{}, err
		}
		e.Seconds += learning
	}
	return e, nil
}

// secondsPerWeight times the item's format on normal weights.
func (it *Item) secondsPerWeight() (float64, error) {
	k, n := 4096, 16
	if per := it.per(); per > 1 { // whose codes take long
		k, n = 512, per
	}
	layer := it.layer(it.Codebook)
	layer.K = k
	q, err := it.plain.Quantizer(layer)
	if err != nil {
		return 0, err
	}
	rng := rand.New(rand.NewPCG(1, 1))
	w := make([]float32, n*k)
	for i := range w {
		w[i] = float32(0.02 * rng.NormFloat64())
	}
	kind, err := lutq.KindOf(it.Format.Kind)
	if err != nil {
		return 0, err
	}
	parts, err := emptyParts(kind, it.Format, n, k)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := q.Rows(parts, make([]rounding.RowError, n), w); err != nil {
		return 0, err
	}
	return time.Since(begin).Seconds() / float64(n*k), nil
}

// secondsPerByte times a read of the source's largest tensor, with its decoding.
func (p *Plan) secondsPerByte() (float64, error) {
	largest := &p.Items[0]
	for i := range p.Items {
		if p.Items[i].Tensor.Bytes() > largest.Tensor.Bytes() {
			largest = &p.Items[i]
		}
	}
	t := largest.Tensor
	size := min(t.Bytes(), probeBytes)
	buf := make([]byte, min(size, 1<<20))
	begin := time.Now()
	var off int64
	for ; off+int64(len(buf)) <= size; off += int64(len(buf)) {
		if _, err := t.ReadAt(buf, off); err != nil {
			return 0, err
		}
	}
	return time.Since(begin).Seconds() / float64(max(share(t, off, t.Bytes()), 1)), nil
}
