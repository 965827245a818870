// Package dse explores the design space of a tensor core that multiplies by
// table lookup, on paper. It asks how large such a core would be beside one that
// multiplies. Areas are sums of gates; nothing is synthesized. Nothing that lutq
// multiplies needs this package.
//
// A tile multiplies A [M, K] by W [N, K]ᵀ, weights of b bits one bit a cycle. For
// every row of A it holds a table of the 2^(K−1) sums ±a₀ ± a₁ … whose last sign is
// minus; the other half are their negatives. The index of weights chooses an entry,
// which a sign and an adder take in.
//
// # Areas
//
// In gates of two inputs, NAND2, of 0.5 µm² at 28 nm: a flip-flop 6, a
// multiplexer of two 2.25 a bit, a sign 3, an addition in float16 530, a multiplication 780,
// and with b > 1 an addition to the exponent 35. With entries of E bits:
//
//	lookup  6·(M·2^(K−1)·E + N·K·b + 16·M·N) + M·N·(2.25·E·(2^(K−1)−1) + 3 + 530 [+35]),  b cycles
//	MAC     M·N·K·(780+530) + 6·16·(M·K + N·K + M·N),  1 cycle
//
// 530 and 780 are fitted to the density that Mo et al., "LUT Tensor Core" (ISCA 2025),
// publish of a unit that multiplies; their density of a lookup and their choice of a tile then
// follow. What they say of speed and energy comes from a simulator and is not found
// out here.
package dse

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// The gates of the parts, in NAND2, and what one takes.
const (
	flipFlop  = 6
	mux2      = 2.25 // a bit
	signGates = 3
	add16     = 530
	mul16     = 780
	addExp    = 35

	nand2 = 0.5 // µm² at 28 nm
	clock = 1e9 // Hz
)

// EntryBits is the width of a table's entries that the golden numbers of the model are of: float16.
const EntryBits = 16

// Label says what the numbers are, wherever they are shown.
const Label = "analytic, two constants fitted, no synthesis"

// The limits of [Options].
const (
	MaxBits      = 8
	MaxEntryBits = 32
	MaxProduct   = 1 << 20
	maxLookupK   = 8 // a table of 2^(K−1) entries
)

// Options of a space: tiles with M·N·K multiplications.
type Options struct {
	Bits      int // of a weight
	EntryBits int // of a table's entry
	Product   int // M·N·K, a power of two
}

func (o Options) check() error {
	switch {
	case o.Bits < 1 || o.Bits > MaxBits:
		return fmt.Errorf("weights of %d bits: want 1 to %d", o.Bits, MaxBits)
	case o.EntryBits < 1 || o.EntryBits > MaxEntryBits:
		return fmt.Errorf("entries of %d bits: want 1 to %d", o.EntryBits, MaxEntryBits)
	case o.Product < 2 || o.Product > MaxProduct || bits.OnesCount(uint(o.Product)) != 1:
		return fmt.Errorf("tiles of %d products: want a power of two, 2 to %d", o.Product, MaxProduct)
	}
	return nil
}

// Unit is a way to multiply.
type Unit string

// The units.
const (
	Lookup Unit = "lut"
	MAC    Unit = "mac" // float16 multiplications and additions; weights are unpacked before
)

// Point is a tile and what it takes. Its JSON keys are stable.
type Point struct {
	Unit Unit `json:"unit"`
	Bits int  `json:"bits"` // of a weight
	M    int  `json:"m"`
	N    int  `json:"n"`
	K    int  `json:"k"`

	Gates  float64 `json:"gates"`  // NAND2
	Cycles int     `json:"cycles"` // for all products
	Area   float64 `json:"mm2"`
	Flops  float64 `json:"tflops_per_mm2"`

	// What is stored of operands, in bits: the tables, or the rows of A, and the weights.
	TableBits  int `json:"table_bits"`
	WeightBits int `json:"weight_bits"`
	Muxes      int `json:"muxes"` // lookups at a time

	Gain       float64 `json:"area_ratio"`       // gates of the best MAC tile over its own
	Throughput float64 `json:"throughput_ratio"` // the same for an equal rate
}

// Tile returns the point's tile as M×N×K.
func (p Point) Tile() string { return fmt.Sprintf("%d×%d×%d", p.M, p.N, p.K) }

// Space returns all lookup tiles with K = 2, 4 or 8, and then all MAC tiles, M, N and K powers of two. Each
// kind is in ascending order of gates, so that its first point is its best.
func Space(o Options) ([]Point, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	var lookups, macs []Point
	for m := 1; m <= o.Product; m *= 2 {
		for n := 1; m*n <= o.Product; n *= 2 {
			k := o.Product / (m * n)
			macs = append(macs, o.mac(m, n, k))
			if k >= 2 && k <= maxLookupK {
				lookups = append(lookups, o.lookup(m, n, k))
			}
		}
	}
	for _, points := range [][]Point{lookups, macs} {
		slices.SortStableFunc(points, func(a, b Point) int { return cmp.Compare(a.Gates, b.Gates) })
	}
	all := append(lookups, macs...)
	for i := range all {
		p := &all[i]
		p.Area = p.Gates * nand2 / 1e6
		p.Flops = 2 * float64(o.Product) * clock / float64(p.Cycles) / p.Area / 1e12
		p.Gain = macs[0].Gates / p.Gates
		p.Throughput = p.Gain / float64(p.Cycles)
	}
	return all, nil
}

func (o Options) lookup(m, n, k int) Point {
	p := Point{
		Unit: Lookup, Bits: o.Bits, M: m, N: n, K: k, Cycles: o.Bits,
		TableBits: m << (k - 1) * o.EntryBits, WeightBits: n * k * o.Bits, Muxes: m * n,
	}
	unit := muxGates(k, o.EntryBits) + add16
	if o.Bits > 1 {
		unit += addExp
	}
	p.Gates = flipFlop*float64(p.TableBits+p.WeightBits+16*m*n) + float64(m*n)*unit
	return p
}

// muxGates are those of a lookup: an entry of half a table, and its sign.
func muxGates(k, entryBits int) float64 {
	return mux2*float64(entryBits)*(math.Exp2(float64(k-1))-1) + signGates
}

func (o Options) mac(m, n, k int) Point {
	return Point{
		Unit: MAC, Bits: o.Bits, M: m, N: n, K: k, Cycles: 1,
		Gates:     float64(m*n*k)*(mul16+add16) + flipFlop*16*float64(m*k+n*k+m*n),
		TableBits: 16 * m * k, WeightBits: 16 * n * k,
	}
}

// Dot is a unit for one product of K elements, without the memory around it.
type Dot struct {
	Name      string  `json:"name"`
	Flops     float64 `json:"tflops_per_mm2"`
	Published float64 `json:"published,omitempty"` // by the authors of LUT Tensor Core, from synthesis
}

// Dots returns the densities of units for K = 4 with weights of one bit and entries in float16.
func Dots() []Dot {
	const k = 4
	density := func(gates float64) float64 { return 2 * k * clock / (gates * nand2 / 1e6) / 1e12 }
	mux := muxGates(k, EntryBits)
	return []Dot{
		{"lookup without its adder", density(mux), 61.55},
		{"lookup with its adder", density(mux + add16), 0},
		{"multiplications and additions", density(k*mul16 + (k-1)*add16), 3.39},
	}
}
