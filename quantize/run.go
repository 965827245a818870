package quantize

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/folder"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/quantize/lut"
)

// RunOptions say how a plan is carried out. None of them has a part in the
// result, except that MaxShardSize places tensors in files.
type RunOptions struct {
	Threads      int      // 0: one for each processor
	MaxRAM       int64    // bytes the run may take, a refiner included; 0: what runs best
	MaxShardSize int64    // bytes; 0: 5 GB
	Force        bool     // replace an output that lutq wrote
	Inputs       []string // files that are read besides the model, which the output may not touch either
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
	Family  string // of the model, see [Plan.Family]
	SHA256  string // digest of the quantized tensors
	Error   float64
	Layers  []LayerResult  // quantized layers in the source's order
	Kept    []Kept         // the other tensors, by reason
	Decoded []Decoded      // what the source does not store in 16 bits or more
	Resumed int            // tensors that an earlier run had finished
	Learn   *lutq.Learning // how scales were learned, if they were

	sums map[string]lutq.Sum // of every stored tensor
}

// LayerResult is the outcome for one quantized layer.
type LayerResult struct {
	Layer      string
	N, K       int
	Experts    int // matrices of a stack, see [Item]
	Transposed bool
	Format     lutq.Format
	BytesIn    int64
	BytesOut   int64
	Error      float64 // ‖W-Ŵ‖/‖W‖
}

// Run carries out the plan and moves the finished container to out, as
// [folder.Create] allows. When ctx is done it stops and keeps what is finished
// for the next run; after any other error nothing is left.
func (p *Plan) Run(ctx context.Context, out string, o RunOptions) (res *Result, err error) {
	mem, err := p.memory(o)
	if err != nil {
		return nil, err
	}
	work, err := folder.Create(out, folder.Options{
		Inputs: append([]string{p.Source.Dir()}, o.Inputs...), Force: o.Force,
		Plan: p.fingerprint(o.MaxShardSize), Resume: true,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err == nil || ctx.Err() != nil {
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
	r := &run{plan: p, journal: j, memory: mem, progress: o.Progress}
	if res, err = r.tensors(ctx, work, o.MaxShardSize); err != nil {
		return nil, err
	}
	if err := p.sideFiles(work.Dir(), res); err != nil {
		return nil, err
	}
	return res, work.Install()
}

// run is the state of a plan being carried out.
type run struct {
	plan     *Plan
	journal  *journal
	memory   memory
	writer   *hf.Writer
	progress func(done int64, tensor string)

	initial map[string]*lut.Matrix // being made, where a refiner wants it
	refined *refined               // then

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
func (r *run) tensors(ctx context.Context, work *folder.Work, maxShard int64) (*Result, error) {
	if err := r.checkSpace(work.Dir()); err != nil {
		return nil, err
	}
	var err error
	r.writer, err = hf.NewWriter(work.Dir(), r.plan.entries(), hf.WriterOptions{MaxShardSize: maxShard, Resume: true})
	if err != nil {
		return nil, err
	}
	defer r.writer.Abort() // does nothing after Commit

	if r.plan.Recipe.Refine != nil {
		if err := r.refine(ctx, work.Scratch(stateName)); err != nil {
			return nil, err
		}
	}
	records := make([]record, len(r.plan.Items))
	resumed, err := r.schedule(ctx, records)
	if err != nil {
		return nil, err
	}
	if err := r.writer.Commit(); err != nil {
		return nil, err
	}
	return r.plan.result(records, resumed, r.refined), nil
}

// checkSpace fails early where the output cannot fit.
func (r *run) checkSpace(dir string) error {
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
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			have += allocated(info)
		}
	}
	if need := r.plan.Totals().BytesOut; need > free+have {
		return fmt.Errorf("%s: not enough space: the output takes %d bytes, %d are free", filepath.Dir(filepath.Dir(dir)), need, free)
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
			if r.initial != nil && !it.Quantized() {
				continue
			}
			done, err := r.finished(it, &records[i])
			if err != nil {
				return err
			}
			if done {
				resumed++
				r.advance(it.Tensor.StoredBytes(), it.Tensor.Name)
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
	if it.Quantized() && r.plan.Recipe.Refine != nil {
		return false, nil // known only once it is refined, and soon written
	}
	old, ok := r.journal.done[it.Tensor.Name]
	if !ok || len(old.Sums) != len(it.stored) {
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
	rows := max(it.unit(), r.memory.block/it.K/it.unit()*it.unit())
	var bs []block
	for from := 0; from < it.N; from += rows {
		bs = append(bs, block{task: t, from: from, to: min(from+rows, it.N)})
	}
	t.left.Store(int64(len(bs)))
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
