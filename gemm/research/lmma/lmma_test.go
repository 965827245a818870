package lmma

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
)

func TestParse(t *testing.T) {
	for _, s := range []string{"lmma.m2n64k4.f16.i2.f32.f16", "lmma.m1n1024k8.f8e4m3.i4.f16.f32", "lmma.m8n8k2.i8.i1.i32.i32", "lmma.m4n32k4.bf16.i4.f32.f32"} {
		if in, err := Parse(s); err != nil || in.String() != s {
			t.Errorf("%s is read as %s, %v", s, in, err)
		}
	}
	for s, want := range map[string]string{
		"":                                `want lmma.m{M}n{N}k{K}.{A}.{W}.{Acc}.{O}`,
		"mma.m2n64k4.f16.i2.f32.f16":      `want lmma.m{M}n{N}k{K}.{A}.{W}.{Acc}.{O}`,
		"lmma.m2n64k4.f16.i2.f32":         `want lmma.m{M}n{N}k{K}.{A}.{W}.{Acc}.{O}`,
		"lmma.m0n64k4.f16.i2.f32.f16":     `tile "m0n64k4": want m{M}n{N}k{K} with numbers from 1 to 1024`,
		"lmma.m02n64k4.f16.i2.f32.f16":    `tile "m02n64k4": want m{M}n{N}k{K} with numbers from 1 to 1024`,
		"lmma.m2n2048k4.f16.i2.f32.f16":   `tile "m2n2048k4": want m{M}n{N}k{K} with numbers from 1 to 1024`,
		"lmma.n64m2k4.f16.i2.f32.f16":     `tile "n64m2k4": want m{M}n{N}k{K} with numbers from 1 to 1024`,
		"lmma.m2n64k.f16.i2.f32.f16":      `tile "m2n64k": want m{M}n{N}k{K} with numbers from 1 to 1024`,
		"lmma.m2n64k4x.f16.i2.f32.f16":    `tile "m2n64k4x" ends in "x"`,
		"lmma.m2n64k3.f16.i2.f32.f16":     `K is 3: want 2, 4 or 8`,
		"lmma.m2n64k4.f32.i2.f32.f16":     `A of type "f32": want f16, bf16, f8e4m3 or i8`,
		"lmma.m2n64k4.f16.i3.f32.f16":     `weights of type "i3": want i1, i2 or i4`,
		"lmma.m2n64k4.f16.i2.i32.f16":     `sums of type "i32": with A of type f16 want f32 or f16`,
		"lmma.m2n64k4.i8.i2.f32.i32":      `sums of type "f32": with A of type i8 want i32`,
		"lmma.m2n64k4.i8.i2.i32.f32":      `results of type "f32": with A of type i8 want i32`,
		"lmma.m2n64k4.bf16.i2.f16.bf16":   `results of type "bf16": with A of type bf16 want f32 or f16`,
		"lmma.m2n64k4.f16.i2.f32.f16.f16": `want lmma.m{M}n{N}k{K}.{A}.{W}.{Acc}.{O}`,
	} {
		if _, err := Parse(s); err == nil || err.Error() != fmt.Sprintf("instruction %q: %s", s, want) {
			t.Errorf("%s: got error %v, want %s", s, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("lmma.m2n64k4.f16.i2.f32.f16")
	f.Add("lmma.m1n1k8.i8.i4.i32.i32")
	f.Add("lmma.m99999999999999999999n1k2.f16.i1.f32.f32")
	f.Fuzz(func(t *testing.T, s string) {
		in, err := Parse(s)
		if err == nil && in.String() != s {
			t.Errorf("%q is read as %s", s, in)
		}
	})
}

// TestRound compares with package num, whose conversions are tested for every code.
func TestRound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := math.Float32frombits(rapid.Uint32().Draw(t, "v"))
		if v != v {
			return
		}
		for typ, want := range map[Type]float32{
			F16: num.F16ToF32(num.F32ToF16(v)), BF16: num.BF16ToF32(num.F32ToBF16(v)), F32: v,
		} {
			if got := typ.Round(float64(v)); got != float64(want) {
				t.Errorf("%v in %s: got %v, want %v", v, typ, got, want)
			}
		}
	})
	for b := range 256 {
		if v := float64(num.F8E4M3ToF32(uint8(b))); v == v && F8E4M3.Round(v) != v {
			t.Errorf("%v is a number of f8e4m3, and becomes %v", v, F8E4M3.Round(v))
		}
	}
	for v, want := range map[float64]float64{17: 16, 19: 20, 449: 448, -1e9: -448, 0x1p-10: 0, 0x1.8p-9: 0x1p-8} {
		if got := F8E4M3.Round(v); got != want {
			t.Errorf("%v in f8e4m3: got %v, want %v", v, got, want)
		}
	}
}

var orders = []string{"mnk", "mkn", "nmk", "nkm", "kmn", "knm"}

// draw returns an instruction with one type of A, and operands.
func draw(t *rapid.T, types ...Type) (Instruction, Operands) {
	in := Instruction{
		M: rapid.IntRange(1, 4).Draw(t, "m"), N: rapid.IntRange(1, 9).Draw(t, "n"), K: rapid.SampledFrom([]int{2, 4, 8}).Draw(t, "k"),
		A: rapid.SampledFrom(types).Draw(t, "a"), Bits: rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "bits"), Acc: I32, O: I32,
	}
	if in.A != I8 {
		in.Acc, in.O = rapid.SampledFrom([]Type{F32, F16}).Draw(t, "acc"), F32
	}
	o := Operands{M: rapid.IntRange(1, 9).Draw(t, "M"), N: rapid.IntRange(1, 20).Draw(t, "N"), K: rapid.IntRange(1, 40).Draw(t, "K")}
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	for range o.M * o.K {
		v := float64(rng.IntN(256) - 128)
		if in.A != I8 {
			v = in.A.Round(rng.NormFloat64())
		}
		o.A = append(o.A, v)
	}
	for range o.N * o.K {
		o.W = append(o.W, uint8(rng.IntN(1<<in.Bits)))
	}
	if rapid.Bool().Draw(t, "zeros") {
		for range o.N {
			o.Zeros = append(o.Zeros, int32(rng.IntN(31)-15))
		}
	}
	if rapid.Bool().Draw(t, "sums") {
		for range o.M * o.N {
			o.Acc = append(o.Acc, float64(rng.IntN(200)-100))
		}
	}
	return in, o
}

// weight is q' − z' of a code.
func weight(in Instruction, o Operands, n, k int) int64 {
	w := 2*int64(o.W[n*o.K+k]) - (1<<in.Bits - 1)
	if o.Zeros != nil {
		w -= int64(o.Zeros[n])
	}
	return w
}

// TestIntegers: products of i8 are those of int64, to the last bit.
func TestIntegers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in, o := draw(t, I8)
		got, _, err := in.Run(o, Schedule{Order: rapid.SampledFrom(orders).Draw(t, "order"), Resident: rapid.Bool().Draw(t, "resident")})
		if err != nil {
			t.Fatal(err)
		}
		for m := range o.M {
			for n := range o.N {
				var want int64
				if o.Acc != nil {
					want = int64(o.Acc[m*o.N+n])
				}
				for k := range o.K {
					want += int64(o.A[m*o.K+k]) * weight(in, o, n, k)
				}
				if int64(got[m*o.N+n]) != want {
					t.Errorf("%v [%d, %d]: got %v, want %d", in, m, n, got[m*o.N+n], want)
				}
			}
		}
	})
}

// TestFloats: products are within an ulp of the sums' type, at the size of what is added up, for each
// element and step.
func TestFloats(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in, o := draw(t, F16, BF16, F8E4M3)
		got, _, err := in.Run(o, Schedule{Order: "mnk"})
		if err != nil {
			t.Fatal(err)
		}
		ulp := map[Type]float64{F32: 0x1p-23, F16: 0x1p-10}[in.Acc]
		steps := float64(ceilDiv(o.K, in.K) * (in.Bits + 1))
		for m := range o.M {
			for n := range o.N {
				var want, size float64
				if o.Acc != nil {
					want = o.Acc[m*o.N+n]
					size = math.Abs(want)
				}
				for k := range o.K {
					want += o.A[m*o.K+k] * float64(weight(in, o, n, k))
					z := 0.0
					if o.Zeros != nil {
						z = math.Abs(float64(o.Zeros[n]))
					}
					size += math.Abs(o.A[m*o.K+k]) * (float64(int(1)<<in.Bits) + z)
				}
				if d := math.Abs(got[m*o.N+n] - want); !(d <= steps*ulp*size) {
					t.Errorf("%v [%d, %d]: got %v, want %v within %v", in, m, n, got[m*o.N+n], want, steps*ulp*size)
				}
			}
		}
	})
}

// TestSchedules: the order changes what is counted and no bit of the result, and resident tables are
// made once.
func TestSchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in, o := draw(t, F16, BF16, F8E4M3, I8)
		want, _, err := in.Run(o, Schedule{Order: "mnk"})
		if err != nil {
			t.Fatal(err)
		}
		once := int64(ceilDiv(o.M, in.M) * ceilDiv(o.K, in.K) * in.M)
		for _, order := range orders {
			for _, resident := range []bool{false, true} {
				got, c, err := in.Run(o, Schedule{Order: order, Resident: resident})
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, want) {
					t.Errorf("%v, order %s: other results", in, order)
				}
				if (resident || order[2] == 'n') && c.Tables != once || c.Tables < once {
					t.Errorf("%v, order %s, resident %v: %d tables made, want %d", in, order, resident, c.Tables, once)
				}
			}
		}
	})
}

// TestCounts has a product counted by hand.
func TestCounts(t *testing.T) {
	in, err := Parse("lmma.m2n64k4.f16.i2.f32.f16")
	if err != nil {
		t.Fatal(err)
	}
	o := Operands{M: 3, N: 128, K: 10, A: make([]float64, 30), W: make([]uint8, 1280), Zeros: make([]int32, 128)}
	const tiles = 2 * 2 * 3 // the last of M and of K are filled up
	want := Counts{
		Tiles: tiles, Cycles: 2 * tiles, Tables: 2 * tiles, TableBytes: 2 * tiles * 8 * 4, TableAdds: 2 * tiles * 10,
		Lookups: 2 * 64 * 2 * tiles, Adds: 2 * 64 * 3 * tiles, Reuse: 128,
	}
	if _, got, err := in.Run(o, Schedule{Order: "mnk"}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	want.Tables, want.TableBytes, want.TableAdds, want.Reuse = 12, 12*8*4, 120, 256
	for _, s := range []Schedule{{"mnk", true}, {"mkn", false}} {
		if _, got, err := in.Run(o, s); err != nil || got != want {
			t.Errorf("%+v: got %+v, %v, want %+v", s, got, err, want)
		}
	}
}

func TestBadOperands(t *testing.T) {
	in, err := Parse("lmma.m1n2k2.f16.i2.f32.f16")
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(o *Operands, s *Schedule){
		"a product of 1×2×0": func(o *Operands, _ *Schedule) { o.K = 0 },
		"operands do not have the sizes of a product of 1×3×2": func(o *Operands, _ *Schedule) { o.N = 3 },
		"element [0, 1] of A is 0.1: no number of type f16":    func(o *Operands, _ *Schedule) { o.A[1] = .1 },
		"element [0, 0] of A is NaN: no number of type f16":    func(o *Operands, _ *Schedule) { o.A[0] = math.NaN() },
		"element [0, 0] of A is -Inf: no number of type f16":   func(o *Operands, _ *Schedule) { o.A[0] = math.Inf(-1) },
		"code [1, 0] is 4: want 2 bits":                        func(o *Operands, _ *Schedule) { o.W[2] = 4 },
		"zero point 1 is 40000: want -32768 to 32768":          func(o *Operands, _ *Schedule) { o.Zeros = []int32{0, 40000} },
		"sum [0, 1] is 0.1: no number of type f32":             func(o *Operands, _ *Schedule) { o.Acc = []float64{0, .1} },
		`order "mmk" of loops: want m, n and k, each once`:     func(_ *Operands, s *Schedule) { s.Order = "mmk" },
		`order "" of loops: want m, n and k, each once`:        func(_ *Operands, s *Schedule) { s.Order = "" },
	} {
		o := Operands{M: 1, N: 2, K: 2, A: []float64{1, 2}, W: []uint8{0, 1, 2, 3}}
		s := Schedule{Order: "mnk"}
		change(&o, &s)
		if _, _, err := in.Run(o, s); err == nil || err.Error() != want {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
	if _, _, err := (Instruction{}).Run(Operands{}, Schedule{}); err == nil {
		t.Error("an instruction of nothing runs")
	}
}
