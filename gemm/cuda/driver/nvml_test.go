//go:build linux && (amd64 || arm64) && !nocuda

package driver

import (
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
)

// nvmlSource stands in for NVML: a GPU at one bus that takes 250 W from the first reading on, counted ten times a second.
const nvmlSource = `
#include <string.h>
#include <time.h>
const char *nvmlErrorString(int code) { return code == 6 ? "Not Found" : "Unknown Error"; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
	*handle = (void *)7;
	return strcmp(bus, "0000:81:00.0") ? 6 : 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *mj) {
	static double start;
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	double now = t.tv_sec + t.tv_nsec / 1e9;
	if (start == 0) start = now;
	if (handle != (void *)7) return 2;
	*mj = 1000000 + 25000 * (unsigned long long)((now - start) * 10);
	return 0;
}
`

// busID is what the driver says of a GPU's place.
var busID = purego.NewCallback(func(to *[maxBusID]byte, n int32, dev int32) uintptr {
	if n != maxBusID || dev > 1 {
		return 1
	}
	copy(to[:], "0000:81:00.0\x00")
	to[9] += byte(dev)
	return 0
})

// standIn returns a device whose NVML is made of a source in C.
func standIn(t *testing.T, source string) *Device {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nvml.c"), []byte(source), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(cc, "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "nvml.c")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	api := *fakeFunctions()
	api.deviceGetPCIBusID = busID
	return &Device{api: &api, cuda: &CUDA{nvml: func() (*nvmlAPI, error) { return openNVML(places{first: []string{dir}}) }}}
}

func TestMeter(t *testing.T) {
	d := standIn(t, nvmlSource)
	m, err := d.Meter()
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	e, err := m.Over(context.Background(), 500*time.Millisecond, func() (int, error) {
		calls++
		time.Sleep(2 * time.Millisecond)
		return 10, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Whole steps of the counter, and times to within the work and what a busy machine adds.
	if steps := e.Joules / 25; steps < 5 || steps > 20 || steps != math.Round(steps) {
		t.Errorf("got %v J, want whole steps of 25, some half a second of them", e.Joules)
	}
	if math.Abs(e.Watts-250) > 60 {
		t.Errorf("got %v W, want 250", e.Watts)
	}
	// Some ten units every two milliseconds, or more where the machine is busy.
	if e.Units <= 0 || e.Units >= float64(10*calls) {
		t.Errorf("%v units of %d calls", e.Units, calls)
	}
	if pace := e.Units / (e.Joules / e.Watts); pace > 5100 || pace < 500 {
		t.Errorf("%v units a second", pace)
	}
	if got, want := e.EachJoules(), e.Joules/float64(e.Units); got != want {
		t.Errorf("got %v J each, want %v", got, want)
	}

	failure := errors.New("failure")
	if _, err := m.Over(context.Background(), time.Second, func() (int, error) { return 0, failure }); !errors.Is(err, failure) {
		t.Errorf("got error %v, want the work's", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.Over(ctx, time.Second, func() (int, error) { return 1, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want that of the context", err)
	}
	if _, err := (&Meter{api: m.api, handle: 8}).millijoules(); err == nil || err.Error() != "nvmlDeviceGetTotalEnergyConsumption: Unknown Error (2)" {
		t.Errorf("got error %v of a GPU that is not there", err)
	}
}

func TestUnitsAt(t *testing.T) {
	done := []progress{{0, 0}, {10, 100}, {20, 150}}
	for at, want := range map[time.Duration]float64{0: 0, 5: 50, 10: 100, 12: 110, 20: 150} {
		if got := unitsAt(done, at); got != want {
			t.Errorf("after %d: got %v units, want %v", at, got, want)
		}
	}
}

func TestMeterRefused(t *testing.T) {
	d := standIn(t, nvmlSource)
	d.dev = 1
	var e *Error
	if _, err := d.Meter(); !errors.As(err, &e) || *e != (Error{Op: "nvmlDeviceGetHandleByPciBusId_v2", Code: 6, Name: "Not Found"}) {
		t.Errorf("a GPU that NVML does not have: got error %v", err)
	}
	d.dev = 2
	if _, err := d.Meter(); !errors.As(err, &e) || e.Op != "cuDeviceGetPCIBusId" {
		t.Errorf("a GPU that the driver does not have: got error %v", err)
	}

	d = standIn(t, strings.ReplaceAll(nvmlSource, "*mj = ", "return 3; *mj = "))
	if _, err := d.Meter(); !errors.As(err, &e) || e.Code != 3 {
		t.Errorf("a GPU that does not count: got error %v", err)
	}
	d = standIn(t, strings.ReplaceAll(nvmlSource, "int nvmlInit_v2", "int nvmlInit"))
	var missing *MissingError
	if _, err := d.Meter(); !errors.As(err, &missing) || missing.Library != "nvmlInit_v2" {
		t.Errorf("an old library: got error %v", err)
	}
}

// TestMeterStill has a counter that does not change.
func TestMeterStill(t *testing.T) {
	var still uint64 = 1500
	m := &Meter{api: &nvmlAPI{energy: stillEnergy}, handle: uintptr(unsafe.Pointer(&still))}
	begin := time.Now()
	_, err := m.Over(context.Background(), time.Second, func() (int, error) { time.Sleep(time.Millisecond); return 1, nil })
	if err == nil || !strings.Contains(err.Error(), "stands still at 1.5 J") || time.Since(begin) > 30*time.Second {
		t.Errorf("got error %v after %v", err, time.Since(begin))
	}
}

var stillEnergy = purego.NewCallback(func(handle, to *uint64) uintptr { *to = *handle; return 0 })
