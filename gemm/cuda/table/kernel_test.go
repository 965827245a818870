package table

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
)

// mostSpills is what a thread of the kernels may spill, in bytes: values that are
// read once a tile, where 128 registers are all that sixteen warps can have.
const mostSpills = 64

// someSpills is what they may spill that are for up to 16 rows of X and not in the list of those that spill the most.
const someSpills = 40

// gatedSpills is what those with gates may: at 5 bits two tiles of sums are added up beside the ring of codes, once for
// each output. A kernel to gate by itself would take longer.
const gatedSpills = 112

// manySpills is what kernels for many rows of X may: those for 256 at once store 20 bytes and load 84, as they did when they were timed, and
// by integers in groups of 32 one for 128 loads 92, which is tried beside the table's.
const manySpills = 92

// pairSpills is what kernels of lutpair.cu may, outside of their loop.
const pairSpills = 128

// spilling returns the kernels that spill more than someSpills, of all that there are: with groups of
// 32, whose scales take the most registers, the unpacking of 5 bits beside the sums of a warp's tiles,
// and that of 2 bits beside the fragments of 16 rows of X; and with groups of 64 the sums of seven tiles
// for 24 rows.
func spilling() []variant {
	var all []variant
	for _, t := range []driver.DType{driver.F16, driver.BF16} {
		two := Format{2, 32, weight.BF16, t}
		all = append(all, variant{two, lutgemm{}.variants(two, cuda.MaxRows)[0], "sm_80"})
		for _, scale := range []weight.ScaleType{weight.F16, weight.BF16} {
			five := Format{5, 32, scale, t}
			for _, c := range (lutwide{}).variants(five, rowsOfB) {
				if c.Splits()[0] == 16 {
					all = append(all, variant{five, c, "sm_90a"})
				}
			}
			for _, bits := range []int{3, 4} {
				f := Format{bits, 64, scale, t}
				for _, c := range (lutwide{}).variants(f, 24) {
					if v := c.(wideVariant); v.tiles == 7 && v.slices >= 4 {
						all = append(all, variant{f, c, "sm_90a"})
					}
				}
			}
		}
	}
	return all
}

// TestCompile compiles the kernels with the options that the program uses, for the architectures
// that the compiler makes code for, as far as their GPUs have room for it: a few, with -covering
// those that together have everything that kernels are compiled for and those that spill the
// most, and with -long all, half an hour of a processor. A configuration that does not leave its
// loop in registers has no place in the list.
func TestCompile(t *testing.T) {
	c := kerneltest.Compiler(t, *cudatest.Long || *cudatest.Cover)
	compiled := fewVariants()
	switch {
	case *cudatest.Long:
		compiled = allVariants()
	case *cudatest.Cover:
		compiled = append(conform.Covering(allVariants(), variant.traits), spilling()...)
	}
	most := spilling()
	var variants []kerneltest.Variant
	for _, v := range compiled {
		k := v.format.Kernel(v.config)
		k.Options.Arch = v.arch
		spills := someSpills
		if slices.Contains(most, v) || v.config.Rows() > cuda.MaxRows {
			spills = mostSpills
		}
		variants = append(variants, kerneltest.Variant{
			Group:  fmt.Sprintf("%d bits, to %d rows, %v", v.format.Bits, v.config.Rows(), v.config),
			Kernel: k, Spills: spills,
		})
	}
	gated := gatedVariants(*cudatest.Long || *cudatest.Cover)
	if *cudatest.Cover {
		gated = conform.Covering(gated, variant.traits)
	}
	for _, v := range gated {
		k := source{format: v.format, config: v.config, gates: "silu"}.Kernel()
		k.Options.Arch = v.arch
		variants = append(variants, kerneltest.Variant{
			Group:  fmt.Sprintf("%d bits, to %d rows, %v, with gates", v.format.Bits, v.config.Rows(), v.config),
			Kernel: k, Spills: gatedSpills,
		})
	}
	for i, f := range expertFormats(*cudatest.Long || *cudatest.Cover) {
		for j, act := range []string{"", "silu"} {
			if *cudatest.Cover && (i+i/2)%2 != j { // each width with and without, in one format or the other
				continue
			}
			k := f.expertKernel(f.expertConfig(8), act)
			k.Options.Arch = "sm_90a"
			variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("%d bits, experts, gates %q", f.Bits, act), Kernel: k, Spills: gatedSpills})
		}
	}
	lookups := lookupVariants(*cudatest.Long || *cudatest.Cover)
	if *cudatest.Cover {
		lookups = conform.Covering(lookups, variant.traits)
	}
	for _, v := range lookups {
		k := source{format: v.format, config: v.config, lookup: Integers}.Kernel()
		k.Options.Arch = v.arch
		variants = append(variants, kerneltest.Variant{
			Group:  fmt.Sprintf("%d bits, to %d rows, %v, %v", v.format.Bits, v.config.Rows(), v.config, Integers),
			Kernel: k, Spills: mostSpills,
		})
	}
	many := fewManyKernels()
	switch {
	case *cudatest.Long:
		many = allManyKernels()
	case *cudatest.Cover:
		many = append(many, conform.Covering(allManyKernels(), func(k manyKernel) []string { return append(cuda.Format(k.Format).Traits(), k.String()) })...)
	}
	for i, k := range many {
		of, gated := k.Kernel(), manyGatedKernel{k.Format, manyGated{k.Many, "silu", i%2 == 0}}.Kernel()
		of.Options.Arch, gated.Options.Arch = "sm_90a", "sm_90a"
		variants = append(variants,
			kerneltest.Variant{Group: fmt.Sprintf("%d bits, many rows, %v", k.Bits, k.Many), Kernel: of, Spills: manySpills},
			kerneltest.Variant{Group: fmt.Sprintf("%d bits, many rows, %v, with gates", k.Bits, k.Many), Kernel: gated, Spills: manySpills})
	}
	pairs := fewPairKernels()
	switch {
	case *cudatest.Long:
		pairs = allPairKernels()
	case *cudatest.Cover:
		pairs = append(pairs, conform.Covering(allPairKernels(), func(k pairKernel) []string { return append(cuda.Format(k.Format).Traits(), k.String()) })...)
	}
	for _, k := range pairs {
		of := k.Kernel()
		of.Options.Arch = "sm_90a"
		variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("%d bits, many rows, %v", k.Bits, k.pairVariant), Kernel: of, Spills: pairSpills})
	}
	spreads := fewSpreadKernels()
	switch {
	case *cudatest.Long:
		spreads = allSpreadKernels()
	case *cudatest.Cover:
		spreads = append(spreads, conform.Covering(allSpreadKernels(), func(k spreadKernel) []string { return append(cuda.Format(k.Format).Traits(), k.String()) })...)
	}
	for _, k := range spreads {
		of := k.Kernel()
		of.Options.Arch = "sm_90a"
		variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("%d bits, many rows, %v", k.Bits, k.spread), Kernel: of, Spills: manySpills})
	}
	fp8 := fewFP8Kernels()
	switch {
	case *cudatest.Long:
		fp8 = allFP8Kernels()
	case *cudatest.Cover:
		fp8 = append(fp8, conform.Covering(allFP8Kernels(), func(k fp8Kernel) []string { return append(cuda.Format(k.Format).Traits(), k.String()) })...)
	}
	for _, k := range fp8 {
		of := k.Kernel()
		of.Options.Arch = "sm_90a"
		variants = append(variants, kerneltest.Variant{Group: fmt.Sprintf("%d bits, many rows, %v", k.Bits, k.fp8Variant), Kernel: of, Spills: someSpills})
	}
	for _, of := range []driver.Kernel{lutcolumns{Columns}.Kernel(), lutcolumns{Skipping}.Kernel(), lutcolumns{InOrder}.Kernel(), lutbytes{driver.F16}.Kernel(), lutbytes{driver.BF16}.Kernel()} {
		of.Options.Arch = "sm_90a"
		variants = append(variants, kerneltest.Variant{Group: strings.TrimSuffix(of.Name, ".cu"), Kernel: of})
	}
	kerneltest.Compile(t, c, variants)
}

// expertFormats returns formats of experts: the usual one, or every width in groups of 64 and of 32.
func expertFormats(all bool) []Format {
	if !all {
		return []Format{{4, 64, weight.F16, driver.F16}}
	}
	var some []Format
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		some = append(some, Format{bits, 64, weight.F16, driver.F16}, Format{bits, 32, weight.BF16, driver.BF16})
	}
	return some
}

// gatedVariants returns kernels that have gates: some, or all that a format has, of narrow codes every other.
func gatedVariants(all bool) []variant {
	var some []variant
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		f := Format{bits, 64, weight.F16, driver.F16}
		for i, config := range slices.Concat(f.variants(rowsOfB), f.variants(cuda.MaxRows)) {
			if all && (bits >= 4 || i%2 == bits%2) || bits == 4 && i%4 == 0 {
				some = append(some, variant{f, config, "sm_90a"})
			}
		}
	}
	return some
}

// lookupVariants returns kernels without the table that products choose: some of a format, or all, and of others that take more registers.
func lookupVariants(more bool) []variant {
	some := []Format{{4, 128, weight.F16, driver.F16}}
	if more {
		some = append(some, Format{4, 32, weight.BF16, driver.BF16}, Format{4, 64, weight.F16, driver.BF16})
	}
	var all []variant
	for _, f := range some {
		for i, c := range f.variants(rowsOfB) {
			if c.kernel() == (lutwide{}) && (more || i%2 == 0) {
				all = append(all, variant{f, c, "sm_90a"})
			}
		}
	}
	return all
}

// allManyKernels returns lutmany.cu for every format in all variants, and fewManyKernels some that take the most registers.
func allManyKernels() []manyKernel {
	var all []manyKernel
	for _, f := range Formats() {
		for _, v := range f.manyVariants() {
			all = append(all, manyKernel{f, v})
			if f.Bits == 4 {
				all = append(all, manyKernel{f, v.with(Integers)})
			}
		}
	}
	return all
}

func fewManyKernels() []manyKernel {
	var all []manyKernel
	for _, f := range []Format{{4, 128, weight.F16, driver.F16}, {5, 32, weight.F16, driver.BF16}, {3, 32, weight.F16, driver.BF16}} {
		for _, v := range f.manyVariants() {
			all = append(all, manyKernel{f, v})
			if f.Bits == 4 && v.Groups > 2 {
				all = append(all, manyKernel{f, v.with(Integers)})
			}
		}
	}
	return all
}

// allPairKernels and fewPairKernels are the same of lutpair.cu.
func allPairKernels() []pairKernel {
	var all []pairKernel
	for _, f := range Formats() {
		for _, v := range f.pairVariants() {
			all = append(all, pairKernel{f, v})
		}
	}
	return all
}

func fewPairKernels() []pairKernel {
	var all []pairKernel
	for i, f := range []Format{{4, 128, weight.F16, driver.F16}, {4, 64, weight.F16, driver.BF16}, {3, 32, weight.F16, driver.BF16}} {
		for j, v := range f.pairVariants() {
			if i == 0 && j%2 == 0 || i > 0 && j%4 == i {
				all = append(all, pairKernel{f, v})
			}
		}
	}
	return all
}

// allSpreadKernels and fewSpreadKernels are the same of lutspread.cu.
func allSpreadKernels() []spreadKernel {
	var all []spreadKernel
	for _, f := range Formats() {
		for _, v := range f.spreadVariants() {
			all = append(all, spreadKernel{f, v})
		}
	}
	return all
}

func fewSpreadKernels() []spreadKernel {
	var all []spreadKernel
	for i, f := range []Format{{4, 128, weight.F16, driver.F16}, {4, 64, weight.F16, driver.BF16}, {3, 32, weight.F16, driver.BF16}} {
		for j, v := range f.spreadVariants() {
			if i == 0 && j%4 == 2 || i > 0 && j%5 == i {
				all = append(all, spreadKernel{f, v})
			}
		}
	}
	return all
}

// allFP8Kernels and fewFP8Kernels are the same of lutfp8.cu.
func allFP8Kernels() []fp8Kernel {
	var all []fp8Kernel
	for _, f := range Formats() {
		for _, v := range f.fp8Variants() {
			all = append(all, fp8Kernel{f, v})
		}
	}
	return all
}

func fewFP8Kernels() []fp8Kernel {
	var all []fp8Kernel
	for _, f := range []Format{{4, 128, weight.F16, driver.F16}, {5, 64, weight.F32, driver.BF16}, {2, 0, weight.F16, driver.F16}} {
		for _, v := range f.fp8Variants() {
			all = append(all, fp8Kernel{f, v})
		}
	}
	return all
}

// variant is a kernel and an architecture to compile it for.
type variant struct {
	format Format
	config config
	arch   string
}

// traits returns what the kernel is compiled for: its format, and its template in that width for that architecture and in
// that configuration.
func (v variant) traits() []string {
	template := v.config.kernel().name()
	return append(cuda.Format(v.format).Traits(), fmt.Sprintf("%s, %d bits, %v for %s", template, v.format.Bits, v.format.Type, v.arch),
		fmt.Sprintf("%s, %v to %d rows", template, v.config, v.config.Rows()))
}

// allVariants returns every kernel for every architecture.
func allVariants() []variant {
	var all []variant
	for _, f := range Formats() {
		for rows := rowsOfB; rows <= mostRows; rows += rowsOfB {
			for _, config := range f.variants(rows) {
				if config.Rows() != rows {
					continue
				}
				all = append(all, variant{f, config, "sm_90a"})
				s := Shape{Format: f, n: 1, k: 32, m: rows, slices: 8}.Under(config)
				if _, _, err := s.Plan(config, Limits{SMs: 108, Shared: 163 << 10}); err == nil {
					all = append(all, variant{f, config, "sm_80"})
				}
			}
		}
	}
	return all
}

// fewVariants returns each width, each way to hold scales, and one format's kernels.
func fewVariants() []variant {
	var all []variant
	add := func(f Format, arch string, configs ...config) {
		for _, c := range configs {
			all = append(all, variant{f, c, arch})
		}
	}
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		f := Format{bits, 128, weight.F16, driver.F16}
		add(f, "sm_90a", lutgemm{}.variants(f, 1)[0])
	}
	bytes := Format{3, 32, weight.E4M4, driver.F16}
	add(bytes, "sm_90a", lutgemm{}.variants(bytes, 1)[0])
	row := Format{4, 0, weight.F32, driver.F16}
	add(row, "sm_80", lutgemm{}.variants(row, 1)[0])
	wide := Format{4, 64, weight.BF16, driver.BF16}
	add(wide, "sm_90a", slices.Concat(wide.variants(rowsOfB), wide.variants(cuda.MaxRows))...)
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ { // those that take the most registers
		f := Format{bits, []int{64, 128}[bits%2], weight.F16, driver.F16}
		for _, c := range f.variants(24) {
			if c.Splits()[0] == 4 {
				add(f, "sm_90a", c)
			}
		}
	}
	return all
}

// TestCovering holds the kernels that are always compiled to every configuration and every width of each
// template, and to few.
func TestCovering(t *testing.T) {
	all := allVariants()
	some := conform.Covering(all, variant.traits)
	type width struct {
		template string
		bits     int
	}
	missing := map[any]bool{}
	for _, v := range all {
		missing[v.config], missing[width{v.config.kernel().name(), v.format.Bits}] = true, true
	}
	for _, v := range some {
		delete(missing, v.config)
		delete(missing, width{v.config.kernel().name(), v.format.Bits})
	}
	for what := range missing {
		t.Errorf("no kernel for %v", what)
	}
	if len(some) > len(all)/32 {
		t.Errorf("%d kernels of %d cover", len(some), len(all))
	}
	for _, v := range spilling() {
		if !slices.Contains(all, v) {
			t.Errorf("%v is no kernel", v)
		}
	}
}

// TestNoHeaders holds the kernels to what NVRTC has without a toolkit.
func TestNoHeaders(t *testing.T) {
	f := Format{4, 128, weight.F16, driver.F16}
	for _, k := range kernels() {
		if source := f.Kernel(k.variants(f, cuda.MaxRows)[0]).Source; strings.Contains(source, "#include") {
			t.Errorf("%s includes a header", k.name())
		}
	}
}

// TestKernels holds each kernel to what others take from it: variants where it says that it is
// compiled, with names of their own, for as many rows, and one that stands in for all without a
// compiler or none.
func TestKernels(t *testing.T) {
	gpu := driver.DeviceInfo{Major: 9}
	for _, k := range kernels() {
		for _, f := range Formats() {
			for m := 1; m <= mostRows+1; m++ {
				all := k.variants(f, m)
				if (len(all) > 0) != k.has(f, m) {
					t.Errorf("%s has %s for %d rows: %v, in %d variants", k.name(), f.name(), m, k.has(f, m), len(all))
				}
				seen := map[string]bool{}
				for _, c := range all {
					if c.kernel() != k || c.Rows() < m || seen[c.String()] {
						t.Errorf("%s for %d rows: %v of %s, for %d rows", k.name(), m, c, c.kernel().name(), c.Rows())
					}
					seen[c.String()] = true
					if _, err := f.Kernel(c).PTX(gpu); (err == nil) != (f.prebuilt() && k.prebuilt() != nil) {
						t.Errorf("%s without a compiler: %v", f.Kernel(c).Name, err)
					}
				}
			}
			if _, err := (lutrows{f, driver.F32}).Kernel().PTX(gpu); (err == nil) != f.prebuilt() {
				t.Errorf("rows of %s without a compiler: %v", f.name(), err)
			}
		}
	}
}
