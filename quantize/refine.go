package quantize

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/rounding"
)

// A Refiner improves the layers of a model together, after each of them was
// quantized by itself and written: it is what learns scales from text.
type Refiner interface {
	// Flags are the flags of the command line that ask for it again.
	Flags() []string
	// Key names all that its result depends on besides the layers it is given.
	Key() string
	// Memory returns about how many bytes Refine takes at most for layers of these
	// shapes, see [Plan.Shapes], and Seconds about how long it takes.
	Memory(shapes map[string]weight.Matrix) int64
	Seconds(ctx context.Context) (float64, error)
	// Check reports what it cannot do for layers of these shapes.
	Check(shapes map[string]weight.Matrix) error
	// Recodes reports whether Refine may write other codes as well.
	Recodes() bool
	// Refine writes what is better for some of the layers. Shapes are theirs, see [Plan.Shapes].
	// Between runs that are interrupted it may keep what it has in the file
	// state, which goes away with the last of them.
	Refine(ctx context.Context, shapes map[string]weight.Matrix, layers *Layers, state string) (*lutq.Learning, error)
}

// The files beside an output being built that a refiner keeps its state in, and that has
// its result.
const (
	stateName   = "lutq-learning"
	refinedName = "lutq-refined"
)

// A refinement says what came of a plan's refiner. The data is in a file, until the end
// of which the layers are what they were, and from which it is copied then.
type refinement struct {
	Learning *lutq.Learning `json:"learning"`
	Parts    []string       `json:"parts"`  // stored tensors, in the order of the file
	SHA256   lutq.Sum       `json:"sha256"` // of the file
}

// refined is a refinement with its file.
type refined struct {
	refinement
	file *os.File
	at   map[string]int64 // where the parts begin
}

// has reports whether a part was refined. The receiver may be nil.
func (f *refined) has(s stored) bool {
	if f == nil {
		return false
	}
	_, ok := f.at[s.Name]
	return ok
}

func (f *refined) close() {
	if f != nil {
		f.file.Close()
	}
}

// refinedBytes returns what the file of a refiner's result takes at most: it stands beside the layers
// until all of it is in its place.
func (p *Plan) refinedBytes() (size int64) {
	if p.Recipe.Refine == nil {
		return 0
	}
	for i := range p.Items {
		it := &p.Items[i]
		if !it.Quantized() {
			continue
		}
		for i := range it.stored {
			if !it.hasCodes(i) || p.Recipe.Refine.Recodes() {
				size += it.stored[i].size
			}
		}
	}
	return size
}

// hasCodes reports whether a part of the item has its codes.
func (it *Item) hasCodes(part int) bool {
	kind, err := lutq.KindOf(it.Format.Kind)
	return err == nil && it.parts[part].Suffix == kind.Suffix()
}

// openRefined opens the result that an earlier run's refiner left, nil where there is
// none that can be used.
func (r *run) openRefined(path string) (*refined, error) {
	known := r.journal.refinement
	if known == nil || known.Learning == nil {
		return nil, nil
	}
	f, err := input.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ref, err := r.locate(*known, f)
	if ref == nil || err != nil {
		f.Close()
	}
	return ref, err
}

// locate says where the parts of a refinement are in its file. It returns nil where the
// file is not the one that was written.
func (r *run) locate(known refinement, f *os.File) (*refined, error) {
	sizes := make(map[string]int64)
	for i := range r.plan.Items {
		if it := &r.plan.Items[i]; it.Quantized() {
			for _, s := range it.stored {
				sizes[s.Name] = s.size
			}
		}
	}
	ref := &refined{refinement: known, file: f, at: make(map[string]int64)}
	var end int64
	for _, name := range known.Parts {
		size, ok := sizes[name]
		if !ok {
			return nil, nil
		}
		ref.at[name] = end
		end += size
	}
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return nil, err
	}
	if n != end || lutq.Sum(h.Sum(nil)) != known.SHA256 {
		return nil, nil
	}
	return ref, nil
}

// Layers are the quantized layers of a container that is being made, for a refiner: they
// stay what they are until it is done.
type Layers struct {
	run   *run
	items map[string]*Item
	out   *bufio.Writer
	sum   hash.Hash
	parts []string
}

// Read reads a layer, which is the caller's then.
func (l *Layers) Read(layer string) (weight.Matrix, error) {
	it := l.items[layer]
	if it == nil {
		return nil, fmt.Errorf("%s is not quantized", layer)
	}
	data := make([][]byte, len(it.stored))
	for i, s := range it.stored {
		data[i] = make([]byte, s.size)
		if err := l.run.writer.ReadAt(s.Name, data[i], 0); err != nil {
			return nil, err
		}
	}
	return it.open(it.N, data)
}

// open returns the matrix of some rows whose parts these are.
func (it *Item) open(rows int, data [][]byte) (weight.Matrix, error) {
	kind, err := lutq.KindOf(it.Format.Kind)
	if err != nil {
		return nil, err
	}
	return kind.Open(it.Format, rows, it.K, data)
}

// Write takes what is better for a layer, of the same shape and format and with sound
// scales. Parts that are nil, or that are not stored, stay what they are.
func (l *Layers) Write(layer string, m weight.Matrix) error {
	it := l.items[layer]
	if it == nil {
		return fmt.Errorf("%s is not quantized", layer)
	}
	if err := it.fits(m); err != nil {
		return fmt.Errorf("%s: refined: %w", layer, err)
	}
	parts := m.Parts()
	for i, s := range it.stored {
		if parts[i] == nil {
			continue
		}
		l.parts = append(l.parts, s.Name)
		if _, err := l.out.Write(parts[i]); err != nil {
			return err
		}
	}
	return nil
}

// specified are matrices that say how they are stored: those of all kinds that are refined.
type specified interface {
	weight.Matrix
	Spec() weight.Spec
}

// fits reports a refined matrix that cannot take the item's place.
func (it *Item) fits(m weight.Matrix) error {
	old, err := it.shape()
	if err != nil {
		return err
	}
	n, k := m.Shape()
	if oldN, oldK := old.Shape(); n != oldN || k != oldK || m.Kind() != it.Format.Kind || m.(specified).Spec() != old.Spec() {
		return errors.New("the format is not the one that was asked for")
	}
	parts := m.Parts()
	for i, s := range it.stored {
		if got := int64(len(parts[i])); parts[i] != nil && got != s.size {
			return fmt.Errorf("%s takes %d bytes: want %d", s.Name, got, s.size)
		}
	}
	if m, ok := m.(*lut.Matrix); ok {
		return lut.Codebook{Name: "table", Values: m.Codebook}.Check(m.Bits)
	}
	return nil
}

// refine has the plan's refiner improve what is written, and puts its result in place.
func (r *run) refine(ctx context.Context, work *outdir.Work) error {
	if r.refined == nil {
		if err := r.learn(ctx, work); err != nil {
			return err
		}
	}
	var changed []int
	left := r.plan.Totals().BytesIn
	for i := range r.plan.Items {
		it := &r.plan.Items[i]
		if it.Quantized() && slices.ContainsFunc(it.stored, r.refined.has) {
			changed = append(changed, i)
			left -= it.Tensor.StoredBytes()
		}
	}
	r.done = left
	_, err := r.pass(ctx, changed, r.placed, (*worker).replace)
	return err
}

// learn calls the refiner and notes its result.
func (r *run) learn(ctx context.Context, work *outdir.Work) error {
	shapes, err := r.plan.Shapes()
	if err != nil {
		return err
	}
	path := work.Scratch(refinedName)
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	layers := &Layers{run: r, items: make(map[string]*Item), sum: sha256.New()}
	layers.out = bufio.NewWriter(io.MultiWriter(f, layers.sum))
	for i := range r.plan.Items {
		if it := &r.plan.Items[i]; it.Quantized() {
			layers.items[it.Layer] = it
		}
	}
	learning, err := r.plan.Recipe.Refine.Refine(ctx, shapes, layers, work.Scratch(stateName))
	if err = errors.Join(err, layers.out.Flush(), f.Close()); err != nil {
		return err
	}
	known := refinement{Learning: learning, Parts: layers.parts, SHA256: lutq.Sum(layers.sum.Sum(nil))}
	if err := r.journal.add(entry{Refinement: &known}); err != nil {
		return err
	}
	r.journal.refinement = &known
	clear(r.journal.refined)
	if r.refined, err = r.openRefined(path); err == nil && r.refined == nil {
		err = fmt.Errorf("%s reads back differently from what was written", path)
	}
	return err
}

// placed reports whether what was refined of an item is in its place.
func (r *run) placed(i int) (bool, error) { return r.stands(i, r.journal.refined, r.refined.has) }

// replace puts a block of a refined item in its place, and notes its error.
func (w *worker) replace(b block) error {
	it, rows := b.item, b.to-b.from
	parts := w.buffers(it, rows)
	for i, p := range it.parts {
		var off int64
		if p.Rows {
			off = int64(it.rowsBytes(i, b.from))
		}
		if err := w.part(parts[i], it.stored[i], off); err != nil {
			return err
		}
	}
	m, err := it.open(rows, parts)
	if err != nil {
		return err
	}
	all, err := w.rows(it, b.from, b.to)
	if err != nil {
		return err
	}
	reader := weight.NewReader(m)
	for n := range rows {
		row := reader.Row(n)
		var e rounding.RowError
		for k, v := range all[n*it.K:][:it.K] {
			d := float64(v) - float64(row[k])
			e.Energy += float64(v) * float64(v)
			e.Squared += d * d
		}
		b.errs[b.from-b.at.from+n] = e
	}
	w.advance(b.bytes(), it.Tensor.Name)
	for i, s := range it.stored {
		if !w.refined.has(s) {
			parts[i] = nil
		}
	}
	return w.store(b, parts)
}

// part reads a piece of a part: as it was refined, or as it is.
func (r *run) part(dst []byte, s stored, off int64) error {
	if !r.refined.has(s) {
		return r.writer.ReadAt(s.Name, dst, off)
	}
	_, err := r.refined.file.ReadAt(dst, r.refined.at[s.Name]+off)
	return err
}

// Shapes returns the plan's layers as matrices without what has rows: codes and scales. It fails where one
// is of a kind whose numbers are not learned.
func (p *Plan) Shapes() (map[string]weight.Matrix, error) {
	all := make(map[string]weight.Matrix)
	for i := range p.Items {
		if it := &p.Items[i]; it.Quantized() {
			m, err := it.shape()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", it.Tensor.Name, err)
			}
			all[it.Layer] = m
		}
	}
	return all, nil
}

// shape returns the item's matrix without codes and scales.
func (it *Item) shape() (specified, error) {
	f := it.Format
	switch f.Kind {
	case lut.Name:
		return &lut.Matrix{N: it.N, K: it.K, Bits: f.Bits, Group: f.Columns(it.K), ScaleType: f.ScaleType, Codebook: it.Codebook.Values}, nil
	case trellis.Name:
		code, err := trellis.NewCode(f.Codebook, f.Rate())
		return &trellis.Matrix{N: it.N, K: it.K, Code: code, ScaleType: f.ScaleType}, err
	}
	return nil, fmt.Errorf("there are no scales to learn in weights of kind %s", f.Kind)
}
