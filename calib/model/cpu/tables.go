package cpu

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/lookup"
	"github.com/lutq/lutq/repack"
)

var _ model.Ops = (*TableOps)(nil)

// TableOps are operations that multiply quantized weights through tables of their activations,
// as LUT Tensor Core does, to find out what the rounding of these does to a model. Tables are made by an
// operator of its own: once for the products of a Linear, which share their x, or by the norm that writes x.
// Everything else is that of [Ops]. Weights must have equal steps or binary codes.
type TableOps struct {
	*Ops
	precision lookup.Precision
	normed    tables // made by the last norm
	tables    tables // made last by the operator itself
	count     TableCounts
}

// TableCounts are what the operator that makes tables did. Their JSON keys are stable.
type TableCounts struct {
	Builds   int   `json:"builds"`           // times that it ran, on all rows of an x
	Fused    int   `json:"fused"`            // of those by the norm that wrote x, without reading it again
	Saved    int64 `json:"saved_read_bytes"` // that were not read again
	Products int   `json:"products"`         // that its tables were for
	Tables   int64 `json:"tables"`
	Bytes    int64 `json:"bytes"`       // of half tables
	PerTile  int64 `json:"tile_builds"` // times if each tile of 64 outputs made its own
}

// tileOutputs is how many outputs a tile has that [TableCounts] is compared with.
const tileOutputs = 64

// NewTableOps returns operations that use those of o for what they do not do themselves.
func NewTableOps(o *Ops, p lookup.Precision) *TableOps { return &TableOps{Ops: o, precision: p} }

// Counts returns what was counted so far.
func (c *TableOps) Counts() TableCounts { return c.count }

// tabled is a matrix that is multiplied through tables.
type tabled struct {
	*bcq.Matrix                 // as binary codes
	planes      *gemmcpu.Planes // for the engine; nil: weights
	weights     *lookup.Weights // where groups are not of half-blocks
}

// Packed implements [model.Ops].
func (c *TableOps) Packed(m weight.Matrix) (model.Weight, error) {
	b, err := lookup.Planes(m)
	if err != nil {
		return nil, err
	}
	panels, err := repack.Planes(b)
	if err != nil {
		return nil, err
	}
	w, err := gemmcpu.NewPlanes(panels)
	if err != nil {
		return nil, err
	}
	if w.Tabled() {
		return &tabled{Matrix: b, planes: w}, nil
	}
	weights, err := lookup.NewWeights(b)
	return &tabled{Matrix: b, weights: weights}, err
}

// Multiplies implements [model.Ops].
func (c *TableOps) Multiplies(kind string) bool { return kind == lut.Name || kind == bcq.Name }

// Layout implements [model.Ops].
func (c *TableOps) Layout(l lut.Layout) (model.Weight, error) {
	m, err := l.Matrix()
	if err != nil {
		return nil, err
	}
	return c.Packed(m)
}

// Embed implements [model.Ops].
func (c *TableOps) Embed(h model.Array, tokens []int, w model.Weight, scale float32) {
	rows, ok := w.(*tabled)
	if !ok {
		c.Ops.Embed(h, tokens, w, scale)
		return
	}
	dst := host(h)
	for i, t := range tokens {
		rows.Row(dst[i*rows.K:(i+1)*rows.K], t)
	}
	if scale != 1 {
		c.engine.Scale(dst, dst, scale)
	}
}

// Linear implements [model.Ops].
func (c *TableOps) Linear(x model.Array, rows int, to ...model.Product) {
	var others, products []model.Product
	var k int
	for _, p := range to {
		if w, ok := p.W.(*tabled); ok {
			products, k = append(products, p), w.K
		} else {
			others = append(others, p)
		}
	}
	if len(products) > 0 {
		c.multiply(host(x), rows, k, products)
	}
	if len(others) > 0 {
		c.Ops.Linear(x, rows, others...)
	}
}

// multiply computes products of rows of x, of k columns, by its tables, which are made here where no norm has.
func (c *TableOps) multiply(x []float32, rows, k int, to []model.Product) {
	var ops []gemmcpu.Op
	var defined *lookup.Tables // for weights that the engine does not take
	ys := make([][]float32, len(to))
	for i, p := range to {
		w := p.W.(*tabled)
		y := host(p.Y)
		if len(y) != rows*w.N {
			panic(badSize)
		}
		if p.Add {
			y = c.product(i, len(y))
		}
		ys[i] = y
		c.count.Products++
		c.count.PerTile += int64((w.N + tileOutputs - 1) / tileOutputs)
		if w.planes != nil {
			ops = append(ops, gemmcpu.Op{Y: y, W: w.planes})
			continue
		}
		if defined == nil {
			defined = c.define(x, rows, k)
		}
		// A stretch of weights stays in a cache while the rows of x go by.
		c.overRows(w.N, func(_, first, end int) {
			for r := range rows {
				for j := first; j < end; j++ {
					y[r*w.N+j] = w.weights.Dot(defined, r, j)
				}
			}
		})
	}
	if len(ops) > 0 {
		t, from := c.normed.of(x, rows)
		if t == nil {
			t = c.build(x, rows, k)
		}
		c.engine.MatMulTables(&t.kernel, from, rows, ops...)
	}
	for i, p := range to {
		if p.Bias != nil {
			c.addBias(ys[i], rows, host(p.Bias))
		}
		if p.Add {
			c.add(host(p.Y), ys[i])
		}
	}
}

// tables are those of some rows of x, as the engine takes them.
type tables struct {
	x      []float32 // whose tables they are, of a norm; nil where they are no longer
	k      int
	kernel gemmcpu.PlaneTables
}

// of returns the tables of rows of x and the first of them, nil if they are not at hand.
func (t *tables) of(x []float32, rows int) (*tables, int) {
	if len(t.x) == 0 || len(x) == 0 {
		return nil, 0
	}
	for r := 0; r+rows <= len(t.x)/t.k; r++ {
		if &t.x[r*t.k] == &x[0] {
			return t, r
		}
	}
	return nil, 0
}

// reset makes room for the tables of rows of k columns.
func (t *tables) reset(p lookup.Precision, rows, k int) {
	t.k = k
	t.kernel.Reset(p, rows, k)
}

// build is the operator that makes tables, of rows of x.
func (c *TableOps) build(x []float32, rows, k int) *tables {
	t := &c.tables
	t.reset(c.precision, rows, k)
	c.overRows(rows, func(worker, from, to int) {
		for i := from; i < to; i++ {
			c.engine.FillTables(&t.kernel, worker, i, x[i*k:(i+1)*k])
		}
	})
	c.built(rows, k)
	return t
}

// define is build for tables as they are defined.
func (c *TableOps) define(x []float32, rows, k int) *lookup.Tables {
	t := lookup.NewTables(c.precision, rows, k)
	c.overRows(rows, func(_, from, to int) {
		for i := from; i < to; i++ {
			t.Fill(i, x[i*k:(i+1)*k])
		}
	})
	c.built(rows, k)
	return t
}

// built counts the tables of rows of k columns.
func (c *TableOps) built(rows, k int) {
	c.count.Builds++
	c.count.Tables += int64(rows) * int64((k+lookup.Columns-1)/lookup.Columns)
	c.count.Bytes += c.precision.Bytes(rows, k)
}

// NormFor implements [model.Normer]: rows are normed and their tables made while they are in a cache.
func (c *TableOps) NormFor(w model.Weight, y, x, norm model.Array, rows int, eps float64) {
	c.normed.x = nil
	if m, ok := w.(*tabled); !ok || m.planes == nil {
		c.Ops.RMSNorm(y, x, norm, rows, eps)
		return
	}
	dst, src, factors := host(y), host(x), host(norm)
	k := len(factors)
	if len(dst) != rows*k || len(src) != len(dst) {
		panic(badSize)
	}
	t := &c.normed
	t.reset(c.precision, rows, k)
	c.overRows(rows, func(worker, from, to int) {
		for i := from; i < to; i++ {
			row := dst[i*k : (i+1)*k]
			c.engine.RMSNorm(row, src[i*k:(i+1)*k], factors, eps)
			c.engine.FillTables(&t.kernel, worker, i, row)
		}
	})
	t.x = dst
	c.built(rows, k)
	c.count.Fused++
	c.count.Saved += 4 * int64(len(dst))
}

// RMSNorm implements [model.Ops].
func (c *TableOps) RMSNorm(y, x, w model.Array, rows int, eps float64) {
	c.normed.x = nil // it may be what is written
	c.Ops.RMSNorm(y, x, w, rows, eps)
}
