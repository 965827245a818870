package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
)

// sparseTest returns the test of the kernels of format i of what is kept, to be prepared.
func (t *cudaSelftest) sparseTest(i int, f cuda.Format, seed uint64) *formatTest {
	test := &formatTest{Case: conform.DrawSparse(seed, i, conform.Format(f)), format: f, sparse: true}
	shape := &cuda.SparseMatrix{N: test.N, K: test.K, Format: f}
	test.configsFor = func(m int) []cuda.Config { return t.engine.SparseConfigs(shape, m, true) }
	test.addConfigs()
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	rows := cuda.MaxRows + 1 + r.IntN(mostMany-cuda.MaxRows)
	ways := slices.DeleteFunc(t.engine.SparseWays(shape, rows), func(w cuda.Way) bool { return w.Kernel() == "" })
	if len(ways) > 0 {
		test.many, test.way = rows, ways[i%len(ways)]
	}
	return test
}

// runSparse checks the kernels of one format of what is kept.
func (t *cudaSelftest) runSparse(ctx context.Context, f *formatTest) (err error) {
	w, err := t.engine.UploadSparse(f.kept, f.Type)
	if err != nil {
		return err
	}
	k := &sparseKernels{operands{gpu: t.gpu, n: w.N, mem: memory{dev: t.dev}}, w, f}
	defer func() { err = errors.Join(err, k.mem.free(), w.Close()) }()
	r, err := conform.Check(ctx, f.Case, k)
	if err != nil {
		return err
	}
	t.add(f, r)
	if f.many > 0 {
		err := t.manyRowsBy(f, w.N, w.K, conform.NewReference, func(o cuda.Operands) error {
			return t.engine.MatMulSparseWay(t.stream, w, o, f.way)
		})
		if err != nil {
			return err
		}
	}
	if err := t.unpacked(f, w); err != nil {
		return err
	}
	*f = formatTest{} // for others' room
	return nil
}

// sparseKernels multiplies by a matrix on a GPU of which two columns in four are kept.
type sparseKernels struct {
	operands
	w    *cuda.SparseMatrix
	test *formatTest
}

func (k *sparseKernels) Configs(rows int) []engineConfig {
	return k.test.run(rows, k.engine.SparseConfigs(k.w, rows, false))
}

func (k *sparseKernels) Slices(c engineConfig, rows int) int {
	return k.engine.SparseSlices(k.w, c.Config, rows)
}

func (k *sparseKernels) MatMul(c engineConfig, p *conform.Product, blocks int, y []uint16) error {
	return k.multiply(p, blocks, y, func() error {
		if c.chosen {
			return k.w.MatMul(k.stream, k.o)
		}
		return k.engine.MatMulSparseWith(k.stream, k.w, k.o, c.Config)
	})
}
