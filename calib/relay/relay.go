package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/hf"
)

// Folder is what processes share. The parts of package outdir are one.
type Folder interface {
	// Name names it in messages.
	Name() string
	// Path returns where a file lies.
	Path(name string) string
	// Names lists files, and folders that Scratch made, with a dot before.
	Names() ([]string, error)
	// Scratch makes a folder of this process alone, .name.X.
	Scratch(name string) (string, error)
	// Sweep removes those of names that are asked for.
	Sweep(asked func(name string) bool) error
}

// Mark is a block that parts begin with.
type Mark struct {
	Block  int  // at least 1
	Wanted bool // a part that begins there is not finished
}

// Options say what is shared.
type Options struct {
	Folder      Folder
	Key         string // of all that states depend on
	Part, Parts int    // from 1
	Marks       []Mark // of all parts, ascending
	First       int    // block that this part still has layers of, at most: it needs the states before that
	Sizes       []int  // of the state of each window, in numbers
	Starts      []int  // windows that a walk of some may begin with, the first of all; see [model.Starts]
	Bytes       int64  // that states may take on the disk; they are kept of so many marks
	// Walk takes windows from one block to another, which is where it ends: from 0 begins with their tokens.
	Walk func(ctx context.Context, from, to int, windows [2]int, states model.States) error
	// Note is told of what is worth a message.
	Note func(string)

	// Patience is how long others are waited for, at first, who are on their way with all that is missing.
	Patience time.Duration
}

// mostGroups is how many groups windows are divided into: files of a block, at most, and so many processes at most that share.
const mostGroups = 32

// mostMarks is how many blocks states are kept before, at most.
const mostMarks = 31

// A Relay is what one process knows of the states that are kept.
type Relay struct {
	Options
	id     string
	groups []group
	marks  []Mark        // that states are kept before
	need   int           // of these the last before First; 0: none
	took   time.Duration // for some windows of its own
}

// group is some windows that follow each other: from, …, to-1.
type group struct{ from, to int }

// New divides windows into groups and chooses the blocks that states are kept before, which is the same in all processes of as
// many parts.
func New(o Options) *Relay {
	r := &Relay{Options: o}
	n := min(mostGroups, len(o.Starts))
	begins := func(i int) int {
		if i == n {
			return len(o.Sizes)
		}
		return o.Starts[i*len(o.Starts)/n]
	}
	for i := range n {
		r.groups = append(r.groups, group{begins(i), begins(i + 1)})
	}
	var bytes int64
	for _, size := range o.Sizes {
		bytes += 4 * int64(size)
	}
	r.marks = thin(o.Marks, int(min(o.Bytes/max(bytes, 1), mostMarks)))
	for _, m := range r.marks {
		if m.Block <= o.First {
			r.need = m.Block
		}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%v\n%v", o.Key, o.Sizes, r.groups))
	r.id = hex.EncodeToString(sum[:8])
	return r
}

// thin leaves so many marks, about as far from each other. Who began at another needs the one before.
func thin(all []Mark, most int) []Mark {
	if len(all) <= most {
		return all
	}
	var kept []Mark
	for i := range most {
		kept = append(kept, Mark{Block: all[((i+1)*(len(all)+1)+(most+1)/2)/(most+1)-1].Block})
	}
	for _, m := range all {
		at := -1
		for i, k := range kept {
			if k.Block <= m.Block {
				at = i
			}
		}
		if at >= 0 && m.Wanted {
			kept[at].Wanted = true
		}
	}
	return kept
}

// errGivenUp means that states cannot be kept.
var errGivenUp = errors.New("states cannot be kept")

// errArrived ends a walk whose states others have brought.
var errArrived = errors.New("others were first")

// Run shares the way: it returns the last block, at most [Options.First], before which there are the states of all windows. That is
// 0 where nothing could be kept.
func (r *Relay) Run(ctx context.Context) (from int, err error) {
	if err := r.share(ctx); err != nil && !errors.Is(err, errGivenUp) {
		return 0, err
	}
	v, err := r.look()
	if err != nil {
		return 0, err
	}
	for _, m := range r.marks {
		if m.Block <= r.First && len(v.without(m.Block)) == 0 {
			from = m.Block
		}
	}
	return from, r.Folder.Sweep(func(name string) bool {
		g, _, ok := r.parseClaim(name)
		return ok && !v.misses(g)
	})
}

// Clear removes all that is kept, and what is in the making.
func (r *Relay) Clear() error {
	names, err := r.Folder.Names()
	for _, name := range names {
		if _, ok := r.parseName(name); ok {
			if e := os.Remove(r.Folder.Path(name)); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	return errors.Join(err, r.Folder.Sweep(func(name string) bool { _, _, ok := r.parseClaim(name); return ok }))
}

// share walks with groups until all that this process needs is there.
func (r *Relay) share(ctx context.Context) error {
	const pause = 200 * time.Millisecond
	files, waited := 0, time.Duration(0)
	for {
		v, err := r.look()
		if err != nil {
			return err
		}
		if todo := v.free(); len(todo) > 0 {
			begin := time.Now()
			if err := r.walk(ctx, v, todo); err != nil {
				return err
			}
			r.took = max(r.took, time.Since(begin))
			continue
		}
		need := v.without(r.need)
		if r.need == 0 || len(need) == 0 {
			return nil
		}
		if n := len(v.files); n != files { // somebody is at work
			files, waited = n, 0
		}
		if waited < r.Patience+r.took/2 {
			select {
			case <-time.After(pause):
				waited += pause
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		if err := r.race(ctx, v, need); err != nil {
			return err
		}
	}
}

// race walks with groups that others are on their way with, or were when they were killed, until it has come as far as it
// needs, or they have.
func (r *Relay) race(ctx context.Context, v *view, groups []int) error {
	const pause = time.Second
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for inner.Err() == nil {
			select {
			case <-time.After(pause):
			case <-inner.Done():
				return
			}
			if now, err := r.look(); err == nil && len(now.without(r.need)) == 0 {
				cancel(errArrived)
			}
		}
	}()
	err := r.walk(inner, v, groups)
	cancel(nil)
	<-done
	if errors.Is(context.Cause(inner), errArrived) && ctx.Err() == nil {
		return nil
	}
	return err
}

// walk takes groups as far as any part begins.
func (r *Relay) walk(ctx context.Context, v *view, groups []int) error {
	for len(groups) > 0 {
		n := 1 // that follow each other
		for n < len(groups) && groups[n] == groups[0]+n {
			n++
		}
		if err := r.walkSome(ctx, v, groups[:n]); err != nil {
			return err
		}
		groups = groups[n:]
	}
	return nil
}

func (r *Relay) walkSome(ctx context.Context, v *view, groups []int) (err error) {
	s := &states{Relay: r, windows: group{r.groups[groups[0]].from, r.groups[groups[len(groups)-1]].to}, making: make(map[[2]int]*making)}
	from, to, size := 0, 0, int64(0)
	for _, m := range r.marks {
		left := 0
		for _, g := range groups {
			if m.Wanted && !v.files[[2]int{m.Block, g}] {
				s.making[[2]int{m.Block, g}] = &making{}
				left, size = left+1, size+r.fileSize(g)
			}
		}
		switch {
		case left > 0:
			to = m.Block
		case to == 0 && !slices.ContainsFunc(groups, func(g int) bool { return !v.files[[2]int{m.Block, g}] }):
			from = m.Block
		}
	}
	if to == 0 {
		return nil
	}
	if free, err := hf.FreeSpace(r.Folder.Path(".")); err == nil && free < size {
		return r.giveUp(fmt.Errorf("%d bytes are free, %d are needed", free, size))
	}
	// What the same part has in the making is of a process that was killed; if it is not, that takes itself for late.
	if err := r.Folder.Sweep(func(name string) bool {
		g, own, ok := r.parseClaim(name)
		return ok && own && slices.Contains(groups, g)
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, g := range groups {
		dir, err := r.Folder.Scratch(r.claim(g))
		if err != nil {
			return r.giveUp(err)
		}
		s.dirs = append(s.dirs, dir)
	}
	s.first = groups[0]
	err = r.Walk(ctx, from, to, [2]int{s.windows.from, s.windows.to}, s)
	var damaged *damagedError
	switch {
	case s.failed != nil:
		return r.giveUp(s.failed)
	case errors.As(err, &damaged):
		return nil // it is removed, and made again
	}
	return err
}

// giveUp says why nothing is shared.
func (r *Relay) giveUp(err error) error {
	r.Note(fmt.Sprintf("%s: what the text is where parts begin cannot be kept, so each goes all the way by itself: %v", r.Folder.Name(), err))
	return errGivenUp
}

// view is what lies in the folder.
type view struct {
	*Relay
	files  map[[2]int]bool // by block and group
	others map[int]bool    // groups that other parts are on their way with, or were
}

func (r *Relay) look() (*view, error) {
	names, err := r.Folder.Names()
	if err != nil {
		return nil, err
	}
	v := &view{Relay: r, files: make(map[[2]int]bool), others: make(map[int]bool)}
	for _, name := range names {
		if claim, ok := strings.CutPrefix(name, "."); ok {
			claim, _, _ = strings.Cut(claim, ".")
			if g, own, ok := r.parseClaim(claim); ok && !own { // an own one is of a process that was killed
				v.others[g] = true
			}
		} else if at, ok := r.parseName(name); ok {
			info, err := os.Stat(r.Folder.Path(name))
			v.files[at] = err == nil && info.Size() == r.fileSize(at[1]) // else it was cut short, and is made again
		}
	}
	return v, nil
}

// without returns the groups without a file of a block.
func (v *view) without(block int) (groups []int) {
	for g := range v.groups {
		if !v.files[[2]int{block, g}] {
			groups = append(groups, g)
		}
	}
	return groups
}

// misses reports whether a file of a group is wanted and not there.
func (v *view) misses(g int) bool {
	return slices.ContainsFunc(v.marks, func(m Mark) bool { return m.Wanted && !v.files[[2]int{m.Block, g}] })
}

// free returns groups of one part that miss something and that nobody is on the way with: of the process' own, or
// else of one after it.
func (v *view) free() (groups []int) {
	n := len(v.groups)
	for i := range v.Parts {
		part := (v.Part - 1 + i) % v.Parts
		for g := part * n / v.Parts; g < (part+1)*n/v.Parts; g++ {
			if v.misses(g) && !v.others[g] {
				groups = append(groups, g)
			}
		}
		if len(groups) > 0 {
			return groups
		}
	}
	return nil
}
