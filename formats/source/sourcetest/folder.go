package sourcetest

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
)

// Tensor is one of a folder that a test writes.
type Tensor struct {
	hf.Entry
	Data []byte
}

// Of returns a tensor of little-endian numbers, which have its type, or of zeros where there
// are none.
func Of[T uint8 | uint16 | uint32 | int32 | int64 | float32](name string, t hf.DType, shape []int, numbers ...T) Tensor {
	e := hf.Entry{Name: name, DType: t, Shape: shape}
	if len(numbers) == 0 {
		size, err := e.Bytes()
		if err != nil {
			panic(err)
		}
		return Tensor{e, make([]byte, size)}
	}
	data, err := binary.Append(nil, binary.LittleEndian, numbers)
	if err != nil {
		panic(err)
	}
	return Tensor{e, data}
}

// F16 returns a tensor of numbers in 16 bits.
func F16(name string, shape []int, numbers ...float32) Tensor {
	data := make([]byte, 2*len(numbers))
	num.EncodeF16(data, numbers)
	return Tensor{hf.Entry{Name: name, DType: hf.F16, Shape: shape}, data}
}

// Folder writes a folder of a config.json and tensors.
func Folder(t testing.TB, config string, tensors ...Tensor) string {
	t.Helper()
	dir := t.TempDir()
	var entries []hf.Entry
	for _, x := range tensors {
		entries = append(entries, x.Entry)
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, x := range tensors {
		if err := w.WriteAt(x.Name, x.Data, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Values opens a folder and returns the values of a tensor.
func Values(t testing.TB, scheme hf.Scheme, name, config string, tensors ...Tensor) []float32 {
	t.Helper()
	c, err := hf.Open(Folder(t, config, tensors...), scheme)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x, ok := c.Tensor(name)
	if !ok {
		t.Fatalf("there is no %s", name)
	}
	v := make([]float32, x.Elements())
	if err := x.ReadFloat32(v, 0); err != nil {
		t.Fatal(err)
	}
	return v
}

// Equal holds values against those that are wanted, to the bit.
func Equal(t testing.TB, got []float32, want ...float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("there are %d values: want %d", len(got), len(want))
	}
	for i, v := range want {
		if math.Float32bits(got[i]) != math.Float32bits(v) {
			t.Fatalf("value %d is %v: want %v, of %v", i, got[i], v, want)
		}
	}
}

// Refuses opens a folder that is not to be opened, or read where that is when it shows, and wants
// some words in the error.
func Refuses(t testing.TB, scheme hf.Scheme, want, config string, tensors ...Tensor) {
	t.Helper()
	c, err := hf.Open(Folder(t, config, tensors...), scheme)
	if err == nil {
		defer c.Close()
		for _, x := range c.Tensors() {
			if x.Encoding() != nil && err == nil {
				err = x.ReadFloat32(make([]float32, x.Elements()), 0)
			}
		}
	}
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v: want %q in it", err, want)
	}
}
