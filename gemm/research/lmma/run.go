package lmma

import (
	"fmt"
	"math"
	"strings"

	"github.com/lutq/lutq/gemm/lookup"
)

// Operands of a product [M, N] over K columns, row-major. Tiles at the edges are filled up with zeros.
type Operands struct {
	M, N, K int
	A       []float64 // [M, K], numbers of the instruction's type
	W       []uint8   // [N, K], codes
	Zeros   []int32   // z' of each row of W, or nil for 0
	Acc     []float64 // [M, N], of the type of sums, or nil for 0
}

// Schedule is the order in which tiles are gone through. Results do not depend on it.
type Schedule struct {
	Order    string // of the loops, outermost first: a permutation of "mnk"
	Resident bool   // tables are made once, by an operator before, and kept; otherwise where other rows of A are loaded
}

// Counts are what a run did. Padding counts.
type Counts struct {
	Tiles      int64   `json:"tiles"` // instructions
	Cycles     int64   `json:"cycles"`
	Tables     int64   `json:"tables"`      // made
	TableBytes int64   `json:"table_bytes"` // of those
	TableAdds  int64   `json:"table_adds"`  // that made them
	Lookups    int64   `json:"lookups"`
	Adds       int64   `json:"adds"`  // of what was looked up, and of zero points
	Reuse      float64 `json:"reuse"` // lookups of an entry for each table
}

// maxZero bounds zero points, so that products with them are exact.
const maxZero = 1 << 15

func (in Instruction) check(o Operands, s Schedule) error {
	switch {
	case o.M < 1 || o.N < 1 || o.K < 1:
		return fmt.Errorf("a product of %d×%d×%d", o.M, o.N, o.K)
	case len(o.A) != o.M*o.K || len(o.W) != o.N*o.K || o.Zeros != nil && len(o.Zeros) != o.N || o.Acc != nil && len(o.Acc) != o.M*o.N:
		return fmt.Errorf("operands do not have the sizes of a product of %d×%d×%d", o.M, o.N, o.K)
	case len(s.Order) != 3 || !strings.Contains(s.Order, "m") || !strings.Contains(s.Order, "n") || !strings.Contains(s.Order, "k"):
		return fmt.Errorf("order %.20q of loops: want m, n and k, each once", s.Order)
	}
	for i, v := range o.A {
		if math.IsInf(v, 0) || in.A.Round(v) != v {
			return fmt.Errorf("element [%d, %d] of A is %v: no number of type %s", i/o.K, i%o.K, v, in.A)
		}
	}
	for i, q := range o.W {
		if int(q) >= 1<<in.Bits {
			return fmt.Errorf("code [%d, %d] is %d: want %d bits", i/o.K, i%o.K, q, in.Bits)
		}
	}
	for n, z := range o.Zeros {
		if z < -maxZero || z > maxZero {
			return fmt.Errorf("zero point %d is %d: want %d to %d", n, z, -maxZero, maxZero)
		}
	}
	for i, v := range o.Acc {
		if math.IsInf(v, 0) || in.Acc.Round(v) != v {
			return fmt.Errorf("sum [%d, %d] is %v: no number of type %s", i/o.N, i%o.N, v, in.Acc)
		}
	}
	return nil
}

// Run multiplies and returns O [M, N], row-major, and what was counted. It fails on operands that do
// not fit the instruction.
func (in Instruction) Run(o Operands, s Schedule) ([]float64, Counts, error) {
	if _, err := Parse(in.String()); err != nil {
		return nil, Counts{}, err
	}
	if err := in.check(o, s); err != nil {
		return nil, Counts{}, err
	}
	r := run{in: in, o: o, tiles: [3]int{ceilDiv(o.M, in.M), ceilDiv(o.N, in.N), ceilDiv(o.K, in.K)}, made: -1}
	r.pack()
	r.acc = make([]float64, o.M*o.N)
	copy(r.acc, o.Acc)
	r.tables = make([]float64, in.M*lookup.Entries(in.K))
	if s.Resident {
		r.kept = make([][]float64, r.tiles[0]*r.tiles[2])
	}
	var at [3]int
	loop := [3]int{strings.IndexByte("mnk", s.Order[0]), strings.IndexByte("mnk", s.Order[1]), strings.IndexByte("mnk", s.Order[2])}
	for at[loop[0]] = 0; at[loop[0]] < r.tiles[loop[0]]; at[loop[0]]++ {
		for at[loop[1]] = 0; at[loop[1]] < r.tiles[loop[1]]; at[loop[1]]++ {
			for at[loop[2]] = 0; at[loop[2]] < r.tiles[loop[2]]; at[loop[2]]++ {
				r.tile(at[0], at[1], at[2])
			}
		}
	}
	for i, v := range r.acc {
		r.acc[i] = in.O.Round(v)
	}
	r.count.Reuse = float64(r.count.Lookups) / float64(r.count.Tables)
	return r.acc, r.count, nil
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// run is the state of one [Instruction.Run].
type run struct {
	in    Instruction
	o     Operands
	tiles [3]int // along M, N and K

	index  []uint8     // [N, tiles along K, bits], remapped
	tables []float64   // of the rows of A at hand
	made   int         // the tile of A that they are of
	kept   [][]float64 // tables of all tiles of A, where they are resident
	acc    []float64
	count  Counts
}

// pack lays the bits of the codes out, plane by plane for each step of K columns.
func (r *run) pack() {
	k, bits := r.in.K, r.in.Bits
	r.index = make([]uint8, r.o.N*r.tiles[2]*bits)
	for n := range r.o.N {
		for t := range r.tiles[2] {
			for i := range bits {
				var w uint8
				for j, q := range r.o.W[n*r.o.K+t*k : n*r.o.K+min((t+1)*k, r.o.K)] {
					w |= q >> i & 1 << j
				}
				r.index[(n*r.tiles[2]+t)*bits+i] = lookup.Remap(w, k)
			}
		}
	}
}

// build returns the tables of a tile of A.
func (r *run) build(m, k int) []float64 {
	at, in := m*r.tiles[2]+k, r.in
	if r.kept != nil {
		if r.kept[at] != nil {
			return r.kept[at]
		}
		r.kept[at] = make([]float64, len(r.tables))
		r.tables = r.kept[at]
	} else if r.made == at {
		return r.tables
	}
	r.made = at
	entries := lookup.Entries(in.K)
	x := make([]float64, in.K)
	for i := range in.M {
		clear(x)
		if row := m*in.M + i; row < r.o.M {
			copy(x, r.o.A[row*r.o.K+k*in.K:row*r.o.K+min((k+1)*in.K, r.o.K)])
		}
		table := r.tables[i*entries : (i+1)*entries]
		lookup.Half(table, x)
		for j, v := range table {
			if in.Acc != I32 {
				table[j] = in.Acc.Round(v)
			}
		}
	}
	r.count.Tables += int64(in.M)
	r.count.TableBytes += int64(in.M * entries * in.entryBits() / 8)
	r.count.TableAdds += int64(in.M * lookup.Adds(in.K))
	return r.tables
}

// tile carries out one instruction.
func (r *run) tile(m, n, k int) {
	in := r.in
	tables := r.build(m, k)
	r.count.Tiles++
	r.count.Cycles += int64(in.Bits)
	r.count.Lookups += int64(in.M * in.N * in.Bits)
	r.count.Adds += int64(in.M * in.N * in.Bits)
	if r.o.Zeros != nil {
		r.count.Adds += int64(in.M * in.N)
	}
	entries := lookup.Entries(in.K)
	for i := m * in.M; i < min((m+1)*in.M, r.o.M); i++ {
		table := tables[(i-m*in.M)*entries:][:entries]
		for j := n * in.N; j < min((n+1)*in.N, r.o.N); j++ {
			acc := &r.acc[i*r.o.N+j]
			for bit, w := range r.index[(j*r.tiles[2]+k)*in.Bits:][:in.Bits] {
				*acc = in.Acc.Round(*acc + lookup.Sum(table, w, in.K)*float64(int(1)<<bit))
			}
			if r.o.Zeros != nil {
				*acc = in.Acc.Round(*acc + float64(r.o.Zeros[j])*table[0])
			}
		}
	}
}
