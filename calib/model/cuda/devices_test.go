package cuda

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/source/modeltest"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/gptq"
)

// TestGPUDevices fits a model to windows that two devices share.
func TestGPUDevices(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i == 0 {
			testDevices(t, o)
		}
	})
}

// testDevices: two devices make the same weights as one. Where there is a second GPU it is that one, else the same under another name.
func testDevices(t *testing.T, o *Ops) {
	dev, engine := o.dev, o.engine
	c, err := driver.Open(driver.Options{CacheDir: cacheDir})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.DeviceCount(); err != nil || n > 1 {
		if dev, err = c.OpenDevice(1); err != nil {
			t.Fatal(err)
		}
		err = dev.Do(func() (err error) {
			engine, err = gemmcuda.New(dev, c.Cache())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(dev.Do(engine.Close), dev.Close()); err != nil {
				t.Error(err)
			}
		}()
	}
	beside, err := New(dev, engine, Options{Type: o.acts})
	if err != nil {
		t.Fatal(err)
	}
	if dev.Info.Name == "the host's GPU" {
		beside.lanes.once.Do(func() {})
	}
	defer func() {
		if err := errors.Join(beside.Err(), beside.Close()); err != nil {
			t.Error(err)
		}
	}()
	all := archtest.Goldens(t)
	g := all[slices.IndexFunc(all, func(g archtest.Golden) bool { return g.Name == "llama" })]
	dir := t.TempDir()
	g.Write(t, dir)
	m := modeltest.Open(t, dir)
	src, err := model.NewCheckpoint(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, recipe := range []string{
		`{"bits": 4, "group": 32, "method": "gptq", "codebook": "nf"}`,
		`{"bits": 3, "kind": "trellis", "method": "gptq"}`,
	} {
		if dev.Info.Name == "the host's GPU" && strings.Contains(recipe, "trellis") {
			continue // which takes it minutes
		}
		fitted := func(others ...model.StatsOps) []byte {
			r, err := quantize.ParseRecipe([]byte(recipe))
			if err != nil {
				t.Fatal(err)
			}
			c := &walkCalibrator{src: src, o: o, walk: model.WalkOptions{Original: true, Beside: others}}
			for i := range 5 {
				c.walk.Windows = append(c.walk.Windows, append(g.Tokens[i:len(g.Tokens):len(g.Tokens)], g.Tokens[:i]...))
			}
			r.Methods.GPTQ, r.Calibrate = gptq.Options{Damp: .1, Retarget: .5}, c
			p, err := quantize.NewPlan(m, r)
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "out")
			res, err := p.Run(t.Context(), out, quantize.RunOptions{Threads: 3})
			if err != nil {
				t.Fatal(err)
			}
			if res.Fit.Rows == 0 {
				t.Error("no row was fitted")
			}
			data, err := os.ReadFile(filepath.Join(out, "model.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
		if one, two := fitted(), fitted(beside); !bytes.Equal(one, two) {
			t.Errorf("%s: two devices make other weights than one", recipe)
		}
	}
}
