package quantize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/rings"
	"github.com/lutq/lutq/quantize/rounding"
)

// A Calibrator runs a text through the model of a plan while its layers are quantized, for
// methods that have to know what the layers read.
type Calibrator interface {
	// Flags are the flags of the command line that ask for it again.
	Flags() []string
	// Key names all that its statistics depend on besides the model.
	Key() string
	// Record is what the container says of it.
	Record() *lutq.Calibration
	// Apart reports whether layers read what the original model makes of the text, whatever becomes of those before them.
	Apart() bool
	// Block returns how many weights methods take best at a time, 0 where it does not matter.
	Block() int
	// Devices returns how many devices share the rows of a layer.
	Devices() int
	// Memory returns about how many bytes of the host Walk takes at most, and of a device together with what the methods prepare there:
	// 0 where there is none. Seconds returns about how long it takes together with what the methods do, but for their work on the host.
	Memory(f Fitting) (host, device int64)
	Seconds(ctx context.Context, f Fitting) (float64, error)
	// Walk takes the text through the model, one block of it at a time, shows v what
	// the layers that it wants read, and goes on from what v made of them.
	Walk(ctx context.Context, v *Visitor) error
}

// Fitting is what becomes of the layers that a [Calibrator] comes by.
type Fitting struct {
	Share    float64 // of 16 bits, that a weight of theirs takes when it is quantized
	Beside   int64   // states of layers that a device holds at a time, at most
	Prepared int64   // and the bytes that these take
	Matrices int     // of all layers, each expert's by itself
	Weights  float64 // of those whose columns are rounded one by one
	Products float64 // multiplications by the methods: of errors with columns, and of factorizations
}

// fitting sums up the calibrated layers.
func (p *Plan) fitting(m memory) Fitting {
	f := Fitting{Beside: int64(m.workers) + 1, Prepared: statesBytes}
	var bytes, all float64
	calibrated, _ := p.byCalibration()
	for _, i := range calibrated {
		it := &p.Items[i]
		n, k, matrices := float64(it.N), float64(it.K), max(it.Experts, 1)
		f.Matrices += matrices
		if all += n * k; it.per() == 1 {
			f.Weights += n * k
		}
		f.Products += n*k*k + k*k*k*float64(matrices)
		bytes += float64(it.BytesOut)
	}
	f.Share = bytes / 2 / max(all, 1)
	return f
}

// Visitor quantizes layers as a [Calibrator] comes by, and writes them. Layers are named by
// what is stored. Its methods are called from one goroutine.
type Visitor struct {
	run  *run
	left map[string]int // items that are to be quantized, by layer
	all  map[string]int // all that are quantized
}

// Wants reports whether a layer is still to be quantized by statistics.
func (v *Visitor) Wants(layer string) bool {
	_, ok := v.left[layer]
	return ok
}

// Quantize quantizes layers and writes them, with statistics of what they read.
func (v *Visitor) Quantize(ctx context.Context, all []rounding.Readers) error {
	n := v.statesOf(all)
	room := newRoom(n)
	defer room.close()
	err := v.run.work(ctx, func(send func(b block) error) error {
		group, inner := errgroup.WithContext(ctx)
		group.SetLimit(min(n, preparedBeside))
		for _, of := range all {
			if inner.Err() != nil {
				break
			}
			group.Go(func() error { return v.readers(inner, of, room, send) })
		}
		return cmp.Or(group.Wait(), ctx.Err())
	}, func(w *worker, b block) error {
		defer b.states.done()
		return w.do(b)
	})
	if err != nil {
		return err
	}
	for _, of := range all {
		for _, layer := range of.Layers {
			delete(v.left, layer)
		}
	}
	return nil
}

// preparedBeside is how many states are prepared beside each other, at most: a device takes about as long for some as for one.
const preparedBeside = 4

// readers sends the work on layers that read the same.
func (v *Visitor) readers(ctx context.Context, of rounding.Readers, room *room, send func(b block) error) error {
	var tasks []*task
	for _, layer := range of.Layers {
		i, ok := v.left[layer]
		if !ok {
			return fmt.Errorf("%s is not to be quantized", layer)
		}
		it := &v.run.plan.Items[i]
		if len(of.Stats) != max(it.Experts, 1) {
			return fmt.Errorf("%s: %d statistics of %d matrices", layer, len(of.Stats), max(it.Experts, 1))
		}
		tasks = append(tasks, v.run.begin(i))
	}
	if len(of.Stats) > 1 {
		if err := v.chooseStacks(ctx, tasks, of.Stats); err != nil {
			return err
		}
	}
	for expert, s := range of.Stats {
		states, err := room.take(ctx)
		if err != nil {
			return err
		}
		if err := v.matrices(ctx, tasks, expert, s, states, send); err != nil {
			return err
		}
	}
	return nil
}

// matrices sends the work on one matrix of each task.
func (v *Visitor) matrices(ctx context.Context, tasks []*task, expert int, stats rounding.Stats, states *states, send func(b block) error) error {
	defer states.done() // for what is sent here
	for _, t := range tasks {
		if s, ok := stats.(routed); ok && s.Routed() >= 0 {
			t.record.Routed = append(t.record.Routed, s.Routed())
		}
		as := t.item.preparation()
		if states.of[as] != nil {
			continue
		}
		of := stats
		if as.padded {
			of = rings.PaddedStats(stats)
		}
		s, err := t.item.method.Prepare(of, as.kind, as.group, readers(tasks, as))
		if err != nil {
			return fmt.Errorf("%s: %w", t.item.Tensor.Name, err)
		}
		states.of[as] = s
	}
	if err := v.choose(ctx, tasks, stats, func(it *Item) State { return states.of[it.preparation()] }); err != nil {
		return err
	}
	for _, t := range tasks {
		state := states.of[t.item.preparation()]
		if r := state.Remark(); r != (Remark{}) {
			r.Expert = expert
			t.record.Remarks = append(t.record.Remarks, r)
		}
		rows := t.item.N / max(t.item.Experts, 1)
		for _, b := range v.run.blocks(t, expert*rows, (expert+1)*rows) {
			b.state, b.states = state, states
			states.left.Add(1)
			if err := send(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// readers returns how many rows of a matrix of each task read a state that is prepared so.
func readers(tasks []*task, as preparation) (rows int) {
	for _, t := range tasks {
		if t.item.preparation() == as {
			rows += t.item.N / max(t.item.Experts, 1)
		}
	}
	return rows
}

// states are those that the blocks of matrices are done with which read the same. They are as large as statistics.
type states struct {
	of   map[preparation]State
	left atomic.Int64 // blocks that are not done, and who sends them
	room *room
}

// done closes the states after the last.
func (s *states) done() {
	if s == nil || s.left.Add(-1) > 0 {
		return
	}
	for _, state := range s.of {
		state.Close()
	}
	s.of = nil
	<-s.room.taken
}

// statesBytes bounds the memory of a device that states take whose layers are quantized beside each other.
const statesBytes = 4 << 30

// statesOf returns how many states may exist at a time: on a device as many as workers can be at work on and one more, and on the host
// one, whose rows workers share.
func (v *Visitor) statesOf(all []rounding.Readers) int {
	n := v.run.memory.workers + 1
	for _, of := range all {
		for _, layer := range of.Layers {
			if i, ok := v.left[layer]; ok && !v.run.onDevice(&v.run.plan.Items[i]) {
				return 1
			}
		}
		for _, s := range of.Stats {
			n = min(n, max(statesBytes/(2*4*s.K()*s.K()), 1)) // of two matrices
		}
	}
	return n
}

// onDevice reports whether what an item's method knows of what it reads stays on a device.
func (r *run) onDevice(it *Item) bool {
	return r.memory.wide && it.method.Name() == methodGPTQ && !it.preparation().padded
}

// room bounds how many states exist at a time.
type room struct {
	taken chan struct{}
	mu    sync.Mutex
	all   []*states
}

func newRoom(n int) *room { return &room{taken: make(chan struct{}, n)} }

// take waits for room.
func (r *room) take(ctx context.Context) (*states, error) {
	select {
	case r.taken <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s := &states{of: make(map[preparation]State), room: r}
	s.left.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, s)
	return s, nil
}

// close closes the states that are left where something failed.
func (r *room) close() {
	for _, s := range r.all {
		for _, state := range s.of {
			state.Close()
		}
	}
}

// preparation names a state that a method prepares.
type preparation struct {
	method, kind string
	group        int  // of columns
	padded       bool // of statistics with padding, which are none of a device
}

func (it *Item) preparation() preparation {
	return preparation{it.method.Name(), it.Format.Kind, it.Format.Columns(it.K), mixed(it.Format) && (it.K%trellis.Block != 0 || it.Format.Half)}
}

// choose chooses tables where that is left, by what a method makes of samples of rows.
func (v *Visitor) choose(ctx context.Context, tasks []*task, stats rounding.Stats, state func(it *Item) State) error {
	open, err := v.open(tasks)
	if err != nil || len(open) == 0 {
		return err
	}
	in, err := meanSquares(stats)
	if err != nil {
		return err
	}
	err = v.run.chooseSets(ctx, open, func(it *Item) []reading {
		return []reading{it.reading(0, sampledRows, state(it), in)}
	})
	note(tasks)
	return err
}

// chooseStacks is choose for experts in a stack, by some of them. To know only how large their inputs are is
// much less work than to prepare a method for each before its turn.
func (v *Visitor) chooseStacks(ctx context.Context, tasks []*task, stats []rounding.Stats) error {
	open, err := v.open(tasks)
	if err != nil || len(open) == 0 {
		return err
	}
	looked := evenly(len(stats), stackedExperts)
	sizes := make([][]float64, len(looked))
	for i, e := range looked {
		if sizes[i], err = meanSquares(stats[e]); err != nil {
			return err
		}
		for k := range sizes[i] {
			sizes[i][k] *= float64(stats[e].Tokens()) // what more tokens read counts more
		}
	}
	err = v.run.chooseSets(ctx, open, func(it *Item) (all []reading) {
		for i, e := range looked {
			if sizes[i] != nil {
				all = append(all, it.reading(e, sampledRows/len(looked), it.plain, sizes[i]))
			}
		}
		return all
	})
	note(tasks)
	return err
}

// open returns the items whose tables are still to be chosen. Others of a set have theirs already where a
// run was interrupted, or where a text has no part in them.
func (v *Visitor) open(tasks []*task) (items []*Item, err error) {
	v.run.choosing.Lock()
	defer v.run.choosing.Unlock()
	for _, t := range tasks {
		if !t.item.undecided() {
			continue
		}
		if table, ok := v.run.plan.chosen(t.item); ok {
			err = errors.Join(err, t.item.use(table))
			continue
		}
		items = append(items, t.item)
	}
	note(tasks)
	return items, err
}

// note notes tables that were chosen.
func note(tasks []*task) {
	for _, t := range tasks {
		if t.item.auto && !t.item.undecided() {
			t.record.Codebook = t.item.Format.Codebook
		}
	}
}

// meanSquares returns those of inputs, nil where they are not known.
func meanSquares(stats rounding.Stats) ([]float64, error) {
	squares, err := inputSquares(stats)
	if err != nil || squares == nil {
		return nil, err
	}
	in := make([]float64, len(squares))
	for k, v := range squares {
		in[k] = float64(v) / float64(max(stats.Tokens(), 1))
	}
	return in, nil
}

// Weight returns a layer as it is written, nil where it is not quantized.
func (v *Visitor) Weight(layer string) (weight.Matrix, error) {
	i, ok := v.all[layer]
	if !ok {
		return nil, nil
	}
	return v.run.matrix(&v.run.plan.Items[i])
}

// matrix reads an item as it is written.
func (r *run) matrix(it *Item) (weight.Matrix, error) {
	kind, err := lutq.KindOf(it.Format.Kind)
	if err != nil {
		return nil, err
	}
	data := make([][]byte, len(it.stored))
	for i, s := range it.stored {
		data[i] = make([]byte, s.size)
		if err := r.writer.ReadAt(s.Name, data[i], 0); err != nil {
			return nil, err
		}
	}
	m, err := kind.Open(it.Format, it.N, it.K, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", it.Layer, err)
	}
	return m, nil
}

// calibrate quantizes items as the plan's calibrator comes by.
func (r *run) calibrate(ctx context.Context, items []int) error {
	if len(items) == 0 {
		return nil
	}
	v := &Visitor{run: r, left: make(map[string]int), all: make(map[string]int)}
	for _, i := range items {
		v.left[r.plan.Items[i].Layer] = i
	}
	for i := range r.plan.Items {
		if it := &r.plan.Items[i]; it.Quantized() {
			v.all[it.Layer] = i
		}
	}
	if err := r.plan.Recipe.Calibrate.Walk(ctx, v); err != nil {
		return err
	}
	for layer := range v.left {
		return fmt.Errorf("%s: the text did not come by", layer)
	}
	return nil
}

// uncalibrated returns those of the calibrated items that an earlier run did not write, or
// that do not stand as it did, and counts the others as done.
func (r *run) uncalibrated(items []int) (left []int, err error) {
	for again := true; again; {
		left = nil
		for _, i := range items {
			done, err := r.finished(i)
			if err != nil {
				return nil, err
			}
			if !done {
				left = append(left, i)
			}
		}
		if again = len(left) > 0 && r.refined != nil; again {
			// What is left is quantized after others as they were before they were refined.
			r.refined.close()
			r.refined = nil
			clear(r.records)
		}
	}
	for _, i := range items {
		if t := r.plan.Items[i].Tensor; !slices.Contains(left, i) {
			r.advance(t.StoredBytes(), t.Name)
		}
	}
	return left, nil
}

// calibrated reports whether the item's method has to know what it reads.
func (it *Item) calibrated() bool { return it.Quantized() && it.method.Needs() != Nothing }

// byCalibration divides the items.
func (p *Plan) byCalibration() (calibrated, rest []int) {
	for i := range p.Items {
		if p.Items[i].calibrated() {
			calibrated = append(calibrated, i)
		} else {
			rest = append(rest, i)
		}
	}
	return calibrated, rest
}

// errNoText means that a method has nothing to learn from.
var errNoText = errors.New("there is no text to learn from")
