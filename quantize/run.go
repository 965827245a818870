package quantize

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/quantize/lut"
)

// RunOptions say how a plan is carried out. None of them has a part in the
// result, except that MaxShardSize places tensors in files.
type RunOptions struct {
	Threads      int   // 0: one for each processor
	MaxRAM       int64 // bytes the buffers may take together; 0: what runs best
	MaxShardSize int64 // bytes; 0: 5 GB
	Force        bool  // replace an output that exists
	// Progress, if set, is told of every finished piece of work: the bytes of
	// the source done so far, and the tensor at hand. It is called from
	// several goroutines, one at a time.
	Progress func(done int64, tensor string)
}

// Result is what a run did.
type Result struct {
	Totals
	SHA256  string // digest of the quantized tensors
	Error   float64
	Layers  []LayerResult // quantized layers in the source's order
	Resumed int           // tensors that an earlier run had finished
}

// LayerResult is the outcome for one quantized layer.
type LayerResult struct {
	Layer    string
	N, K     int
	Format   lutq.Format
	BytesIn  int64
	BytesOut int64
	Error    float64 // ‖W-Ŵ‖/‖W‖
}

// ErrExists means that the output exists and may not be replaced.
var ErrExists = errors.New("already exists")

// partialSuffix marks the folder that an output is built in.
const partialSuffix = ".partial"

// Run carries out the plan and moves the finished container to out. When ctx
// is done it stops and keeps what is finished for the next run; after any
// other error nothing is left.
func (p *Plan) Run(ctx context.Context, out string, o RunOptions) (res *Result, err error) {
	if err := p.checkOutput(out, o.Force); err != nil {
		return nil, err
	}
	mem, err := p.memory(o)
	if err != nil {
		return nil, err
	}
	work := filepath.Clean(out) + partialSuffix
	j, err := openJournal(work, p.fingerprint(o.MaxShardSize))
	if err != nil {
		return nil, err
	}
	defer func() {
		j.close()
		if err != nil && ctx.Err() == nil {
			os.RemoveAll(work)
		}
	}()
	r := &run{plan: p, journal: j, memory: mem, progress: o.Progress}
	if res, err = r.tensors(ctx, work, o.MaxShardSize); err != nil {
		return nil, err
	}
	if err := p.sideFiles(work, res); err != nil {
		return nil, err
	}
	if err := j.remove(); err != nil {
		return nil, err
	}
	return res, install(work, out)
}

// checkOutput refuses an output that exists or that is the source.
func (p *Plan) checkOutput(out string, force bool) error {
	src, err := filepath.EvalSymlinks(p.Source.Dir())
	if err != nil {
		return err
	}
	if dst, err := filepath.EvalSymlinks(out); err == nil && dst == src {
		return fmt.Errorf("%s: the output is the model itself", out)
	}
	entries, err := os.ReadDir(out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0 && !force:
		return fmt.Errorf("%s: %w", out, ErrExists)
	}
	return nil
}

// install moves the finished folder to its place. A folder that stands there
// goes only when the new one is ready.
func install(work, out string) error {
	err := os.Rename(work, out)
	if err == nil {
		return nil
	}
	if _, statErr := os.Stat(out); statErr != nil {
		return err
	}
	old := filepath.Clean(out) + ".replaced"
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := os.Rename(out, old); err != nil {
		return err
	}
	if err := os.Rename(work, out); err != nil {
		return errors.Join(err, os.Rename(old, out))
	}
	return os.RemoveAll(old)
}

// run is the state of a plan being carried out.
type run struct {
	plan     *Plan
	journal  *journal
	memory   memory
	writer   *hf.Writer
	progress func(done int64, tensor string)

	mu   sync.Mutex
	done int64
}

// advance adds to the bytes done and tells of them.
func (r *run) advance(n int64, tensor string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done += n
	if r.progress != nil {
		r.progress(r.done, tensor)
	}
}

// tensors writes every tensor of the plan and returns the finished result.
func (r *run) tensors(ctx context.Context, work string, maxShard int64) (*Result, error) {
	if err := r.checkSpace(work); err != nil {
		return nil, err
	}
	var err error
	r.writer, err = hf.NewWriter(work, r.plan.entries(), hf.WriterOptions{MaxShardSize: maxShard, Resume: true})
	if err != nil {
		return nil, err
	}
	defer r.writer.Abort() // does nothing after Commit

	records := make([]record, len(r.plan.Items))
	resumed, err := r.schedule(ctx, records)
	if err != nil {
		return nil, err
	}
	if err := r.writer.Commit(); err != nil {
		return nil, err
	}
	return r.plan.result(records, resumed), nil
}

// checkSpace fails early where the output cannot fit.
func (r *run) checkSpace(work string) error {
	free, err := hf.FreeSpace(work)
	if err != nil {
		return err
	}
	// What an earlier run wrote is allocated already.
	var have int64
	files, err := filepath.Glob(filepath.Join(work, "*"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			have += allocated(info)
		}
	}
	if need := r.plan.Totals().BytesOut; need > free+have {
		return fmt.Errorf("%s: not enough space: the output takes %d bytes, %d are free", filepath.Dir(work), need, free)
	}
	return nil
}

// schedule hands out the plan's work, block by block in the source's order.
func (r *run) schedule(ctx context.Context, records []record) (resumed int, err error) {
	group, ctx := errgroup.WithContext(ctx)
	blocks := make(chan block)
	for range r.memory.workers {
		group.Go(func() error {
			w := worker{run: r}
			for b := range blocks {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := w.do(b); err != nil {
					return fmt.Errorf("%s: %s: %w", b.item.Tensor.Shard, b.item.Tensor.Name, err)
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(blocks)
		for i := range r.plan.Items {
			it := &r.plan.Items[i]
			done, err := r.finished(it, &records[i])
			if err != nil {
				return err
			}
			if done {
				resumed++
				r.advance(it.Tensor.Bytes(), it.Tensor.Name)
				continue
			}
			for _, b := range r.blocks(it, &records[i]) {
				select {
				case blocks <- b:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		return nil
	})
	return resumed, group.Wait()
}

// finished reports whether an earlier run wrote an item, and whether it still
// stands as it was written.
func (r *run) finished(it *Item, rec *record) (bool, error) {
	old, ok := r.journal.done[it.Tensor.Name]
	if !ok {
		return false, nil
	}
	if len(old.Sums) != len(it.stored) {
		return false, nil
	}
	for i, s := range it.stored {
		sum, err := r.sum(s)
		if err != nil {
			return false, err
		}
		if sum != old.Sums[i] {
			return false, nil
		}
	}
	*rec = old
	return true, nil
}

// sum returns the SHA-256 of a stored tensor, read back from its file.
func (r *run) sum(s stored) (lutq.Sum, error) {
	return lutq.SumOf(s.size, func(p []byte, off int64) error { return r.writer.ReadAt(s.Name, p, off) })
}

// task is the shared state of an item's blocks.
type task struct {
	item   *Item
	record *record
	left   atomic.Int64
	errs   []lut.RowError // of every row
	scaled func() (lut.Codebook, error)
}

// block is a piece of work: some rows of a quantized item, or all of a copied
// one.
type block struct {
	*task
	from, to int // rows
}

// blocks divides an item's work.
func (r *run) blocks(it *Item, rec *record) []block {
	t := &task{item: it, record: rec}
	if !it.Quantized() {
		t.left.Store(1)
		return []block{{task: t}}
	}
	t.errs = make([]lut.RowError, it.N)
	t.scaled = sync.OnceValues(func() (lut.Codebook, error) { return r.scaledCodebook(it) })
	rows := max(1, r.memory.block/it.K)
	var bs []block
	for from := 0; from < it.N; from += rows {
		bs = append(bs, block{task: t, from: from, to: min(from+rows, it.N)})
	}
	t.left.Store(int64(len(bs)))
	return bs
}

// byteScaleTop is the scale that the byte types should hold at most: a search
// may go above the absmax scale, and E4M4 ends at 31, S1E4M3 at 30.
const byteScaleTop = 16

// scaledCodebook returns the item's table. For scales of one byte it is
// multiplied by the power of two that brings the largest scale below
// byteScaleTop, where the narrow range of those types is used best.
func (r *run) scaledCodebook(it *Item) (lut.Codebook, error) {
	st, err := lut.ParseScaleType(it.Format.ScaleType)
	if err != nil || st.Size() > 1 {
		return it.Codebook, err
	}
	var top float32
	buf := make([]float32, min(int64(r.memory.block), it.Tensor.Elements()))
	for at := int64(0); at < it.Tensor.Elements(); at += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), it.Tensor.Elements()-at)]
		if err := it.Tensor.ReadFloat32(b, at); err != nil {
			return it.Codebook, err
		}
		for _, v := range b {
			top = max(top, float32(math.Abs(float64(v)))) // NaN stays, and is found with its index later
		}
	}
	if !(top > 0) || math.IsInf(float64(top), 0) {
		return it.Codebook, nil
	}
	_, exp := math.Frexp(float64(top / it.Codebook.Max() / byteScaleTop))
	return it.Codebook.Scaled(float32(math.Ldexp(1, exp))), nil
}

// worker does blocks one after the other with buffers of its own.
type worker struct {
	*run
	weights []float32
	codes   []byte
	scales  []byte
	raw     []byte
}

func (w *worker) do(b block) error {
	if !b.item.Quantized() {
		return w.copy(b)
	}
	return w.quantize(b)
}

// quantize does rows [from, to) of a layer.
func (w *worker) quantize(b block) error {
	it, n := b.item, b.to-b.from
	cb, err := b.scaled()
	if err != nil {
		return err
	}
	q, err := it.quantizer(cb)
	if err != nil {
		return err
	}
	codeBytes, scaleBytes := it.rowBytes(codesPart), it.rowBytes(scalesPart)
	weights := grow(&w.weights, n*it.K)
	codes, scales := grow(&w.codes, n*codeBytes), grow(&w.scales, n*scaleBytes)
	if err := it.Tensor.ReadFloat32(weights, int64(b.from)*int64(it.K)); err != nil {
		return err
	}
	if err := q.Rows(codes, scales, b.errs[b.from:b.to], weights, it.K); err != nil {
		var bad *lut.NotFiniteError
		if errors.As(err, &bad) {
			bad.Row += b.from
		}
		return err
	}
	if err := w.writeChecked(it.stored[codesPart].Name, codes, int64(b.from)*int64(codeBytes)); err != nil {
		return err
	}
	if err := w.writeChecked(it.stored[scalesPart].Name, scales, int64(b.from)*int64(scaleBytes)); err != nil {
		return err
	}
	w.advance(int64(n)*int64(it.K)*int64(it.Tensor.DType.Bits())/8, it.Tensor.Name)
	if b.left.Add(-1) > 0 {
		return nil
	}
	table := make([]byte, 4*len(cb.Values))
	num.EncodeF32(table, cb.Values)
	if err := w.writeChecked(it.stored[codebookPart].Name, table, 0); err != nil {
		return err
	}
	return w.finish(b.task)
}

// writeChecked writes a piece of a stored tensor and reads it back.
func (w *worker) writeChecked(name string, data []byte, off int64) error {
	if err := w.writer.WriteAt(name, data, off); err != nil {
		return err
	}
	back := grow(&w.raw, len(data))
	if err := w.writer.ReadAt(name, back, off); err != nil {
		return err
	}
	if string(back) != string(data) {
		return fmt.Errorf("%s reads back differently from what was written", name)
	}
	return nil
}

// copy copies a tensor bit for bit.
func (w *worker) copy(b block) error {
	const piece = 1 << 20
	t := b.item.Tensor
	data := grow(&w.codes, int(min(t.Bytes(), piece)))
	for off := int64(0); off < t.Bytes(); off += piece {
		d := data[:min(int64(len(data)), t.Bytes()-off)]
		if _, err := t.ReadAt(d, off); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if i := notFinite(t.DType, d); i >= 0 {
			return fmt.Errorf("weight %d is not a number or infinite", off*8/int64(t.DType.Bits())+int64(i))
		}
		if err := w.writeChecked(t.Name, d, off); err != nil {
			return err
		}
		w.advance(int64(len(d)), t.Name)
	}
	return w.finish(b.task)
}

// notFinite returns the index of the first infinity or NaN in data of the
// float types that weights come in, or -1.
func notFinite(dt hf.DType, data []byte) int {
	var exp, mask byte // of the last byte of a number, and of the one before
	var prev byte
	size := dt.Bits() / 8
	switch dt {
	case "F32", "BF16":
		exp, prev = 0x7f, 0x80
	case "F64":
		exp, prev = 0x7f, 0xf0
	case "F16":
		exp, prev = 0x7c, 0
	default:
		return -1
	}
	mask = exp
	for i := size - 1; i < len(data); i += size {
		if data[i]&mask == exp && data[i-1]&prev == prev {
			return i / size
		}
	}
	return -1
}

// finish notes a finished item in the journal.
func (w *worker) finish(t *task) error {
	for _, s := range t.item.stored {
		sum, err := w.sum(s)
		if err != nil {
			return err
		}
		t.record.Sums = append(t.record.Sums, sum)
	}
	t.record.Tensor = t.item.Tensor.Name
	for _, e := range t.errs {
		t.record.Energy += e.Energy
		t.record.Squared += e.Squared
	}
	return w.journal.add(*t.record)
}

// grow returns a slice of n elements backed by *buf, which it enlarges.
func grow[T any](buf *[]T, n int) []T {
	if cap(*buf) < n {
		*buf = make([]T, n)
	}
	return (*buf)[:n]
}

// rowBytes returns the bytes that a row takes in one of the item's parts.
func (it *Item) rowBytes(part int) int { return int(it.stored[part].size) / it.N }

// result gathers what the records say.
func (p *Plan) result(records []record, resumed int) *Result {
	res := &Result{Totals: p.Totals(), Resumed: resumed}
	var sums []lutq.TensorSum
	var energy, squared float64
	for i := range p.Items {
		it, rec := &p.Items[i], &records[i]
		if !it.Quantized() {
			continue
		}
		for j, s := range it.stored {
			sums = append(sums, lutq.TensorSum{Entry: s.Entry, Sum: rec.Sums[j]})
		}
		energy += rec.Energy
		squared += rec.Squared
		res.Layers = append(res.Layers, LayerResult{
			Layer: it.Layer, N: it.N, K: it.K, Format: it.Format,
			BytesIn: it.Tensor.Bytes(), BytesOut: it.BytesOut, Error: relative(rec.Squared, rec.Energy),
		})
	}
	res.SHA256 = lutq.Digest(sums)
	res.Error = relative(squared, energy)
	return res
}

func relative(squared, energy float64) float64 {
	if energy == 0 {
		return 0
	}
	return math.Sqrt(squared / energy)
}

// sideFiles copies what is no tensor and writes the new config.json.
func (p *Plan) sideFiles(work string, res *Result) error {
	for _, name := range p.Source.SideFiles() {
		if name == configName {
			continue
		}
		if err := copyFile(filepath.Join(work, name), filepath.Join(p.Source.Dir(), name)); err != nil {
			return err
		}
	}
	config, err := os.ReadFile(filepath.Join(p.Source.Dir(), configName))
	if err != nil {
		return err
	}
	c := lutq.Config{
		QuantMethod: lutq.Method, Version: lutq.Version,
		Format: p.Recipe.Default, Command: p.Recipe.Command(), SHA256: res.SHA256,
		Tensors: make(map[string]lutq.TensorConfig, len(res.Layers)),
	}
	c.Codebook = storedName(c.Codebook)
	for _, l := range res.Layers {
		c.Tensors[l.Layer] = lutq.TensorConfig{
			Shape: [2]int{l.N, l.K}, Error: round6(l.Error), Format: l.Format.Without(c.Format),
		}
	}
	config, err = c.AddTo(config)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Source.Dir(), err)
	}
	return os.WriteFile(filepath.Join(work, configName), config, 0o644)
}

const configName = "config.json"

// storedName is a codebook's name without the folder of its file.
func storedName(codebook string) string {
	if path, ok := strings.CutPrefix(codebook, filePrefix); ok {
		return filePrefix + filepath.Base(path)
	}
	return codebook
}

// round6 keeps six significant digits.
func round6(x float64) float64 {
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 6, 64), 64)
	return x
}

func copyFile(dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// memory is how a run's buffers are sized.
type memory struct {
	workers int
	block   int // weights that a worker holds at a time
}

// blockWeights is what a worker holds where memory is no concern: enough to
// make a read worth its call, and little enough to stay in cache.
const blockWeights = 1 << 18

// bytesPerWeight bounds what a worker holds for one weight of its block: the
// source's bytes, a float32, a byte of code, packed codes and scales, and the
// latter read back.
const bytesPerWeight = 8 + 4 + 1 + 2*(5.0/8+4.0/32)

// baseRAM is what the program takes besides the workers' buffers.
const baseRAM = 48 << 20

// memory sizes the buffers of a run.
func (p *Plan) memory(o RunOptions) (memory, error) {
	m := memory{workers: o.Threads, block: blockWeights}
	if m.workers <= 0 {
		m.workers = runtime.GOMAXPROCS(0)
	}
	widest := 0
	for i := range p.Items {
		widest = max(widest, p.Items[i].K)
	}
	m.block = max(m.block, widest)
	if o.MaxRAM == 0 {
		return m, nil
	}
	for m.peak() > o.MaxRAM {
		switch {
		case m.block > widest:
			m.block = max(widest, m.block/2)
		case m.workers > 1:
			m.workers--
		default:
			return m, fmt.Errorf("%d bytes of memory are not enough: a row of %d weights needs %d", o.MaxRAM, widest, m.peak())
		}
	}
	return m, nil
}

// peak estimates the resident memory of a run in bytes.
func (m memory) peak() int64 {
	return baseRAM + int64(float64(m.workers)*float64(m.block)*bytesPerWeight)
}

// PeakRAM estimates the resident memory of a run in bytes.
func (p *Plan) PeakRAM(o RunOptions) (int64, error) {
	m, err := p.memory(o)
	return m.peak(), err
}
