package cpu

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/lookup"
	"github.com/lutq/lutq/quantize/bcq"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/weight"
)

var _ model.Ops = (*TableOps)(nil)

// TableOps are operations that multiply quantized weights through tables of their activations,
// as LUT Tensor Core does, to find out what the rounding of these does to a model. Tables are made by an
// operator of its own: once for the products of a Linear, which share their x. Everything else is that of
// [Ops]. Weights must have equal steps or binary codes.
type TableOps struct {
	*Ops
	precision lookup.Precision
	count     TableCounts
}

// TableCounts are what the operator that makes tables did. Their JSON keys are stable.
type TableCounts struct {
	Builds   int   `json:"builds"`   // times that it ran, on all rows of an x
	Products int   `json:"products"` // that its tables were for
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

// Packed implements [model.Ops].
func (c *TableOps) Packed(m weight.Matrix) (model.Weight, error) { return lookup.NewWeights(m) }

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
	rows, ok := w.(*lookup.Weights)
	if !ok {
		c.Ops.Embed(h, tokens, w, scale)
		return
	}
	dst := host(h)
	_, k := rows.Shape()
	for i, t := range tokens {
		rows.Row(dst[i*k:(i+1)*k], t)
	}
	if scale != 1 {
		c.engine.Scale(dst, dst, scale)
	}
}

// Linear implements [model.Ops].
func (c *TableOps) Linear(x model.Array, rows int, to ...model.Product) {
	var others []model.Product
	var tables *lookup.Tables
	for i, p := range to {
		w, ok := p.W.(*lookup.Weights)
		if !ok {
			others = append(others, p)
			continue
		}
		n, k := w.Shape()
		if tables == nil {
			tables = c.build(host(x), rows, k)
		}
		y := host(p.Y)
		if len(y) != rows*n {
			panic(badSize)
		}
		if p.Add {
			y = c.product(i, len(y))
		}
		c.count.Products++
		c.count.PerTile += int64((n + tileOutputs - 1) / tileOutputs)
		// A stretch of weights stays in a cache while the rows of x go by.
		c.overRows(n, func(_, from, end int) {
			for r := range rows {
				for j := from; j < end; j++ {
					y[r*n+j] = w.Dot(tables, r, j)
				}
			}
		})
		if p.Bias != nil {
			c.addBias(y, rows, host(p.Bias))
		}
		if p.Add {
			c.add(host(p.Y), y)
		}
	}
	if len(others) > 0 {
		c.Ops.Linear(x, rows, others...)
	}
}

// build is the operator that makes tables, of rows of x.
func (c *TableOps) build(x []float32, rows, k int) *lookup.Tables {
	t := lookup.NewTables(c.precision, rows, k)
	c.overRows(rows, func(_, from, to int) {
		for i := from; i < to; i++ {
			t.Fill(i, x[i*k:(i+1)*k])
		}
	})
	c.count.Builds++
	c.count.Tables += int64(rows) * int64((k+lookup.Columns-1)/lookup.Columns)
	c.count.Bytes += t.Bytes()
	return t
}
