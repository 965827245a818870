package learn

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cpu"
)

// TestDevices: what is learned on several devices, among which the windows of steps of three are divided, is what one learns, to the
// bit; and a run goes on where one of another number of devices stopped.
func TestDevices(t *testing.T) {
	train, hold := texts(t, 8, 3, 24)
	all := []*model.Model{openTiny(t, 1), openTiny(t, 1), openTiny(t, 1)}
	for _, tc := range []struct {
		name string
		o    Options
	}{
		{"lutq", Options{Mode: Lutq, Rate: 0.01, Recode: 2, Table: true, Epochs: 2, Batch: 3, Seed: 3}},
		{"flute", Options{Mode: Flute, Rate: 1e-3, Batch: 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := tc.o
			o.Windows, o.Valid = train, hold
			o.Warn = func(s string) { t.Error(s) }
			initial := quantized(t, "layers.1.", 2, 64, weight.F16)
			want, report, err := learned(t.Context(), all[0], initial, o)
			if err != nil {
				t.Fatal(err)
			}
			check := func(o Options, resumed bool) {
				t.Helper()
				got, rep, err := learned(t.Context(), all[0], initial, o)
				if err != nil {
					t.Fatal(err)
				}
				if !same(got, want) {
					t.Errorf("%d devices learn something else", 1+len(o.Beside))
				}
				if diff := cmp.Diff(report, rep, cmpopts.IgnoreFields(Report{}, "ResumedAt", "Seconds", "TokensPerSecond")); diff != "" {
					t.Errorf("%d devices: the report differs (-want +got):\n%s", 1+len(o.Beside), diff)
				}
				if (rep.ResumedAt > 0) != resumed {
					t.Errorf("resumed at step %d", rep.ResumedAt)
				}
			}
			for _, n := range []int{2, 3} {
				o.Beside = all[1:n]
				check(o, false)
			}
			o.State = filepath.Join(t.TempDir(), "state")
			ctx, cancel := context.WithCancel(t.Context())
			o.Progress = func(p Progress) {
				if p.Step == 2 {
					cancel()
				}
			}
			if _, _, err := learned(ctx, all[0], initial, o); !errors.Is(err, context.Canceled) {
				t.Fatalf("stopped: %v", err)
			}
			o.Progress, o.Beside = nil, all[1:2]
			check(o, true)
		})
	}
}

// failing are operations of a device that fails at a product of a gradient.
type failing struct {
	*modelcpu.Ops
	err error
}

func (o *failing) Label() string { return "GPU 1" }

func (o *failing) LinearBack(dx, dy model.Array, rows int, w model.Weight, add bool) {
	o.err = errors.New("out of memory")
	o.Ops.LinearBack(dx, dy, rows, w, add)
}

func (o *failing) Err() error { return o.err }

// TestDevicesFail: what fails on one of several devices ends learning, and names the device. Who asks for more devices than a step has
// windows is told.
func TestDevicesFail(t *testing.T) {
	train, _ := texts(t, 4, 0, 24)
	e, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	bad, err := model.Open(modeltest.Open(t, tinyDir), &failing{Ops: modelcpu.New(e)}, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	initial := quantized(t, "layers.1.", 2, 64, weight.F16)
	o := Options{Mode: Lutq, Windows: train, Batch: 2, Beside: []*model.Model{bad}}
	if _, _, err := learned(t.Context(), openTiny(t, 1), initial, o); err == nil || err.Error() != "GPU 1: out of memory" {
		t.Errorf("a device that fails: error %v", err)
	}
	told := ""
	o.Batch, o.Warn = 1, func(s string) { told = s }
	if _, _, err := learned(t.Context(), openTiny(t, 1), initial, o); err != nil || !strings.Contains(told, "1 of the windows") {
		t.Errorf("steps of one window: error %v, told %q", err, told)
	}
}
