package bench

import (
	"context"
	"errors"
	"slices"

	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// sparseTest returns the test of the kernels of format i of what is kept, to be prepared.
func (t *cudaSelftest) sparseTest(c *driver.CUDA, i int, f cuda.Format, seed uint64) *formatTest {
	test := &formatTest{Case: conform.DrawSparse(seed, i, conform.Format(f)), kept: new(repack.SparseTiles)}
	test.steps = append(test.steps, func() (err error) {
		test.Fill()
		test.kept, err = repack.SparseCUDA(test.Sparse)
		return err
	})
	shape := &cuda.SparseMatrix{N: test.N, K: test.K, Format: f}
	for _, m := range test.Rows {
		for _, config := range t.engine.SparseConfigs(shape, m, true) {
			t.compiled(c, test, f.Kernel(config))
		}
	}
	return test
}

// runSparse checks the kernels of one format of what is kept.
func (t *cudaSelftest) runSparse(ctx context.Context, f *formatTest) (err error) {
	w, err := t.engine.UploadSparse(f.kept, f.Type)
	if err != nil {
		return err
	}
	k := &sparseKernels{operands{gpu: t.gpu, n: w.N, mem: memory{dev: t.dev}}, w}
	defer func() { err = errors.Join(err, k.mem.free(), w.Close()) }()
	r, err := conform.Check(ctx, f.Case, k)
	if err != nil {
		return err
	}
	t.add(f, r)
	*f = formatTest{} // for others' room
	return nil
}

// sparseKernels multiplies by a matrix on a GPU of which two columns in four are kept.
type sparseKernels struct {
	operands
	w *cuda.SparseMatrix
}

func (k *sparseKernels) Configs(rows int) []engineConfig {
	all := []engineConfig{{chosen: true}}
	for _, c := range k.engine.SparseConfigs(k.w, rows, true) {
		all = append(all, engineConfig{Config: c})
	}
	if rows <= cuda.MaxRows { // what is chosen is one of them
		all = slices.Delete(all, 0, 1)
	}
	return all
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
