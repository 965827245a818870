package driver

import (
	"context"
	"errors"
	"fmt"
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
	Units  int     // of work
}

// EachJoules returns what a unit of work took.
func (e *Energy) EachJoules() float64 { return e.Joules / float64(e.Units) }

// Limits of [Meter.Over].
const (
	meterStill = time.Second            // after which a counter that has not changed is not waited for
	meterBegin = 300 * time.Millisecond // of work before the counter counts
)

// Over has work done over and over, from one change of the counter to another that comes after at least some time, and returns what was taken
// between. Work waits for the GPU, and returns how many units it did; what it took is known the better the shorter it is. Before the first
// change the GPU is at work for a while, so that its clock and power are those that it keeps.
func (m *Meter) Over(ctx context.Context, least time.Duration, work func() (units int, err error)) (Energy, error) {
	var e Energy
	first, err := m.millijoules()
	if err != nil {
		return e, err
	}
	begin := time.Now()
	last, changed, counted := first, begin, false
	var from time.Time
	for {
		if err := ctx.Err(); err != nil {
			return e, err
		}
		n, err := work()
		if err != nil {
			return e, err
		}
		now, err := m.millijoules()
		if err != nil {
			return e, err
		}
		at := time.Now()
		e.Units += n
		switch {
		case now != last:
			last, changed = now, at
			if counted && at.Sub(from) >= least {
				e.Joules = float64(now-first) / 1e3
				e.Watts = e.Joules / at.Sub(from).Seconds()
				if e.Units == 0 {
					return e, errors.New("no work was done")
				}
				return e, nil
			}
			if !counted && at.Sub(begin) >= meterBegin {
				first, from, counted, e.Units = now, at, true, 0
			}
		case at.Sub(changed) > meterStill:
			return e, fmt.Errorf("the GPU's counter of energy stands still at %.1f J", float64(now)/1e3)
		}
	}
}
