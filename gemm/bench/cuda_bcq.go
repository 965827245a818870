package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/repack"
)

// bcqTest is the test of the kernels of one format of binary codes.
type bcqTest struct {
	*cudaSelftest
	*formatTest
	format cuda.BCQFormat
	rand   *rand.Rand
	matrix weight.Matrix
	tiles  *repack.BCQTiles
	gather []*repack.BCQGather // for whole tables and halves, where there are such kernels
}

// bcqVariant is a format of binary codes, of which all kernels are run.
type bcqVariant cuda.BCQFormat

func (v bcqVariant) traits() []string {
	all := cuda.BCQFormat(v).Traits()
	for i := range all {
		all[i] += " of binary codes"
	}
	return all
}

// bcqTests returns the tests of formats of binary codes.
func (t *cudaSelftest) bcqTests(o *CUDASelftestOptions) []*formatTest {
	if t.dev.CanCompile() != nil {
		return nil // as their kernels are not built ahead of time
	}
	var all []*formatTest
	for i, f := range bcqFormats(o) {
		all = append(all, t.bcqTest(i, f, o.Seed).formatTest)
	}
	return all
}

// bcqFormats returns the formats of binary codes that the options ask for.
func bcqFormats(o *CUDASelftestOptions) []cuda.BCQFormat {
	var formats []cuda.Format
	for _, f := range cuda.BCQFormats() {
		formats = append(formats, cuda.Format(f))
	}
	var asked []cuda.BCQFormat
	for _, f := range o.asked(formats, 1) {
		asked = append(asked, cuda.BCQFormat(f))
	}
	return asked
}

// bcqTest returns the test of format i.
func (t *cudaSelftest) bcqTest(i int, f cuda.BCQFormat, seed uint64) *bcqTest {
	test := &bcqTest{cudaSelftest: t, formatTest: new(formatTest), format: f, rand: rand.New(rand.NewPCG(seed, uint64(i)))}
	kernels := t.engine.BCQKernels(f)
	if f.Scale == weight.F16 {
		kernels = slices.Concat(kernels, cuda.BCQGatherKernels(f, false), cuda.BCQGatherKernels(f, true))
	}
	test.add(bcqVariant(f), "", kernels...)
	test.fill = func() (err error) {
		n, k, group := 1+test.rand.IntN(600), 32*(9+test.rand.IntN(60)), f.Group
		if group == 0 {
			group = k
		}
		m := conform.RandomBCQ(test.rand, n, k, f.Bits, group, f.Scale, i%3 != 2)
		test.matrix = m
		test.tiles, err = repack.BCQ(m)
		if err != nil || f.Scale != weight.F16 {
			return err
		}
		for _, half := range []bool{false, true} {
			laid, err := repack.GatherBCQ(m, half)
			if err != nil {
				return err
			}
			test.gather = append(test.gather, laid)
		}
		return nil
	}
	test.formatTest.run = test.run
	return test
}

// gatherMore is what results may be off by that come through tables of activations, in terms of others: their entries are rounded, too.
const gatherMore = 1.5

// run multiplies few and many rows of X, also through tables of activations, and unpacks the matrix.
func (f *bcqTest) run(context.Context) (err error) {
	w, err := f.engine.UploadBCQ(f.tiles, f.format.Type)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	rows := []int{1, 2 + f.rand.IntN(6), 8, 9 + f.rand.IntN(8), 17 + f.rand.IntN(40)}
	if err := f.products(w, "", rows, conform.Bound(f.format.Type)); err != nil {
		return err
	}
	for _, laid := range f.gather {
		if err := f.throughTables(laid); err != nil {
			return err
		}
	}
	n, k := f.matrix.Shape()
	return f.checkRows(w, weight.Dequantize(f.matrix), fmt.Sprintf("binary codes %+v, %d×%d", f.format, n, k))
}

// throughTables multiplies through tables of activations.
func (f *bcqTest) throughTables(laid *repack.BCQGather) (err error) {
	w, err := f.engine.UploadBCQGather(laid, f.format.Type)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	what := " by tables of activations"
	if laid.Half {
		what = " by half tables of activations"
	}
	return f.products(w, what, []int{1, 2, 5}, gatherMore*conform.Bound(f.format.Type))
}

// products multiplies some numbers of rows of X by the matrix in one of its layouts.
func (f *bcqTest) products(w product, what string, numbers []int, bound float64) error {
	n, k := f.matrix.Shape()
	dtype := f.format.Type
	for _, rows := range numbers {
		worst, err := f.repeat(f.rand, repeated{
			what: fmt.Sprintf("binary codes %+v, %d×%d, %d rows%s", f.format, n, k, rows, what),
			rows: rows, n: n, k: k, dtype: dtype, bound: bound,
			blocks: func() [2]int { return [2]int{f.dev.Info.SMs, 1 + f.rand.IntN(4)} },
			reference: func(x, bias []uint16) *conform.Reference {
				return conform.NewRowReference(f.rand, f.matrix, x, bias, rows, 1, dtype)
			},
			multiply: func(o cuda.Operands) error { return w.MatMul(f.stream, o) },
		})
		if err != nil {
			return err
		}
		f.WorstErr[dtype.String()] = max(f.WorstErr[dtype.String()], worst)
	}
	return nil
}
