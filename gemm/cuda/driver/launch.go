package driver

import (
	"fmt"
	"math"
	"runtime"
	"unsafe"
)

// Dim is the size of a grid, a block or a cluster. A zero counts as 1.
type Dim struct{ X, Y, Z uint32 }

// Launch says how a kernel runs.
type Launch struct {
	Grid    Dim // blocks
	Block   Dim // threads
	Shared  int // bytes of dynamic shared memory per block
	Cluster Dim // blocks per cluster; zero means what the kernel declares

	// Programmatic lets the kernel begin before the one in front of it in the
	// stream has ended (programmatic dependent launch): as soon as all its
	// blocks have said griddepcontrol.launch_dependents or ended. The kernel
	// says griddepcontrol.wait before it touches what the other one writes.
	Programmatic bool
	// Cooperative makes all blocks run at the same time, or the launch fail.
	Cooperative bool
}

// cLaunchConfig is CUlaunchConfig.
type cLaunchConfig struct {
	grid, block [3]uint32
	shared      uint32
	_           uint32
	stream      uintptr
	attrs       unsafe.Pointer
	numAttrs    uint32
	_           uint32
}

// cLaunchAttribute is CUlaunchAttribute, whose value is a union of 64 bytes.
type cLaunchAttribute struct {
	id    uint32
	_     uint32
	value [8]uint64
}

// The numbers of CUlaunchAttributeID.
const (
	launchCooperative  = 2
	launchCluster      = 4
	launchProgrammatic = 6
	maxLaunchAttrs     = 3
)

// Sizes of an Args.
const (
	maxArgs     = 48
	maxArgBytes = 4096 // what every GPU takes
)

// Args holds a kernel's arguments, in order. One may be used again and again:
// after a launch [Args.Reset] begins anew, and launching twice passes the same
// arguments. The types must be the kernel's: nothing checks them. The zero
// value is ready to use; an Args must not be copied.
type Args struct {
	config cLaunchConfig
	attrs  [maxLaunchAttrs]cLaunchAttribute
	values [maxArgs]unsafe.Pointer
	call   [4]uintptr
	n      int
	used   int
	err    error
	data   [maxArgBytes / 8]uint64
}

// Reset removes all arguments and returns a.
func (a *Args) Reset() *Args {
	a.n, a.used, a.err = 0, 0, nil
	return a
}

// Ptr adds an address on the GPU, a 64-bit argument.
func (a *Args) Ptr(p Ptr) *Args { return a.U64(uint64(p)) }

// U64 adds a 64-bit integer.
func (a *Args) U64(v uint64) *Args {
	if w := a.add(8); w != nil {
		w[0] = v
	}
	return a
}

// I64 adds a 64-bit integer.
func (a *Args) I64(v int64) *Args { return a.U64(uint64(v)) }

// U32 adds a 32-bit integer.
func (a *Args) U32(v uint32) *Args {
	if w := a.add(4); w != nil {
		w[0] = uint64(v) // little-endian: the low half comes first
	}
	return a
}

// I32 adds a 32-bit integer.
func (a *Args) I32(v int32) *Args { return a.U32(uint32(v)) }

// Int adds a 32-bit integer; one that does not fit makes the launch fail.
func (a *Args) Int(v int) *Args {
	if v != int(int32(v)) && a.err == nil {
		a.err = fmt.Errorf("argument %d: %d does not fit in 32 bits", a.n, v)
	}
	return a.U32(uint32(v))
}

// F32 adds a float.
func (a *Args) F32(v float32) *Args { return a.U32(math.Float32bits(v)) }

// Struct adds a struct or an array by value, given as its memory in C's
// layout, up to a multiple of its alignment. See [Bytes].
func (a *Args) Struct(v []byte) *Args {
	if w := a.add(len(v)); len(w) > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(v)), v)
	}
	return a
}

// add makes room for an argument of n bytes and returns its words, or nil
// where there is no room left.
func (a *Args) add(n int) []uint64 {
	words := (n + 7) / 8
	if a.n == maxArgs || words == 0 || a.used+words > len(a.data) {
		if a.err == nil {
			a.err = fmt.Errorf("argument %d of %d bytes: a kernel takes at most %d arguments of %d bytes in all, none empty",
				a.n, n, maxArgs, maxArgBytes)
		}
		return nil
	}
	w := a.data[a.used : a.used+words]
	a.values[a.n] = unsafe.Pointer(&w[0])
	a.used += words
	a.n++
	return w
}

// prepare fills in the configuration of a launch.
func (a *Args) prepare(l *Launch, stream uintptr) error {
	if a.err != nil {
		return a.err
	}
	if l.Shared < 0 {
		return fmt.Errorf("%d bytes of shared memory", l.Shared)
	}
	a.config = cLaunchConfig{
		grid: l.Grid.atLeastOne(), block: l.Block.atLeastOne(),
		shared: uint32(l.Shared), stream: stream,
		attrs: unsafe.Pointer(&a.attrs[0]),
	}
	n := 0
	if l.Programmatic {
		a.attrs[n] = cLaunchAttribute{id: launchProgrammatic, value: [8]uint64{1}}
		n++
	}
	if l.Cluster != (Dim{}) {
		c := l.Cluster.atLeastOne()
		a.attrs[n] = cLaunchAttribute{id: launchCluster, value: [8]uint64{uint64(c[0]) | uint64(c[1])<<32, uint64(c[2])}}
		n++
	}
	if l.Cooperative {
		a.attrs[n] = cLaunchAttribute{id: launchCooperative, value: [8]uint64{1}}
		n++
	}
	a.config.numAttrs = uint32(n)
	return nil
}

func (d Dim) atLeastOne() [3]uint32 { return [3]uint32{max(d.X, 1), max(d.Y, 1), max(d.Z, 1)} }

// Launch queues the kernel. It returns before the kernel runs and allocates
// nothing; the arguments are copied, so that a may change at once. A launch of
// too few arguments is not noticed.
func (f *Function) Launch(s *Stream, l Launch, a *Args) error {
	if err := a.prepare(&l, s.handle); err != nil {
		return fmt.Errorf("kernel %s: %w", f.name, err)
	}
	// The pointers below lead into a, which is on the heap because it holds
	// pointers to itself, and the heap does not move.
	a.call = [4]uintptr{uintptr(unsafe.Pointer(&a.config)), f.handle, uintptr(unsafe.Pointer(&a.values[0])), 0}
	r := call(f.api.launchKernelEx, a.call[:]...)
	runtime.KeepAlive(a)
	if int32(r) == 0 {
		return nil
	}
	return fmt.Errorf("kernel %s: %w", f.name, f.api.check("cuLaunchKernelEx", r))
}

// MaxClusters returns how many clusters of this launch's shape the GPU can run
// at the same time.
func (f *Function) MaxClusters(l Launch) (int, error) {
	a := new(Args)
	if err := a.prepare(&l, 0); err != nil {
		return 0, err
	}
	var n int32
	err := f.api.check("cuOccupancyMaxActiveClusters", call(f.api.occupancyC,
		uintptr(unsafe.Pointer(&n)), f.handle, uintptr(unsafe.Pointer(&a.config))))
	if err != nil {
		return 0, fmt.Errorf("kernel %s: %w", f.name, err)
	}
	return int(n), nil
}
