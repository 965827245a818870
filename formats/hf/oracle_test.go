package hf

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nlpodyssey/safetensors"
)

// TestAgainstOracle compares tensors and data of the test models with another
// reader's.
func TestAgainstOracle(t *testing.T) {
	for _, dir := range modelDirs(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			c := mustOpen(t, dir)
			seen := 0
			for _, path := range shardPaths(t, dir) {
				raw, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				st, err := safetensors.Deserialize(raw)
				if err != nil {
					t.Fatal(err)
				}
				for _, want := range st.Tensors() {
					got, ok := c.Tensor(want.Name)
					if !ok {
						t.Fatalf("no tensor %q", want.Name)
					}
					if string(got.DType) != want.TensorView.DType().String() || !slices.Equal(got.Shape, asInts(want.TensorView.Shape())) {
						t.Errorf("tensor %q is %s %v: want %s %v", got.Name, got.DType, got.Shape, want.TensorView.DType(), want.TensorView.Shape())
					}
					if got.Shard != filepath.Base(path) {
						t.Errorf("tensor %q is in %s: want %s", got.Name, got.Shard, filepath.Base(path))
					}
					data := make([]byte, got.Bytes())
					if _, err := got.ReadAt(data, 0); err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(data, want.TensorView.Data()) {
						t.Errorf("tensor %q: data differs", got.Name)
					}
					seen++
				}
			}
			if got := len(c.Tensors()); got != seen || seen == 0 {
				t.Errorf("checkpoint has %d tensors: want %d", got, seen)
			}
		})
	}
}

// FuzzOracle: the other reader accepts the whole of whatever we accept, apart
// from the element types that it does not know.
func FuzzOracle(f *testing.F) {
	for _, seed := range headerSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readBytes(b)
		if err != nil {
			return
		}
		for i := range h.tensors {
			if _, err := safetensors.ParseDType(string(h.tensors[i].DType)); err != nil {
				return
			}
		}
		st, err := safetensors.Deserialize(b)
		if err != nil {
			t.Fatalf("accepted here, refused there: %v", err)
		}
		for i := range h.tensors {
			x := &h.tensors[i]
			v, ok := st.Tensor(x.Name)
			if !ok || !bytes.Equal(v.Data(), b[h.size+x.offset:][:x.size]) {
				t.Fatalf("tensor %q differs", x.Name)
			}
		}
	})
}
