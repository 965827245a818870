package kernels_test

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/kernels"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/rtn"
)

// memory is a source of layers that lie in memory.
type memory struct {
	model *foreign.Model
	by    map[string]weight.Matrix
}

func (m memory) Model() *foreign.Model { return m.model }

func (m memory) Matrix(l *foreign.Layer) (*lut.Matrix, error) { return asTable(m.by[l.Name]) }

// asTable returns a matrix of any kind as one with a table, as package export does.
func asTable(w weight.Matrix) (*lut.Matrix, error) {
	if w, ok := w.(interface{ LUT() (*lut.Matrix, error) }); ok {
		return w.LUT()
	}
	return lut.Of(w)
}

func (m memory) Weights(l *foreign.Layer) (weight.Matrix, error)      { return m.by[l.Name], nil }
func (memory) Copy(*hf.Tensor, func(p []byte, off int64) error) error { return nil }
func (memory) Wrote(int64, string)                                    {}
func (memory) Rounder(f lut.Format) (foreign.Round, error)            { return rtn.NewRounder(f) }
func (m memory) add(l *foreign.Layer, w weight.Matrix) {
	m.by[l.Name], m.model.Layers = w, append(m.model.Layers, l)
}

// drawTable draws a matrix with a table and scales of few digits.
func drawTable(t *rapid.T) *lut.Matrix {
	name := rapid.SampledFrom([]string{"q2", "q3", "q4", "q5", "nf", "int", "kbit"}).Draw(t, "table")
	bits := rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(t, "bits")
	if name[0] == 'q' {
		bits = int(name[1] - '0')
	}
	cb, err := lut.NewCodebook(name, bits, 64)
	if err != nil {
		t.Fatal(err)
	}
	cb = cb.Scaled(float32(math.Ldexp(1, rapid.IntRange(-3, 3).Draw(t, "factor"))))
	w := &lut.Matrix{
		N:    rapid.SampledFrom([]int{1, 24, 128, 256}).Draw(t, "N"),
		K:    rapid.SampledFrom([]int{1, 32, 40, 64, 96, 128, 256}).Draw(t, "K"),
		Bits: bits, Codebook: cb.Values,
		ScaleType: rapid.SampledFrom([]weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.S1E4M3, weight.E4M4}).Draw(t, "scales"),
	}
	w.Group = min(w.K, rapid.SampledFrom([]int{16, 32, 48, 64, 128, 256, 384}).Draw(t, "group"))
	// A layout holds few of all that can be drawn, and so gets what it would seldom meet.
	switch rapid.SampledFrom([]string{"", "marlin", "kbit-tiled"}).Draw(t, "near") {
	case "marlin":
		w.N, w.Group, w.Bits, w.Codebook = 256, 128, 4, foreign.Integers(4)
		w.K = w.Group * (1 + w.K%2)
	case "kbit-tiled":
		w.N, w.Group = 128*(1+w.N%2), 32
		w.K = 2 * w.Group * (1 + w.K%2)
	}
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	codes, scales := make([]uint8, w.K), make([]float32, w.N*w.Groups())
	w.Codes, w.Scales = make([]byte, w.N*w.RowBytes()), make([]byte, len(scales)*w.ScaleType.Size())
	for n := range w.N {
		for k := range codes {
			codes[k] = uint8(rng.IntN(1 << w.Bits))
		}
		num.PackBits(w.Codes[n*w.RowBytes():(n+1)*w.RowBytes()], codes, w.Bits)
	}
	for i := range scales {
		scales[i] = float32(rng.IntN(31)-15) * float32(math.Ldexp(1, -rng.IntN(6)))
	}
	w.ScaleType.Encode(w.Scales, scales)
	return w
}

// drawBinary draws a matrix of binary codes.
func drawBinary(t *rapid.T) *bcq.Matrix {
	return conform.RandomBCQ(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)),
		rapid.SampledFrom([]int{1, 2, 24, 130}).Draw(t, "rows"), rapid.SampledFrom([]int{1, 32, 40, 64, 96, 128}).Draw(t, "columns"),
		rapid.IntRange(bcq.MinBits, bcq.MaxBits).Draw(t, "planes"), rapid.SampledFrom([]int{16, 32, 64, 128}).Draw(t, "columns to factors"),
		rapid.SampledFrom([]weight.ScaleType{weight.F16, weight.F16, weight.BF16, weight.F32}).Draw(t, "factors"), rapid.Bool().Draw(t, "offsets"))
}

// TestExact: what fits a layout is read back from it to the bit, and what does not is refused in a line.
func TestExact(t *testing.T) {
	fitted := make(map[string]int)
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		w := drawTable(t)
		l := &foreign.Layer{
			Name: "a.q_proj", N: w.N, K: w.K, Tensor: "a.q_proj.weight", Shape: []int{w.N, w.K}, Role: arch.LinearWeight,
			Stored: weight.Spec{Kind: lut.Name, Bits: w.Bits, Group: w.Group, ScaleType: w.ScaleType},
			Table:  w.Codebook, Bits: w.Bits, Group: w.Group,
		}
		for _, to := range kernels.All() {
			if roundTrip(t, dir, to, l, w) {
				fitted[to.Name()]++
			}
		}
		b := drawBinary(t)
		binary := &foreign.Layer{
			Name: l.Name, N: b.N, K: b.K, Tensor: l.Tensor, Shape: []int{b.N, b.K}, Role: l.Role, Offsets: b.Offsets != nil,
			Stored: weight.Spec{Kind: bcq.Name, Bits: b.Bits, Group: b.Group, ScaleType: b.ScaleType}, Bits: b.Bits, Group: b.Group,
		}
		for _, to := range kernels.All() {
			if roundTrip(t, dir, to, binary, b) {
				fitted[to.Name()]++
			}
		}
		if w.K%4 != 0 || w.Group%4 != 0 {
			return
		}
		sparse, half := *l, w.Rows(0, 1, w.N)
		sparse.Stored.Kind = lut24.Name
		for _, to := range kernels.All() {
			if roundTrip(t, dir, to, &sparse, pruned(t, half)) {
				fitted[to.Name()]++
			}
		}
	})
	for _, name := range kernels.Names() {
		if fitted[name] == 0 && !testing.Short() {
			t.Errorf("nothing fits %s", name)
		}
	}
}

// pruned returns the first half of a matrix as two of each four columns.
func pruned(t *rapid.T, w weight.Matrix) *lut24.Matrix {
	l, err := lut.Of(w)
	if err != nil {
		t.Fatal(err)
	}
	kept := *l
	kept.K, kept.Group = l.K/2, l.Group/2
	kept.Codes = make([]byte, l.N*kept.RowBytes())
	m := &lut24.Matrix{Kept: &kept, Pattern: make([]byte, l.N*lut24.PatternBytes(l.K))}
	codes := make([]uint8, l.K)
	for n := range l.N {
		l.RowCodes(codes, n)
		lut.PackCodes(kept.Codes[n*kept.RowBytes():(n+1)*kept.RowBytes()], codes[:kept.K], l.Bits)
		for c := range l.K / lut24.Chunk {
			lut24.SetNibble(m.RowPattern(n), c, [...]uint8{4, 8, 9, 12, 13, 14}[(n*n+c*7)%6])
		}
	}
	return m
}

// roundTrip writes a layer where it fits, and reads it back.
func roundTrip(t *rapid.T, dir string, to kernels.Layout, l *foreign.Layer, w weight.Matrix) bool {
	s := memory{&foreign.Model{Config: []byte("{}"), DType: weight.F16}, make(map[string]weight.Matrix)}
	s.add(l, w)
	f, err := to.Format(s.model)
	if err != nil {
		t.Fatal(err)
	}
	table, why := asTable(w)
	if m, ok := w.(*lut.Matrix); ok {
		without := *m
		without.Codes, table = nil, &without
	}
	fit := f.Fit(l, table)
	if why != nil && !fit.Stored { // as package export has it
		fit.Why = cmp.Or(fit.Why, why.Error())
	}
	if fit.Why != "" {
		if _, err := f.Anew(l); err == nil || strings.ContainsRune(fit.Why, '\n') {
			t.Fatalf("%s refuses with %q, and quantizes anew: %v", to.Name(), fit.Why, err)
		}
		return false
	}
	if fit.Change != 0 {
		t.Fatalf("%s changes scales by %v", to.Name(), fit.Change)
	}
	out, err := os.MkdirTemp(dir, to.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(out)
	if err := f.Write(context.Background(), out, s); err != nil {
		t.Fatal(err)
	}
	c, err := hf.Open(out, to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x, ok := c.Tensor(l.Tensor)
	if !ok || len(c.Tensors()) != 1 || x.Elements() != int64(l.N)*int64(l.K) {
		t.Fatalf("%s holds %v", filepath.Base(out), c.Tensors())
	}
	got, row := make([]float32, l.N*l.K), make([]float32, l.K)
	if err := x.ReadFloat32(got, 0); err != nil {
		t.Fatal(err)
	}
	for n := range l.N {
		w.Row(row, n)
		for k, v := range row {
			if got[n*l.K+k] != v {
				t.Fatalf("%s: weight [%d, %d] of %d×%d is %v: want %v", to.Name(), n, k, l.N, l.K, got[n*l.K+k], v)
			}
		}
	}
	return true
}

// TestBytes: what another program wrote is written back, from a container that was made of it, with the
// same bytes.
func TestBytes(t *testing.T) {
	folders, err := filepath.Glob("../*/testdata/*/values.json")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, path := range folders {
		dir := filepath.Dir(path)
		for _, to := range kernels.All() {
			src, err := source.Open(dir, source.Options{As: to})
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			if plan, _, err := quantize.NewImport(src, quantize.ImportOptions{}); err == nil {
				seen[to.Name()] = true
				t.Run(to.Name()+" "+filepath.Base(dir), func(t *testing.T) { there(t, src, plan, to) })
			}
		}
	}
	for _, name := range kernels.Names() {
		if !seen[name] {
			t.Errorf("no folder is of %s", name)
		}
	}
}

// there takes a folder over, writes it in its layout and compares all that this writes of layers.
func there(t *testing.T, src *source.Model, plan *quantize.Plan, to kernels.Layout) {
	container, out := filepath.Join(t.TempDir(), "container"), filepath.Join(t.TempDir(), "out")
	if _, err := plan.Run(context.Background(), container, quantize.RunOptions{Threads: 1}); err != nil {
		t.Fatal(err)
	}
	m := modeltest.Open(t, container)
	if to.Name() == "marlin24" { // which is of another kind
		c, err := m.Container()
		if err != nil {
			t.Fatal(err)
		}
		sparse := filepath.Join(t.TempDir(), "sparse")
		if _, err := quantize.Convert(context.Background(), c, lut24.Name, sparse, quantize.ConvertOptions{}); err != nil {
			t.Fatal(err)
		}
		m = modeltest.Open(t, sparse)
	}
	p, err := export.New(context.Background(), m, to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(context.Background(), out, export.Options{}); err != nil {
		t.Fatal(err)
	}
	want, got := stored(t, src.Dir()), stored(t, out)
	for name, data := range got {
		if !bytes.Equal(data, want[name]) {
			t.Errorf("%s has other bytes", name)
		}
	}
	for name := range want {
		if got[name] == nil && !strings.HasSuffix(name, ".workspace") {
			t.Errorf("%s is not written", name)
		}
	}
}

// stored reads the tensors of a folder as they lie there.
func stored(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	c, err := hf.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all := make(map[string][]byte)
	for _, x := range c.Tensors() {
		data := make([]byte, x.Bytes())
		if _, err := x.ReadAt(data, 0); err != nil {
			t.Fatal(err)
		}
		all[x.Name] = data
	}
	return all
}
