package quantize

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
)

// autoTables lists the tables that are chosen from where none is named. The first has the smallest error on
// weights that count alike. The second has a code that is exactly zero, which columns of small weights need
// whose inputs are large: what the first makes of them, and of zeros, is about as large as its least value.
func autoTables() []string { return []string{"js", "nf"} }

// autoHandicap is what the error of the first table counts more at 3 bits of the kind lut, where no text tells what
// layers read: what the weights do not tell of large inputs costs it more. NOTES.md has the numbers.
const autoHandicap = 8. / 7

// sampledRows is how many rows of a layer a table is chosen by, at most.
const sampledRows = 64

// use has the item store a built-in table.
func (it *Item) use(table string) error {
	cb, err := lut.NewCodebook(table, it.Format.Bits, it.Format.Columns(it.K))
	if err != nil {
		return err
	}
	it.Codebook, it.Format.Codebook = cb, table
	return nil
}

// undecided reports whether the item's table is still to be chosen.
func (it *Item) undecided() bool { return it.auto && it.Format.Codebook == AutoCodebook }

// Choose chooses the tables of layers where the recipe leaves them open, by about how large what the layers read
// is, see [sizes]. It reads most of the model. Of layers with a method that knows what they read [Plan.Run]
// chooses when it does; it also does what Choose has not done.
func (p *Plan) Choose(ctx context.Context, o RunOptions) error {
	mem, err := p.memory(o)
	if err != nil {
		return err
	}
	return (&run{plan: p, memory: mem}).choose(ctx, func(*Item) bool { return true })
}

// clone returns a plan with items of its own.
func (p *Plan) clone() *Plan {
	c := *p
	c.Items = slices.Clone(p.Items)
	return &c
}

// choose is [Plan.Choose] for the items that are asked for.
func (r *run) choose(ctx context.Context, asked func(it *Item) bool) error {
	return r.newChooser(asked).all(ctx)
}

// chooser chooses tables, block by block of a model that is known: by about how large what layers read is, it comes from the first
// block to the last. Of other layers it knows nothing of the kind.
type chooser struct {
	run  *run
	open map[*arch.Stored]*Item
	rest []*Item // that read nothing that is known
	z    *sizes  // nil before the first block
	next int     // block; that behind the last is the head
}

func (r *run) newChooser(asked func(it *Item) bool) *chooser {
	c := &chooser{run: r, open: make(map[*arch.Stored]*Item)}
	for i := range r.plan.Items {
		it := &r.plan.Items[i]
		if !it.undecided() || it.calibrated() || !asked(it) {
			continue
		}
		if s := r.plan.names.stored[it.Tensor.Name]; s != nil && slices.Equal(it.Tensor.Shape, s.Shape()) {
			c.open[s] = it
			continue
		}
		c.rest = append(c.rest, it)
	}
	return c
}

// all chooses for all.
func (c *chooser) all(ctx context.Context) error {
	if len(c.open) > 0 {
		if err := c.through(ctx, len(c.run.plan.names.model.Blocks)); err != nil {
			return err
		}
	}
	return c.others(ctx, c.rest)
}

// begin begins before the first block.
func (c *chooser) begin(ctx context.Context) (err error) {
	if c.z == nil {
		c.z, err = newSizes(ctx, c.run)
	}
	return err
}

// through chooses for the layers of all blocks up to one, and of the head behind the last.
func (c *chooser) through(ctx context.Context, last int) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	for ; c.next <= last && len(c.open) > 0; c.next++ {
		if c.next == len(c.z.d.Blocks) {
			head := c.z.d.Head
			in, err := c.z.normed(c.z.d.Norm)
			if err != nil {
				return err
			}
			c.z.of = map[*arch.State][]float64{head.Reads: in}
			if err := c.run.chooseFor(ctx, c.open, c.z, []*arch.Linear{head}); err != nil {
				return err
			}
			continue
		}
		b := &c.z.d.Blocks[c.next]
		if err := c.z.block(ctx, b); err != nil {
			return err
		}
		if err := c.run.chooseFor(ctx, c.open, c.z, b.Linears()); err != nil {
			return err
		}
	}
	return nil
}

// others chooses for layers that read nothing that is known.
func (c *chooser) others(ctx context.Context, items []*Item) error {
	return c.run.chooseSets(ctx, items, func(it *Item) []reading { return []reading{it.reading(0, sampledRows, it.plain, nil)} })
}

// chooseFor chooses for some layers, whose states z knows, and takes them out of those that are open.
func (r *run) chooseFor(ctx context.Context, open map[*arch.Stored]*Item, z *sizes, layers []*arch.Linear) error {
	var items []*Item
	reads := make(map[*Item][]reading)
	for _, l := range layers {
		it := open[l.Stored]
		if it == nil || z.of[l.Reads] == nil {
			continue
		}
		looked := evenly(max(it.Experts, 1), stackedExperts)
		known := func(rd reading) bool { return rd.expert == l.Expert } // such as by gate, and this is up
		if !slices.Contains(looked, l.Expert) || slices.ContainsFunc(reads[it], known) {
			continue
		}
		if len(reads[it]) == 0 {
			items = append(items, it)
		}
		rows := sampledRows / len(looked)
		reads[it] = append(reads[it], it.reading(l.Expert, rows, it.plain, z.of[l.Reads]))
	}
	for _, l := range layers {
		delete(open, l.Stored)
	}
	return r.chooseSets(ctx, items, func(it *Item) []reading { return reads[it] })
}

// reading is some rows of one of an item's matrices, with what is known of what they read.
type reading struct {
	expert int
	rows   []int     // of the item
	state  State     // that they are rounded with
	sizes  []float64 // mean squares of the inputs, nil where all count alike
}

// reading returns up to n rows of a matrix of the item.
func (it *Item) reading(expert, n int, state State, sizes []float64) reading {
	of := it.N / max(it.Experts, 1)
	rows := evenly(of, n)
	for i := range rows {
		rows[i] += expert * of
	}
	return reading{expert, rows, state, sizes}
}

// chooseSets chooses a table for each set of layers that runtimes fuse: the one that leaves less error on
// samples of their rows.
func (r *run) chooseSets(ctx context.Context, items []*Item, reads func(it *Item) []reading) error {
	tables := autoTables()
	losses := make([][]float64, len(items)) // by table
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(r.memory.workers)
	for i, it := range items {
		losses[i] = make([]float64, len(tables))
		for t, table := range tables {
			group.Go(func() (err error) {
				for _, rd := range reads(it) {
					loss, err := r.sampleLoss(ctx, *it, table, rd)
					if err != nil {
						return err
					}
					losses[i][t] += loss
				}
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	sets := make(map[string][]int)
	for i, it := range items {
		set := r.plan.set(it)
		sets[set] = append(sets[set], i)
	}
	for _, set := range sets {
		sums := make([]float64, len(tables))
		for _, i := range set {
			for t, loss := range losses[i] {
				if it := items[i]; t == 0 && it.Format.Bits == 3 && it.Format.Kind == lut.Name && !it.calibrated() {
					loss *= autoHandicap
				}
				sums[t] += loss
			}
		}
		best := 0
		for t, sum := range sums {
			if sum < sums[best] {
				best = t
			}
		}
		r.choosing.Lock()
		for _, i := range set {
			if err := items[i].use(tables[best]); err != nil {
				r.choosing.Unlock()
				return err
			}
		}
		r.choosing.Unlock()
	}
	return nil
}

// set names what of the plan has one table with an item.
func (p *Plan) set(it *Item) string {
	layer := strings.TrimSuffix(it.Tensor.Name, lutq.WeightSuffix)
	if set := p.names.fused(layer); set != "" {
		return "fused " + set
	}
	return it.Tensor.Name
}

// chosen returns the table that another layer of an item's set has got, if one has.
func (p *Plan) chosen(it *Item) (table string, ok bool) {
	set := p.set(it)
	for i := range p.Items {
		if other := &p.Items[i]; other.auto && !other.undecided() && p.set(other) == set {
			return other.Format.Codebook, true
		}
	}
	return "", false
}

// sampleLoss returns what is lost on rows of an item that are quantized with a table: by the method's own
// account, where it has one, or else by the squared errors as their inputs are large. Weights that are no
// numbers, and scales that do not fit, are left to be found when all rows are quantized.
func (r *run) sampleLoss(ctx context.Context, it Item, table string, rd reading) (loss float64, err error) {
	if err := it.use(table); err != nil {
		return 0, err
	}
	some := max(1, r.memory.block/it.K) // rows at a time
	if it.scalesTable() {
		var top float32
		for rows := range slices.Chunk(rd.rows, some) {
			w, err := it.sample(rd.expert, rows)
			if err != nil {
				return 0, err
			}
			top = largest(top, w)
		}
		it.Codebook = it.scaledTo(top)
	}
	q, err := rd.state.Quantizer(it.layer(it.Codebook))
	if err != nil {
		return 0, err
	}
	for rows := range slices.Chunk(rd.rows, some) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		w, err := it.sample(rd.expert, rows)
		if err != nil {
			return 0, err
		}
		of, err := it.rowsLoss(q, w, rd.sizes)
		var bad *rounding.NotFiniteError
		var large *rounding.ScaleError
		switch {
		case errors.As(err, &bad):
			return 0, nil
		case errors.As(err, &large):
			return math.Inf(1), nil
		case err != nil:
			return 0, err
		}
		loss += of
	}
	return loss, nil
}

// rowsLoss returns what is lost on rows of weights.
func (it *Item) rowsLoss(q rounding.Quantizer, w []float32, sizes []float64) (loss float64, err error) {
	kind, err := lutq.KindOf(it.Format.Kind)
	if err != nil {
		return 0, err
	}
	n := len(w) / it.K
	parts, err := emptyParts(kind, it.Format, n, it.K)
	if err != nil {
		return 0, err
	}
	errs := make([]rounding.RowError, n)
	if err := q.Rows(parts, errs, w); err != nil {
		return 0, err
	}
	q.Shared(parts)
	m, err := kind.Open(it.Format, n, it.K, parts)
	if err != nil {
		return 0, err
	}
	row := make([]float32, it.K)
	for i, e := range errs {
		switch {
		case e.NearestLoss > 0 && !math.IsInf(e.NearestLoss, 0):
			loss += e.Loss
		case sizes == nil:
			loss += e.Squared
		default:
			m.Row(row, i)
			for k, v := range w[i*it.K:][:it.K] {
				row[k] = v - row[k]
			}
			loss += weighted(row, sizes)
		}
	}
	return loss, nil
}

// sample reads rows of one of the item's matrices.
func (it *Item) sample(expert int, rows []int) ([]float32, error) {
	w := make([]float32, len(rows)*it.K)
	if !it.Transposed {
		for i, n := range rows {
			if err := it.Tensor.ReadFloat32(w[i*it.K:][:it.K], int64(n)*int64(it.K)); err != nil {
				return nil, err
			}
		}
		return w, nil
	}
	unit := it.unit()
	all := make([]float32, unit*it.K)
	first := expert * unit
	if err := it.Tensor.ReadTransposed(all, int64(first)*int64(it.K), it.K, unit); err != nil {
		return nil, err
	}
	for i, n := range rows {
		copy(w[i*it.K:][:it.K], all[(n-first)*it.K:])
	}
	return w, nil
}

// emptyParts returns room for the parts of n rows of a layer.
func emptyParts(kind weight.Kind, f weight.Spec, n, k int) ([][]byte, error) {
	of, err := kind.Parts(f, n, k)
	if err != nil {
		return nil, err
	}
	parts := make([][]byte, len(of))
	for i, e := range lutq.Entries("", of) {
		size, err := e.Bytes()
		if err != nil {
			return nil, err
		}
		parts[i] = make([]byte, size)
	}
	return parts, nil
}
