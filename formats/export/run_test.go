package export_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/rtn"
)

const down = "model.layers.1.mlp.down_proj"

// container quantizes the tiny model to binary codes, which no table holds, and one layer to NormalFloat.
func container(t *testing.T) string {
	t.Helper()
	p, err := quantize.NewPlan(modeltest.Open(t, "../../calib/testdata/lutq-tiny"), quantize.Recipe{
		Default: weight.Spec{Bits: 4, Group: 64, Method: "bcq"},
		Rules:   []quantize.Rule{{Match: regexp.MustCompile(regexp.QuoteMeta(down)), Format: weight.Spec{Kind: "lut", Codebook: "nf"}}},
		Methods: quantize.MethodOptions{BCQ: quantize.BCQOptions{Rounds: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := p.Run(t.Context(), out, quantize.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRequantize: what is quantized anew is near what the container stands for, of layers with a table and without.
func TestRequantize(t *testing.T) {
	from := modeltest.Open(t, container(t))
	m, err := from.Container()
	if err != nil {
		t.Fatal(err)
	}
	to, err := export.For("mlx")
	if err != nil {
		t.Fatal(err)
	}
	p, err := export.New(t.Context(), from, to)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := p.Run(t.Context(), out, export.Options{Requantize: true, NewRounder: rtn.NewRounder}); err != nil {
		t.Fatal(err)
	}
	c, err := modeltest.Open(t, out).Weights()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range p.Model.Layers {
		mat, err := m.Linear(l.Name)
		if err != nil {
			t.Fatal(err)
		}
		x, ok := c.Tensor(l.Name + ".weight")
		if !ok {
			t.Fatalf("no tensor %s.weight", l.Name)
		}
		got, row := make([]float32, l.N*l.K), make([]float32, l.K)
		if err := x.ReadFloat32(got, 0); err != nil {
			t.Fatal(err)
		}
		var off, all float64
		for i, v := range got {
			if i%l.K == 0 {
				mat.Row(row, i/l.K)
			}
			w := float64(row[i%l.K])
			off += (float64(v) - w) * (float64(v) - w)
			all += w * w
		}
		if e := math.Sqrt(off / all); !(e < 0.15) {
			t.Errorf("%s is off by %.3f of its size", l.Name, e)
		}
	}
}

// TestDamagedTable: a table whose values fall is no table, and the layer is named.
func TestDamagedTable(t *testing.T) {
	dir := container(t)
	cb, err := lut.NewCodebook("nf", 4, 64)
	if err != nil {
		t.Fatal(err)
	}
	sound := make([]byte, 64)
	num.EncodeF32(sound, cb.Values)
	cb.Values[3], cb.Values[4] = cb.Values[4], cb.Values[3]
	damaged := make([]byte, 64)
	num.EncodeF32(damaged, cb.Values)
	path := filepath.Join(dir, "model.safetensors")
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(file, sound) != 1 {
		t.Fatal("the table is not there once")
	}
	if err := os.WriteFile(path, bytes.Replace(file, sound, damaged, 1), 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := source.Open(dir, source.Options{Unchecked: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	to, err := export.For("mlx")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := export.New(t.Context(), m, to); err == nil || !strings.Contains(err.Error(), down) || !strings.Contains(err.Error(), "is below the one before it") {
		t.Errorf("error %v", err)
	}
}
