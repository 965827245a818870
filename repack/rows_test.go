package repack

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// TestParallel lays out more tiles than a task takes, on one processor and on several.
func TestParallel(t *testing.T) {
	m := random(1, 16*5*tilesPerTask+3, 70, 3, 32, weight.F16)
	layouts := func(processors int) (cpu *CPUPanels, cuda *CUDATiles) {
		t.Helper()
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
		cpu, err := CPU(m)
		if err != nil {
			t.Fatal(err)
		}
		if cuda, err = CUDA(m); err != nil {
			t.Fatal(err)
		}
		for name, matrix := range map[string]func() (*lut.Matrix, error){"panels": cpu.Matrix, "tiles": cuda.Matrix} {
			got, err := matrix()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(m, got); diff != "" {
				t.Errorf("matrix after the round trip through %s (-want +got):\n%s", name, diff)
			}
		}
		return cpu, cuda
	}
	cpu, cuda := layouts(1)
	cpu8, cuda8 := layouts(8)
	if diff := cmp.Diff(cpu, cpu8); diff != "" {
		t.Errorf("panels on 8 processors (-1 +8):\n%s", diff)
	}
	if diff := cmp.Diff(cuda, cuda8); diff != "" {
		t.Errorf("tiles on 8 processors (-1 +8):\n%s", diff)
	}

	// The error is that of the first tile, whichever is found first.
	last := len(cuda.Codes) - 1
	cuda.Codes[last], cuda.Codes[3*tilesPerTask*cuda.TileBytes()-1] = 0xff, 0xff
	for range 10 {
		if _, err := cuda.Matrix(); err == nil || !strings.Contains(err.Error(), "padding of row 383") {
			t.Fatalf("got error %v: want one of row 383", err)
		}
	}
}

// TestStrayBits: what a matrix has behind the codes of a row is not laid out.
func TestStrayBits(t *testing.T) {
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		m := random(1, 5, 65, bits, 65, weight.F16)
		stray := *m
		stray.Codes = slices.Clone(m.Codes)
		for end := m.RowBytes() - 1; end < len(m.Codes); end += m.RowBytes() {
			stray.Codes[end] |= 0x80
		}
		want, err := CUDA(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := CUDA(&stray)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Codes, want.Codes) {
			t.Errorf("%d bits: other tiles", bits)
		}
	}
}
