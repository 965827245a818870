package quantize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
)

// RunOptions say how a plan is carried out. None of them has a part in the
// result, except that MaxShardSize places tensors in files.
type RunOptions struct {
	Threads      int      // 0: one for each processor
	MaxRAM       int64    // bytes the run may take, a refiner included; 0: what runs best
	MaxShardSize int64    // bytes; 0: 5 GB
	Force        bool     // replace an output that lutq wrote
	Inputs       []string // files that are read besides the model, which the output may not touch either
	// Shards, unless nil, brings the files that the source's tensors lie in, which are not there. See [Recipe.CheckStreamed].
	Shards Shards
	// Leave notes that something is left to be done with the output, for [Plan.Finished] until [outdir.Settle].
	Leave bool
	// Resumed, if set, is told how many of the tensors an interrupted run says to
	// have finished, before they are read back.
	Resumed func(tensors int)
	// Progress, if set, is told of every finished piece of work: the bytes of
	// the source done so far, and the tensor at hand. It is called from
	// several goroutines, one at a time.
	Progress func(done int64, tensor string)
}

// Result is what a run did.
type Result struct {
	Totals
	Family string // of the model, see [Plan.Family]
	SHA256 string // digest of the quantized tensors
	Error  float64
	// OutputError is the root mean square of that of layers, of those that have one.
	OutputError float64
	Fit         Fit           // of all layers
	Layers      []LayerResult // quantized layers in the source's order
	Kept        []Kept        // the other tensors, by reason
	Decoded     []Decoded     // what the source does not store in 16 bits or more
	Resumed     int           // tensors that an earlier run had finished
	Remarks     []LayerRemark
	Experts     []Experts         // blocks whose experts were fitted to a text
	Transform   *lutq.Transform   // what was done to the model before, if anything was
	Calib       *lutq.Calibration // the text that layers were quantized for, if they were
	Learn       *lutq.Learning    // how scales were learned, if they were
	OwnCode     bool              // whether config.json names code of the model's own for transformers

	sums map[string]lutq.Sum // of every stored tensor
}

// LayerResult is the outcome for one quantized layer.
type LayerResult struct {
	Layer      string
	N, K       int
	Experts    int // matrices of a stack, see [Item]
	Transposed bool
	Format     weight.Spec
	BytesIn    int64
	BytesOut   int64
	Error      float64 // ‖W-Ŵ‖/‖W‖
	// OutputError is the relative error of what the layer puts out on a text that it was fitted to,
	// (tr (W-Ŵ)·H·(W-Ŵ)ᵀ / tr W·H·Wᵀ)^½, before scales were learned; 0 where it was not fitted.
	OutputError float64
	Fit         Fit    // before scales were learned, if they were
	Narrow      Narrow // likewise
}

// LayerRemark is a remark on a quantized layer, or one of a stack.
type LayerRemark struct {
	Layer   string `json:"layer"`
	Experts int    `json:"experts,omitempty"` // of the stack
	Remark
}

// Run carries out the plan and moves the finished container to out, as
// [outdir.Create] allows. When ctx is done, or a file does not come, it stops and keeps what is finished
// for the next run; after any other error nothing is left.
func (p *Plan) Run(ctx context.Context, out string, o RunOptions) (*Result, error) {
	if o.Shards != nil {
		if err := p.Recipe.CheckStreamed(); err != nil {
			return nil, err
		}
	}
	return p.build(ctx, out, o, nil)
}

// build carries out the plan, or gathers what parts have made of it.
func (p *Plan) build(ctx context.Context, out string, o RunOptions, from *gathering) (res *Result, err error) {
	mem, err := p.memory(o)
	if err != nil {
		return nil, err
	}
	plan := p.fingerprint(o.MaxShardSize)
	work, err := outdir.Create(out, outdir.Options{
		Inputs: append([]string{p.Source.Dir()}, o.Inputs...), Force: o.Force,
		Plan: plan, Resume: true,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if _, late := errors.AsType[*FetchError](err); err == nil || late || ctx.Err() != nil {
			err = errors.Join(err, work.Close())
			return
		}
		err = errors.Join(err, work.Discard())
	}()
	j, err := openJournal(work.Scratch(journalName))
	if err != nil {
		return nil, err
	}
	defer j.close()
	if o.Resumed != nil && len(j.done) > 0 {
		o.Resumed(len(j.done))
	}
	if err := dropSideFiles(work.Dir()); err != nil {
		return nil, err
	}
	r := &run{plan: p.clone(), journal: j, memory: mem, progress: o.Progress, shards: o.Shards, from: from}
	if res, err = r.tensors(ctx, work, o.MaxShardSize); err != nil {
		return nil, err
	}
	if err := p.sideFiles(work.Dir(), res); err != nil {
		return nil, err
	}
	if err := r.plan.complete(work.Dir()); err != nil {
		return nil, err
	}
	if o.Leave {
		note, err := r.note(plan)
		if err != nil {
			return nil, err
		}
		work.Leave(note)
	}
	return res, work.Install()
}

// finishedRun is what is noted of an output with which something is left to do.
type finishedRun struct {
	Plan     string         `json:"plan"`    // fingerprint
	Records  []record       `json:"records"` // of layers, without their sums
	Learning *lutq.Learning `json:"learning,omitempty"`
}

// note returns what [Plan.Finished] reads. plan is the fingerprint of the plan before it chose tables.
func (r *run) note(plan string) ([]byte, error) {
	n := finishedRun{Plan: plan}
	for i, rec := range r.records {
		if r.plan.Items[i].Quantized() {
			rec.Sums = nil // which the container has
			n.Records = append(n.Records, rec)
		}
	}
	if r.refined != nil {
		n.Learning = r.refined.Learning
	}
	data, err := json.Marshal(n)
	return append(data, '\n'), err
}

// Begun reports whether an interrupted run of this plan left something of an output to go on with.
func (p *Plan) Begun(out string, o RunOptions) bool {
	var left finishedRun
	plan := p.fingerprint(o.MaxShardSize)
	return outdir.Begun(out) == plan || json.Unmarshal(outdir.Left(out), &left) == nil && left.Plan == plan
}

// Finished returns the result of the run that made an output, if it was one of this plan and something is left to
// do with the output, else nil.
func (p *Plan) Finished(out string, o RunOptions) (*Result, error) {
	var n finishedRun
	if err := json.Unmarshal(outdir.Left(out), &n); err != nil || n.Plan != p.fingerprint(o.MaxShardSize) {
		return nil, nil
	}
	m, err := lutq.Open(out)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	config, err := m.Checkpoint().ConfigJSON()
	if err != nil {
		return nil, err
	}
	digests := m.Config().Digests
	if digests == nil {
		return nil, nil // which this run would have written
	}
	p = p.clone()
	for i := range p.Items {
		if it := &p.Items[i]; it.undecided() {
			if err := it.use(m.Spec(it.Layer).Codebook); err != nil {
				return nil, nil // which this run would not have chosen
			}
		}
	}
	byTensor := make(map[string]record)
	for _, r := range n.Records {
		byTensor[r.Tensor] = r
	}
	records := make([]record, len(p.Items))
	for i := range p.Items {
		records[i] = byTensor[p.Items[i].Tensor.Name]
		for _, s := range p.Items[i].stored {
			records[i].Sums = append(records[i].Sums, digests.Tensors[s.Name])
		}
	}
	var ref *refined
	if n.Learning != nil {
		ref = &refined{refinement: refinement{Learning: n.Learning}}
	}
	res := p.result(records, len(records), ref)
	res.OwnCode = lutq.OwnCode(config)
	if res.SHA256 != m.Config().SHA256 {
		return nil, nil // of another model after all
	}
	return res, nil
}

// run is the state of a plan being carried out.
type run struct {
	plan     *Plan
	journal  *journal
	memory   memory
	writer   store
	records  []record // of the plan's items
	refined  *refined // what came of a refiner, once it is done
	shards   Shards   // nil: all are there
	together int      // of them at a time
	progress func(done int64, tensor string)

	from *gathering      // what parts have made; nil: nothing
	lots map[int]*making // of one part, by the items that are calibrated

	shared *Shared // with who makes other parts; nil: nothing

	choosing sync.Mutex // tables of the plan's items

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
func (r *run) tensors(ctx context.Context, work *outdir.Work, maxShard int64) (*Result, error) {
	if err := r.checkSpace(work); err != nil {
		return nil, err
	}
	writer, err := hf.NewWriter(work.Dir(), r.plan.entries(), hf.WriterOptions{MaxShardSize: maxShard, Resume: true})
	if err != nil {
		return nil, err
	}
	defer writer.Abort() // does nothing after Commit
	r.writer = writer
	r.records = make([]record, len(r.plan.Items))
	if r.from != nil {
		resumed, err := r.gather(ctx)
		if err == nil {
			err = writer.Commit()
		}
		if err != nil {
			return nil, err
		}
		return r.plan.result(r.records, resumed, nil), nil
	}
	if r.refined, err = r.openRefined(work.Scratch(refinedName)); err != nil {
		return nil, err
	}
	defer func() { r.refined.close() }()
	if r.shards == nil {
		if err := r.choose(ctx, func(*Item) bool { return true }); err != nil {
			return nil, err
		}
	}
	calibrated, rest := r.plan.byCalibration()
	left, err := r.uncalibrated(calibrated)
	if err != nil {
		return nil, err
	}
	all := func(ctx context.Context) (int, error) { return r.pass(ctx, rest, r.finished, (*worker).do) }
	if r.shards != nil {
		all = func(ctx context.Context) (int, error) {
			return r.stream(ctx, rest, work.Scratch(shardsName), work.Scratch(tablesName))
		}
	}
	resumed, err := all(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.calibrate(ctx, left); err != nil {
		return nil, err
	}
	resumed += len(calibrated) - len(left)
	if r.plan.Recipe.Refine != nil {
		if err := r.refine(ctx, work); err != nil {
			return nil, err
		}
	}
	if err := writer.Commit(); err != nil {
		return nil, err
	}
	return r.plan.result(r.records, resumed, r.refined), nil
}

// checkSpace fails early where the output cannot fit.
func (r *run) checkSpace(work *outdir.Work) error {
	dir := work.Dir()
	free, err := hf.FreeSpace(dir)
	if err != nil {
		return err
	}
	// What an earlier run wrote is allocated already.
	var have int64
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	shards, err := filepath.Glob(filepath.Join(work.Scratch(shardsName), "*"))
	if err != nil {
		return err
	}
	for _, f := range slices.Concat(files, shards, []string{work.Scratch(refinedName)}) {
		if info, err := os.Stat(f); err == nil {
			have += allocated(info)
		}
	}
	out := r.plan.Totals().BytesOut + r.plan.refinedBytes()
	for r.together = mostShards; ; r.together-- {
		need := out + r.shardsSpace(r.together)
		switch {
		case need <= free+have:
			return nil
		case r.shards == nil:
			return fmt.Errorf("%s: not enough space: the output and what it is made of take %d bytes, %d are free", filepath.Dir(filepath.Dir(dir)), need, free)
		case r.together == 1:
			return fmt.Errorf("%s: not enough space: the output and a file of the model take %d bytes, %d are free", filepath.Dir(filepath.Dir(dir)), need, free)
		}
	}
}

// pass hands out the work on some items, block by block in their order. Those that are
// done already are left as they are.
func (r *run) pass(ctx context.Context, items []int, done func(i int) (bool, error), do func(w *worker, b block) error) (resumed int, err error) {
	err = r.work(ctx, func(send func(b block) error) error {
		for _, i := range items {
			it := &r.plan.Items[i]
			done, err := done(i)
			if err != nil {
				return err
			}
			if done {
				resumed++
				r.advance(it.Tensor.StoredBytes(), it.Tensor.Name)
				continue
			}
			t := r.begin(i)
			for _, b := range r.blocks(t, 0, it.N) {
				if err := send(b); err != nil {
					return err
				}
			}
		}
		return nil
	}, do)
	return resumed, err
}

// work has workers do the blocks that hand sends.
func (r *run) work(ctx context.Context, hand func(send func(b block) error) error, do func(w *worker, b block) error) error {
	group, ctx := errgroup.WithContext(ctx)
	blocks := make(chan block)
	for range r.memory.workers {
		group.Go(func() error {
			w := worker{run: r}
			for b := range blocks {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := do(&w, b); err != nil {
					return fmt.Errorf("%s: %s: %w", b.item.Tensor.Shard, b.item.Tensor.Name, err)
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(blocks)
		return hand(func(b block) error {
			select {
			case blocks <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	return group.Wait()
}

// finished reports whether an earlier run wrote an item, and whether it still
// stands as it was written: but for parts that have been refined since.
func (r *run) finished(i int) (bool, error) {
	return r.stands(i, r.journal.done, func(s stored) bool { return !r.refined.has(s) })
}

// stands reports whether some parts of an item are those of its record, which is then
// the item's.
func (r *run) stands(i int, records map[string]record, ask func(s stored) bool) (bool, error) {
	it := &r.plan.Items[i]
	old, ok := records[it.Tensor.Name]
	if !ok || len(old.Sums) != len(it.stored) {
		return false, nil
	}
	for j, s := range it.stored {
		if !ask(s) {
			continue
		}
		sum, err := sumOf(r.writer, s)
		if err != nil {
			return false, err
		}
		if sum != old.Sums[j] {
			return false, nil
		}
	}
	if it.undecided() {
		if err := it.use(old.Codebook); err != nil {
			return false, nil
		}
	}
	r.records[i] = old
	return true, nil
}

// store is where tensors are written.
type store interface {
	WriteAt(name string, p []byte, off int64) error
	ReadAt(name string, p []byte, off int64) error
}

// sumOf returns the SHA-256 of a stored tensor, read back from where it was written.
func sumOf(from store, s stored) (lutq.Sum, error) {
	return lutq.SumOf(s.size, func(p []byte, off int64) error { return from.ReadAt(s.Name, p, off) })
}

// task is the shared state of an item's blocks, or of those of some of its matrices.
type task struct {
	item   *Item
	record *record
	at     piece
	to     store
	lot    *making  // that the piece is of, nil of an item that is written where it belongs
	stored []stored // what the piece becomes
	// The sums of what it was before it was refined; nil where it is written for the first time.
	written []lutq.Sum
	left    atomic.Int64        // rows that are not written
	errs    []rounding.RowError // of every row, from the piece's first on
	scaled  func() (lut.Codebook, error)
	blocks  func() ([]float32, error) // of its columns, where rows are mixed
}

// block is a piece of work: some rows of a quantized item, or all of a copied
// one.
type block struct {
	*task
	from, to int     // rows
	state    State   // of the item's method, for these rows
	states   *states // that it is one of, nil where it lasts
}

// begin begins the work on an item.
func (r *run) begin(i int) *task {
	it, rec := &r.plan.Items[i], &r.records[i]
	if u := r.lots[i]; u != nil {
		return r.task(it, new(record), piece{i, 0, it.N}, u)
	}
	t := r.task(it, rec, piece{i, 0, it.N}, nil)
	t.written = rec.Sums
	*rec = record{Tensor: it.Tensor.Name, Codebook: rec.Codebook, Remarks: rec.Remarks, rowSums: rec.rowSums}
	rec.Energy, rec.Squared = 0, 0
	return t
}

// task makes the task of a piece, which a lot takes or else the run's own files.
func (r *run) task(it *Item, rec *record, at piece, u *making) *task {
	t := &task{item: it, record: rec, at: at, to: r.writer, lot: u, stored: it.stored}
	if u != nil {
		t.to, t.stored, rec.Tensor = u, it.of(at), it.Tensor.Name
		if it.auto && !it.undecided() {
			rec.Codebook = it.Format.Codebook
		}
	}
	t.left.Store(int64(at.to - at.from))
	if it.Quantized() {
		t.errs = make([]rounding.RowError, at.to-at.from)
		t.scaled = sync.OnceValues(func() (lut.Codebook, error) { return r.scaledCodebook(it) })
		t.blocks = sync.OnceValues(func() ([]float32, error) { return r.columnBlocks(it) })
	}
	return t
}

// blocks divides the work on some rows of an item, or on one that is copied.
func (r *run) blocks(t *task, from, to int) []block {
	it := t.item
	if !it.Quantized() || r.from != nil {
		return []block{{task: t}}
	}
	rows := max(it.unit(), r.memory.block/it.K/it.unit()*it.unit())
	if it.per() > 1 && !r.memory.wide { // whose codes take long: so that workers share a small layer evenly
		rows = min(rows, max(it.unit(), sharedBands*it.per()))
	}
	if n := r.memory.devices; it.per() > 1 && n > 1 {
		rows = min(rows, (((to-from)+n-1)/n+it.unit()-1)/it.unit()*it.unit())
	}
	var bs []block
	for ; from < to; from += rows {
		bs = append(bs, block{task: t, from: from, to: min(from+rows, to), state: it.plain})
	}
	return bs
}

// bytes returns what the block's rows take in the source.
func (b block) bytes() int64 {
	rows := int64(b.item.N)
	return share(b.item.Tensor, int64(b.to), rows) - share(b.item.Tensor, int64(b.from), rows)
}

// share returns what the first done of all equal parts of a tensor take in the source.
func share(t *hf.Tensor, done, all int64) int64 {
	if all == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(t.StoredBytes()), uint64(done))
	q, _ := bits.Div64(hi, lo, uint64(all))
	return int64(q)
}
