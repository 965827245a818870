package gguf

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rtn"
)

// memory is a model whose linear layers are quantized in memory. It implements [foreign.Source].
type memory struct {
	model    *foreign.Model
	matrices map[*foreign.Layer]*lut.Matrix
}

func (s *memory) Model() *foreign.Model                           { return s.model }
func (s *memory) Matrix(l *foreign.Layer) (*lut.Matrix, error)    { return s.matrices[l], nil }
func (s *memory) Weights(l *foreign.Layer) (weight.Matrix, error) { return s.matrices[l], nil }
func (s *memory) Wrote(int64, string)                             {}
func (s *memory) Rounder(f lut.Format) (foreign.Round, error)     { return rtn.NewRounder(f) }
func (s *memory) Copy(t *hf.Tensor, write func(p []byte, off int64) error) error {
	const piece = 100 // no whole rows
	for off := int64(0); off < t.Bytes(); off += piece {
		p := make([]byte, min(piece, t.Bytes()-off))
		if _, err := t.ReadAt(p, off); err != nil {
			return err
		}
		if err := write(p, off); err != nil {
			return err
		}
	}
	return nil
}

// recipe is a table and its scales.
type recipe struct {
	codebook string
	bits     int
	group    int
	scale    weight.ScaleType
	want     Type // of the blocks
}

func recipes() map[string]recipe {
	return map[string]recipe{
		"q4_0":        {"q4", 4, 32, weight.F16, Q4_0},
		"q4_0-groups": {"q4", 4, 64, weight.BF16, Q4_0},
		"q4_0-rows":   {"q4", 4, 1 << 20, weight.F16, Q4_0},
		"q4_0-of-2":   {"q2", 2, 32, weight.F16, Q4_0},
		"q4_0-of-3":   {"q3", 3, 32, weight.BF16, Q4_0},
		"q5_0":        {"q5", 5, 32, weight.F16, Q5_0},
		"iq4_nl":      {"iq4nl", 4, 32, weight.F16, IQ4_NL},
		"iq4_nl-byte": {"iq4nl", 4, 32, weight.S1E4M3, IQ4_NL},
		"mxfp4":       {"e2m1", 4, 32, weight.E8M0, MXFP4},
	}
}

// quantized makes a model of a checkpoint whose linear layers are quantized.
func quantized(t *testing.T, c *hf.Checkpoint, d *arch.Decoder, dir string, r recipe) *memory {
	t.Helper()
	s := &memory{&foreign.Model{Dir: dir, Config: configOf(t, c), Decoder: d, DType: weight.F32}, make(map[*foreign.Layer]*lut.Matrix)}
	taken := make(map[string]bool)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, st := range d.Stored() {
		if st.Role != arch.LinearWeight {
			continue
		}
		taken[st.Tensor] = true
		l := &foreign.Layer{
			Name: st.Path, N: st.Matrices() * st.N, K: st.K, Experts: st.Experts, Transposed: st.Transposed,
			Tensor: st.Tensor, Shape: st.Shape(), Role: st.Role, Bits: r.bits, Group: min(r.group, st.K),
		}
		table, err := lut.NewCodebook(r.codebook, r.bits, r.group)
		if err != nil {
			t.Fatal(err)
		}
		w := make([]float32, l.N*l.K)
		for i := range w {
			if i/32%7 != 3 { // some groups of zeros
				w[i] = float32(rng.NormFloat64())
			}
		}
		m, err := rtn.Quantize(w, l.N, l.K, lut.Format{Codebook: table, Group: l.Group, Scale: weight.MSE, ScaleType: r.scale})
		if err != nil {
			t.Fatal(err)
		}
		l.Table = m.Codebook
		s.matrices[l] = m
		s.model.Layers = append(s.model.Layers, l)
	}
	for _, x := range c.Tensors() {
		if !taken[x.Name] {
			s.model.Kept = append(s.model.Kept, x)
		}
	}
	return s
}

func configOf(t testing.TB, c *hf.Checkpoint) []byte {
	t.Helper()
	config, err := c.ConfigJSON()
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// A file is read as the model that it was made of: what llama.cpp's pairs do not tell is in one of our own.
func TestModelComesBack(t *testing.T) {
	var own []string
	for _, g := range archtest.Goldens(t) {
		if refused()[g.Name] != "" || strings.Contains(g.Name, "fp8") || strings.Contains(g.Name, "mxfp4") {
			continue
		}
		c, d := open(t, g)
		f, err := Target{NoTokenizer: true}.Format(&foreign.Model{Dir: c.Dir(), Config: configOf(t, c), Decoder: d, DType: weight.BF16, Kept: c.Tensors()})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := f.Write(context.Background(), dir, &memory{model: f.(*format).model}); err != nil {
			t.Fatal(err)
		}
		file, err := Open(filepath.Join(dir, FileName))
		if err != nil {
			t.Fatal(err)
		}
		if file.Meta[ownConfig] != nil {
			own = append(own, g.Name)
		}
		back, err := file.Model()
		if err != nil {
			t.Fatalf("%s: %v", g.Name, err)
		}
		if !alike(back.Decoder, d) {
			t.Errorf("%s: another model comes back: %s", g.Name, back.Config)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"gpt-oss", "llama-dynamic", "mistral", "mixtral-fused", "qwen2-sliding"}; !slices.Equal(own, want) {
		t.Errorf("%v keep their config.json: want %v", own, want)
	}
}

// Every weight of every layer comes back bit for bit, wherever a family has its rows.
func TestWriteIsLossFree(t *testing.T) {
	racetest.Skip(t)
	for _, g := range archtest.Goldens(t) {
		if refused()[g.Name] != "" || strings.Contains(g.Name, "fp8") || strings.Contains(g.Name, "mxfp4") {
			continue
		}
		c, d := open(t, g)
		for name, r := range recipes() {
			if name != "iq4_nl" && !slices.Contains([]string{"llama-bias", "phi3", "qwen3-moe-fused", "gpt-oss"}, g.Name) {
				continue
			}
			t.Run(g.Name+"/"+name, func(t *testing.T) {
				s := quantized(t, c, d, c.Dir(), r)
				f, err := Target{NoTokenizer: true}.Format(s.model)
				if err != nil {
					t.Fatal(err)
				}
				blocks := false
				for _, l := range s.model.Layers {
					fit := f.Fit(l, s.matrices[l])
					switch {
					case l.K%32 != 0:
						if fit.Why == "" {
							t.Errorf("%s: rows of %d weights fit", l.Name, l.K)
						}
						l.As = foreign.Dense
					case fit.Why != "" || fit.Change != 0:
						t.Errorf("%s: %q, change %v", l.Name, fit.Why, fit.Change)
					default:
						blocks = true
					}
				}
				dir := t.TempDir()
				if err := f.Write(context.Background(), dir, s); err != nil {
					t.Fatal(err)
				}
				compare(t, filepath.Join(dir, FileName), s, r.want, blocks)
			})
		}
	}
}

// compare holds a file against the model.
func compare(t *testing.T, path string, s *memory, want Type, blocks bool) {
	t.Helper()
	file, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	layers, kept := make(map[string]*foreign.Layer), make(map[string]*hf.Tensor)
	for _, l := range s.model.Layers {
		layers[l.Tensor] = l
	}
	for _, k := range s.model.Kept {
		kept[k.Name] = k
	}
	tensors, err := Tensors(s.model.Decoder)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for i := range tensors {
		x := &tensors[i]
		raw, ok := file.Tensor(x.Name)
		if !ok || !slices.Equal(raw.Shape, x.Shape) {
			t.Fatalf("%s: %v in the file: want shape %v", x.Name, raw, x.Shape)
		}
		found = found || raw.Type == want
		got := make([]float32, raw.Elements())
		if err := raw.ReadFloat32(got, 0); err != nil {
			t.Fatal(err)
		}
		at := 0
		expect := func(w []float32) {
			for i, v := range w {
				if got[at+i] != v {
					t.Fatalf("%s: element %d is %v: want %v", x.Name, at+i, got[at+i], v)
				}
			}
			at += len(w)
		}
		switch {
		case x.Values != nil:
			expect(x.Values)
		case x.Source != "":
			source := kept[x.Source]
			if source == nil {
				source = kept[s.model.Decoder.Head.Stored.Tensor]
			}
			w := make([]float32, source.Elements())
			if err := source.ReadFloat32(w, 0); err != nil {
				t.Fatal(err)
			}
			k := len(w) / x.Rows()
			for i := range x.Rows() {
				for _, v := range w[x.Row(i)*k : (x.Row(i)+1)*k] {
					expect([]float32{x.To(v)})
				}
			}
		}
		var rows []float32
		for _, l := range x.Layers {
			for n := range x.Taken(l) {
				row := rowOf(t, x, l, layers[l.Stored.Tensor], s, kept, l.Expert*l.Stored.N+l.Row+l.Step*x.Row(n))
				for j := range row {
					if at := j; x.Columns == nil {
						rows = append(rows, row[at])
					} else {
						rows = append(rows, row[x.Columns[j]])
					}
				}
			}
		}
		if x.Turned {
			rows = turned(rows, x.Shape)
		}
		expect(rows)
		if at != len(got) {
			t.Errorf("%s has %d elements, of which %d were looked at", x.Name, len(got), at)
		}
	}
	if found != blocks {
		t.Errorf("a tensor of type %s is in the file: %v, want %v", want, found, blocks)
	}
}

// rowOf returns a row of a layer's matrix, or an element of its bias.
func rowOf(t *testing.T, x *Tensor, l *arch.Linear, layer *foreign.Layer, s *memory, kept map[string]*hf.Tensor, row int) []float32 {
	t.Helper()
	w := make([]float32, l.K)
	if x.Bias {
		w = w[:1]
	}
	switch {
	case x.Bias:
		if err := kept[l.Stored.Bias].ReadFloat32(w, int64(row)); err != nil {
			t.Fatal(err)
		}
	case layer != nil:
		s.matrices[layer].Row(w, row)
	default:
		if err := kept[l.Stored.Tensor].ReadFloat32(w, int64(row*l.K)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// Models in 16 or 32 bits come back as they are, by rows or by columns, and in Q8_0 within half a step.
func TestWritePlain(t *testing.T) {
	for _, g := range archtest.Goldens(t) {
		if !slices.Contains([]string{"llama", "gpt-oss", "qwen2-moe", "phi3", "gemma2"}, g.Name) {
			continue
		}
		for _, kept := range append([]string{""}, KeptNames()...) {
			t.Run(g.Name+"/"+kept, func(t *testing.T) {
				c, d := open(t, g)
				m := &foreign.Model{Dir: c.Dir(), Config: configOf(t, c), Decoder: d, DType: weight.BF16, Kept: c.Tensors()}
				f, err := Target{Kept: kept, NoTokenizer: true}.Format(m)
				if err != nil {
					t.Fatal(err)
				}
				dir := t.TempDir()
				if err := f.Write(context.Background(), dir, &memory{model: m}); err != nil {
					t.Fatal(err)
				}
				file, err := Open(filepath.Join(dir, FileName))
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				raw, ok := file.Tensor("token_embd.weight")
				if !ok {
					t.Fatal("no token_embd.weight")
				}
				if kept != "" && raw.Type.String() != kept {
					t.Errorf("the embedding is in %s: want %s", raw.Type, kept)
				}
				source, _ := c.Tensor(d.Embed + ".weight")
				want, got := make([]float32, source.Elements()), make([]float32, source.Elements())
				if err := source.ReadFloat32(want, 0); err != nil {
					t.Fatal(err)
				}
				if err := raw.ReadFloat32(got, 0); err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(want); i += block {
					slack := float32(0)
					if kept == "q8_0" {
						for _, v := range want[i : i+block] {
							slack = max(slack, max(v, -v)/127*0.51)
						}
					}
					for j, v := range want[i : i+block] {
						if d := got[i+j] - v; max(d, -d) > slack {
							t.Fatalf("element %d is %v: want %v", i+j, got[i+j], v)
						}
					}
				}
			})
		}
	}
}

// A stack of experts has one type.
func TestWriteRefusesMixedStacks(t *testing.T) {
	for _, g := range archtest.Goldens(t) {
		if g.Name != "qwen3-moe" {
			continue
		}
		c, d := open(t, g)
		s := quantized(t, c, d, c.Dir(), recipes()["iq4_nl"])
		f, err := Target{NoTokenizer: true}.Format(s.model)
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range s.model.Layers {
			f.Fit(l, s.matrices[l])
			if strings.Contains(l.Name, "experts.1.") && i%2 == 0 {
				l.As = foreign.Dense
			}
		}
		dir := t.TempDir()
		err = f.Write(context.Background(), dir, s)
		if err == nil || !strings.Contains(err.Error(), "a stack has one type") {
			t.Errorf("error %v", err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%d files are left", len(left))
		}
	}
}
