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
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// bcqTest is the test of the kernels of one format of binary codes on one matrix.
type bcqTest struct {
	format cuda.BCQFormat
	rand   *rand.Rand
	matrix weight.Matrix
	tiles  *repack.BCQTiles
	gather []*repack.BCQGather // for whole tables and halves, where there are such kernels
	steps  []func() error
}

func (f *bcqTest) preparation() []func() error { return f.steps }

// bcqTest returns the test of format i, to be prepared.
func (t *cudaSelftest) bcqTest(c *driver.CUDA, i int, f cuda.BCQFormat, seed uint64) *bcqTest {
	test := &bcqTest{format: f, rand: rand.New(rand.NewPCG(seed, uint64(i)))}
	test.steps = append(test.steps, func() (err error) {
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
	})
	for _, k := range t.bcqKernels(f) {
		t.compiled(c, &test.steps, k)
	}
	return test
}

// bcqKernels returns the kernels of a format.
func (t *cudaSelftest) bcqKernels(f cuda.BCQFormat) []driver.Kernel {
	all := t.engine.BCQKernels(f)
	if f.Scale == weight.F16 {
		all = slices.Concat(all, cuda.BCQGatherKernels(f, false), cuda.BCQGatherKernels(f, true))
	}
	return all
}

// gatherMore is what results may be off by that come through tables of activations, in terms of others: their entries are rounded, too.
const gatherMore = 1.5

// runBCQ multiplies few and many rows of X twice, on as many blocks as the GPU takes and on few, which gives the same bits, and
// unpacks the matrix.
func (t *cudaSelftest) runBCQ(f *bcqTest) (err error) {
	w, err := t.engine.UploadBCQ(f.tiles, f.format.Type)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	n, k := f.matrix.Shape()
	dtype := f.format.Type
	if err := t.bcqProducts(f, w, "", []int{1, 2 + f.rand.IntN(6), 8, 9 + f.rand.IntN(8), 17 + f.rand.IntN(40)}, conform.Bound(dtype)); err != nil {
		return err
	}
	for _, laid := range f.gather {
		if err := t.runGather(f, laid); err != nil {
			return err
		}
	}
	if err := t.checkRows(w, weight.Dequantize(f.matrix), fmt.Sprintf("binary codes %+v, %d×%d", f.format, n, k)); err != nil {
		return err
	}
	*f = bcqTest{} // for others' room
	return nil
}

// runGather multiplies through tables of activations.
func (t *cudaSelftest) runGather(f *bcqTest, laid *repack.BCQGather) (err error) {
	w, err := t.engine.UploadBCQGather(laid, f.format.Type)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	what := " by tables of activations"
	if laid.Half {
		what = " by half tables of activations"
	}
	return t.bcqProducts(f, w, what, []int{1, 2, 5}, gatherMore*conform.Bound(f.format.Type))
}

// bcqProducts multiplies some numbers of rows of X by a matrix in one of its layouts, as runBCQ says.
func (t *cudaSelftest) bcqProducts(f *bcqTest, w product, what string, numbers []int, bound float64) (err error) {
	mem := memory{dev: t.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	n, k := f.matrix.Shape()
	dtype := f.format.Type
	for _, rows := range numbers {
		x, bias := conform.RandomHalves(f.rand, rows*k, dtype), conform.RandomHalves(f.rand, n, dtype)
		o := cuda.Operands{M: rows, X: mem.upload(driver.Bytes(x)), Bias: mem.upload(driver.Bytes(bias)), Y: mem.alloc(2 * (rows*n + conform.Guard))}
		if mem.err != nil {
			return mem.err
		}
		want := conform.NewRowReference(f.rand, f.matrix, x, bias, rows, 1, dtype)
		var first []uint16
		for _, blocks := range []int{t.dev.Info.SMs, 1 + f.rand.IntN(4)} {
			t.engine.LimitBlocks(blocks)
			err := errors.Join(t.dev.Fill8(o.Y, conform.Poison, 2*(rows*n+conform.Guard)), w.MatMul(t.stream, o))
			t.engine.LimitBlocks(t.dev.Info.SMs)
			if err != nil {
				return err
			}
			y, err := t.readResult(o.Y, rows*n, dtype)
			t.Checks++
			rel := 0.0
			if err == nil {
				if rel, _ = want.Errors(y); !(rel <= bound) {
					err = fmt.Errorf("relative error %.3g", rel)
				}
			}
			if err == nil && first != nil && !slices.Equal(y, first) {
				err = errors.New("not the bits of the first time")
			}
			if err != nil {
				t.Failures = append(t.Failures, fmt.Sprintf("binary codes %+v, %d×%d, %d rows%s, up to %d blocks: %v", f.format, n, k, rows, what, blocks, err))
				continue
			}
			first = y
			t.WorstErr[dtype.String()] = max(t.WorstErr[dtype.String()], rel)
		}
	}
	return nil
}

// bcqFormats returns the formats of binary codes that the options ask for.
func (o *CUDASelftestOptions) bcqFormats() []cuda.BCQFormat {
	return slices.DeleteFunc(cuda.BCQFormats(), func(f cuda.BCQFormat) bool {
		return len(o.Bits) > 0 && !slices.Contains(o.Bits, f.Bits) ||
			len(o.Groups) > 0 && !slices.Contains(o.Groups, f.Group) ||
			len(o.Scales) > 0 && !slices.Contains(o.Scales, f.Scale) ||
			len(o.DTypes) > 0 && !slices.Contains(o.DTypes, f.Type.String())
	})
}

// binaryCodes runs tests of binary codes, and calls done after each.
func (t *cudaSelftest) binaryCodes(ctx context.Context, tests []*bcqTest, done func()) error {
	return inOrder(ctx, tests, (*bcqTest).preparation, func(f *bcqTest) error {
		if err := t.runBCQ(f); err != nil {
			return err
		}
		done()
		return nil
	})
}
