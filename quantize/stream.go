package quantize

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/hf"
)

// Shards brings the files of a source one after the other, such as from a server, so that a disk never holds all of them.
type Shards interface {
	// Begin names a folder for them. It deletes what an interrupted run left there, but for what has come of the files that are needed.
	Begin(dir string, need []string) error
	// Fetch brings a file, of whose tensors any can be read then.
	Fetch(ctx context.Context, shard string) error
	// Drop deletes it, but for some tensors that can still be read.
	Drop(shard string, keep []*hf.Tensor) error
	// Size returns the bytes of a file.
	Size(shard string) int64
}

// FetchError means that a file of the source did not come. What is finished stays, for the same plan to go on with.
type FetchError struct{ Err error }

func (e *FetchError) Error() string { return e.Err.Error() }

// Unwrap returns what lies below the error.
func (e *FetchError) Unwrap() error { return e.Err }

// CheckStreamed returns an error where a run of the recipe reads the whole model for each layer, so that the files cannot come
// one after the other.
func (r Recipe) CheckStreamed() error {
	if r.Calibrated() || r.Refine != nil || r.Transform != nil {
		return fmt.Errorf("method %s runs a text through the whole model", oneOf(r.methods()))
	}
	return nil
}

// FetchBytes returns how many files of the source a run without an interrupted one before it fetches, and their bytes.
func (p *Plan) FetchBytes(s Shards) (files int, bytes int64) {
	for _, shard := range p.Source.Shards() {
		if len(p.in(shard)) > 0 {
			files, bytes = files+1, bytes+s.Size(shard)
		}
	}
	return files, bytes
}

// in returns the items that need a file.
func (p *Plan) in(shard string) (items []int) {
	for i := range p.Items {
		if slices.ContainsFunc(p.Items[i].Tensor.Parts(), func(t *hf.Tensor) bool { return t.Shard == shard }) {
			items = append(items, i)
		}
	}
	return items
}

// shardsName is the folder beside an output being built that files of the source come into.
const shardsName = "shards"

// mostShards is how many files of the source are on the disk at a time, but for parts of earlier ones: the one at hand, and the
// next.
const mostShards = 2

// shardsSpace returns what files of the source take on the disk at most, so many at a time, but for parts of earlier ones.
func (r *run) shardsSpace(together int) (most int64) {
	if r.shards == nil {
		return 0
	}
	all := r.plan.Source.Shards()
	for i := range all {
		var sum int64
		for _, shard := range all[i:min(i+together, len(all))] {
			sum += r.shards.Size(shard)
		}
		most = max(most, sum)
	}
	return most
}

// stream does items as the files come that they lie in. One that lies in several is done with the last of them; of the others its
// parts are kept. So are layers whose table is chosen, until the last of their block has come.
func (r *run) stream(ctx context.Context, items []int, dir, chosen string) (resumed int, err error) {
	tables, err := r.streamTables(chosen)
	if err != nil {
		return 0, err
	}
	var left []int
	for _, i := range items {
		done, err := r.finished(i)
		if err != nil {
			return resumed, err
		}
		if !done {
			left = append(left, i)
			continue
		}
		resumed++
		t := r.plan.Items[i].Tensor
		r.advance(t.StoredBytes(), t.Name)
	}
	s := newSchedule(r.plan, left)
	if err := r.shards.Begin(dir, s.order); err != nil {
		return resumed, err
	}
	group, ctx := errgroup.WithContext(ctx)
	here := make(chan string)
	room := make(chan struct{}, r.together)
	group.Go(func() error {
		defer close(here)
		for _, shard := range s.order {
			select {
			case room <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := r.shards.Fetch(ctx, shard); err != nil {
				return &FetchError{err}
			}
			select {
			case here <- shard:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	group.Go(func() error {
		for shard := range here {
			if err := tables.choose(ctx, shard, s.done[shard]); err != nil {
				return &FetchError{err} // most of what it reads may have to come
			}
			_, err := r.pass(ctx, s.done[shard], func(int) (bool, error) { return false, nil }, (*worker).do)
			if err != nil {
				return err
			}
			for shard, keep := range s.after(shard) {
				if err := r.shards.Drop(shard, keep); err != nil {
					return err
				}
			}
			<-room
		}
		return nil
	})
	return resumed, group.Wait()
}

// schedule says when items are done, and what of files is needed how long.
type schedule struct {
	order []string         // of the files, as the source has them
	done  map[string][]int // items, by the file with which the last of their parts comes
	// Parts of items that are not done yet, by file.
	waiting map[string][]waiting
}

// waiting is a part of an item that is done when a file has come.
type waiting struct {
	part  *hf.Tensor
	until string
}

func newSchedule(p *Plan, items []int) *schedule {
	s := &schedule{done: make(map[string][]int), waiting: make(map[string][]waiting)}
	shards := p.Source.Shards()
	place := make(map[string]int)
	for i, shard := range shards {
		place[shard] = i
	}
	// Sizes are followed up to the last block whose tables are chosen.
	blocks, chosen := p.blocks(), -1
	for _, i := range items {
		if b, ok := blocks[i]; ok && p.Items[i].undecided() {
			chosen = max(chosen, b)
		}
	}
	ends := p.blockEnds(place)
	for _, i := range items {
		parts := p.Items[i].Tensor.Parts()
		at := 0
		for _, t := range parts {
			at = max(at, place[t.Shard])
		}
		if b, ok := blocks[i]; ok && b <= chosen {
			at = max(at, ends[b])
		}
		last := shards[at]
		s.done[last] = append(s.done[last], i)
		for _, t := range parts {
			s.waiting[t.Shard] = append(s.waiting[t.Shard], waiting{t, last})
		}
	}
	for _, shard := range shards {
		if len(s.waiting[shard]) > 0 {
			s.order = append(s.order, shard)
		}
	}
	return s
}

// after returns, when the items of a file are done, which files are not needed any more but for the tensors given.
func (s *schedule) after(shard string) map[string][]*hf.Tensor {
	drop := make(map[string][]*hf.Tensor)
	for of, parts := range s.waiting {
		rest := slices.DeleteFunc(parts, func(w waiting) bool { return w.until == shard })
		s.waiting[of] = rest
		if len(rest) == 0 {
			delete(s.waiting, of)
		} else if of != shard {
			continue // it is still to come, or what waits is all that was kept
		}
		drop[of] = nil
		for _, w := range rest {
			if !slices.Contains(drop[of], w.part) {
				drop[of] = append(drop[of], w.part)
			}
		}
	}
	return drop
}
