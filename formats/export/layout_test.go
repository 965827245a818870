package export_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// The decoders below are written from what the clients document, weight by weight, and share nothing
// with what writes.

// stored are the tensors of a layer, by suffix.
type stored map[string]struct {
	hf.Entry
	data []byte
}

func (s stored) word(suffix string, i int) uint32 {
	return binary.LittleEndian.Uint32(s[suffix].data[4*i:])
}

// number returns element i of a tensor of floating point numbers.
func (s stored) number(suffix string, i int) float64 {
	switch t := s[suffix]; t.DType {
	case hf.F16:
		return float64(num.F16ToF32(binary.LittleEndian.Uint16(t.data[2*i:])))
	case hf.BF16:
		return float64(num.BF16ToF32(binary.LittleEndian.Uint16(t.data[2*i:])))
	case hf.F32:
		return float64(math.Float32frombits(s.word(suffix, i)))
	case hf.F8E4M3:
		return float64(num.F8E4M3ToF32(t.data[i]))
	}
	panic(suffix)
}

// shape returns one dimension of a tensor.
func (s stored) shape(suffix string, axis int) int { return s[suffix].Shape[axis] }

// code returns the code that begins at a bit of a stream of words, of which every stride-th counts.
func (s stored) code(suffix string, bit, bits, first, stride int) int {
	c := 0
	for i := range bits {
		w := s.word(suffix, first+(bit+i)/32*stride)
		c |= int(w>>((bit+i)%32)&1) << i
	}
	return c
}

// fp4 returns the value of four bits of E2M1.
func fp4(nibble byte) float64 {
	v := []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}[nibble&7]
	if nibble&8 != 0 {
		return -v
	}
	return v
}

// nf4 is the table in the source of bitsandbytes.
var nf4 = []float64{
	-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
	-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
	0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
}

// decoders return weight [n, k] of N×K.
var decoders = map[string]func(s stored, size [2]int, n, k int) float64{
	"ct": func(s stored, size [2]int, n, k int) float64 {
		words, groups := s.shape(".weight_packed", 1), s.shape(".weight_scale", 1)
		bits := words * 32 / size[1] // but for what fills the last word
		q := s.code(".weight_packed", k*bits, bits, n*words, 1) - 1<<(bits-1)
		return float64(q) * s.number(".weight_scale", n*groups+k*groups/size[1])
	},
	"gptq": func(s stored, size [2]int, n, k int) float64 {
		bits := s.shape(".qweight", 0) * 32 / size[1]
		group := int(s.word(".g_idx", k))
		q := s.code(".qweight", k*bits, bits, n, size[0])
		words := s.shape(".qzeros", 1)
		zero := s.code(".qzeros", n*bits, bits, group*words, 1) + 1
		return float64(q-zero) * s.number(".scales", group*size[0]+n)
	},
	"awq": func(s stored, size [2]int, n, k int) float64 {
		field := []int{0, 4, 1, 5, 2, 6, 3, 7}[n%8] // the inverse of 0 2 4 6 1 3 5 7
		group := k / (size[1] / s.shape(".scales", 0))
		q := s.word(".qweight", (k*size[0]+n)/8) >> (4 * field) & 15
		zero := s.word(".qzeros", (group*size[0]+n)/8) >> (4 * field) & 15
		return (float64(q) - float64(zero)) * s.number(".scales", group*size[0]+n)
	},
	"bnb": func(s stored, size [2]int, n, k int) float64 {
		var state struct {
			Block int `json:"blocksize"`
			Shape [2]int
			Type  string `json:"quant_type"`
		}
		if err := json.Unmarshal(s[".weight.quant_state.bitsandbytes__nf4"].data, &state); err != nil || state.Shape != size || state.Type != "nf4" {
			return math.NaN()
		}
		i := n*size[1] + k
		b := s[".weight"].data[i/2]
		if i%2 == 0 {
			b >>= 4
		}
		return nf4[b&15] * s.number(".weight.absmax", i/state.Block)
	},
	"mlx": func(s stored, size [2]int, n, k int) float64 {
		words, groups := s.shape(".weight", 1), s.shape(".scales", 1)
		bits := words * 32 / size[1]
		q := s.code(".weight", k*bits, bits, n*words, 1)
		at := n*groups + k*groups/size[1]
		return s.number(".scales", at)*float64(q) + s.number(".biases", at)
	},
	"nvfp4": func(s stored, size [2]int, n, k int) float64 {
		b := s[".weight_packed"].data[(n*size[1]+k)/2] >> (4 * (k % 2)) & 15
		return fp4(b) * s.number(".weight_scale", (n*size[1]+k)/16) / s.number(".weight_global_scale", 0)
	},
	"mxfp4": func(s stored, size [2]int, n, k int) float64 {
		b := s[".weight_packed"].data[(n*size[1]+k)/2] >> (4 * (k % 2)) & 15
		return fp4(b) * math.Ldexp(1, int(s[".weight_scale"].data[(n*size[1]+k)/32])-127)
	},
}

// memory is a source of one layer that lies in memory.
type memory struct {
	foreign.Source
	w *lut.Matrix
}

func (m memory) Matrix(*foreign.Layer) (*lut.Matrix, error)    { return m.w, nil }
func (m memory) Weights(*foreign.Layer) (weight.Matrix, error) { return m.w, nil }
func layerOf(name, fuse string, w *lut.Matrix) *foreign.Layer {
	return &foreign.Layer{
		Name: name, N: w.N, K: w.K, Tensor: name + ".weight", Shape: []int{w.N, w.K}, Role: arch.LinearWeight, Fuse: fuse,
		Table: w.Codebook, Bits: w.Bits, Group: w.Group,
	}
}

// packed writes a layer of a model in a target, if it fits, and returns its tensors.
func packed(t rapid.TB, f foreign.Format, l *foreign.Layer, w *lut.Matrix) stored {
	p := f.(foreign.Packer)
	entries, err := p.Entries(l)
	if err != nil {
		t.Fatal(err)
	}
	data, err := p.Pack(l, memory{w: w})
	if err != nil {
		t.Fatal(err)
	}
	s := make(stored)
	for i, e := range entries {
		size, err := e.Bytes()
		if err != nil || size != int64(len(data[i])) {
			t.Fatalf("%s %v takes %d bytes, not %d: %v", e.Name, e.Shape, len(data[i]), size, err)
		}
		s[strings.TrimPrefix(e.Name, l.Name)] = struct {
			hf.Entry
			data []byte
		}{e, data[i]}
	}
	return s
}

// drawMatrix draws a layer, of a table and with scales that a target may hold, and the type of its
// model.
func drawMatrix(t *rapid.T) (*lut.Matrix, weight.ScaleType) {
	dtype := rapid.SampledFrom([]weight.ScaleType{weight.F16, weight.BF16, weight.F32}).Draw(t, "model")
	name := rapid.SampledFrom([]string{"q2", "q3", "q4", "q5", "nf", "e2m1", "int", "js"}).Draw(t, "table")
	scaleType := rapid.SampledFrom([]weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.S1E4M3, weight.E4M4, weight.E8M0}).Draw(t, "scales")
	// Some targets hold one table with one type of scales, which would seldom meet.
	switch rapid.IntRange(0, 4).Draw(t, "pair") {
	case 1:
		name, scaleType = "e2m1", weight.E8M0
	case 2:
		name, scaleType = "e2m1", weight.S1E4M3
	case 3:
		name = "nf"
	}
	bits := 4
	if name[0] == 'q' {
		bits = int(name[1] - '0')
	}
	cb, err := lut.NewCodebook(name, bits, 64)
	if err != nil {
		t.Fatal(err)
	}
	cb = cb.Scaled(float32(math.Ldexp(1, rapid.IntRange(-3, 3).Draw(t, "factor"))))
	w := &lut.Matrix{
		N: 8 * rapid.IntRange(1, 9).Draw(t, "N/8"), K: 8 * rapid.SampledFrom([]int{4, 6, 8, 12, 16, 20, 32}).Draw(t, "K/8"), Bits: bits,
		ScaleType: scaleType, Codebook: cb.Values,
	}
	w.Group = min(w.K, rapid.SampledFrom([]int{16, 32, 48, 64, 128, 256}).Draw(t, "group"))
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	codes := make([]uint8, w.K)
	for range w.N {
		for k := range codes {
			codes[k] = uint8(rng.IntN(1 << bits))
		}
		row := make([]byte, w.RowBytes())
		num.PackBits(row, codes, bits)
		w.Codes = append(w.Codes, row...)
	}
	scales := make([]float32, w.N*w.Groups())
	for i := range scales {
		// Few digits, so that many targets hold them.
		scales[i] = float32(rng.IntN(31)-15) * float32(math.Ldexp(1, -rng.IntN(6)))
	}
	w.Scales = make([]byte, len(scales)*w.ScaleType.Size())
	w.ScaleType.Encode(w.Scales, scales)
	return w, dtype
}

// TestLayouts: what fits a target without a change is read back from its tensors to the bit.
func TestLayouts(t *testing.T) {
	fitted := make(map[string]int)
	rapid.Check(t, func(t *rapid.T) {
		w, dtype := drawMatrix(t)
		if err := w.Validate(); err != nil {
			t.Fatal(err)
		}
		want := w.Dequantize()
		for name, decode := range decoders {
			to, err := export.For(name)
			if err != nil {
				t.Fatal(err)
			}
			l := layerOf("a.b", "", w)
			f, err := to.Format(&foreign.Model{DType: dtype, Layers: []*foreign.Layer{l}})
			if err != nil {
				t.Fatal(err)
			}
			without := *w
			without.Codes = nil
			fit := f.Fit(l, &without)
			if fit.Why != "" {
				continue
			}
			fitted[name]++
			may, least := fit.Change, 0.0
			if may > 0 {
				may, least = may+0x1p-23, 0x1p-143 // products are rounded, and 16 times a scale that is the least there is
			}
			s := packed(t, f, l, w)
			for n := range w.N {
				for k := range w.K {
					got, is := decode(s, [2]int{w.N, w.K}, n, k), want[n*w.K+k]
					if off := math.Abs(float64(float32(got)) - float64(is)); off > may*math.Abs(float64(is))+least || got != got {
						t.Fatalf("%s: weight [%d, %d] of %d×%d is %v: want %v, of which %v may change", name, n, k, w.N, w.K, float32(got), is, fit.Change)
					}
				}
			}
		}
	})
	for name := range decoders {
		if fitted[name] == 0 && !testing.Short() { // with which few are drawn
			t.Errorf("nothing fits %s", name)
		}
	}
}

// TestLeastScales: a divisor that brings the least scale there is to E4M3's largest would be more than float32 holds.
func TestLeastScales(t *testing.T) {
	cb, err := lut.NewCodebook("e2m1", 4, 64)
	if err != nil {
		t.Fatal(err)
	}
	w := &lut.Matrix{N: 8, K: 32, Bits: 4, Group: 32, ScaleType: weight.E8M0, Codebook: cb.Values, Codes: bytes.Repeat([]byte{0xf1}, 8*16), Scales: make([]byte, 8)}
	want := w.Dequantize()
	if want[0] == 0 {
		t.Fatal("the least scale of E8M0 is 0")
	}
	for _, name := range []string{"nvfp4", "mxfp4"} {
		to, err := export.For(name)
		if err != nil {
			t.Fatal(err)
		}
		l := layerOf("a.b", "", w)
		f, err := to.Format(&foreign.Model{DType: weight.F32, Layers: []*foreign.Layer{l}})
		if err != nil {
			t.Fatal(err)
		}
		if fit := f.Fit(l, w); fit.Why != "" {
			t.Fatalf("%s: %s", name, fit.Why)
		}
		s := packed(t, f, l, w)
		for i, v := range want {
			if got := decoders[name](s, [2]int{w.N, w.K}, i/w.K, i%w.K); float32(got) != v {
				t.Fatalf("%s: weight %d is %v: want %v", name, i, got, v)
			}
		}
	}
}
