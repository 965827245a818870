// Package archtest holds what transformers computes of a tiny checkpoint of
// each family of models, and writes those checkpoints.
//
// scripts/families.py makes the golden files. They hold no weights: every
// tensor is filled from its name and a seed.
//
// The package is for tests.
package archtest

import (
	"embed"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
)

//go:embed testdata/*.json
var files embed.FS

// Golden is a checkpoint and what transformers computes of it in float64.
type Golden struct {
	Name   string          // of the family, and what is particular
	Config json.RawMessage // config.json

	Tokens    []int
	Positions []int       // those that Logits are of
	Logits    [][]float32 // [position][vocabulary]
	NLL       []float32   // negative log-likelihood of each token but the first, in nats
	Loss      float64     // mean of NLL
	Gradients []Gradient  // of Loss

	// Logits when it is read token by token, where frequencies depend on the length of a text; else nil.
	Stepped [][]float32
	Written []Written // by transformers' generate; nil of many

	seed    uint64
	tensors []tensors
}

// Written is a text that goes on from a golden one by the most likely token, in float32 as in float64.
type Written struct {
	Prompt int // tokens of the golden text that it begins with
	Tokens []int
}

// Gradient is that of a linear layer W [N, K], summed up. With
// r[n] = Σ_k ∂loss/∂W[n,k]·W[n,k], which is the gradient by the logarithm of a
// scale of row n,
//
//	Alternating = Σ_n (−1)^n r[n]    Norm = √(Σ_n r[n]²)
//
// Rows are output features, also of tensors that are stored the other way round.
type Gradient struct {
	Layer             string // name of the tensor, without .weight
	Expert            int    // in a tensor of several; -1 for a tensor of one matrix
	Alternating, Norm float64
}

// tensors are some of one type, shape and spread, as a golden file has them.
type tensors struct {
	Names string // with {0,1} for either
	DType hf.DType
	Shape []int

	// Elements are (Base + k)·2^Exp, with k from [-64, 64). With a Span they
	// are the bytes Base + k, with k from [0, Span), and a random sign if they
	// are of F8_E4M3.
	Base, Exp, Span int

	CRC32 uint32 // of the data of all
}

// Goldens returns all golden files.
func Goldens(t testing.TB) []Golden {
	t.Helper()
	entries, err := files.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	goldens := make([]Golden, len(entries))
	for i, e := range entries {
		text, err := files.ReadFile("testdata/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if goldens[i], err = parse(text); err != nil {
			t.Fatalf("%s: %v", e.Name(), err)
		}
		goldens[i].Name = strings.TrimSuffix(e.Name(), ".json")
	}
	return goldens
}

func parse(text []byte) (Golden, error) {
	var f struct {
		Golden
		Seed                 uint64
		Tensors              []tensors
		Logits, Stepped, NLL []byte // of float32, little-endian
		Gradients            []struct {
			Layers            string
			Alternating, Norm []float64
		}
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return Golden{}, err
	}
	g := f.Golden
	g.seed, g.tensors = f.Seed, f.Tensors
	g.NLL = floats(f.NLL)
	g.Logits, g.Stepped = rows(floats(f.Logits), len(g.Positions)), rows(floats(f.Stepped), len(g.Positions))
	for _, list := range f.Gradients {
		layers := expand(list.Layers)
		experts := len(list.Norm) / len(layers)
		for i := range list.Norm {
			expert := i % experts
			if experts == 1 {
				expert = -1
			}
			g.Gradients = append(g.Gradients, Gradient{layers[i/experts], expert, list.Alternating[i], list.Norm[i]})
		}
	}
	return g, nil
}

// rows cuts numbers into n rows, nil where there are none.
func rows(v []float32, n int) (all [][]float32) {
	for i := range min(n, len(v)) {
		all = append(all, v[i*len(v)/n:(i+1)*len(v)/n])
	}
	return all
}

func floats(data []byte) []float32 {
	v := make([]float32, len(data)/4)
	num.DecodeF32(v, data)
	return v
}

// expand returns the names that a.{0,1}.b stands for, the last brace's numbers
// changing fastest.
func expand(names string) []string {
	before, rest, ok := strings.Cut(names, "{")
	if !ok {
		return []string{names}
	}
	choices, after, _ := strings.Cut(rest, "}")
	var all []string
	for c := range strings.SplitSeq(choices, ",") {
		for _, tail := range expand(after) {
			all = append(all, before+c+tail)
		}
	}
	return all
}

// Write writes config.json and the weights to dir, which must exist.
func (g Golden) Write(t testing.TB, dir string) {
	t.Helper()
	if err := g.write(dir); err != nil {
		t.Fatalf("%s: %v", g.Name, err)
	}
}

func (g Golden) write(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "config.json"), g.Config, 0o666); err != nil {
		return err
	}
	var entries []hf.Entry
	for _, list := range g.tensors {
		for _, name := range expand(list.Names) {
			entries = append(entries, hf.Entry{Name: name, DType: list.DType, Shape: list.Shape})
		}
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		return err
	}
	defer w.Abort()
	for _, list := range g.tensors {
		sum := crc32.NewIEEE()
		for _, name := range expand(list.Names) {
			data, err := list.data(name, g.seed)
			if err != nil {
				return fmt.Errorf("tensor %q: %w", name, err)
			}
			sum.Write(data)
			if err := w.WriteAt(name, data, 0); err != nil {
				return err
			}
		}
		if sum.Sum32() != list.CRC32 {
			return fmt.Errorf("tensors %q are not what transformers was given", list.Names)
		}
	}
	return w.Commit()
}

// data returns the elements of one of the tensors.
func (l *tensors) data(name string, seed uint64) ([]byte, error) {
	n := 1
	for _, s := range l.Shape {
		n *= s
	}
	r := newRandom(name, seed)
	if l.Span > 0 {
		data := make([]byte, n)
		for i := range data {
			h := r.next()
			data[i] = byte(l.Base + int(h>>56)*l.Span>>8)
			if l.DType == "F8_E4M3" {
				data[i] |= byte(h&1) << 7
			}
		}
		return data, nil
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(math.Ldexp(float64(int(r.next()>>57)-64+l.Base), l.Exp))
	}
	data := make([]byte, n*l.DType.Bits()/8)
	switch l.DType {
	case hf.BF16:
		num.EncodeBF16(data, v)
	case hf.F16:
		num.EncodeF16(data, v)
	case hf.F32:
		num.EncodeF32(data, v)
	default:
		return nil, fmt.Errorf("no numbers are of type %s", l.DType)
	}
	return data, nil
}

// random is splitmix64 from the FNV-1a hash of a name on.
type random uint64

func newRandom(name string, seed uint64) *random {
	h := 0xcbf29ce484222325 + seed
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	r := random(h)
	return &r
}

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
