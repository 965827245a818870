package cuda

import (
	"fmt"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

var (
	_ model.ShortConvOps  = (*Ops)(nil)
	_ model.StateSpaceOps = (*Ops)(nil)
)

// What the kernels state_space of statespace.cu are made for.
const (
	stateDim     = 32  // rows of a state that a block has
	stateThreads = 128 // of a block
	mostStates   = 256 // elements of a row
)

// textRows are rows of a step that a launch has: a row each of some texts, whose places are in rows, or those of one.
type textRows struct {
	rows model.Array // nil: of one
	at   model.Run
	from int // which row of the step is the first
	n    int
}

func (t textRows) texts() int {
	if t.rows != nil {
		return t.n
	}
	return 1
}

// textsOf returns the rows of a step, launch by launch: one where all texts have a row, and a text's otherwise. What is recorded is of
// the first kind, since the host does not know then where its rows will be.
func textsOf(at model.Step, kept model.Array) (all []textRows, n int) {
	n, rows := rowsOf(at, kept)
	single, from := rows != nil && n > 0, 0
	for _, r := range at.Runs {
		if r.Rows > 0 {
			all = append(all, textRows{at: r, from: from, n: r.Rows})
		}
		from += r.Rows
		single = single && r.Rows == 1
	}
	if single {
		return []textRows{{rows: rows, n: n}}, n
	}
	return all, n
}

// convRows are what the kernels conv_rows pass through a convolution: x, times by, of rows pitch elements apart.
type convRows struct {
	x, by, gates   model.Array // by and gates may be nil
	pitch          int
	w, bias, kept  model.Array
	columns, width int
}

// convolve queues it, and keeps the last inputs. It is called inside do.
func (o *Ops) convolve(y model.Array, c convRows, texts []textRows, rows int) {
	plain, prepared, turned := inputOf(y).at()
	name := "conv_rows_4"
	if c.width > 4 {
		name = "conv_rows_8"
	}
	for _, t := range texts {
		grid, block := overAll(t.n * ceil(c.columns, elementEach))
		o.launchEarly(name, grid, block, plain, prepared, turned, c.x, c.by, c.gates, int64(c.pitch), c.w, c.bias, c.kept, t.rows,
			t.from, t.n, t.at.Slot, t.at.From, c.columns, c.width, ceil(rows, 8))
		if c.kept != nil && t.rows == nil {
			grid, block := overAll(c.columns)
			o.launch("keep_inputs", grid, block, c.kept, c.x, c.by, int64(c.pitch), t.from, t.n, t.at.Slot, t.at.From, c.columns, c.width)
		}
	}
}

// ShortConv passes gated channels through a convolution.
func (o *Ops) ShortConv(y, made, w, bias, kept model.Array, at model.Step, s model.ConvShape) {
	texts, n := textsOf(at, kept)
	size, part := n*s.Channels, func(i int) model.Array { return made.Slice(i*s.Channels, made.Len()) }
	check(y.Len() == size && made.Len() == 3*size && w.Len() == s.Channels*s.Width && s.Width <= mostConvolved, "short convolution %+v of %d elements to %d", s, made.Len(), y.Len())
	if n == 0 {
		return
	}
	o.do(func() {
		o.convolve(y, convRows{
			x: part(2), by: part(0), gates: part(1), pitch: 3 * s.Channels, w: w, bias: bias, kept: kept, columns: s.Channels, width: s.Width,
		}, texts, n)
	})
}

// StateSpace takes states through tokens. What is recorded does so by one launch.
func (o *Ops) StateSpace(y, made, room model.Array, w model.StateSpaceWeights, inputs, state model.Array, at model.Step, s model.StateSpaceShape) {
	texts, n := textsOf(at, state)
	inner, channels := s.Heads*s.Dim, s.Channels()
	check(y.Len() == n*inner && made.Len() == n*s.Made() && room.Len() == n*channels && s.State <= mostStates && s.Width <= mostConvolved, "state space %+v of %d rows: %d elements to %d", s, n, made.Len(), y.Len())
	check((inputs == nil) == (state == nil), "either inputs or states are kept")
	if n == 0 {
		return
	}
	states := 32
	for states < s.State {
		states *= 2
	}
	name := fmt.Sprintf("state_space_%d", states)
	o.do(func() {
		for _, t := range texts {
			passed := room
			if t.rows != nil {
				passed = nil
			} else {
				o.convolve(room, convRows{
					x: made.Slice(inner, made.Len()), pitch: s.Made(), w: w.Conv, bias: w.ConvBias, kept: inputs, columns: channels, width: s.Width,
				}, []textRows{t}, n)
			}
			grid := driver.Dim{X: uint32(t.texts()), Y: uint32(s.Heads), Z: uint32(ceil(s.Dim, stateDim))}
			o.launchEarly(name, grid, driver.Dim{X: stateThreads}, y, made, passed, w.Conv, w.ConvBias, w.ALog, w.DtBias, w.D, inputs, state,
				s.Heads, s.Dim, s.Groups, s.State, s.Width, t.rows, t.from, t.n, t.at.Slot, t.at.From)
		}
	})
}
