package lmma

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/lutq/lutq/gemm/ref"
)

// MaxProducts bounds the multiplications that a trial stands in for.
const MaxProducts = 1 << 24

// TrialOptions say what a trial multiplies.
type TrialOptions struct {
	M, N, K int
	Zeros   bool // rows of weights have zero points
	Seed    uint64
}

// TrialRow is a schedule and what it counts. Its JSON keys are stable.
type TrialRow struct {
	Order    string `json:"order"`
	Resident bool   `json:"resident"`
	Counts
}

// ErrResult says that a product is not what it should be.
var ErrResult = errors.New("the product differs")

// Trial multiplies random operands in every order of loops, with tables that are made again where other
// rows of A are loaded, and once with tables that are kept. It returns the counts and the relative error
// against float64, which is 0 of integers. It fails with [ErrResult] if orders, or integers, do
// not agree.
func (in Instruction) Trial(o TrialOptions) ([]TrialRow, float64, error) {
	if o.M < 1 || o.N < 1 || o.K < 1 || o.M > MaxProducts || o.N > MaxProducts/o.M || o.K > MaxProducts/(o.M*o.N) {
		return nil, 0, fmt.Errorf("a product of %d×%d×%d: want 1 to %d multiplications", o.M, o.N, o.K, MaxProducts)
	}
	x, w := in.random(o)
	want := ref.MatMul(x.A, w, o.M, o.N, o.K)
	var rows []TrialRow
	var first []float64
	for _, s := range []Schedule{
		{Order: "mkn", Resident: true}, {Order: "mkn"}, {Order: "kmn"}, {Order: "mnk"}, {Order: "nmk"}, {Order: "nkm"}, {Order: "knm"},
	} {
		got, counts, err := in.Run(x, s)
		if err != nil {
			return nil, 0, err
		}
		if first == nil {
			first = got
		} else if !slices.Equal(first, got) {
			return nil, 0, fmt.Errorf("%w with the order %s of loops", ErrResult, s.Order)
		}
		rows = append(rows, TrialRow{s.Order, s.Resident, counts})
	}
	if in.A == I8 && !slices.Equal(first, want) {
		return nil, 0, fmt.Errorf("%w from that of int64", ErrResult)
	}
	return rows, ref.RelErr(first, want), nil
}

// random returns operands, and the weights q' − z' that they stand for.
func (in Instruction) random(o TrialOptions) (Operands, []float64) {
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	x := Operands{M: o.M, N: o.N, K: o.K, A: make([]float64, o.M*o.K), W: make([]uint8, o.N*o.K)}
	for i := range x.A {
		x.A[i] = float64(rng.IntN(256) - 128)
		if in.A != I8 {
			x.A[i] = in.A.Round(rng.NormFloat64())
		}
	}
	w := make([]float64, len(x.W))
	for n := range o.N {
		z := int32(0)
		if o.Zeros {
			z = int32(2*rng.IntN(1<<in.Bits) + 1 - 1<<in.Bits)
			x.Zeros = append(x.Zeros, z)
		}
		for i := n * o.K; i < (n+1)*o.K; i++ {
			x.W[i] = uint8(rng.IntN(1 << in.Bits))
			w[i] = float64(2*int32(x.W[i]) - (1<<in.Bits - 1) - z)
		}
	}
	return x, w
}
