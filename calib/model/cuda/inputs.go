package cuda

import (
	"github.com/lutq/lutq/calib/model"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/gemm/cuda/trellis"
)

var _ model.Preparer = (*Ops)(nil)

// input is what products read, in another form than an [array]: operations that take no such thing panic.
type input struct {
	rows *array        // where some read it row by row, else nil
	form gemmcuda.Form // that others read it in, one of those that kernels write, or nil
	room driver.Ptr    // in the form
	k    int           // of a row in the form
	n    int           // in all
}

// The forms that kernels write: table.Columns for many rows, and for those of a launch that by rings.
var (
	columns gemmcuda.Form = table.Columns
	rotated gemmcuda.Form = trellis.Rotated{}
)

// preparedColumns are those of a row that a warp writes in these forms at once.
const preparedColumns = 128

// Len returns the number of elements.
func (i *input) Len() int { return i.n }

// Slice returns all elements: others do not lie apart.
func (i *input) Slice(from, to int) model.Array {
	check(from == 0 && to == i.n, "elements %d to %d of %d that are prepared", from, to, i.n)
	return i
}

// inputOf returns an array as what products read.
func inputOf(a model.Array) *input {
	if i, ok := a.(*input); ok {
		return i
	}
	x := a.(*array)
	return &input{rows: x, n: x.n}
}

// at returns where kernels write it, each 0 where they do not.
func (i *input) at() (rows, prepared, turned driver.Ptr) {
	if i.rows != nil {
		rows = i.rows.ptr
	}
	switch i.form {
	case columns:
		prepared = i.room
	case rotated:
		turned = i.room
	}
	return rows, prepared, turned
}

// PreparedLen implements [model.Preparer].
func (o *Ops) PreparedLen(rows, k int) int {
	form := o.formFor(rows)
	if form == nil {
		return 0
	}
	return form.Bytes(rows, k) / o.acts.Size()
}

// formFor returns the form in which kernels write so many rows where products read it, or nil.
func (o *Ops) formFor(rows int) gemmcuda.Form {
	switch {
	case o.acts == driver.F32:
		return nil
	case rows <= gemmcuda.MaxRows:
		return rotated
	case o.dev.Info.Major == 9:
		return columns
	}
	return nil
}

// Prepared implements [model.Preparer], for rows of whole atoms or blocks, so that those who write them have nothing to fill up.
func (o *Ops) Prepared(x, room model.Array, rows int, by ...model.Weight) model.Array {
	prepared, others := false, false
	k, form := width(by[0]), o.formFor(rows)
	if form == nil || !form.Written(k) {
		return x
	}
	o.do(func() {
		for _, w := range by {
			if o.formOf(w, rows) == form {
				prepared = true
			} else {
				others = true
			}
		}
	})
	if !prepared {
		return x
	}
	from, to := x.(*array), room.(*array)
	check(from.n == rows*k && to.n >= o.PreparedLen(rows, k), "%d elements, and room for %d, of %d rows of %d", from.n, to.n, rows, k)
	in := &input{form: form, room: to.ptr, k: k, n: from.n}
	if others {
		in.rows = from
	}
	return in
}

// formOf returns the form in which products by a weight read so many rows, nil if row by row. It is called inside do.
func (o *Ops) formOf(w model.Weight, rows int) gemmcuda.Form {
	if m, ok := w.(*matrix); ok && m.packed != nil && !o.kept.asNumbers(rows) {
		return o.engine.Needs(m.packed.Tiles, rows).Form
	}
	return nil
}

// rowByRow queues what f writes to an array row by row, and has it prepared if it is to be. It is called inside do.
func (o *Ops) rowByRow(y model.Array, f func(y model.Array)) {
	in, ok := y.(*input)
	if !ok {
		f(y)
		return
	}
	to := in.rows
	if to == nil {
		to = &array{o.scratch(in.n * o.acts.Size()), in.n, o.acts}
		defer o.release(to.ptr)
	}
	f(to)
	o.prepare(in.form, in.room, to.ptr, in.n/in.k, in.k)
}

// prepare queues the writing of rows of k activations in a form.
func (o *Ops) prepare(f gemmcuda.Form, to, x driver.Ptr, rows, k int) {
	if o.err == nil {
		o.fail(o.engine.Prepare(o.stream, f, o.acts, to, x, rows, k))
	}
}

// reading are rows of k activations that some products read, in each form of theirs.
type reading struct {
	o       *Ops
	in      *input
	rows, k int
	forms   map[gemmcuda.Form]driver.Ptr // of those that were asked for
	scratch []driver.Ptr
}

// rowByRow returns where they lie so.
func (r *reading) rowByRow() driver.Ptr {
	check(r.in.rows != nil, "a product reads rows that were prepared for others")
	return r.in.rows.ptr
}

// as returns where they lie in a form, at a multiple of 16. It is called inside do.
func (r *reading) as(f gemmcuda.Form) driver.Ptr {
	at, ok := r.forms[f]
	switch {
	case ok || r.o.err != nil:
		return at
	case f != nil && f == r.in.form:
		at = r.in.room
	case f != nil:
		from := r.as(nil)
		at = r.room(f.Bytes(r.rows, r.k))
		r.o.prepare(f, at, from, r.rows, r.k)
	default:
		if at = r.rowByRow(); at%16 != 0 {
			at = r.room(2 * r.rows * r.k)
			r.o.convert(at, r.o.acts, r.rowByRow(), r.o.acts, r.in.n)
		}
	}
	if r.forms == nil {
		r.forms = make(map[gemmcuda.Form]driver.Ptr)
	}
	r.forms[f] = at
	return at
}

func (r *reading) room(bytes int) driver.Ptr {
	at := r.o.scratch(bytes)
	r.scratch = append(r.scratch, at)
	return at
}

func (r *reading) release() {
	for _, at := range r.scratch {
		r.o.release(at)
	}
}
