// Package sourcetest tests readers of what other programs quantized, on folders that
// scripts/rivals.py makes with these programs.
//
// The package is for tests.
package sourcetest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/num"
)

// value is what values.json has of a weight.
type value struct {
	Shape  []int  `json:"shape"`
	SHA256 string `json:"sha256"` // of its float32 numbers
}

// Golden opens every folder in testdata and holds the values of its weights against those that
// the other program has, however they are read.
func Golden(t *testing.T, scheme hf.Scheme) {
	dirs, err := filepath.Glob("testdata/*/values.json")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no folders in testdata: %v", err)
	}
	for _, path := range dirs {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			text, err := input.ReadFile(path, input.Config)
			if err != nil {
				t.Fatal(err)
			}
			var want map[string]value
			if err := json.Unmarshal(text, &want); err != nil {
				t.Fatal(err)
			}
			c, err := hf.Open(dir, scheme)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.CheckPlain(); err != nil {
				t.Error(err)
			}
			for _, x := range c.Tensors() {
				w, ok := want[x.Name]
				if ok != (x.Encoding() != nil) {
					t.Errorf("%s is stored as %s: it has values %v", x.Name, x.StoredAs(), ok)
				}
				if ok {
					check(t, x, w)
					delete(want, x.Name)
				}
			}
			for name := range want {
				t.Errorf("there is no %s", name)
			}
		})
	}
}

// check reads a weight in one piece, and in pieces of any size.
func check(t *testing.T, x *hf.Tensor, want value) {
	if !slices.Equal(x.Shape, want.Shape) {
		t.Errorf("%s has shape %v: want %v", x.Name, x.Shape, want.Shape)
		return
	}
	all := make([]float32, x.Elements())
	if err := x.ReadFloat32(all, 0); err != nil {
		t.Error(err)
		return
	}
	raw := make([]byte, 4*len(all))
	num.EncodeF32(raw, all)
	if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != want.SHA256 {
		t.Errorf("%s: the values are others: the first are %v", x.Name, all[:min(8, len(all))])
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		from := r.IntN(len(all))
		part := make([]float32, 1+r.IntN(len(all)-from))
		if err := x.ReadFloat32(part, int64(from)); err != nil || !slices.EqualFunc(part, all[from:from+len(part)], same) {
			t.Fatalf("%s: elements %d to %d differ from those of the whole, or cannot be read: %v", x.Name, from, from+len(part), err)
		}
	}
}

func same(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

// Fuzz opens folders of any config.json and tensors, and reads all that one of them says is
// encoded. Errors are one line. Seeds are the folders in testdata.
func Fuzz(f *testing.F, scheme hf.Scheme) {
	const config, weights = "config.json", "model.safetensors"
	dirs, err := filepath.Glob("testdata/*/" + weights)
	if err != nil || len(dirs) == 0 {
		f.Fatalf("no folders in testdata: %v", err)
	}
	for _, path := range dirs {
		w, err := input.ReadFile(path, input.Config)
		if err != nil {
			f.Fatal(err)
		}
		c, err := input.ReadFile(filepath.Join(filepath.Dir(path), config), input.Config)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(c, w)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, c, w []byte) {
		for name, data := range map[string][]byte{config: c, weights: w} {
			path := filepath.Join(dir, name)
			_ = os.Remove(path) // ext4 takes milliseconds to write over a file
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		oneLine := func(err error) {
			if text := err.Error(); strings.ContainsRune(text, '\n') || len(text) > 10_000 {
				t.Fatalf("error is %q", err)
			}
		}
		ckpt, err := hf.Open(dir, scheme)
		if err != nil {
			oneLine(err)
			return
		}
		defer ckpt.Close()
		var stored int64
		for _, x := range ckpt.Tensors() {
			stored += x.StoredBytes()
			if x.Encoding() == nil {
				continue
			}
			if _ = x.Encoding().String(); x.Elements() > 32*x.StoredBytes() {
				t.Fatalf("%s: %d weights of %d bytes", x.Name, x.Elements(), x.StoredBytes())
			}
			if err := x.ReadFloat32(make([]float32, x.Elements()), 0); err != nil {
				oneLine(err)
			}
		}
		if stored > int64(len(w)) {
			t.Fatalf("tensors take %d bytes of a file of %d", stored, len(w))
		}
	})
}
