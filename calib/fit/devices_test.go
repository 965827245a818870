package fit

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/quantizetest"
)

// onDevices has options work on so many CPUs, each by itself.
func (o Options) onDevices(n int) Options {
	o.Devices = n
	o.Open = func(int64) ([]model.Ops, func() error, error) {
		var all []model.Ops
		var engines []*cpu.Engine
		for range n {
			e, err := cpu.New(cpu.Options{Threads: 1})
			if err != nil {
				return nil, nil, err
			}
			all, engines = append(all, modelcpu.New(e)), append(engines, e)
		}
		return all, func() error {
			for _, e := range engines {
				e.Close()
			}
			return nil
		}, nil
	}
	return o
}

// TestDevices: however many devices share a text's windows, the same weights come out.
func TestDevices(t *testing.T) {
	racetest.Skip(t)
	for _, recipe := range []string{
		`{"bits": 3, "codebook": "nf", "scale": "mse", "method": "gptq"}`,
		`{"bits": 4, "kind": "lut24", "method": "sparsegpt"}`,
		`{"bits": 3, "codebook": "nf", "scale": "mse"}`,
	} {
		t.Run(recipe, func(t *testing.T) {
			want := ""
			for _, n := range []int{1, 2, 3} {
				r := quantizetest.Recipe(t, recipe)
				m := modeltest.Open(t, "../testdata/lutq-tiny")
				o := tinyOptions().onDevices(n)
				o.Windows = 7
				if _, err := To(t.Context(), m, &r, o); err != nil {
					t.Fatal(err)
				}
				p, err := quantize.NewPlan(m, r)
				if err != nil {
					t.Fatal(err)
				}
				res, err := p.Run(t.Context(), filepath.Join(t.TempDir(), "out"), quantize.RunOptions{Threads: 1})
				if err != nil {
					t.Fatal(err)
				}
				got := fmt.Sprint(res.SHA256, " ", res.OutputError, " ", res.Fit)
				if want == "" {
					want = got
				}
				if got != want {
					t.Errorf("%d devices: %s, want %s", n, got, want)
				}
			}
		})
	}
}
