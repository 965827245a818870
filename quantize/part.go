package quantize

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
)

// A Part is one of N about equal parts of the work on a plan, which are made apart from each other: I from 1 to N. Part 0
// is part N, so that those who count from 0 need not add.
type Part struct{ I, N int }

// maxParts bounds N.
const maxParts = 1 << 16

// ParsePart reads I/N.
func ParsePart(s string) (Part, error) {
	before, after, ok := strings.Cut(s, "/")
	i, err := strconv.Atoi(before)
	n, err2 := strconv.Atoi(after)
	if !ok || err != nil || err2 != nil || n < 1 || n > maxParts || i < 0 || i > n {
		return Part{}, fmt.Errorf("want I/N, as 3/8, with I from 1 to N and N at most %d", maxParts)
	}
	return Part{cmp.Or(i, n), n}, nil
}

func (p Part) String() string { return fmt.Sprintf("%d/%d", p.I, p.N) }

// piece is what a lot has of an item: rows of it, which are those of some of its matrices.
type piece struct{ item, from, to int }

// lot is what is made, and lost, at a time: pieces that go into one file.
type lot struct {
	pieces     []piece
	bytes      int64 // of the source
	calibrated bool  // all of the pieces, or none
}

// mostLots bounds how many files there are, so that folders stay small: a lot is closed when it has so much of the source.
const mostLots = 4096

// lots divides what is quantized, the same for any number of parts: so parts of 4 go on with what parts of 8 have made.
// Layers come in the order of the model, by which a text comes by and tables are chosen. The experts of a stack are
// pieces of their own, but where a text comes by: what a method makes of one depends on others' then. Layers that read the
// same stay together there, since their statistics are one, and so do those of one table.
func (p *Plan) lots() []lot {
	var all int64
	rank := make(map[int]int)
	for i := range p.Items {
		if p.Items[i].Quantized() {
			all += p.Items[i].Tensor.StoredBytes()
			rank[i] = math.MaxInt
		}
	}
	group := newSets(len(p.Items))
	if d := p.names.model; d != nil {
		at := make(map[*arch.Stored]int)
		for i := range rank {
			if s := p.names.stored[p.Items[i].Tensor.Name]; s != nil {
				at[s] = i
			}
		}
		n := 0
		for l := range d.Linears() {
			if i, ok := at[l.Stored]; ok && rank[i] == math.MaxInt {
				rank[i] = n
				n++
			}
		}
		for _, ls := range together(d) {
			var before *int
			for _, l := range ls {
				if i, ok := at[l.Stored]; ok && p.Items[i].calibrated() {
					if before != nil {
						group.join(*before, i)
					}
					before = &i
				}
			}
		}
	}
	fused, order := make(map[string]int), sorted(rank)
	for _, i := range order {
		if it := &p.Items[i]; it.calibrated() {
			if first, ok := fused[p.set(it)]; ok {
				group.join(first, i)
			} else {
				fused[p.set(it)] = i
			}
		}
	}
	var lots []lot
	var now lot
	end := func() {
		if len(now.pieces) > 0 {
			lots = append(lots, now)
		}
		now = lot{}
	}
	take := func(bytes int64, calibrated bool, pieces ...piece) {
		if now.calibrated != calibrated {
			end()
		}
		now.calibrated = calibrated
		if last := len(now.pieces) - 1; last >= 0 && now.pieces[last].item == pieces[0].item {
			now.pieces[last].to = pieces[0].to
		} else {
			now.pieces = append(now.pieces, pieces...)
		}
		if now.bytes += bytes; now.bytes >= all/mostLots {
			end()
		}
	}
	members := make(map[int][]piece)
	for _, i := range order {
		of := group.of(i)
		members[of] = append(members[of], piece{i, 0, p.Items[i].N})
	}
	for _, i := range order {
		it := &p.Items[i]
		switch all := members[group.of(i)]; {
		case it.calibrated() && all[0].item == i:
			var bytes int64
			for _, at := range all {
				bytes += p.Items[at.item].Tensor.StoredBytes()
			}
			take(bytes, true, all...)
		case it.calibrated(): // with the first of its group
		default:
			n := max(it.Experts, 1)
			for e := range n {
				take(it.Tensor.StoredBytes()/int64(n), false, piece{i, e * (it.N / n), (e + 1) * (it.N / n)})
			}
		}
	}
	end()
	return lots
}

// sorted returns the keys of ranks by them, and by themselves where these are the same.
func sorted(rank map[int]int) []int {
	keys := make([]int, 0, len(rank))
	for i := range rank {
		keys = append(keys, i)
	}
	slices.SortFunc(keys, func(a, b int) int { return cmp.Or(cmp.Compare(rank[a], rank[b]), cmp.Compare(a, b)) })
	return keys
}

// together returns the layers of a model by what they read on a text, as it comes by.
func together(d *arch.Decoder) (all [][]*arch.Linear) {
	for i := range d.Blocks {
		b := &d.Blocks[i]
		all = append(all, b.Mixer.Stages()...)
		for _, m := range b.MLPs() {
			all = append(all, m.In())
		}
	}
	return all
}

// sets are disjoint sets of numbers.
type sets []int

func newSets(n int) sets {
	s := make(sets, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// of returns the number that stands for the set of i.
func (s sets) of(i int) int {
	for s[i] != i {
		s[i] = s[s[i]]
		i = s[i]
	}
	return i
}

func (s sets) join(a, b int) { s[s.of(max(a, b))] = s.of(min(a, b)) }

// partsOf divides lots into n parts by the bytes of the source: it returns the part of each, which ascend.
func partsOf(lots []lot, n int) []int {
	var all, before int64
	for _, s := range lots {
		all += s.bytes
	}
	parts := make([]int, len(lots))
	for i, s := range lots {
		middle := float64(before) + float64(s.bytes)/2
		parts[i] = int(middle/float64(max(all, 1))*float64(n)) + 1
		before += s.bytes
	}
	return parts
}

// of returns the lots of one part, which follow each other.
func (p Part) of(lots []lot) (mine []int) {
	for i, part := range partsOf(lots, p.N) {
		if part == p.I {
			mine = append(mine, i)
		}
	}
	return mine
}

// of returns what a piece of the item becomes.
func (it *Item) of(at piece) []stored {
	all := slices.Clone(it.stored)
	for i := range all {
		if it.parts[i].Rows {
			all[i].size = int64(it.rowsBytes(i, at.to) - it.rowsBytes(i, at.from))
		}
	}
	return all
}

// program returns what tells this program from another version of it: the sum of its file.
var program = sync.OnceValues(func() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	sum, err := lutq.FileSum(path)
	return hex.EncodeToString(sum[:8]), err
})

// How much of a source is looked at to know it again: so many bytes amid so many of its tensors.
const (
	knownTensors = 1024
	knownBytes   = 4096
)

// digest names the plan to those that make parts of it: the program, the recipe with every codebook, and the source. Times of
// files have no part in it, which differ where a model was copied. Of a large source a sample is read.
func (p *Plan) digest(ctx context.Context) (string, error) {
	by, err := program()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	p.write(h)
	config, err := p.Source.ConfigJSON()
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "%d %s\n", len(config), config)
	looked := evenly(len(p.Items), knownTensors)
	samples := make([][]byte, len(looked))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(32) // since some file systems are slow to answer
	for n, i := range looked {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			t := p.Items[i].Tensor
			samples[n] = make([]byte, min(t.Bytes(), knownBytes))
			size := max(int64(t.DType.Bits())/8, 1)
			_, err := t.ReadAt(samples[n], (t.Bytes()-int64(len(samples[n])))/2/size*size)
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return "", err
	}
	for _, s := range samples {
		h.Write(s)
	}
	return by + "-" + hex.EncodeToString(h.Sum(nil)), nil
}

// write writes what a plan is, but for the time of the source's files.
func (p *Plan) write(h hash.Hash) {
	fmt.Fprintf(h, "lutq 1\n%s\n", p.Command())
	if p.Recipe.Transform != nil {
		fmt.Fprintf(h, "transform %s\n", p.Recipe.Transform.Key())
	}
	if p.Recipe.Calibrate != nil {
		fmt.Fprintf(h, "calibrate %s\n", p.Recipe.Calibrate.Key())
	}
	if p.Recipe.Refine != nil {
		fmt.Fprintf(h, "refine %s\n", p.Recipe.Refine.Key())
	}
	for i := range p.Items {
		it := &p.Items[i]
		fmt.Fprintf(h, "%s %s %v %s %+v %v\n", it.Tensor.Name, it.Tensor.DType, it.Tensor.Shape, it.Layer, it.Format, it.Codebook.Values)
	}
}

// otherProgram says of parts that another version has made them.
func otherProgram(err error) error {
	var other *outdir.OtherPlanError
	by, progErr := program()
	if !errors.As(err, &other) || progErr != nil || strings.HasPrefix(other.Plan, by+"-") {
		return err
	}
	theirs, _, _ := strings.Cut(other.Plan, "-")
	return &OtherProgramError{Folder: other.Folder, Theirs: theirs, Ours: by}
}

// OtherProgramError means that parts were begun by another version of the program, which need not make the same bytes. Theirs
// and Ours begin the sums of both.
type OtherProgramError struct{ Folder, Theirs, Ours string }

func (e *OtherProgramError) Error() string {
	return fmt.Sprintf("%s: was begun by another build of lutq (sha256 %.16s…, this is %.16s…)", e.Folder, e.Theirs, e.Ours)
}

// Hint says what to do.
func (e *OtherProgramError) Hint() string {
	return "all parts are made by one program: take that one, or delete the folder to start anew"
}

// errStream means that layers are quantized after others, which other parts make.
var errStream = errors.New("layers are fitted to what those before them make of a text, which other parts have")

// Divisible returns why the plan cannot be made in parts, nil where it can.
func (p *Plan) Divisible() error {
	switch c := p.Recipe.Calibrate; {
	case p.Recipe.Refine != nil:
		return errors.New("scales are learned of a whole model")
	case c != nil && !c.Apart():
		return errStream
	}
	return nil
}

// PartResult is what a run of one part did.
type PartResult struct {
	Part         Part
	Files, Found int   // of the part, and how many of them others had made
	Layers       int   // quantized, or a part of them
	Bytes        int64 // written
	All          int   // files of all parts
	Done         int   // of these, that exist
}

// PartBytes returns how much of the source a part reads.
func (p *Plan) PartBytes(part Part) (bytes int64) {
	lots := p.lots()
	for _, i := range part.of(lots) {
		bytes += lots[i].bytes
	}
	return bytes
}

// RunPart quantizes the layers of one part, and puts them in the folder beside out that [outdir.Parts] is. It makes nothing
// that is there, whoever made it. Parts are made in any order, and may be made twice at once.
func (p *Plan) RunPart(ctx context.Context, out string, part Part, o RunOptions) (*PartResult, error) {
	if err := p.Divisible(); err != nil {
		return nil, err
	}
	mem, err := p.memory(o)
	if err != nil {
		return nil, err
	}
	digest, err := p.digest(ctx)
	if err != nil {
		return nil, err
	}
	folder, err := outdir.OpenParts(out, outdir.Options{
		Inputs: append([]string{p.Source.Dir()}, o.Inputs...), Force: o.Force, Plan: digest,
	})
	if err != nil {
		return nil, otherProgram(err)
	}
	lots := p.lots()
	r := &run{plan: p.clone(), memory: mem, progress: o.Progress, lots: make(map[int]*making), records: make([]record, len(p.Items))}
	res := &PartResult{Part: part, All: len(lots)}
	mine := part.of(lots)
	res.Files = len(mine)
	finished := make(map[string]bool)
	sweep := func() error { return folder.Sweep(func(name string) bool { return finished[name] }) }
	var todo []*making
	var need int64
	for _, i := range mine {
		u := &making{folder: folder, index: i, lot: lots[i], plan: r.plan, digest: digest, part: part}
		for _, at := range u.pieces {
			for _, s := range r.plan.Items[at.item].of(at) {
				u.size += s.size
			}
		}
		if _, err := u.read(); err == nil {
			res.Found++
			finished[u.name()] = true
			r.advance(u.bytes, "")
			continue
		}
		todo, need = append(todo, u), need+u.size
	}
	if err := sweep(); err != nil {
		return nil, err
	}
	if o.Resumed != nil && res.Found > 0 {
		o.Resumed(res.Found)
	}
	if free, err := hf.FreeSpace(folder.Path(".")); err == nil && need > free {
		return nil, fmt.Errorf("%s: not enough space: the part takes %d bytes, %d are free", folder.Name(), need, free)
	}
	defer func() {
		for _, u := range todo {
			u.abandon()
		}
	}()
	var calibrated []int
	for _, u := range todo {
		for _, at := range u.pieces {
			if u.calibrated {
				calibrated = append(calibrated, at.item)
			}
		}
	}
	r.share(folder, digest, part, lots, func(l int) bool { return written(folder, l) }, calibrated)
	if err := r.makeLots(ctx, todo); err != nil {
		return nil, err
	}
	for _, u := range todo {
		res.Layers += len(u.pieces)
		res.Bytes += u.size
		finished[u.name()] = true
	}
	if err := sweep(); err != nil {
		return nil, err
	}
	for i := range lots {
		if written(folder, i) {
			res.Done++
		}
	}
	return res, nil
}

// written reports whether there is a lot, whole or not.
func written(folder *outdir.Parts, lot int) bool {
	_, err := os.Stat(folder.Path(lotName(lot) + recordSuffix))
	return err == nil
}

// makeLots makes lots.
func (r *run) makeLots(ctx context.Context, todo []*making) error {
	sets := make(map[string]bool)
	for _, u := range todo {
		for _, at := range u.pieces {
			sets[r.plan.set(&r.plan.Items[at.item])] = true
		}
	}
	// Those of one table with what this part has belong to others, but have a say in which.
	if err := r.choose(ctx, func(it *Item) bool { return sets[r.plan.set(it)] }); err != nil {
		return err
	}
	var calibrated []int
	var last *task
	err := r.work(ctx, func(send func(b block) error) error {
		for _, u := range todo {
			for _, at := range u.pieces {
				if u.calibrated {
					calibrated = append(calibrated, at.item)
					r.lots[at.item] = u
					continue
				}
				it := &r.plan.Items[at.item]
				t := r.task(it, new(record), at, u)
				if last != nil && last.item == it {
					t.scaled, t.blocks = last.scaled, last.blocks // which are of the whole of it
				}
				last = t
				for _, b := range r.blocks(t, at.from, at.to) {
					if err := send(b); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}, (*worker).do)
	if err != nil {
		return err
	}
	return r.calibrate(ctx, calibrated)
}

// The files of a lot, behind its name.
const (
	dataSuffix   = ".bin"
	recordSuffix = ".json"
)

func lotName(i int) string { return fmt.Sprintf("%04d", i) }

// making is the file of a lot in the making: what its pieces are stored as, one after the other. It implements [store].
type making struct {
	lot
	folder *outdir.Parts
	index  int
	size   int64
	plan   *Plan
	digest string
	part   Part

	mu      sync.Mutex
	dir     string // of this process, once something is written
	file    *os.File
	at      map[string]int64 // where stored tensors begin
	records map[int]pieceRecord
	done    bool
}

// open makes the file. The caller holds mu.
func (u *making) open() (err error) {
	if u.file != nil {
		return nil
	}
	if u.done {
		return fmt.Errorf("%s is finished", u.name())
	}
	u.at, u.records = u.places(), make(map[int]pieceRecord)
	const tries = 3 // another process that has made the same removes what is in the making
	for range tries {
		if u.dir, err = u.folder.Scratch(u.name()); err != nil {
			break
		}
		if u.file, err = os.Create(filepath.Join(u.dir, u.name()+dataSuffix)); err == nil {
			return nil
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		return u.folder.Gone()
	}
	return err
}

func (u *making) name() string { return lotName(u.index) }

// places returns where in the file each stored tensor begins.
func (s *lot) placesIn(p *Plan) (at map[string]int64, size int64) {
	at = make(map[string]int64)
	for _, piece := range s.pieces {
		for _, stored := range p.Items[piece.item].of(piece) {
			at[stored.Name] = size
			size += stored.size
		}
	}
	return at, size
}

func (u *making) places() map[string]int64 {
	at, _ := u.placesIn(u.plan)
	return at
}

// WriteAt writes a piece of a stored tensor.
func (u *making) WriteAt(name string, p []byte, off int64) error {
	u.mu.Lock()
	err := u.open()
	u.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = u.file.WriteAt(p, u.at[name]+off)
	return err
}

// ReadAt reads it back.
func (u *making) ReadAt(name string, p []byte, off int64) error {
	_, err := u.file.ReadAt(p, u.at[name]+off)
	return err
}

// finish notes a finished piece, and puts the files in their place after the last: the record behind the data, so that
// who finds a record finds both.
func (u *making) finish(rec pieceRecord) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	at := slices.IndexFunc(u.pieces, func(at piece) bool {
		return u.plan.Items[at.item].Tensor.Name == rec.Tensor && at.from == rec.From
	})
	if at < 0 {
		return fmt.Errorf("%s has no piece of %s", u.name(), rec.Tensor)
	}
	u.records[at] = rec
	if len(u.records) < len(u.pieces) {
		return nil
	}
	err := u.publish()
	if errors.Is(err, os.ErrNotExist) {
		// Another process that made the same was first, and removed what it found in the making.
		if _, err = u.read(); errors.Is(err, os.ErrNotExist) {
			err = u.folder.Gone()
		}
	}
	if err != nil {
		return err
	}
	u.done = true
	return u.close()
}

func (u *making) publish() error {
	if err := u.folder.Put(u.file.Name(), u.name()+dataSuffix); err != nil {
		return err
	}
	rec := lotRecord{Format: lotFormat, Plan: u.digest, Part: u.part.String()}
	for i := range u.pieces {
		rec.Pieces = append(rec.Pieces, u.records[i])
	}
	data, err := rec.bytes()
	if err != nil {
		return err
	}
	file := filepath.Join(u.dir, u.name()+recordSuffix)
	if err := os.WriteFile(file, data, 0o666); err != nil {
		return err
	}
	return u.folder.Put(file, u.name()+recordSuffix)
}

func (u *making) close() error {
	if u.file == nil {
		return nil
	}
	err := u.file.Close()
	u.file = nil
	return errors.Join(err, os.RemoveAll(u.dir))
}

// abandon removes what is in the making.
func (u *making) abandon() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.close() // which the error of the run is more important than
}

// read reads the lot's record, where it and the data are there and of the same plan.
func (u *making) read() (*lotRecord, error) {
	return readLot(u.folder, u.plan, u.index, &u.lot, u.digest)
}
