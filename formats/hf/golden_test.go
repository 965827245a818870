package hf_test

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/mxfp4"
)

// stored returns the tensors of a folder as its file has them.
func stored(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	// Without a config.json nothing is decoded.
	raw := t.TempDir()
	const name = "model.safetensors"
	if err := os.Link(filepath.Join(dir, name), filepath.Join(raw, name)); err != nil {
		t.Fatal(err)
	}
	c, err := hf.Open(raw, hf.FP8Scheme{}, mxfp4.Scheme{})
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

// fp8 and fp4 are the values of codes, written down from the definition of the
// formats.
func fp8(code byte) float64 {
	sign := 1 - 2*float64(code>>7)
	if code&0x78 == 0 {
		return sign * float64(code&7) / 512
	}
	return sign * math.Pow(2, float64(code>>3&15)-7) * (1 + float64(code&7)/8)
}

func fp4(code byte) float64 {
	return []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}[code]
}

// TestGoldens decodes the checkpoints that transformers computed with, and
// compares them with what their bytes mean.
func TestGoldens(t *testing.T) {
	seen := 0
	for _, g := range archtest.Goldens(t) {
		isFP8 := strings.HasSuffix(g.Name, "fp8")
		if !isFP8 && !strings.HasSuffix(g.Name, "mxfp4") {
			continue
		}
		seen++
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			raw := stored(t, dir)
			c, err := hf.Open(dir, hf.FP8Scheme{}, mxfp4.Scheme{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.CheckPlain(); err != nil {
				t.Error(err)
			}
			var bytes, all int64
			encoded := 0
			for _, data := range raw {
				all += int64(len(data))
			}
			for _, x := range c.Tensors() {
				bytes += x.StoredBytes()
				if x.Encoding() == nil {
					continue
				}
				encoded++
				var want []float32
				if isFP8 {
					want = decodeFP8(raw[x.Name], raw[x.Name+"_scale_inv"], x.Shape)
				} else {
					want = decodeMXFP4(raw[x.Name+"_blocks"], raw[x.Name+"_scales"])
				}
				got := make([]float32, x.Elements())
				if err := x.ReadFloat32(got, 0); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s differs", x.Name)
				}
			}
			if stored := len(raw); encoded == 0 || len(c.Tensors()) != stored-encoded || bytes != all {
				t.Errorf("%d tensors, %d of them decoded, take %d bytes: the file has %d of %d", len(c.Tensors()), encoded, bytes, stored, all)
			}
		})
	}
	if seen < 4 {
		t.Errorf("there are %d checkpoints that are decoded", seen)
	}
}

func decodeFP8(codes, scales []byte, shape []int) []float32 {
	n, k := shape[0], shape[1]
	across := (k + 127) / 128
	width := len(scales) / ((n + 127) / 128 * across)
	want := make([]float32, n*k)
	for i := range n {
		for j := range k {
			at := (i/128*across + j/128) * width
			bits := uint32(binary.LittleEndian.Uint16(scales[at:])) << 16
			if width == 4 {
				bits = binary.LittleEndian.Uint32(scales[at:])
			}
			want[i*k+j] = float32(fp8(codes[i*k+j]) * float64(math.Float32frombits(bits)))
		}
	}
	return want
}

func decodeMXFP4(blocks, scales []byte) []float32 {
	var want []float32
	for i, b := range blocks {
		s := math.Pow(2, float64(scales[i/16])-127)
		want = append(want, float32(fp4(b&15)*s), float32(fp4(b>>4)*s))
	}
	return want
}
