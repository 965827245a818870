package cuda

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda/ptx"
)

//go:embed lutsparse.cu
var sparseSource string

// lutsparse is lutsparse.cu: for matrices of which every four columns keep two, in the formats of what is kept.
type lutsparse struct{}

// sparseVariant is lutsparse.cu as it is compiled.
type sparseVariant struct {
	rows   int // of X, at most: 8 or 16
	slices int // of K
	warps  int // of a block
	batch  int // tiles that are loaded at once
}

func (lutsparse) name() string   { return "lutsparse" }
func (lutsparse) source() string { return ptx.Slots() + ptx.Quad() + ptx.Sparse() + sparseSource }
func (lutsparse) twin() bool     { return true }

// To compile less there is no kernel for scales of float32, and the sums of 256 kept columns would be no group's of
// a model's.
func (lutsparse) has(f Format, m int) bool {
	return f.Scale != weight.F32 && f.Group <= 128 && m <= MaxRows
}

func (k lutsparse) variants(f Format, m int) []Config {
	if !k.has(f, m) {
		return nil
	}
	var all []Config
	for _, v := range []sparseVariant{
		{rowsOfB, 16, 16, 2},
		{rowsOfB, 16, 16, 1},
		{rowsOfB, 8, 16, 1},
		{MaxRows, 8, 8, 3},
		{MaxRows, 4, 8, 3},
	} {
		if v.batch == 2 && f.Group == 32 && f.Bits >= 4 { // whose scales take the registers
			continue
		}
		if (v.rows == rowsOfB) == (m <= rowsOfB) {
			all = append(all, v)
		}
	}
	return all
}

func (k lutsparse) tried(s shape, l limits) ([]Config, error) {
	all := k.variants(s.Format, s.m)
	if s.n <= twoTiles && s.units() <= 16 {
		// Where a warp has few tiles in all they are best loaded one by one, for there is less to wait for at first.
		slices.SortStableFunc(all, func(a, b Config) int { return cmp.Compare(a.(sparseVariant).batch, b.(sparseVariant).batch) })
	}
	return s.fitting(all, l)
}

// others returns the variants that split K otherwise.
func (k lutsparse) others(s shape) []Config {
	return slices.DeleteFunc(k.variants(s.Format, s.m), func(c Config) bool { return c.splits()[0] == s.slices })
}

// prebuilt returns the variant for any number of rows up to MaxRows. Without a compiler K is split as it does.
func (lutsparse) prebuilt() Config { return sparseVariant{MaxRows, 8, 8, 3} }

func (v sparseVariant) kernel() kernel    { return lutsparse{} }
func (v sparseVariant) rowsOfX() int      { return v.rows }
func (v sparseVariant) warpsOfBlock() int { return v.warps }
func (v sparseVariant) splits() []int     { return []int{v.slices} }
func (v sparseVariant) String() string {
	return fmt.Sprintf("sparse b%d k%d", v.batch, v.slices)
}

func (v sparseVariant) defines() []string {
	return []string{
		fmt.Sprintf("NT=%d", v.rows/rowsOfB), fmt.Sprintf("DEPTH=%d", 2*v.batch), fmt.Sprintf("WARPS=%d", v.warps), fmt.Sprintf("SLICES=%d", v.slices),
	}
}

// room is that of the slots of lutgemm.cu.
func (v sparseVariant) room(s shape, most int, l limits) (room, error) {
	return gemmVariant{}.room(s, most, l)
}

// sparseSlices returns into how many slices K is split: sixteen load warps the most evenly, as soon as each has an atom.
func (s shape) sparseSlices() int {
	switch {
	case s.m <= rowsOfB && s.units() > 8:
		return 16
	case s.m <= rowsOfB || s.units() > 4:
		return 8
	}
	return 4
}
