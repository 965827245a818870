package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"
)

const purposeNVML = "measure the energy that a GPU takes"

// nvmlAPI holds the functions of NVML, NVIDIA's management library, which comes with the driver.
type nvmlAPI struct {
	lib *library

	errorString, init, handleByBus, energy uintptr
}

func openNVML(p places) (*nvmlAPI, error) {
	lib, err := p.find(purposeNVML, []string{"libnvidia-ml.so.1"}, nil)
	if err != nil {
		return nil, err
	}
	a := &nvmlAPI{lib: lib}
	err = lib.resolve(purposeNVML, []symbol{
		{"nvmlErrorString", &a.errorString},
		{"nvmlInit_v2", &a.init},
		{"nvmlDeviceGetHandleByPciBusId_v2", &a.handleByBus},
		{"nvmlDeviceGetTotalEnergyConsumption", &a.energy},
	})
	if err == nil {
		err = a.check("nvmlInit_v2", call(a.init))
	}
	return a, err
}

func (a *nvmlAPI) check(op string, result uintptr) error {
	code := int32(result)
	if code == 0 {
		return nil
	}
	text := call(a.errorString, uintptr(code)) // a static string
	return &Error{Op: op, Code: int(code), Name: goString(*(**byte)(unsafe.Pointer(&text)))}
}

// Meter reads how much energy a GPU has taken. It may be used on any goroutine.
type Meter struct {
	api    *nvmlAPI
	handle uintptr
}

// maxBusID is the room for a name such as 0000:81:00.0.
const maxBusID = 32

// Meter opens NVML for the device. It fails where the library is missing, or the GPU, being older than Volta or a part of one, does not count.
func (d *Device) Meter() (*Meter, error) {
	a, err := d.cuda.nvml()
	if err != nil {
		return nil, err
	}
	if d.api.deviceGetPCIBusID == 0 {
		return nil, &MissingError{Library: "cuDeviceGetPCIBusId", Purpose: purposeNVML}
	}
	bus := make([]byte, maxBusID)
	err = d.api.check("cuDeviceGetPCIBusId", call(d.api.deviceGetPCIBusID, uintptr(unsafe.Pointer(&bus[0])), maxBusID, uintptr(d.dev)))
	if err != nil {
		return nil, err
	}
	m := &Meter{api: a}
	err = a.check("nvmlDeviceGetHandleByPciBusId_v2", call(a.handleByBus, uintptr(unsafe.Pointer(&bus[0])), uintptr(unsafe.Pointer(&m.handle))))
	if err == nil {
		_, err = m.millijoules()
	}
	return m, err
}

// millijoules returns the counter: of the whole GPU, its memory included, since the driver was loaded. It changes some ten or fifty times a
// second.
func (m *Meter) millijoules() (uint64, error) {
	var v uint64
	err := m.api.check("nvmlDeviceGetTotalEnergyConsumption", call(m.api.energy, m.handle, uintptr(unsafe.Pointer(&v))))
	return v, err
}

// Energy is what some work took of a GPU's energy.
type Energy struct {
	Joules float64 // in all
	Watts  float64 // on average
	Units  float64 // of work
}

// EachJoules returns what a unit of work took.
func (e *Energy) EachJoules() float64 { return e.Joules / e.Units }

// Limits of [Meter.Over].
const (
	meterStill = time.Second            // after which a counter that has not changed is not waited for
	meterBegin = 300 * time.Millisecond // of work before the counter counts
	meterPoll  = 2 * time.Millisecond
)

// Over has work done over and over, from one change of the counter to another that comes after at least some time, and returns what was taken
// between. Work waits for the GPU, and returns how many units it did, at an even pace. The counter is read beside it, for that takes milliseconds
// in which the GPU would have nothing to do. Before the first change the GPU is at work for a while, so that its clock and power are
// those that it keeps.
func (m *Meter) Over(ctx context.Context, least time.Duration, work func() (units int, err error)) (Energy, error) {
	w, err := m.watch()
	if err != nil {
		return Energy{}, err
	}
	defer w.stop()
	begin := time.Now()
	done := []progress{{0, 0}}
	for {
		if err := ctx.Err(); err != nil {
			return Energy{}, err
		}
		n, err := work()
		if err != nil {
			return Energy{}, err
		}
		last := done[len(done)-1]
		now := progress{time.Since(begin), last.units + float64(n)}
		done = append(done, now)
		changes, err := w.changes()
		if err != nil {
			return Energy{}, err
		}
		from := slices.IndexFunc(changes, func(c change) bool { return c.at.Sub(begin) >= meterBegin })
		if from < 0 {
			continue
		}
		to := slices.IndexFunc(changes, func(c change) bool { return c.at.Sub(changes[from].at) >= least })
		if to < 0 || changes[to].at.Sub(begin) > now.at {
			continue
		}
		first, second := changes[from], changes[to]
		e := Energy{
			Joules: float64(second.millijoules-first.millijoules) / 1e3,
			Units:  unitsAt(done, second.at.Sub(begin)) - unitsAt(done, first.at.Sub(begin)),
		}
		e.Watts = e.Joules / second.at.Sub(first.at).Seconds()
		if e.Units <= 0 {
			return e, errors.New("no work was done")
		}
		return e, nil
	}
}

// progress is how many units of work are done after some time.
type progress struct {
	at    time.Duration
	units float64
}

// unitsAt returns how many units are done at a time, between two points by a line.
func unitsAt(done []progress, at time.Duration) float64 {
	i := slices.IndexFunc(done, func(p progress) bool { return p.at >= at })
	if i <= 0 {
		return 0
	}
	a, b := done[i-1], done[i]
	return a.units + (b.units-a.units)*float64(at-a.at)/float64(b.at-a.at)
}

// change is one of the counter.
type change struct {
	at          time.Time
	millijoules uint64
}

// watcher reads a counter over and over.
type watcher struct {
	mu   sync.Mutex
	seen []change
	err  error

	quit chan struct{}
	done sync.WaitGroup
}

// watch starts to read the counter.
func (m *Meter) watch() (*watcher, error) {
	last, err := m.millijoules()
	if err != nil {
		return nil, err
	}
	w := &watcher{quit: make(chan struct{})}
	changed := time.Now()
	w.done.Go(func() {
		tick := time.NewTicker(meterPoll)
		defer tick.Stop()
		for {
			select {
			case <-w.quit:
				return
			case <-tick.C:
			}
			now, err := m.millijoules()
			at := time.Now()
			w.mu.Lock()
			switch {
			case err != nil:
				w.err = err
			case now != last:
				last, changed = now, at
				w.seen = append(w.seen, change{at, now})
			case at.Sub(changed) > meterStill:
				w.err = fmt.Errorf("the GPU's counter of energy stands still at %.1f J", float64(now)/1e3)
			}
			w.mu.Unlock()
		}
	})
	return w, nil
}

// changes returns those so far.
func (w *watcher) changes() ([]change, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen), w.err
}

func (w *watcher) stop() {
	close(w.quit)
	w.done.Wait()
}
