package transform_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/transform"
)

const tiny = "../../calib/testdata/lutq-tiny"

// wide returns a model with all numbers as F32, which rounding is no concern of.
func wide(t *testing.T, m *source.Model) *source.Model {
	t.Helper()
	w, err := m.Weights()
	if err != nil {
		t.Fatal(err)
	}
	var all []hf.MadeTensor
	for _, old := range w.Tensors() {
		if d := old.DType; d == hf.F32 || d == hf.BF16 || d == hf.F16 {
			all = append(all, hf.MadeTensor{Name: old.Name, DType: hf.F32, Shape: old.Shape, Codec: old})
		}
	}
	f32, err := w.With(all)
	if err != nil {
		t.Fatal(err)
	}
	return m.With(f32)
}

// drawn returns factors from 1/8 to 8 of every state that can be divided.
func drawn(t *testing.T, m *source.Model) transform.Factors {
	t.Helper()
	d, err := m.Decoder()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	f := make(transform.Factors)
	for _, s := range transform.Sets(d) {
		of := make([]float32, s.Width)
		for i := range of {
			of[i] = float32(math.Exp2(6*r.Float64() - 3))
		}
		s.Tie(of)
		f[s.Name] = of
	}
	return f
}

// logits runs a model.
func logits(t *testing.T, m *source.Model, tokens []int) []float32 {
	t.Helper()
	e, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ops := modelcpu.New(e)
	run, err := model.Open(m, ops, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	h, err := run.Hidden(context.Background(), tokens)
	if err != nil {
		t.Fatal(err)
	}
	out := ops.Floats(len(tokens) * run.Vocab())
	defer ops.Free(out)
	if err := run.Logits(out, h, len(tokens)); err != nil {
		t.Fatal(err)
	}
	v := make([]float32, out.Len())
	ops.Read(v, out)
	return v
}

// TestFamilies: a model of any family computes what it did when all that can be is divided: norms of 1+w, biases, norms of queries
// and keys, norms after layers, heads that share values, experts and what chooses them.
func TestFamilies(t *testing.T) {
	racetest.Skip(t)
	for _, g := range archtest.Goldens(t) {
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			m := wide(t, modeltest.Open(t, dir))
			f := drawn(t, m)
			if err := f.Settle(m); err != nil {
				t.Fatal(err)
			}
			changed, err := f.Of(m)
			if err != nil {
				t.Fatal(err)
			}
			want, got := logits(t, m, g.Tokens), logits(t, changed, g.Tokens)
			if e := distance(got, want); !(e < 1e-5) || e == 0 {
				t.Errorf("logits are off by %g", e)
			}
		})
	}
}

func distance(got, want []float32) float64 {
	var off, all float64
	for i, v := range want {
		d := float64(got[i]) - float64(v)
		off, all = off+d*d, all+float64(v)*float64(v)
	}
	return math.Sqrt(off / all)
}

// TestSettle: norms of 16 bits divide by what their factors are then, exactly, which is near what was wanted.
func TestSettle(t *testing.T) {
	m := modeltest.Open(t, tiny)
	wanted, f := drawn(t, m), drawn(t, m)
	if err := f.Settle(m); err != nil {
		t.Fatal(err)
	}
	changed, err := f.Of(m)
	if err != nil {
		t.Fatal(err)
	}
	moved := false
	for _, s := range sets(t, m) {
		for i, v := range f[s.Name] {
			if math.Abs(math.Log2(float64(v/wanted[s.Name][i]))) > 0x1p-7 {
				t.Fatalf("%s: factor %d is %v: want about %v", s.Name, i, v, wanted[s.Name][i])
			}
			moved = moved || v != wanted[s.Name][i]
		}
		if len(s.Absorb) != 1 || !strings.Contains(s.Absorb[0], "norm") {
			continue
		}
		was, now := read(t, m, s.Absorb[0]), read(t, changed, s.Absorb[0])
		for i, v := range was {
			if back := now[i] * f[s.Name][i]; math.Abs(float64(back-v)) > 2e-7*math.Abs(float64(v)) {
				t.Errorf("%s: element %d is %v, times its factor %v: want %v", s.Absorb[0], i, now[i], back, v)
			}
		}
	}
	if !moved {
		t.Error("no factor was settled")
	}
}

func sets(t *testing.T, m *source.Model) []transform.Set {
	t.Helper()
	d, err := m.Decoder()
	if err != nil {
		t.Fatal(err)
	}
	return transform.Sets(d)
}

func read(t *testing.T, m *source.Model, tensor string) []float32 {
	t.Helper()
	w, err := m.Weights()
	if err != nil {
		t.Fatal(err)
	}
	x, ok := w.Tensor(tensor)
	if !ok {
		t.Fatalf("no tensor %s", tensor)
	}
	v := make([]float32, x.Elements())
	if err := x.ReadFloat32(v, 0); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestKept: what was changed has the types and shapes that it had, and the original is as it was.
func TestKept(t *testing.T) {
	m := modeltest.Open(t, tiny)
	changed, err := drawn(t, m).Of(m)
	if err != nil {
		t.Fatal(err)
	}
	w, err := m.Weights()
	if err != nil {
		t.Fatal(err)
	}
	n, err := changed.Weights()
	if err != nil {
		t.Fatal(err)
	}
	different := 0
	for i, old := range w.Tensors() {
		x := n.Tensors()[i]
		if x.Name != old.Name || x.DType != old.DType || !slices.Equal(x.Shape, old.Shape) || x.Shard != old.Shard || x.StoredBytes() != old.StoredBytes() {
			t.Errorf("%s has become %s %s %v in %s", old.Name, x.Name, x.DType, x.Shape, x.Shard)
		}
		if !slices.Equal(read(t, m, old.Name), read(t, changed, old.Name)) {
			different++
		}
	}
	const layers, norms = 28, 8 // and the embedding and the last norm stay
	if different != layers+norms {
		t.Errorf("%d tensors were changed: want %d", different, layers+norms)
	}
}

// TestRefuse: factors that would change what the model computes are refused.
func TestRefuse(t *testing.T) {
	m := modeltest.Open(t, tiny)
	all := sets(t, m)
	in, out := all[0], all[1]
	for _, tc := range []struct {
		name   string
		change func(f transform.Factors)
		wrong  string
	}{
		{"too few", func(f transform.Factors) { f[in.Name] = f[in.Name][1:] }, "factors: want"},
		{"zero", func(f transform.Factors) { f[in.Name][3] = 0 }, "factor 3 is 0"},
		{"none", func(f transform.Factors) { f[in.Name][3] = float32(math.NaN()) }, "factor 3 is NaN"},
		{"infinite", func(f transform.Factors) { f[in.Name][3] = float32(math.Inf(1)) }, "factor 3 is +Inf"},
		{"another state", func(f transform.Factors) { f["nowhere"] = nil }, "1 states that the model has not"},
		{"heads that share values", func(f transform.Factors) { f[out.Name][0] *= 2 }, "another that the same row divides"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := drawn(t, m)
			tc.change(f)
			if _, err := f.Of(m); err == nil || !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("error %v: want %q", err, tc.wrong)
			}
		})
	}
}

// TestTie: heads that share values have the geometric mean of their factors.
func TestTie(t *testing.T) {
	s := transform.Set{State: &arch.State{Width: 8, Heads: 4, KVHeads: 2, Dim: 2}}
	f := []float32{1, 2, 4, 8, 3, 5, 3, 5}
	s.Tie(f)
	for i, want := range []float32{2, 4, 2, 4, 3, 5, 3, 5} {
		if math.Abs(float64(f[i]-want)) > 1e-6 {
			t.Errorf("factors are %v", f)
			break
		}
	}
}

// TestFile: factors are read as they were written.
func TestFile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := transform.Factors(rapid.MapOf(rapid.String(), rapid.SliceOf(rapid.Float32Range(1e-30, 1e30))).Draw(t, "factors"))
		data, err := f.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := transform.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		if len(back) != len(f) {
			t.Fatalf("%d states of %d", len(back), len(f))
		}
		for name, of := range f {
			if !slices.Equal(of, back[name]) {
				t.Fatalf("%q: %v, want %v", name, back[name], of)
			}
		}
	})
}

// FuzzParse: what is no file of factors is an error, and what is gives factors.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"version": 1, "states": {"a": "AACAPwAAAEA="}}`, `{"version": 2, "states": {}}`, `{"version": 1, "states": {"a": "AACAP"}}`,
		`{"version": 1, "states": {"a": "AAAAAA=="}}`, `{"version": 1, "states": {"a": "AADAfw=="}}`, `[]`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		factors, err := transform.Parse(data)
		if err != nil {
			return
		}
		for name, of := range factors {
			for i, v := range of {
				if !(v > 0) || math.IsInf(float64(v), 0) {
					t.Errorf("%q: factor %d is %v", name, i, v)
				}
			}
		}
	})
}

// TestParse: what is wrong with a file is said.
func TestParse(t *testing.T) {
	for _, tc := range []struct{ text, wrong string }{
		{`{"version": 2}`, "version 2: want 1"},
		{`{"version": 1, "states": {"a": "AACAP"}}`, "factors of a"},
		{`{"version": 1, "states": {"a": "AACA"}}`, "not of whole numbers"},
		{`{"version": 1, "states": {"a": "AAAAAA=="}}`, "number 0 is 0"},
		{`{"version": 1, "states": {"a": "AACAfw=="}}`, "number 0 is +Inf"},
		{`7`, "factors: "},
	} {
		if _, err := transform.Parse([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.wrong) {
			t.Errorf("%s: error %v, want %q", tc.text, err, tc.wrong)
		}
	}
	f, err := transform.Parse([]byte(`{"version": 1, "states": {"a": "AACAPwAAAEA="}}`))
	if err != nil || !slices.Equal(f["a"], []float32{1, 2}) {
		t.Errorf("%v, %v", f, err)
	}
}
