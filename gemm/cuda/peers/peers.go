// Package peers adds up arrays of several GPUs of one process, and collects them.
//
// Small arrays are sent by one kernel a GPU: each writes its words to all others' memory, takes theirs as they come and adds all up in the
// order of ranks, so that every GPU has the same bits each time. Such a kernel can be part of a graph, as messages are counted
// on the GPU. Large arrays go by NCCL where it is there.
package peers

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
)

//go:embed peers.cu
var source string

// What peers.cuh and the kernels are built on.
const (
	MaxRanks = 8
	blocks   = 64
	boxWords = 8192 // of a block
	threads  = 512
	sends    = 1
	takes    = 2
)

// Small is the most bytes that are sent by kernels where there is NCCL.
const Small = 1 << 20

// Kernel returns the kernels.
func Kernel() driver.Kernel {
	return driver.Kernel{Name: "peers.cu", Source: ptx.Instructions() + ptx.Peers() + source, PTX: compiled}
}

// compiled says that there is no PTX.
func compiled(driver.DeviceInfo) ([]byte, error) {
	return nil, errors.New("sums over several GPUs are compiled when they are needed")
}

// Team is the GPUs, each with a rank: its place among them.
type Team struct {
	cuda  *driver.CUDA
	devs  []*driver.Device
	seats []*Seat
	ended *driver.HostBuffer // a word that kernels look at
	comms func() ([]*driver.Comm, error)
	large []*driver.Comm // once they were asked for

	mu       sync.Mutex
	waiting  int
	open     chan struct{} // closed when all have come, or one has failed
	failed   bool
	meetings atomic.Int64 // that have ended, by all having come or one having failed
}

// NewTeam connects devices, at most [MaxRanks], each of which has the rank of its place. It must not be called inside Do.
func NewTeam(c *driver.CUDA, devs []*driver.Device) (t *Team, err error) {
	if len(devs) < 2 || len(devs) > MaxRanks {
		return nil, fmt.Errorf("%d GPUs side by side: want 2 to %d", len(devs), MaxRanks)
	}
	if err := c.ConnectPeers(devs); err != nil {
		return nil, err
	}
	t = &Team{cuda: c, devs: devs, open: make(chan struct{})}
	t.comms = sync.OnceValues(func() (comms []*driver.Comm, err error) {
		t.large, err = c.NewComms(devs)
		return t.large, err
	})
	err = devs[0].Do(func() (err error) {
		if t.ended, err = devs[0].AllocHost(64); err == nil {
			clear(t.ended.Bytes())
		}
		return err
	})
	for rank, d := range devs {
		if err == nil {
			s := &Seat{Rank: rank, team: t, dev: d}
			t.seats = append(t.seats, s)
			err = d.Do(s.make)
		}
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Size returns how many GPUs there are.
func (t *Team) Size() int { return len(t.devs) }

// Seat returns the part of a device.
func (t *Team) Seat(rank int) *Seat { return t.seats[rank] }

// Close gives everything back, when nothing is queued any more. It must not be called inside Do.
func (t *Team) Close() error {
	var errs []error
	if t.large != nil {
		errs = append(errs, driver.CloseComms(t.large))
	}
	for _, s := range t.seats {
		errs = append(errs, s.dev.Do(s.close))
	}
	if t.ended != nil {
		errs = append(errs, t.devs[0].Do(t.ended.Close))
	}
	return errors.Join(errs...)
}

// Fail tells all that one cannot go on: nobody waits any more, and what was to be added up is lost.
func (t *Team) Fail() {
	if t.fail() {
		t.ended.Bytes()[0] = 1
	}
}

// fail ends all meetings, and reports whether it is the first time.
func (t *Team) fail() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed {
		return false
	}
	t.failed = true
	t.meetings.Add(1)
	close(t.open)
	return true
}

// awake is how often one looks for the others before it sleeps: some hundred microseconds.
const awake = 1 << 18

// ErrFailed is in the error of those that another has failed.
var ErrFailed = errors.New("another GPU has failed")

// Meet waits until all have called it. Before a message that no graph has, who has come this far asks for its part at once: none
// waits for one that waits for memory, which may take until the GPUs have nothing to do.
func (t *Team) Meet() error {
	t.mu.Lock()
	if t.failed {
		t.mu.Unlock()
		return ErrFailed
	}
	open, ended := t.open, t.meetings.Load()
	if t.waiting++; t.waiting == len(t.devs) {
		t.waiting, t.open = 0, make(chan struct{})
		t.meetings.Add(1)
		close(open)
	}
	t.mu.Unlock()
	// To be woken takes as long as a layer of a prompt: those that come soon are waited for awake.
	if runtime.GOMAXPROCS(0) > len(t.devs) {
		for range awake {
			if t.meetings.Load() != ended {
				break
			}
		}
	}
	<-open
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed && t.open == open {
		return ErrFailed
	}
	return nil
}

// Seat is a device's part. Each calls the same methods in the same order, on its device's goroutine.
type Seat struct {
	Rank int

	team      *Team
	dev       *driver.Device
	box, sent driver.Ptr
	module    *driver.Module
	functions map[string]*driver.Function
	args      driver.Args
}

// Ranks returns how many there are.
func (s *Seat) Ranks() int { return len(s.team.devs) }

// Team returns all.
func (s *Seat) Team() *Team { return s.team }

// BoxBytes is the room of a GPU for what so many blocks of all are sent.
func BoxBytes(ranks, blocks int) int { return blocks * 2 * ranks * boxWords * 8 }

func (s *Seat) make() (err error) {
	n := BoxBytes(s.Ranks(), blocks)
	if s.box, err = s.dev.Alloc(n); err != nil {
		return err
	}
	if s.sent, err = s.dev.Alloc(4 * blocks); err != nil {
		return err
	}
	if err = errors.Join(s.dev.Fill8(s.box, 0, n), s.dev.Fill8(s.sent, 0, 4*blocks)); err != nil {
		return err
	}
	if s.module, err = s.dev.LoadKernel(Kernel()); err != nil {
		return err
	}
	s.functions = make(map[string]*driver.Function)
	for _, name := range []string{"peers_sum_f32", "peers_sum_f16", "peers_sum_bf16", "peers_gather"} {
		if s.functions[name], err = s.module.Function(name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Seat) close() error {
	errs := []error{s.dev.Free(s.box), s.dev.Free(s.sent)}
	if s.module != nil {
		errs = append(errs, s.module.Close())
	}
	return errors.Join(errs...)
}

// Peers returns the struct of that name that kernels take, of peers.cuh. It is there once all seats are made.
func (s *Seat) Peers() []byte {
	boxes := make([]driver.Ptr, s.Ranks())
	for i, other := range s.team.seats {
		boxes[i] = other.box
	}
	return Bytes(boxes, s.sent, s.team.ended.Ptr(), s.Rank)
}

// Bytes returns it of one of some GPUs, with their boxes, what it counts messages by, and what says that one has failed.
func Bytes(boxes []driver.Ptr, sent, ended driver.Ptr, rank int) []byte {
	var b []byte
	for i := range MaxRanks {
		var at driver.Ptr
		if i < len(boxes) {
			at = boxes[i]
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(sent))
	b = binary.LittleEndian.AppendUint64(b, uint64(ended))
	b = binary.LittleEndian.AppendUint32(b, uint32(rank))
	return binary.LittleEndian.AppendUint32(b, uint32(len(boxes)))
}

// What kernels of other packages go by: a message has at most so many blocks, and of each so many words of 4 bytes. SendsAndTakes is what a
// launch does as a whole.
const (
	MaxBlocks     = blocks
	MaxWords      = boxWords
	SendsAndTakes = sends | takes
)

// message is words of 4 bytes as blocks send them.
func message(words int) (grid, each int) {
	grid = min((words+threads-1)/threads, blocks)
	each = (words + grid - 1) / grid
	each = (each + 31) / 32 * 32 // whole lines
	return (words + each - 1) / each, each
}

// kernels are the sums by type.
var kernels = map[driver.DType]string{driver.F32: "peers_sum_f32", driver.F16: "peers_sum_f16", driver.BF16: "peers_sum_bf16"}

// Sum queues y[i] = Σ x[i] over all GPUs, n elements, added in float32 in the order of ranks. y may be x; both begin at a multiple
// of 4 bytes. Arrays above [Small] are added by NCCL, in an order that depends on their length and the number of GPUs alone.
func (s *Seat) Sum(stream *driver.Stream, y, x driver.Ptr, n int, t driver.DType) error {
	if n*t.Size() > Small {
		comm, err := s.comm()
		if err != nil || comm != nil {
			if err == nil {
				err = comm.AllReduce(stream, y, x, n, t)
			}
			return err
		}
	}
	return s.SumSmall(stream, y, x, n, t)
}

// comm returns the device's part in NCCL, nil where that is not there.
func (s *Seat) comm() (*driver.Comm, error) {
	comms, err := s.team.comms()
	var missing *driver.MissingError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return comms[s.Rank], nil
}

// SumSmall is Sum by kernels alone, as many as it takes.
func (s *Seat) SumSmall(stream *driver.Stream, y, x driver.Ptr, n int, t driver.DType) error {
	if (y|x)%4 != 0 {
		return fmt.Errorf("a sum of %v at %#x and %#x", t, x, y)
	}
	most := blocks * boxWords * 4 / t.Size()
	for from := 0; from < n; from += most {
		some := min(most, n-from)
		at := driver.Ptr(from * t.Size())
		grid, each := message((some*t.Size() + 3) / 4)
		err := s.launch(stream, kernels[t], grid, s.args.Reset().Struct(s.Peers()).Ptr(y+at).Ptr(x+at).I64(int64(some)).Int(each).Int(SendsAndTakes))
		if err != nil {
			return err
		}
	}
	return nil
}

// Gather queues the collection of rows of cols floats of each GPU, beside each other in rows of y on all.
func (s *Seat) Gather(stream *driver.Stream, y, x driver.Ptr, rows, cols int) error {
	most := blocks * boxWords / cols
	if most == 0 {
		return fmt.Errorf("a row of %d floats", cols)
	}
	for from := 0; from < rows; from += most {
		some := min(most, rows-from)
		grid, each := message(some * cols)
		toX, toY := driver.Ptr(4*from*cols), driver.Ptr(4*from*cols*s.Ranks())
		err := s.launch(stream, "peers_gather", grid,
			s.args.Reset().Struct(s.Peers()).Ptr(y+toY).Ptr(x+toX).I64(int64(some*cols)).Int(cols).Int(each).Int(SendsAndTakes))
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Seat) launch(stream *driver.Stream, name string, grid int, a *driver.Args) error {
	l := driver.Launch{Grid: driver.Dim{X: uint32(grid)}, Block: driver.Dim{X: threads}, Programmatic: s.dev.Info.Major >= 9}
	return s.functions[name].Launch(stream, l, a)
}
