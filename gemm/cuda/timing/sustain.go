package timing

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
)

//go:embed clock.cu
var clockSource string

const clockName = "clockrate"

// clockWait is how long the clock is watched: its nanoseconds come in steps of a microsecond.
const clockWait = 300 * time.Microsecond

// Second is what came of about one second of a product over and over.
type Second struct {
	Us  float64 `json:"us"`  // of a call
	MHz float64 `json:"mhz"` // of a multiprocessor at its end
}

// Sustain calls an arm over and over for a time and returns what came of each second of it. It takes a compiler.
func Sustain(ctx context.Context, d *driver.Device, s *driver.Stream, a *Arm, total time.Duration) (all []Second, err error) {
	clock, err := d.LoadKernel(driver.Kernel{Name: "clock.cu", Source: ptx.Instructions() + clockSource})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clock.Close()) }()
	rate, err := clock.Function(clockName)
	if err != nil {
		return nil, err
	}
	passed, err := d.Alloc(16)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Free(passed), a.release()) }()
	if err := a.capture(s); err != nil {
		return nil, err
	}
	// The first launch loads the graph; the second says how many there are in a second.
	times, err := launches(d, s, a, 1)
	if err == nil {
		times, err = launches(d, s, a, 1)
	}
	if err != nil {
		return nil, err
	}
	each := max(1, int(time.Second/max(times, time.Microsecond)))
	calls := float64(each * a.calls())
	var args driver.Args
	for left := total; left > 0 && ctx.Err() == nil; {
		took, err := launches(d, s, a, each)
		if err != nil {
			return nil, err
		}
		addressAndTime := binary.LittleEndian.AppendUint64(nil, uint64(passed))
		addressAndTime = binary.LittleEndian.AppendUint64(addressAndTime, uint64(clockWait))
		l := driver.Launch{Grid: driver.Dim{X: 1}, Block: driver.Dim{X: 1}}
		got := make([]byte, 16)
		if err := errors.Join(rate.Launch(s, l, args.Reset().Struct(addressAndTime[:8]).Struct(addressAndTime[8:])), s.Sync(), d.Read(got, passed)); err != nil {
			return nil, err
		}
		cycles, ns := binary.LittleEndian.Uint64(got), binary.LittleEndian.Uint64(got[8:])
		if ns == 0 {
			return nil, fmt.Errorf("%s measured nothing", clockName)
		}
		all = append(all, Second{Us: float64(took.Nanoseconds()) / 1e3 / calls, MHz: 1e3 * float64(cycles) / float64(ns)})
		left -= took
	}
	return all, ctx.Err()
}

// launches returns how long so many launches of a captured arm take.
func launches(d *driver.Device, s *driver.Stream, a *Arm, n int) (took time.Duration, err error) {
	begin, err := d.NewEvent()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, begin.Close()) }()
	end, err := d.NewEvent()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end.Close()) }()
	if err := begin.Record(s); err != nil {
		return 0, err
	}
	for range n {
		if err := a.exec.Launch(s); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(end.Record(s), s.Sync()); err != nil {
		return 0, err
	}
	return end.Since(begin)
}
