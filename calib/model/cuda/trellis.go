package cuda

import (
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// RingKernels returns the sources of the kernels that round rings of the codes of some layouts, a module each. They are the same for all
// types of activations.
func RingKernels(layouts ...trellis.Layout) []driver.Kernel {
	all := []driver.Kernel{ringsKernel()}
	for _, l := range layouts {
		all = append(all, trellisKernel(l, false), trellisKernel(l, true))
	}
	return all
}

// ringsKernel returns what they have in common.
func ringsKernel() driver.Kernel {
	return driver.Kernel{Name: "rings.cu", Source: prelude() + ringsSource, Options: driver.CompileOptions{Defines: []string{"ACTS=0"}}}
}

// trellisKernel returns what chooses windows, all steps of which add as many bits. With far, it is for devices of little shared memory.
func trellisKernel(l trellis.Layout, far bool) driver.Kernel {
	return driver.Kernel{
		Name:   fmt.Sprintf("trellis.%d.%d.%d.cu", l.Together, l.Bits(0), truth(far)),
		Source: prelude() + trellisSource,
		Options: driver.CompileOptions{Defines: []string{
			"ACTS=0", fmt.Sprintf("BITS=%d", l.Bits(0)), fmt.Sprintf("TOGETHER=%d", l.Together), fmt.Sprintf("STEPS=%d", l.Steps()),
			fmt.Sprintf("FAR=%d", truth(far)),
		}},
	}
}

// The shape of the kernels, see trellis.cu.
const (
	viterbiThreads = 512
	viterbiOwn     = 1 << trellis.Window / viterbiThreads // windows of a thread
)

// viterbi chooses codes of rings of a code on a device. It is made, used and closed inside do.
type viterbi struct {
	o             *Ops
	code          *trellis.Code
	layout        trellis.Layout
	far           bool // values lie in memory
	forward, back *driver.Function
	shared        int        // bytes of shared memory of forward
	edges         int        // before a step
	table, place  driver.Ptr // values of windows, and where in a ring weights are, in the order of steps
	others        driver.Ptr // values that are far
	unit, limit   float32    // what weights are multiplied by for the table, and the most that they are then
}

// maxTableValue is the most that values of windows are for the kernels: costs of 64 steps of what is twice as far out are float16.
const maxTableValue = 8

// newViterbi returns nil once something has failed.
func (o *Ops) newViterbi(code *trellis.Code) *viterbi {
	l := code.Layout()
	v := &viterbi{o: o, code: code, layout: l, edges: 1 << trellis.Window >> l.Bits(0)}
	if o.err != nil {
		return nil
	}
	if l.Bits(0) != l.Bits(1) {
		o.fail(fmt.Errorf("codes of %v bits a weight are not made on a GPU", float64(l.Rate)/2))
		return nil
	}
	most := o.dev.Info.SharedPerBlock
	if v.shared = v.sharedBytes(); v.shared > most {
		v.far = true
		v.shared = v.sharedBytes()
	}
	if v.shared > most {
		o.fail(fmt.Errorf("rings are coded in %d bytes of shared memory: %s has %d", v.shared, o.dev.Info.Name, most))
		return nil
	}
	if v.forward = v.function("viterbi_forward"); v.forward != nil {
		o.fail(v.forward.SetMaxDynamicShared(v.shared))
	}
	v.back = v.function("viterbi_back")
	v.upload()
	if o.err != nil {
		v.close()
		return nil
	}
	return v
}

// function returns a kernel, nil where something has failed.
func (v *viterbi) function(name string) *driver.Function {
	o, k := v.o, trellisKernel(v.layout, v.far)
	key := k.Name + " " + name
	if f, ok := o.functions[key]; ok || o.err != nil {
		return f
	}
	m, ok := o.trellises[k.Name]
	if !ok {
		var err error
		if m, err = o.dev.LoadKernel(k); err != nil {
			o.fail(err)
			return nil
		}
		o.modules, o.trellises[k.Name] = append(o.modules, m), m
	}
	f, err := m.Function(name)
	o.fail(err)
	o.functions[key] = f
	return f
}

// sharedBytes are those of a block of viterbi_forward.
func (v *viterbi) sharedBytes() int {
	branches := min(1<<v.layout.Bits(0), 16)
	ends := viterbiOwn / branches
	sharers := 1 << v.layout.Bits(0) / branches
	n := 2 * 4 * v.edges
	if n > 64<<10 {
		n /= 2
	}
	if sharers > 32 {
		n += 4 * viterbiThreads / 32 * ends
	}
	n += 4 * viterbiThreads / 32
	if !v.far {
		n += v.othersBytes()
	}
	return n
}

// othersBytes are those of values that no register holds.
func (v *viterbi) othersBytes() int {
	ends, kept := viterbiOwn/min(1<<v.layout.Bits(0), 16), 64
	if ends*(3-v.layout.Together) > 32 {
		kept = 32
	}
	return 4 * viterbiThreads * max(viterbiOwn*v.layout.Together/2-kept, 0)
}

// upload writes the tables.
func (v *viterbi) upload() {
	values := v.code.Values()
	var most float64
	for _, of := range values {
		for _, x := range of {
			most = max(most, math.Abs(float64(x)))
		}
	}
	v.unit = 1
	for most*float64(v.unit) > maxTableValue {
		v.unit /= 2
	}
	v.limit = float32(2*most) * v.unit
	table := make([]uint16, 0, len(values)<<trellis.Window)
	for x := range 1 << trellis.Window {
		for _, of := range values {
			table = append(table, num.F32ToF16(of[x]*v.unit))
		}
	}
	v.table = v.o.scratch(2 * len(table))
	v.o.upload(v.table, driver.Bytes(table))
	if v.far {
		v.others = v.o.scratch(v.othersBytes())
		if f := v.function("viterbi_far"); f != nil {
			v.o.start(f, driver.Launch{Grid: driver.Dim{X: 1}, Block: driver.Dim{X: viterbiThreads}}, []any{v.others, v.table})
		}
	}
	place := make([]int, 0, v.layout.Rows*v.layout.Cols)
	for i := range v.layout.Steps() {
		row, col := v.layout.At(v.number(i))
		for j := range v.layout.Together {
			place = append(place, row<<8|(col+j))
		}
	}
	v.place = v.o.uploadInts(place)
}

// number returns which of a ring's steps is gone through i-th: pairs' windows begin with the step's own bits.
func (v *viterbi) number(i int) int {
	if v.layout.Together > 1 {
		return v.layout.Steps() - 1 - i
	}
	return i
}

// size is how many weights a ring has.
func (v *viterbi) size() int { return v.layout.Rows * v.layout.Cols }

func (v *viterbi) close() {
	v.o.release(v.table)
	v.o.release(v.place)
	v.o.release(v.others)
}

// historyBytes is what M of rings that are coded at a time takes at most.
const historyBytes = 2 << 30

// work is the memory that rings are coded in.
type work struct {
	rings   int // at most
	some    int // pairs of rings that are gone through at a time
	history driver.Ptr
	steps   driver.Ptr // negated weights, [pairs][weights of a ring] of two float16
	edges   driver.Ptr // [rings] where a ring is closed
	windows driver.Ptr // [rings][steps]
}

func (v *viterbi) work(rings int) *work {
	pairs, o := ceil(rings, 2), v.o
	each := 4 * v.edges * (v.layout.Steps() + 1)
	w := &work{rings: rings, some: min(pairs, max(historyBytes/each/o.dev.Info.SMs, 1)*o.dev.Info.SMs)}
	w.history = o.scratch(w.some * each)
	w.steps = o.scratch(4 * pairs * v.size())
	w.edges = o.scratch(4 * 2 * pairs)
	w.windows = o.scratch(2 * 2 * pairs * v.layout.Steps())
	if o.err == nil {
		o.fail(o.stream.Fill8(w.steps, 0, 4*pairs*v.size())) // of a ring that makes the last pair full
	}
	return w
}

func (v *viterbi) release(w *work) {
	for _, at := range []driver.Ptr{w.history, w.steps, w.edges, w.windows} {
		v.o.release(at)
	}
}

// ahead is how many steps the first pass, which is free, has on each side of a ring's beginning. The fewer bits a step adds, the longer a
// path depends on where it began.
func (v *viterbi) ahead() int {
	switch {
	case v.layout.Together == 1:
		return 64
	case v.layout.Rate <= 6:
		return 48
	}
	return 32
}

// choose queues the choice of windows for the steps of w.
func (v *viterbi) choose(w *work) {
	steps, bits, ahead := v.layout.Steps(), v.layout.Bits(0), v.ahead()
	team, block := 32, 128
	if bits > 8 {
		team = 1 << bits / 8
		block = team
	}
	pass := func(from, pairs, first, count, keep int, begin, windows driver.Ptr) {
		at := w.steps + driver.Ptr(4*v.size()*from)
		v.o.start(v.forward, driver.Launch{Grid: driver.Dim{X: uint32(min(pairs, v.o.dev.Info.SMs))}, Block: driver.Dim{X: viterbiThreads}, Shared: v.shared},
			[]any{w.history, at, v.table, v.others, begin, first, count, keep, pairs})
		v.o.start(v.back, driver.Launch{Grid: driver.Dim{X: uint32(ceil(2*pairs*team, block))}, Block: driver.Dim{X: uint32(block)}},
			[]any{windows, w.edges + driver.Ptr(8*from), w.history, at, v.table, first, count, keep, 2 * pairs})
	}
	for from, all := 0, ceil(w.rings, 2); from < all; from += w.some {
		pairs := min(w.some, all-from)
		pass(from, pairs, steps-ahead, 2*ahead, ahead, 0, 0)
		pass(from, pairs, 0, steps, 0, w.edges+driver.Ptr(8*from), w.windows+driver.Ptr(2*2*from*steps))
	}
}
