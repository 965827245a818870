package cuda

import (
	"errors"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

var _ model.Recorder = (*Ops)(nil)

// recording is a graph, with the scratch memory that its kernels use.
type recording struct {
	o    *Ops
	exec *driver.GraphExec
	pool pool

	products []gemmcuda.Follower // that are asked for, in order; without a weight those that nothing is read ahead of
	again    bool                // whether they are known, and at is the next
	at       int

	rows         int
	posts        *driver.HostBuffer // floats [MaxQueued, 2, rows], which the graph's last kernel writes
	turns        driver.Ptr         // of that kernel
	ends         [model.MaxQueued]*driver.Event
	queued, read int
}

// Record does what f asks for once, which loads kernels and finds the scratch memory, and makes a graph of what it asks
// for the second time. The graph keeps the memory to itself.
func (o *Ops) Record(f func()) (model.Recording, error) {
	r := &recording{o: o}
	r.pool.init()
	o.swapPool(r)
	defer o.swapPool(r)
	o.recording = r
	defer func() { o.recording = nil }()
	f()
	err := o.dev.Do(func() error {
		r.mark()
		if o.err == nil {
			o.fail(o.stream.Sync())
		}
		if o.err != nil {
			return o.err
		}
		r.again = true
		g, err := o.stream.Capture(func() error {
			f()
			return o.err
		})
		if err != nil {
			o.fail(err)
			return err
		}
		r.exec, err = g.Instantiate()
		if err == nil {
			err = o.recorded(r.exec)
		}
		o.fail(err)
		return errors.Join(err, g.Close())
	})
	if err != nil {
		return nil, errors.Join(err, o.dev.Do(func() error { return errors.Join(r.closePosts(), o.pool.close(o.dev)) })) // which is the recording's
	}
	return r, nil
}

// product notes a product, or one that nothing is read ahead of, and returns what is known of it where it is of a step that is
// recorded: what f asks for the first time it asks for the second time too. It is called inside do.
func (o *Ops) product(f gemmcuda.Follower) *gemmcuda.Step {
	r := o.recording
	if r == nil || o.ahead == (gemmcuda.Ahead{}) {
		return nil
	}
	s := &gemmcuda.Step{Ahead: o.ahead}
	if !r.again {
		r.products = append(r.products, f)
		return s
	}
	if r.at++; r.at < len(r.products) {
		s.Behind = &r.products[r.at]
	}
	s.Told = r.at > 1 && r.products[r.at-2].W != nil
	return s
}

// post makes room for what the host is told, once. It is called inside do.
func (r *recording) post(rows int) {
	if r.posts != nil || r.o.err != nil {
		return
	}
	r.rows = rows
	var err error
	if r.posts, err = r.o.dev.AllocHost(4 * model.MaxQueued * 2 * rows); err != nil {
		r.o.fail(err)
		return
	}
	// Not of the pool, in which what is done the second time would then find less.
	if r.turns, err = r.o.dev.Alloc(4 * rows); err == nil {
		err = r.o.stream.Fill32(r.turns, 0, rows)
	}
	r.o.fail(err)
	for i := range r.ends {
		if r.ends[i], err = r.o.dev.NewUntimedEvent(); err != nil {
			r.o.fail(err)
			return
		}
	}
}

// mark notes the end of what is queued.
func (r *recording) mark() {
	check(r.queued-r.read < model.MaxQueued, "%d replays are queued", r.queued-r.read)
	if r.o.err == nil {
		r.o.fail(r.ends[r.queued%model.MaxQueued].Record(r.o.stream))
	}
	r.queued++
}

// closePosts gives back what the host is told by.
func (r *recording) closePosts() error {
	errs := []error{r.o.dev.Free(r.turns)}
	for _, e := range r.ends {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	if r.posts != nil {
		errs = append(errs, r.posts.Close())
	}
	return errors.Join(errs...)
}

// swapPool takes scratch memory from the recording's pool instead of that of all, and back.
func (o *Ops) swapPool(r *recording) {
	_ = o.dev.Do(func() error {
		o.pool, r.pool = r.pool, o.pool
		return nil
	})
}

// Replay queues the graph.
func (r *recording) Replay() {
	r.o.do(func() {
		r.o.fail(r.exec.Launch(r.o.stream))
		r.mark()
	})
}

// Read waits for the first end that was not read.
func (r *recording) Read(dst []float32) error {
	check(len(dst) == 2*r.rows && r.read < r.queued, "reading %d elements of %d rows, %d of %d", len(dst), r.rows, r.read, r.queued)
	return r.o.now(func() {
		at := r.read % model.MaxQueued
		r.o.fail(r.ends[at].Sync())
		copy(driver.Bytes(dst), r.posts.Bytes()[4*2*r.rows*at:])
		r.read++
	})
}

// Close waits for the graph and gives its memory back.
func (r *recording) Close() {
	_ = r.o.dev.Do(func() error { // after a failure too
		r.o.fail(errors.Join(r.o.stream.Sync(), r.exec.Close(), r.closePosts(), r.pool.close(r.o.dev)))
		return nil
	})
}

// EmbedAt writes the rows of a weight that tokens name.
func (o *Ops) EmbedAt(h, tokens model.Array, w model.Weight, scale float32) {
	n, k := tokens.Len(), width(w)
	check(h.Len() == n*k, "%d elements for %d tokens of %d", h.Len(), n, k)
	o.do(func() {
		if m := w.(operand).base(); m.packed == nil {
			grid, block := perRow(n, k)
			o.launch("embed_at", grid, block, h, tokens, o.numbers(m), k, scale)
			return
		}
		rows := o.scratch(4 * n)
		grid, block := elements(n)
		o.launch("indices", grid, block, rows, tokens, int64(n))
		o.embed(h, rows, n, w, scale)
		o.release(rows)
	})
}

func width(w model.Weight) int {
	_, k := w.Shape()
	return k
}

// Join makes one weight of several that are multiplied by packed, where the kernels of their kind can.
func (o *Ops) Join(parts ...model.Weight) (model.Weight, error) {
	all := &matrix{}
	var packed []*gemmcuda.Matrix
	for _, p := range parts {
		m, _ := p.(*matrix)
		if m == nil || m.packed == nil {
			return nil, nil
		}
		all.n, all.k, packed = all.n+m.n, m.k, append(packed, m.packed)
	}
	err := o.dev.Do(func() (err error) {
		if err = o.stream.Sync(); err != nil {
			return err
		}
		all.packed, err = o.engine.Join(packed...)
		return err
	})
	if err != nil || all.packed == nil {
		return nil, err
	}
	return all, nil
}

// gates is what the engine calls an activation.
func gates(act arch.Gating) gemmcuda.Gates {
	return gemmcuda.Gates{Activation: string(act.Act), Alpha: float32(act.Alpha), Limit: float32(act.Limit)}
}

// Gates implements [model.Recorder], for packed weights.
func (o *Ops) Gates(rows int, w model.Weight, act arch.Gating) bool {
	m, _ := w.(*matrix)
	if m == nil || m.packed == nil {
		return false
	}
	can := false
	o.do(func() { can = !o.kept.asNumbers(rows) && o.engine.CanGate(m.packed.Tiles, rows, gates(act)) })
	return can
}

// Gated multiplies by gates and what these are multiplied by.
func (o *Ops) Gated(y, x model.Array, rows int, w model.Weight, act arch.Gating) {
	m, in := w.(*matrix), inputOf(x)
	check((in.rows == nil || in.rows.dtype == o.acts) && in.n == rows*m.k && y.Len() == rows*m.n/2,
		"%d elements and %d results for %d rows of gates of shape [%d, %d]", in.n, y.Len(), rows, m.n, m.k)
	o.do(func() {
		g := gates(act)
		if out, ok := y.(*input); ok && out.rows == nil {
			g.Into = out.form
			if o.engine.CanGate(m.packed.Tiles, rows, g) {
				o.gated(out.room, in, rows, m, g)
				return
			}
			g.Into = nil
		}
		o.rowByRow(y, func(y model.Array) { o.gated(ptr(y), in, rows, m, g) })
	})
}

// gated queues the product.
func (o *Ops) gated(to driver.Ptr, in *input, rows int, w *matrix, g gemmcuda.Gates) {
	needs := o.engine.GateNeeds(w.packed.Tiles, rows, g)
	x := reading{o: o, in: in, rows: rows, k: w.k}
	defer x.release()
	from := x.as(needs.Form)
	var scratch driver.Ptr
	if needs.Sums > 0 {
		scratch = o.scratch(needs.Sums)
		defer o.release(scratch)
	}
	if o.err == nil {
		step := o.product(gemmcuda.Follower{W: w.packed, M: rows, Gates: g})
		o.fail(o.engine.MatMul(o.stream, w.packed, gemmcuda.Operands{Y: to, X: from, M: rows, Scratch: scratch, Form: needs.Form, Gates: g, Step: step}))
	}
}

// GLURows writes act(g)∘u of rows that have one behind the other.
func (o *Ops) GLURows(y, both model.Array, rows int, act arch.Gating) {
	check(both.Len() == 2*y.Len() && y.Len()%rows == 0, "glu of %d rows of %d to %d elements", rows, both.Len(), y.Len())
	cols := y.Len() / rows
	o.do(func() { o.glu(y, ptr(both), ptr(both.Slice(cols, both.Len())), rows, 2*cols, act) })
}

// AddNorm adds to h and normalizes the sum.
func (o *Ops) AddNorm(y, h, x, w model.Array, rows int, eps float64) {
	cols := w.Len()
	check(y.Len() == rows*cols && floats(h).n == rows*cols && x.Len() == rows*cols, "norm of %d rows of %d: %d and %d to %d elements", rows, cols, h.Len(), x.Len(), y.Len())
	grid, block := perRow(rows, cols)
	plain, prepared, turned := inputOf(y).at()
	o.do(func() {
		if prepared != 0 && plain == 0 && rows <= besideRows && cols <= besideColumns && (ptr(h)|ptr(x)|ptr(w))%16 == 0 {
			l := driver.Launch{Grid: driver.Dim{X: uint32(rows)}, Block: driver.Dim{X: besideThreads}, Shared: 4 * cols, Programmatic: o.dev.Info.Major >= 9}
			o.launchAs("add_norm_beside", l, []any{prepared, h, x, w, cols, float32(eps)})
			return
		}
		o.launchEarly("add_norm", grid, block, plain, prepared, turned, h, x, w, cols, float32(eps))
	})
}

// What add_norm_beside is made for; it has the same numbers, but for rows: a block of a product leaves room for one of its on each multiprocessor.
const (
	besideThreads = 128
	besideColumns = 4096
	besideRows    = 132
)

// TurnKeep turns queries and keys, and keeps keys and values.
func (o *Ops) TurnKeep(q, keys, values, k, v, cos, sin model.Array, half int, at model.Step, c model.CacheShape) {
	rows := checkStep(at, c, keys, values)
	heads, wide := q.Len()/rows/c.Dim, rows*c.KVHeads*c.Dim
	check(q.Len() == rows*heads*c.Dim && k.Len() == wide && v.Len() == wide && 2*half <= c.Dim, "%d queries, %d and %d elements of %d rows in %+v", q.Len(), k.Len(), v.Len(), rows, c)
	check(cos.Len() >= rows*half && sin.Len() >= rows*half, "%d and %d angles for %d rows of %d", cos.Len(), sin.Len(), rows, half)
	grid := driver.Dim{X: uint32(heads + 2*c.KVHeads), Y: uint32(rows)}
	o.do(func() {
		o.launchEarly("turn_keep", grid, driver.Dim{X: turnThreads}, q, keys, values, k, v, cos, sin, at.Rows, heads, c.KVHeads, c.Dim, half, int64(c.Head()))
	})
}

// turnThreads are those of a block of turn_keep, which has a head.
const turnThreads = 64

// MarkNotFinite writes which rows are not finite.
func (o *Ops) MarkNotFinite(dst, x model.Array, rows, cols int) {
	check(dst.Len() == rows && x.Len() == rows*cols, "%d marks of %d rows of %d: %d elements", dst.Len(), rows, cols, x.Len())
	grid, block := perRow(rows, cols)
	o.do(func() { o.launchEarly(o.of("not_finite", x), grid, block, dst, x, cols) })
}

// Advance tells the host what follows, and moves the rows of a step on.
func (o *Ops) Advance(e model.StepEnd) {
	rows := e.Tokens.Len()
	vocab := e.Logits.Len() / rows
	check(e.Marks.Len() == rows && e.Places.Len() == 2*rows && e.Logits.Len() == rows*vocab,
		"%d marks, %d places and %d logits of %d rows", e.Marks.Len(), e.Places.Len(), e.Logits.Len(), rows)
	for _, a := range e.Angles {
		half := a.Cos.Len() / rows
		check(a.Cos.Len() == rows*half && a.Sin.Len() == rows*half && a.CosTable.Len() == a.SinTable.Len() && a.CosTable.Len()%half == 0,
			"%d and %d angles of %d rows from %d and %d", a.Cos.Len(), a.Sin.Len(), rows, a.CosTable.Len(), a.SinTable.Len())
	}
	r := o.recording
	check(r != nil, "a step ends that is not recorded")
	o.do(func() {
		if r.post(rows); o.err != nil {
			return
		}
		grid := driver.Dim{X: uint32(rows)}
		parts, count := o.bestParts(e.Logits, rows, vocab)
		o.launchEarly("advance_step", grid, driver.Dim{X: 32}, e.Tokens, e.Places, r.posts.Ptr(), r.turns, e.Marks, parts, count, model.MaxQueued)
		o.release(parts)
		for _, a := range e.Angles {
			half := a.Cos.Len() / rows
			o.launchEarly("angles", grid, driver.Dim{X: 64}, a.Cos, a.Sin, a.CosTable, a.SinTable, e.Places, half, a.CosTable.Len()/half)
		}
	})
}
