package quantize

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rings"
	"github.com/lutq/lutq/quantize/rounding"
)

// byteScaleTop is the scale that the byte types should hold at most: a search
// may go above the absmax scale, and E4M4 ends at 31, S1E4M3 at 30.
const byteScaleTop = 16

// tableReach bounds the power of two that tables reach, within what [lut.Codebook.Check] allows.
const tableReach = 59

// scaledCodebook returns the item's table. For scales of the types E4M4 and S1E4M3 it is
// multiplied by the power of two that brings the largest scale below
// byteScaleTop, where the narrow range of those types is used best. Another program's encoder does without.
func (r *run) scaledCodebook(it *Item) (lut.Codebook, error) {
	if !it.scalesTable() {
		return it.Codebook, nil
	}
	var top float32
	buf := make([]float32, min(int64(r.memory.block), it.Tensor.Elements()))
	for at := int64(0); at < it.Tensor.Elements(); at += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), it.Tensor.Elements()-at)]
		if err := it.Tensor.ReadFloat32(b, at); err != nil {
			return it.Codebook, err
		}
		top = largest(top, b)
	}
	return it.scaledTo(top), nil
}

// scalesTable reports whether the item's table is multiplied for its scales' sake.
func (it *Item) scalesTable() bool {
	st := it.Format.ScaleType
	return (st == weight.E4M4 || st == weight.S1E4M3) && it.Format.Method != MethodKBit
}

// largest returns the largest of top and the magnitudes of w. NaN stays, and is found with its index later.
func largest(top float32, w []float32) float32 {
	for _, v := range w {
		top = max(top, float32(math.Abs(float64(v))))
	}
	return top
}

// scaledTo returns the item's table for weights of which top is the largest.
func (it *Item) scaledTo(top float32) lut.Codebook {
	if !it.scalesTable() || !(top > 0) || math.IsInf(float64(top), 0) {
		return it.Codebook
	}
	_, exp := math.Frexp(float64(top) / float64(it.Codebook.Reach()) / byteScaleTop)
	_, own := math.Frexp(float64(it.Codebook.Max()))
	exp = min(max(exp, -tableReach-own), tableReach-own)
	return it.Codebook.Scaled(float32(math.Ldexp(1, exp)))
}

// columnBlocks returns how large blocks of an item's columns are beside each other, where its rows are mixed.
func (r *run) columnBlocks(it *Item) ([]float32, error) {
	if !mixed(it.Format) {
		return nil, nil
	}
	sizes := rings.NewSizes(it.K)
	rows := max(r.memory.block/it.K/it.unit()*it.unit(), it.unit())
	w := worker{run: r}
	for from := 0; from < it.N; from += rows {
		weights, err := w.rows(it, from, min(from+rows, it.N))
		if err != nil {
			return nil, err
		}
		sizes.Rows(weights)
	}
	return sizes.Blocks(), nil
}

// worker does blocks one after the other with buffers of its own.
type worker struct {
	*run
	task      *task              // that quantizer is for
	state     State              // and the rows' state
	quantizer rounding.Quantizer // with scratch and tables that blocks of a task share
	weights   []float32
	parts     [][]byte
	raw, back []byte
}

// do writes a block as its item is planned.
func (w *worker) do(b block) error {
	if !b.item.Quantized() {
		return w.copy(b)
	}
	if b.item.taken != nil {
		return w.transcribe(b)
	}
	if w.from != nil {
		return w.fetch(b)
	}
	it := b.item
	if w.task != b.task || w.state != b.state {
		cb, err := b.scaled()
		if err != nil {
			return err
		}
		l := it.layer(cb)
		if l.Blocks, err = b.blocks(); err != nil {
			return err
		}
		if w.quantizer, err = b.state.Quantizer(l); err != nil {
			return err
		}
		w.task, w.state = b.task, b.state
	}
	weights, err := w.rows(it, b.from, b.to)
	if err != nil {
		return err
	}
	parts := w.buffers(it, b.to-b.from)
	if err := w.quantizer.Rows(parts, b.errs[b.from-b.at.from:b.to-b.at.from], weights); err != nil {
		var bad *rounding.NotFiniteError
		if errors.As(err, &bad) {
			bad.Row += b.from
		}
		var scale *rounding.ScaleError
		if errors.As(err, &scale) {
			scale.Row += b.from
		}
		return err
	}
	w.quantizer.Shared(parts)
	w.advance(b.bytes(), it.Tensor.Name)
	return w.store(b, parts)
}

// buffers returns room for the parts of n rows of a layer, and for those that have no rows.
func (w *worker) buffers(it *Item, n int) [][]byte {
	w.parts = slices.Grow(w.parts[:0], len(it.parts))[:len(it.parts)]
	for i, p := range it.parts {
		size := int(it.stored[i].size)
		if p.Rows {
			size = it.rowsBytes(i, n)
		}
		w.parts[i] = grow(&w.parts[i], size)
	}
	return w.parts
}

// rows reads rows [from, to) of a layer, which stay until the next call. Of one that is
// stored transposed they are whole matrices.
func (w *worker) rows(it *Item, from, to int) ([]float32, error) {
	weights := grow(&w.weights, (to-from)*it.K)
	if !it.Transposed {
		return weights, it.Tensor.ReadFloat32(weights, int64(from)*int64(it.K))
	}
	unit := it.unit()
	for n := from; n < to; n += unit {
		dst := weights[(n-from)*it.K:][:unit*it.K]
		if err := it.Tensor.ReadTransposed(dst, int64(n)*int64(it.K), it.K, unit); err != nil {
			return nil, err
		}
	}
	return weights, nil
}

// store writes the parts of a block's rows, and with the last of them those that have no
// rows. Parts that are nil are written already.
func (w *worker) store(b block, parts [][]byte) error {
	it := b.item
	for i, p := range it.parts {
		if p.Rows && parts[i] != nil {
			if err := w.writeChecked(b.task.to, it.stored[i].Name, parts[i], int64(it.rowsBytes(i, b.from)-it.rowsBytes(i, b.at.from))); err != nil {
				return err
			}
		}
	}
	if b.left.Add(int64(b.from-b.to)) > 0 {
		return nil
	}
	for i, p := range it.parts {
		if !p.Rows && parts[i] != nil {
			if err := w.writeChecked(b.task.to, it.stored[i].Name, parts[i], 0); err != nil {
				return err
			}
		}
	}
	return w.finish(b.task)
}

// writeChecked writes a piece of a stored tensor and reads it back.
func (w *worker) writeChecked(to store, name string, data []byte, off int64) error {
	if err := to.WriteAt(name, data, off); err != nil {
		return err
	}
	back := grow(&w.back, len(data))
	if err := to.ReadAt(name, back, off); err != nil {
		return err
	}
	if string(back) != string(data) {
		return fmt.Errorf("%s reads back differently from what was written", name)
	}
	return nil
}

// copy copies a tensor bit for bit, or its values where they are encoded.
func (w *worker) copy(b block) error {
	const piece = 1 << 20
	t := b.item.Tensor
	data := grow(&w.raw, int(min(t.Bytes(), piece)))
	for off := int64(0); off < t.Bytes(); off += piece {
		d := data[:min(int64(len(data)), t.Bytes()-off)]
		if _, err := t.ReadAt(d, off); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		// What a tower clips by may be infinite.
		if i := t.DType.FirstNotFinite(d); i >= 0 && b.item.Kept != KeptTower {
			return fmt.Errorf("weight %d is not a number or infinite", off*8/int64(t.DType.Bits())+int64(i))
		}
		if err := w.writeChecked(b.task.to, t.Name, d, off); err != nil {
			return err
		}
		w.advance(share(t, off+int64(len(d)), t.Bytes())-share(t, off, t.Bytes()), t.Name)
	}
	return w.finish(b.task)
}

// finish notes a finished item in the journal, or a piece of one in its unit. Rows are summed up matrix by matrix, so that it is
// the same where these are apart.
func (w *worker) finish(t *task) error {
	t.record.Refined = t.written != nil
	for i, s := range t.stored {
		if t.record.Refined && !w.refined.has(s) {
			t.record.Sums = append(t.record.Sums, t.written[i])
			continue
		}
		sum, err := sumOf(t.to, s)
		if err != nil {
			return err
		}
		t.record.Sums = append(t.record.Sums, sum)
	}
	var matrices []rowSums
	if n := len(t.errs); n > 0 && w.from == nil {
		for errs := range slices.Chunk(t.errs, t.item.N/max(t.item.Experts, 1)) {
			var of rowSums
			for _, e := range errs {
				of.add(e)
			}
			matrices = append(matrices, of)
		}
	}
	if t.lot != nil {
		return t.lot.finish(pieceRecord{*t.record, t.at.from, t.at.to, matrices})
	}
	for _, of := range matrices {
		t.record.addAll(of)
	}
	return w.journal.add(entry{record: *t.record})
}

// grow returns a slice of n elements backed by *buf, which it enlarges.
func grow[T any](buf *[]T, n int) []T {
	if cap(*buf) < n {
		*buf = make([]T, n)
	}
	return (*buf)[:n]
}

// rowsBytes returns the bytes that the first n rows take in one of the item's parts that have rows.
func (it *Item) rowsBytes(part, n int) int {
	p := it.parts[part]
	return p.Entries(n) * (int(it.stored[part].size) / p.Entries(it.N))
}
