package rtn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// awkward draws a weight of a kind that kernels could get wrong, for a scale.
func awkward(rng *rand.Rand, t *table, scale float32) float32 {
	n := 1 << t.bits
	switch rng.IntN(12) {
	case 0:
		return 0
	case 1:
		return float32(math.Copysign(0, -1))
	case 2:
		return math.Float32frombits(rng.Uint32() & 0x807fffff) // subnormal
	case 3:
		return float32(rng.NormFloat64() * 1e38)
	case 4:
		return t.mids[rng.IntN(n-1)] * scale // exact where scale is a power of two
	case 5:
		return math.Nextafter32(t.mids[rng.IntN(n-1)]*scale, rng.Float32()-0.5)
	case 6:
		return t.values[rng.IntN(n)] * scale
	}
	return float32(rng.NormFloat64()) * 0.5 * scale
}

func awkwardScale(rng *rand.Rand) float32 {
	switch rng.IntN(8) {
	case 0:
		return 0
	case 1:
		return float32(math.Inf(1))
	case 2:
		return 1e-40
	case 3:
		return float32(rng.NormFloat64())
	}
	s := float32(math.Ldexp(1, rng.IntN(20)-10))
	if rng.IntN(2) == 0 {
		return -s
	}
	return s
}

// kernelTables returns a table for every built-in codebook and some that are
// legal but odd.
func kernelTables(t testing.TB) map[string]*table {
	tables := map[string]*table{}
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for _, name := range lut.CodebookNames() {
			if only := lut.OnlyBits(name); only != 0 && only != bits {
				continue
			}
			tables[fmt.Sprint(name, bits)] = newTable(builtin(t, name, bits, 64))
		}
		negativeZero := builtin(t, "nf", bits, 64)
		for i, v := range negativeZero.Values {
			if v == 0 || i == 0 {
				negativeZero.Values[i] = float32(math.Copysign(0, -1))
			}
		}
		slices.Sort(negativeZero.Values)
		far := builtin(t, "js", bits, 64)
		tables[fmt.Sprint("nonnegative", bits)] = newTable(negativeZero)
		tables[fmt.Sprint("large", bits)] = newTable(far.Scaled(0x1p50))
		tables[fmt.Sprint("equal", bits)] = newTable(lut.Codebook{Name: "equal", Values: slices.Repeat([]float32{1}, 1<<bits)})
	}
	return tables
}

// sameBits compares floats by their bits, all NaNs being one.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// TestKernelsAgree holds the assembly to the results of the Go kernels, at
// lengths and alignments of all sorts.
func TestKernelsAgree(t *testing.T) {
	want := portable()
	for _, got := range available() {
		if got.isa == want.isa {
			continue
		}
		for name, table := range kernelTables(t) {
			t.Run(got.isa+" "+name, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(1, 2))
				for range 60 {
					n, group := rng.IntN(301), 1+rng.IntN(140)
					if rng.IntN(2) == 0 {
						group = 32 << rng.IntN(3)
					}
					compareKernels(t, got, want, table, rng, n, group)
				}
			})
		}
	}
}

func compareKernels(t *testing.T, got, want kernels, table *table, rng *rand.Rand, n, group int) {
	t.Helper()
	groups := weight.GroupsIn(n, group)
	w := make([]float32, n+rng.IntN(8))[:n]
	if at := cap(w) - n; at > 0 { // most alignments
		w = w[:cap(w)][at:]
	}
	scale, inv := make([]float32, groups), make([]float32, groups)
	for g := range groups {
		scale[g] = awkwardScale(rng)
		inv[g] = reciprocal(scale[g])
		for i := g * group; i < min((g+1)*group, n); i++ {
			w[i] = awkward(rng, table, scale[g])
			if w[i] != w[i] || math.IsInf(float64(w[i]), 0) { // Rows lets none of them through
				w[i] = math.MaxFloat32
			}
		}
	}

	const guard = 40
	var codes [2][]uint8
	var sums [2][]groupError
	for i, k := range []kernels{got, want} {
		codes[i] = slices.Repeat([]uint8{0xAA}, n+guard)
		sums[i] = slices.Repeat([]groupError{{7, 7}}, groups+1)
		k.encode(table, codes[i], w, group, inv, scale, sums[i][:groups])
	}
	if !slices.Equal(codes[0], codes[1]) {
		t.Fatalf("%d weights in groups of %d: got codes %v, want %v", n, group, codes[0], codes[1])
	}
	if !slices.EqualFunc(sums[0], sums[1], func(a, b groupError) bool {
		return sameBits(a.energy, b.energy) && sameBits(a.squared, b.squared)
	}) {
		t.Fatalf("%d weights in groups of %d: got errors %v, want %v", n, group, sums[0], sums[1])
	}

	invs := inv[:rng.IntN(groups+1)]
	var fits [2][]moments
	for i, k := range []kernels{got, want} {
		fits[i] = slices.Repeat([]moments{{7, 7}}, len(invs)+3)
		k.correlate(table, fits[i][:len(invs)], w, invs)
	}
	if !slices.EqualFunc(fits[0], fits[1], func(a, b moments) bool {
		return sameBits(a.wq, b.wq) && sameBits(a.qq, b.qq)
	}) {
		t.Fatalf("%d weights, reciprocals %v: got moments %v, want %v", n, invs, fits[0], fits[1])
	}

	var packed [2][]byte
	for i, k := range []kernels{got, want} {
		size := lut.RowBytes(n, table.bits)
		packed[i] = slices.Repeat([]byte{0xAA}, size+guard)
		k.pack(packed[i][:size:size], codes[1][:n], table.bits)
	}
	if !slices.Equal(packed[0], packed[1]) {
		t.Fatalf("%d codes of %d bits: got %x, want %x", n, table.bits, packed[0], packed[1])
	}

	// Peaks sees weights that are not finite; codes chosen for them must still
	// be codes.
	if n > 0 && rng.IntN(3) == 0 {
		w[rng.IntN(n)] = []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}[rng.IntN(3)]
	}
	var tops [2][]uint32
	for i, k := range []kernels{got, want} {
		tops[i] = slices.Repeat([]uint32{7}, groups+1)
		k.peaks(tops[i][:groups], w, group)
	}
	if !slices.Equal(tops[0], tops[1]) {
		t.Fatalf("%d weights in groups of %d: got peaks %x, want %x", n, group, tops[0], tops[1])
	}
	got.encode(table, codes[0], w, group, inv, scale, sums[0])
	got.correlate(table, fits[0], w, invs)
	for i, c := range codes[0][:n] {
		if c >= 1<<table.bits {
			t.Fatalf("code %d of %v is %d", i, w[i], c)
		}
	}
}

// TestRowsAgree quantizes the same rows with every kernel.
func TestRowsAgree(t *testing.T) {
	const n, k = 3, 331
	w := normal(9, n*k)
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for _, o := range []lut.Format{
			{Codebook: builtin(t, "nf", bits, 64), Group: 64, Scale: weight.Absmax, ScaleType: weight.F16},
			{Codebook: builtin(t, "js", bits, 64), Group: 64, Scale: weight.MSE, ScaleType: weight.BF16},
			{Codebook: builtin(t, "js", bits, 32), Group: 32, Scale: weight.MSE, ScaleType: weight.S1E4M3},
			{Codebook: builtin(t, "jt", bits, k), Group: k, Scale: weight.MSE, ScaleType: weight.F32},
		} {
			t.Setenv("LUTQ_ISA", "generic")
			want, wantErrs := quantizeAll(t, o, w, k)
			for _, kernels := range available() {
				t.Setenv("LUTQ_ISA", kernels.isa)
				got, errs := quantizeAll(t, o, w, k)
				if !slices.Equal(got.Codes, want.Codes) || !slices.Equal(got.Scales, want.Scales) || !slices.Equal(errs, wantErrs) {
					t.Errorf("%s: %s at %d bits, group %d: the result is not that of Go", kernels.isa, o.Codebook.Name, bits, o.Group)
				}
			}
		}
	}
}

func TestChooseKernels(t *testing.T) {
	have := map[string]bool{"": true}
	for _, k := range available() {
		have[k.isa] = true
	}
	for _, isa := range []string{"", "avx512", "avx2", "neon", "generic", "sse9"} {
		t.Setenv("LUTQ_ISA", isa)
		_, err := NewQuantizer(lut.Format{Codebook: builtin(t, "nf", 4, 64), Group: 64, Scale: weight.Absmax, ScaleType: weight.F16})
		if got := err == nil; got != have[isa] {
			t.Errorf("LUTQ_ISA=%s: got error %v", isa, err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "LUTQ_ISA="+isa+": ") {
			t.Errorf("LUTQ_ISA=%s: the error does not name the variable: %v", isa, err)
		}
	}
}

func BenchmarkKernels(b *testing.B) {
	const group, row, scales = 64, 4096, 128
	w := normal(1, row)
	codes, packed := make([]uint8, row), make([]byte, row)
	inv := slices.Repeat([]float32{0.3}, scales)
	sums, fits, tops := make([]groupError, row/group), make([]moments, scales), make([]uint32, row/group)
	report := func(b *testing.B, weights int) {
		b.ReportMetric(float64(weights)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mweights/s")
	}
	for _, k := range available() {
		b.Run(k.isa+"/peaks", func(b *testing.B) {
			for b.Loop() {
				k.peaks(tops, w, group)
			}
			report(b, row)
		})
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			t := newTable(builtin(b, "nf", bits, group))
			b.Run(fmt.Sprintf("%s/encode%d", k.isa, bits), func(b *testing.B) {
				for b.Loop() {
					k.encode(t, codes, w, group, inv, inv, sums)
				}
				report(b, row)
			})
			b.Run(fmt.Sprintf("%s/correlate%d", k.isa, bits), func(b *testing.B) {
				for b.Loop() {
					k.correlate(t, fits, w[:group], inv)
				}
				report(b, group*scales)
			})
			b.Run(fmt.Sprintf("%s/pack%d", k.isa, bits), func(b *testing.B) {
				for b.Loop() {
					k.pack(packed, codes, bits)
				}
				report(b, row)
			})
		}
	}
}
