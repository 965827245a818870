package kbit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
)

// mixed is the i-th number of SplitMix64 from 0.
func mixed(i int) uint64 {
	z := uint64(i+1) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// weights are those of scripts/rivals.py, kbit_weights.
func weights() []float32 {
	w := make([]float32, 1<<20)
	for b := range len(w) / Block {
		k := int(mixed(len(w)+b)%48) - 6
		block := w[b*Block : (b+1)*Block]
		if b%97 == 0 {
			continue
		}
		for i := range block {
			z, sum := mixed(b*Block+i), -1<<17
			for ; z > 0; z >>= 16 {
				sum += int(z & 0xffff)
			}
			block[i] = float32(math.Ldexp(float64(sum), -17-k))
		}
		if b%8 == 0 {
			block[0] = float32(math.Ldexp(1-float64(b/8%4)*0x1p-24, -k))
		}
	}
	return w
}

// TestGolden holds tables, scales and codes of a million weights against digests of scripts/rivals.py, kbit_golden: what the
// branch's own functions in torch 2.15.0 and scipy 1.16.3 make of them, to the bit.
func TestGolden(t *testing.T) {
	const n, k = 1 << 13, 1 << 7
	w := weights()
	for bits, want := range []string{
		"fc27e4a4da284c2e7493044e7f70fff1ad4d6fdcf95cc5ebd888e4709b0f3344",
		"4ac8aa59538cf06b7bdb25a04f2c5594683e7ea34ad70c3591dd5aeee8d8b8e5",
		"c467e4ab2f8194166cbfa5542658ff8f8bee5de676fc5d03aca31708b34c22cd",
		"9ac56beac5ec67377b40b7553e898f9cd00ee96ec97c7d0b68fb48c00b5f49bb",
	} {
		t.Run(fmt.Sprint(bits+2), func(t *testing.T) {
			cb, err := lut.NewCodebook("kbit", bits+2, Block)
			if err != nil {
				t.Fatal(err)
			}
			q, err := NewQuantizer(cb)
			if err != nil {
				t.Fatal(err)
			}
			m := &lut.Matrix{N: n, K: k, Bits: bits + 2, Group: Block, ScaleType: weight.E4M4, Codebook: cb.Values}
			m.Codes, m.Scales = make([]byte, n*m.RowBytes()), make([]byte, n*m.Groups())
			table := make([]byte, 4*len(cb.Values))
			parts, errs := [][]byte{lut.CodesPart: m.Codes, lut.ScalesPart: m.Scales, lut.CodebookPart: table}, make([]rounding.RowError, n)
			if err := q.Rows(parts, errs, w); err != nil {
				t.Fatal(err)
			}
			q.Shared(parts)
			sum := sha256.New()
			sum.Write(table)
			sum.Write(m.Scales)
			codes, row := make([]uint8, k), make([]float32, k)
			for r := range n {
				m.RowCodes(codes, r)
				sum.Write(codes)
				m.Row(row, r)
				e := rounding.RowError{Wants: errs[r].Wants}
				for i, v := range row {
					e.Add(w[r*k+i], v)
				}
				if errs[r] != e {
					t.Fatalf("row %d has the error %v: want %v", r, errs[r], e)
				}
			}
			if got := hex.EncodeToString(sum.Sum(nil)); got != want {
				t.Errorf("digest is %s", got)
			}
		})
	}
}

// TestScales are scales that package num stores otherwise: without a carry or saturation.
func TestScales(t *testing.T) {
	for _, tt := range []struct {
		v    float32
		want uint8
		is   float32
	}{
		{1.97, 0xbf, 1.9375},
		{0.99, 0xaf, 0.96875},
		{40, 0xf4, 20},
		{0x1p-15, 0, 0},
		{0x1.fffffep2, 0xe0, 8}, // whose logarithm is 3 in float32
		{1, 0xb0, 1},
		{0x1p-10, 0x10, 0x1p-10},
		{0x1.fcp-11, 0x0f, 15 * 0x1p-14},
		{0, 0, 0},
	} {
		got := encodeE4M4(tt.v)
		if is := num.E4M4ToF32(got); got != tt.want || is != tt.is {
			t.Errorf("%v is stored as %#x, %v: want %#x, %v", tt.v, got, is, tt.want, tt.is)
		}
	}
}

func TestRefuses(t *testing.T) {
	cb, err := lut.NewCodebook("kbit", 3, Block)
	if err != nil {
		t.Fatal(err)
	}
	q, err := NewQuantizer(cb)
	if err != nil {
		t.Fatal(err)
	}
	w := make([]float32, 2*40)
	w[40+35] = float32(math.NaN())
	parts := [][]byte{lut.CodesPart: make([]byte, 2*lut.RowBytes(40, 3)), lut.ScalesPart: make([]byte, 4)}
	var bad *rounding.NotFiniteError
	if err := q.Rows(parts, make([]rounding.RowError, 2), w); !errors.As(err, &bad) || bad.Row != 1 || bad.Col != 35 {
		t.Errorf("got error %v", err)
	}
	if _, err := NewQuantizer(lut.Codebook{Name: "odd", Values: make([]float32, 6)}); err == nil {
		t.Error("a table of 6 values is taken")
	}
}

// TestWrongParts: parts in another order, or of another size, are an error.
func TestWrongParts(t *testing.T) {
	cb, err := lut.NewCodebook("kbit", 4, Block)
	if err != nil {
		t.Fatal(err)
	}
	q, err := NewQuantizer(cb)
	if err != nil {
		t.Fatal(err)
	}
	table, scales, codes := make([]byte, 64), make([]byte, 4), make([]byte, 64)
	for name, parts := range map[string][][]byte{"none": {}, "two": {table, scales}, "turned": {table, codes, scales}, "short": {table, scales, codes[1:]}} {
		if err := q.Rows(parts, make([]rounding.RowError, 2), make([]float32, 128)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
