package trellis

import (
	_ "embed"
	"errors"
	"fmt"

	codes "github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

var (
	//go:embed trellis.cuh
	ringsSource string
	//go:embed trellisgemm.cu
	productSource string
	//go:embed trellisrotate.cu
	rotationSource string
	//go:embed trellisrows.cu
	rowsSource string

	headerSource = ptx.Rotated() + ringsSource
)

// The functions of the kernels.
const (
	productName  = "trellisgemm"
	readName     = "trellisread"
	rotationName = "trellisrotate"
	rowsName     = "trellisrows"
)

// What the kernels are built on; they have the same numbers.
const (
	rowsOfB   = 8    // rows of X in a tile of the mma
	rowBytes  = 256  // of the sums of a band of 64 rows for a row of X
	groupSize = 1024 // of eight rows of X for a column of tiles
	copies    = 128  // bytes of a pair of the table, one for each lane
)

// maxColumns is the number of input features up to which pieces are divided among slices right.
const maxColumns = 1 << 18

// workers is the number that work is divided among: the multiprocessors of an H100.
const workers = 132

// defines returns what trellis.cuh takes.
func defines(rate int, t driver.DType) []string {
	return []string{
		fmt.Sprintf("RATE=%d", rate), fmt.Sprintf("FACTOR=%#xu", uint32(factor)), fmt.Sprintf("ENTRIES=%d", codes.Entries),
		fmt.Sprintf("FLIPS=%#xu", codes.Flips(rate)), fmt.Sprintf("BF16=%d", truth(t == driver.BF16)),
	}
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// factor is what [codes.Hash] multiplies windows by.
const factor = 0xCBAC1FED

// byRings is a way to multiply up to as many rows of X as rows says.
type byRings struct {
	rows, warps int
	slices      int  // of a piece
	factors     bool // whether the matrix has its own, and so its own rotated X
}

// twin only reads, as a way does.
type twin struct{ byRings }

// Needs implements [cuda.Way].
func (twin) Needs(int, int, int) cuda.Needs { return cuda.Needs{} }

// compiled returns what a way is compiled for.
func (w byRings) compiled() byRings {
	w.slices, w.factors = 0, false
	return w
}

// String implements [cuda.Way].
func (w byRings) String() string {
	return fmt.Sprintf("rings m%d w%d k%d", w.rows, w.warps, w.slices)
}

// Rows implements [cuda.Way].
func (w byRings) Rows() int { return w.rows }

// Needs implements [cuda.Way].
func (w byRings) Needs(_, k, m int) cuda.Needs {
	n := cuda.Needs{Form: Rotated{}, Sums: w.sumBytes(), Flags: true}
	if w.factors {
		n.Form, n.Sums = nil, n.Sums+Rotated{}.Bytes(m, k)
	}
	return n
}

// bands returns how many bands of 64 rows a field has.
func (w byRings) bands() int { return w.warps / w.slices }

// sumBytes is what all workers leave of sums.
func (w byRings) sumBytes() int { return workers * w.bands() * w.rows * rowBytes }

// shared is what a block takes of shared memory for m rows of X: the table, phases, slots of two pieces, and what is kept for the end of a field, scales and
// others' sums.
func (w byRings) shared(m int) int {
	return codes.Entries*copies + 16 + 2*(w.warps+w.bands())*m*rowBytes
}

// fits reports whether a block has shared memory for m rows of X.
func (w byRings) fits(g cuda.GPU, m int) bool { return w.shared(m) <= g.SharedPerBlock }

// slicesIn returns into how many slices the warps of a block can divide a piece.
func slicesIn(warps int) []int {
	var all []int
	for s := 1; s <= warps; s++ {
		if warps%s == 0 {
			all = append(all, s)
		}
	}
	return all
}

// slicesOf returns into how many slices a piece of a matrix of n rows is divided: as many as there are warps, so that a field is one band, whose sums
// few workers share; but where a worker would have many pieces, so that a field is of four.
func slicesOf(n, warps int) int {
	if (n+repack.TrellisRows-1)/repack.TrellisRows >= 2*workers {
		return warps / 4
	}
	return warps
}

// variantOf returns what is compiled for up to m rows of X, or what is built ahead of time, for any number of them. There is one of each: more or fewer
// warps are slower (NOTES.md), but twelve have no registers for wide rings and many rows of X.
func variantOf(rate, m int, prebuilt bool) byRings {
	switch many := m > rowsOfB || prebuilt; {
	case many && rate > 8:
		return byRings{rows: cuda.MaxRows, warps: 8}
	case many:
		return byRings{rows: cuda.MaxRows, warps: 12}
	}
	return byRings{rows: rowsOfB, warps: 12}
}

// prebuilt reports whether kernels of a rate are built ahead of time.
func prebuilt(rate int) bool { return rate == 4 || rate == 6 || rate == 8 }

// params is the argument of trellisgemm.cu.
type params struct {
	Rings                           uint64
	Columns, ColumnsInverse         uint32
	Slices, Inverse                 uint32
	Each, Over                      uint32
	Together, TogetherInverse       uint32
	Bands, Workers                  uint32
	N, M, Groups, _                 uint32
	Table                           uint64
	X, Scales, Y, Bias, Sums, Flags uint64
}

// inverseOf returns what numbers are multiplied by, and shifted by 16, to be divided by n, which is right as long as they are columns of tiles.
func inverseOf(n int) int { return (1<<16 + n - 1) / n }

func columnsOf(k int) int { return (k + repack.TrellisCols - 1) / repack.TrellisCols }

// params returns the argument of a product, without the parts of the matrix.
func (t *Tiles) params(w byRings, o cuda.Operands) params {
	bands, columns := (t.N+repack.TrellisRows-1)/repack.TrellisRows, columnsOf(t.K)
	all := (bands + w.bands() - 1) / w.bands() * columns
	of := max(1, min(workers, all/w.slices))
	inverse := 0
	if all*columns < 1<<32 && columns > 1 {
		inverse = (1<<32 + columns - 1) / columns
	}
	return params{
		Columns: uint32(columns), ColumnsInverse: uint32(inverse), Slices: uint32(w.slices), Inverse: uint32(inverseOf(w.slices)),
		Each: uint32(all / of), Over: uint32(all % of), Together: uint32(w.bands()), TogetherInverse: uint32(inverseOf(w.bands())),
		Bands: uint32(bands), Workers: uint32(of),
		N: uint32(t.N), M: uint32(o.M), Groups: uint32((o.M + rowsOfB - 1) / rowsOfB),
		X: uint64(o.X), Y: uint64(o.Y), Bias: uint64(o.Bias), Sums: uint64(o.Scratch), Flags: uint64(o.Flags),
	}
}

// product is trellisgemm.cu as it is compiled.
type product struct {
	rate  int
	dtype driver.DType
	byRings
}

// Kernel implements [cuda.Kernel].
func (p product) Kernel() driver.Kernel {
	k := driver.Kernel{
		Name:   fmt.Sprintf("%s.%d-%v.cu", productName, p.rate, p.dtype),
		Source: ptx.Instructions() + ptx.Far() + headerSource + productSource,
		Options: driver.CompileOptions{Defines: append(defines(p.rate, p.dtype),
			fmt.Sprintf("NT=%d", p.byRings.rows/rowsOfB), fmt.Sprintf("WARPS=%d", p.warps))},
	}
	k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return cuda.Prebuilt(k, i) }
	if !prebuilt(p.rate) || p.byRings != variantOf(p.rate, 1, true) {
		k.PTX = noPTX
	}
	return k
}

func noPTX(driver.DeviceInfo) ([]byte, error) {
	return nil, errors.New("this kernel for rings is compiled when it is needed")
}

// rotation is trellisrotate.cu as it is compiled.
type rotation struct{ dtype driver.DType }

// Kernel implements [cuda.Kernel].
func (r rotation) Kernel() driver.Kernel {
	k := driver.Kernel{
		Name:    fmt.Sprintf("%s.%v.cu", rotationName, r.dtype),
		Source:  ptx.Instructions() + headerSource + rotationSource,
		Options: driver.CompileOptions{Defines: defines(leastRate, r.dtype)},
	}
	k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return cuda.Prebuilt(k, i) }
	return k
}

// launch returns how X [m, k] is rotated to an address, with factors of columns that lie at one or are the formula's.
func (r rotation) launch(to, x, factors driver.Ptr, m, k int) cuda.Launch {
	p := struct {
		X, To, Factors        uint64
		M, K, Columns, Groups uint32
	}{uint64(x), uint64(to), uint64(factors), uint32(m), uint32(k), uint32(columnsOf(k)), uint32((m + rowsOfB - 1) / rowsOfB)}
	const warps = 4 // of a block, each for 128 columns of a row
	return cuda.Launch{
		Launch: driver.Launch{
			Grid:  driver.Dim{X: uint32((m*((k+codes.Block-1)/codes.Block) + warps - 1) / warps)},
			Block: driver.Dim{X: 32 * warps}, Programmatic: true,
		}, Of: r, Function: rotationName, Args: [][]byte{bytesOf(&p)},
	}
}

// rows is trellisrows.cu as it is compiled, with results of a type.
type rows struct {
	rate       int
	dtype, out driver.DType
}

// Kernel implements [cuda.Kernel].
func (r rows) Kernel() driver.Kernel {
	k := driver.Kernel{
		Name:    fmt.Sprintf("%s.%d-%v-%v.cu", rowsName, r.rate, r.dtype, r.out),
		Source:  ptx.Instructions() + headerSource + rowsSource,
		Options: driver.CompileOptions{Defines: append(defines(r.rate, r.dtype), fmt.Sprintf("OUT=%d", truth(r.out == r.dtype)))},
	}
	k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return cuda.Prebuilt(k, i) }
	if !prebuilt(r.rate) {
		k.PTX = noPTX
	}
	return k
}

// rowParams is the argument of trellisrows.cu.
type rowParams struct {
	Rings, Scales, Factors, Out, Index uint64
	First, Count, K, Columns           uint32
	Table                              uint64
}

// Rotated is the form in which products read X: rotated by the formula's signs, that of rotated.cuh. It implements [cuda.Form].
type Rotated struct{}

// Bytes implements [cuda.Form].
func (Rotated) Bytes(m, k int) int { return columnsOf(k) * ((m + rowsOfB - 1) / rowsOfB) * groupSize }

// Written implements [cuda.Form]: norms, gates and attention write blocks of one size, which leave nothing to fill up.
func (Rotated) Written(k int) bool { return k%codes.Block == 0 }

// Prepare implements [cuda.Form].
func (Rotated) Prepare(_ cuda.GPU, t driver.DType, to, x driver.Ptr, m, k int) cuda.Launch {
	return rotation{t}.launch(to, x, 0, m, k)
}
