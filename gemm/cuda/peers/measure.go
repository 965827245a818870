package peers

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// Each runs f for each rank inside Do of its device, all at the same time, and returns what failed.
func (t *Team) Each(f func(s *Seat) error) error {
	errs := make([]error, len(t.seats))
	done := make(chan struct{})
	for i, s := range t.seats {
		go func() {
			errs[i] = s.dev.Do(func() error { return f(s) })
			if errs[i] != nil {
				t.Fail()
			}
			done <- struct{}{}
		}()
	}
	for range t.seats {
		<-done
	}
	return errors.Join(errs...)
}

// Device returns the device of a seat.
func (s *Seat) Device() *driver.Device { return s.dev }

// Way is how arrays are added up.
type Way string

// The ways: as [Seat.Sum] chooses, by kernels, or by NCCL.
const (
	Chosen    Way = "chosen"
	ByKernels Way = "kernels"
	ByNCCL    Way = "NCCL"
)

func (s *Seat) sum(by Way, stream *driver.Stream, y, x driver.Ptr, n int, t driver.DType) error {
	switch by {
	case ByKernels:
		return s.SumSmall(stream, y, x, n, t)
	case ByNCCL:
		comms, err := s.team.comms()
		if err != nil {
			return err
		}
		return comms[s.Rank].AllReduce(stream, y, x, n, t)
	}
	return s.Sum(stream, y, x, n, t)
}

// replays are those of a graph that are timed, of sums one behind the other.
const (
	replays    = 9
	sumsOfEach = 40
)

// Time returns what a sum of an array of so many bytes, of float16, takes within a graph of such sums: the median of some replays,
// on the device that took longest.
func (t *Team) Time(by Way, bytes int) (time.Duration, error) {
	took := make([]time.Duration, len(t.seats))
	err := t.Each(func(s *Seat) (err error) {
		took[s.Rank], err = s.time(by, bytes)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("timing sums of %d bytes by %s: %w", bytes, by, err)
	}
	return slices.Max(took), nil
}

func (s *Seat) time(by Way, bytes int) (took time.Duration, err error) {
	d := s.dev
	stream, err := d.NewStream()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	at, err := d.Alloc(2 * bytes)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.Free(at)) }()
	sum := func() error { return s.sum(by, stream, at+driver.Ptr(bytes), at, bytes/2, driver.F16) }
	if err := errors.Join(d.Fill8(at, 0, 2*bytes), s.team.Meet(), sum(), stream.Sync()); err != nil {
		return 0, err
	}
	g, err := stream.Capture(func() error {
		for range sumsOfEach {
			if err := sum(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	exec, err := g.Instantiate()
	if err = errors.Join(err, g.Close()); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, exec.Close()) }()
	var events [2]*driver.Event
	for i := range events {
		if events[i], err = d.NewEvent(); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, events[i].Close()) }()
	}
	if err := errors.Join(exec.Upload(stream), stream.Sync(), s.team.Meet()); err != nil {
		return 0, err
	}
	var all []time.Duration
	for range replays {
		// The first sum is there for all to begin together.
		if err := errors.Join(s.team.Meet(), sum(), events[0].Record(stream), exec.Launch(stream), events[1].Record(stream), stream.Sync()); err != nil {
			return 0, err
		}
		since, err := events[1].Since(events[0])
		if err != nil {
			return 0, err
		}
		all = append(all, since/sumsOfEach)
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}

// SelfTest adds random arrays of many lengths and types up, by kernels in order of ranks to the bit, and by NCCL, if it is there, within
// its rounding; within graphs as well; and collects rows. It returns how many sums it has checked.
func (t *Team) SelfTest(seed uint64) (sums int, err error) {
	ways := []Way{ByKernels}
	if _, err := t.comms(); err == nil {
		ways = append(ways, ByNCCL)
	}
	for _, c := range []struct {
		t driver.DType
		n int
	}{
		{driver.F16, 1}, {driver.F16, 8192}, {driver.BF16, 4095}, {driver.F32, 4096}, {driver.F16, 131_072}, {driver.BF16, 300_001}, {driver.F32, 700_000},
	} {
		x, want := randomParts(rand.New(rand.NewPCG(seed, uint64(c.n))), c.t, len(t.seats), c.n)
		for _, by := range ways {
			if err := t.Each(func(s *Seat) error { return s.check(by, c.t, x[s.Rank], want, c.n) }); err != nil {
				return sums, fmt.Errorf("a sum of %d numbers, %v, by %s: %w", c.n, c.t, by, err)
			}
			sums += 3
		}
	}
	const rows, cols = 3, 64_128
	x, _ := randomParts(rand.New(rand.NewPCG(seed, 1)), driver.F32, len(t.seats), rows*cols)
	err = t.Each(func(s *Seat) error { return s.checkGather(x, rows, cols) })
	return sums, err
}

// randomParts returns n numbers of a type for each rank, and their sums in the order of ranks, rounded to it.
func randomParts(r *rand.Rand, t driver.DType, ranks, n int) (each [][]byte, sum []byte) {
	sums := make([]float32, n)
	for range ranks {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		raw := encode(t, v)
		for i, x := range decode(t, raw) {
			sums[i] += x
		}
		each = append(each, raw)
	}
	return each, encode(t, sums)
}

// check adds an array up once, and twice within a graph.
func (s *Seat) check(by Way, dtype driver.DType, x, want []byte, n int) (err error) {
	d := s.dev
	stream, err := d.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	at, err := d.Upload(x)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Free(at)) }()
	to, err := d.Alloc(len(x))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Free(to)) }()
	sum := func() error { return s.sum(by, stream, to, at, n, dtype) }
	got := make([]byte, len(x))
	look := func() error {
		if err := errors.Join(stream.Sync(), d.Read(got, to), d.Fill8(to, 0xff, len(x))); err != nil {
			return err
		}
		return differs(dtype, got, want, by == ByNCCL)
	}
	if err := errors.Join(s.team.Meet(), sum(), look(), s.team.Meet()); err != nil {
		return err
	}
	g, err := stream.Capture(sum)
	if err != nil {
		return err
	}
	exec, err := g.Instantiate()
	if err = errors.Join(err, g.Close()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, exec.Close()) }()
	if err := errors.Join(exec.Upload(stream), stream.Sync()); err != nil {
		return err
	}
	for range 2 {
		if err := errors.Join(s.team.Meet(), exec.Launch(stream), look()); err != nil {
			return fmt.Errorf("in a graph: %w", err)
		}
	}
	return s.team.Meet()
}

// differs compares sums, to the bit or within two roundings of the type.
func differs(t driver.DType, got, want []byte, rounded bool) error {
	if bytes.Equal(got, want) {
		return nil
	}
	g, w := decode(t, got), decode(t, want)
	bound := map[driver.DType]float32{driver.F32: 1e-6, driver.F16: 4e-3, driver.BF16: 3e-2}[t]
	for i := range w {
		if d := g[i] - w[i]; !rounded && d != 0 || !(d*d <= bound*bound*(1+w[i]*w[i])) {
			return fmt.Errorf("number %d is %v where %v belongs", i, g[i], w[i])
		}
	}
	return nil
}

func (s *Seat) checkGather(x [][]byte, rows, cols int) (err error) {
	d := s.dev
	stream, err := d.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	at, err := d.Upload(x[s.Rank])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Free(at)) }()
	var want []byte
	for row := range rows {
		for _, part := range x {
			want = append(want, part[4*row*cols:4*(row+1)*cols]...)
		}
	}
	to, err := d.Alloc(len(want))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Free(to)) }()
	got := make([]byte, len(want))
	if err := errors.Join(s.team.Meet(), s.Gather(stream, to, at, rows, cols), stream.Sync(), d.Read(got, to), s.team.Meet()); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%d rows of %d numbers are collected to others", rows, cols)
	}
	return nil
}

// encode writes numbers in a type.
func encode(t driver.DType, v []float32) []byte {
	raw := make([]byte, t.Size()*len(v))
	switch t {
	case driver.F16:
		num.EncodeF16(raw, v)
	case driver.BF16:
		num.EncodeBF16(raw, v)
	default:
		num.EncodeF32(raw, v)
	}
	return raw
}

// decode reads them.
func decode(t driver.DType, raw []byte) []float32 {
	v := make([]float32, len(raw)/t.Size())
	switch t {
	case driver.F16:
		num.DecodeF16(v, raw)
	case driver.BF16:
		num.DecodeBF16(v, raw)
	default:
		num.DecodeF32(v, raw)
	}
	return v
}
