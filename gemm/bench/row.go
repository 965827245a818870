package bench

import (
	"strings"

	"github.com/lutq/lutq/gemm/cuda/timing"
)

// unpackedKernel is the kernel of rows whose weights are written as numbers first, for cuBLAS.
const unpackedKernel = "unpacked, cuBLAS"

// manyKernel begins the name of a kernel for all of many rows of X, which rounds weights as well.
const manyKernel = "wgmma "

// keptKernel begins the name of one by what is kept of every four columns.
const keptKernel = "wgmma.sp:"

// gatherKernel begins the name of one that looks sums up in tables of activations, whose entries are rounded.
const gatherKernel = "gather"

// fp8Kernel begins the name of one that rounds X and the table to E4M3.
const fp8Kernel = manyKernel + "fp8 "

// foldedKernel begins the name of one that multiplies by folded weights in E4M3, and keptFolded is that where they were written before.
const (
	foldedKernel = "fp8 folded, cuBLASLt"
	keptFolded   = "fp8 folded and kept, cuBLASLt"
)

// Row is one measured product Y = X·Ŵᵀ. Times are those of one call, in
// microseconds.
type Row struct {
	Name   string `json:"name,omitempty"` // of a real layer
	Device string `json:"device"`
	Kind   string `json:"kind,omitempty"` // of weights, if that is not of tables
	N      int    `json:"n"`
	K      int    `json:"k"`
	M      int    `json:"m"`
	Bits   int    `json:"bits"`
	Group  int    `json:"group"`
	DType  string `json:"dtype"` // of activations and results
	Kernel string `json:"kernel"`
	Lookup string `json:"lookup,omitempty"` // how codes become weights, where that was asked for

	Us float64 `json:"us"`

	// PrepareUs is the time to write X in the form that the kernel reads, where that is not row by row. Us leaves it out: norms,
	// gates and attention of a model write X in that form, but others who have X row by row take as long once for all layers that
	// read it.
	PrepareUs float64 `json:"prepare_us,omitempty"`

	// ReadOnlyUs is the time to read the bytes of the weights, and
	// ReadOnlyRatio the part of Us that this is: 1 means that the kernel is
	// as fast as memory.
	ReadOnlyUs    float64 `json:"read_only_us"`
	ReadOnlyRatio float64 `json:"read_only_ratio"`

	// DenseUs is the time of the product with dense weights, and DenseRatio
	// is DenseUs/Us: how many times faster the quantized product is.
	DenseUs    float64 `json:"dense_us"`
	DenseRatio float64 `json:"dense_ratio"`

	// DenseF16Us and DenseF16Ratio are the same on the CPU with dense weights
	// stored as float16.
	DenseF16Us    float64 `json:"dense_f16_us,omitempty"`
	DenseF16Ratio float64 `json:"dense_f16_ratio,omitempty"`

	// BLASUs and BLASRatio are the same for sgemm of [Options].BLAS.
	BLASUs    float64 `json:"blas_us,omitempty"`
	BLASRatio float64 `json:"blas_ratio,omitempty"`

	// RelErr is the relative error of the result in the Frobenius norm, on
	// sampled rows, against float64.
	RelErr float64 `json:"rel_err"`

	Threads     int     `json:"threads"`
	Bytes       int64   `json:"bytes"` // of codes, scales and table
	GBPerS      float64 `json:"gb_per_s"`
	ReadGBPerS  float64 `json:"read_only_gb_per_s"`
	GFLOPPerS   float64 `json:"gflop_per_s"`
	DenseGFLOPS float64 `json:"dense_gflop_per_s"`

	// Repetitions is how often each was timed on the CPU: [Repetitions] times, or less where there was no time for more.
	// ShortRing is set there where too little memory was free for as many copies of the weights as the caches do not hold.
	Repetitions int  `json:"repetitions,omitempty"`
	ShortRing   bool `json:"short_ring,omitempty"`

	// Seconds of the product over and over, where that was asked for.
	Seconds []timing.Second `json:"seconds,omitempty"`

	// JoulesPerCall is the energy that a GPU takes for a product, of calls over and over, and Watts its power meanwhile; the others are
	// those with dense weights. They are there where they were asked for.
	JoulesPerCall      float64 `json:"joules_per_call,omitempty"`
	Watts              float64 `json:"watts,omitempty"`
	DenseJoulesPerCall float64 `json:"dense_joules_per_call,omitempty"`
	DenseWatts         float64 `json:"dense_watts,omitempty"`

	// Ring is the number of copies that the weights rotated through.
	Ring int `json:"ring,omitempty"`

	// What only a GPU's rows have: its name, the names of the layers that a row
	// stands for where they are several, the largest error of an element in
	// terms of the results' root mean square, and the relative error of the
	// results that rounding the table to DType makes, which RelErr leaves out.
	GPU         string   `json:"gpu,omitempty"`
	Layers      []string `json:"layers,omitempty"`
	MaxErr      float64  `json:"max_err,omitempty"`
	TableRelErr float64  `json:"table_rel_err,omitempty"`

	// WaveEfficiency is the mean work of a multiprocessor over the work of the fullest, by codes of a table on a GPU and
	// where cuBLAS does not divide it.
	WaveEfficiency float64 `json:"wave_efficiency,omitempty"`

	// Spread is how much repetitions differ, of whichever of the times above they
	// differ most: the range of their middle half over their median. OtherCPUs is
	// the number of processors that other processes kept busy meanwhile, on the
	// CPU of a system that tells. Noisy is set where the first is above 0.1, or
	// the second above 0.1 and a fiftieth of the processors.
	Spread    float64 `json:"spread"`
	OtherCPUs float64 `json:"other_cpus,omitempty"`
	Noisy     bool    `json:"noisy"`
}

// Way names how a product is multiplied where that is a choice of the user or there are several: by a kernel that rounds
// more or looks up otherwise; or "".
func (r *Row) Way() string {
	switch {
	case strings.HasPrefix(r.Kernel, fixedKernel), strings.HasPrefix(r.Kernel, tabledKernel), strings.HasPrefix(r.Kernel, gatherKernel):
		return r.Kernel
	case strings.HasPrefix(r.Kernel, fp8Kernel), r.Kernel == foldedKernel:
		return "fp8"
	case r.Kernel == keptFolded:
		return "fp8 kept"
	}
	return r.Lookup
}

// Sustained returns the rate of the last second over that of the first, or 0 where there are fewer than two.
func (r *Row) Sustained() float64 {
	if len(r.Seconds) < 2 {
		return 0
	}
	return r.Seconds[0].Us / r.Seconds[len(r.Seconds)-1].Us
}
