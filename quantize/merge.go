package quantize

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
)

// lotRecord says what lies in the data file of a lot, and what is known of it. It is a JSON object.
type lotRecord struct {
	Format string        `json:"lutq"`
	Plan   string        `json:"plan"` // digest
	Part   string        `json:"part"` // that made it, as it was called then
	Pieces []pieceRecord `json:"pieces"`
}

// lotFormat tells records from other files, with their version.
const lotFormat = "part 1"

// pieceRecord is a record of some rows of a tensor, with sums by matrix.
type pieceRecord struct {
	record
	From     int       `json:"from"`
	To       int       `json:"to"`
	Matrices []rowSums `json:"matrices"`
}

func (u *lotRecord) bytes() ([]byte, error) {
	data, err := json.Marshal(u)
	return append(data, '\n'), err
}

// parseLot reads a record. One that was cut short is an error.
func parseLot(data []byte) (*lotRecord, error) {
	var u lotRecord
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&u); err != nil {
		return nil, err
	}
	if u.Format != lotFormat {
		return nil, fmt.Errorf("format %q: want %q", u.Format, lotFormat)
	}
	return &u, nil
}

// readLot reads the record of a lot, and holds it against what the plan says of that and against the size of the data.
func readLot(folder *outdir.Parts, p *Plan, index int, s *lot, digest string) (*lotRecord, error) {
	name := lotName(index)
	data, err := input.ReadFile(folder.Path(name+recordSuffix), input.Journal)
	if err != nil {
		return nil, err
	}
	u, err := parseLot(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", folder.Path(name+recordSuffix), err)
	}
	if u.Plan != digest || len(u.Pieces) != len(s.pieces) {
		return nil, fmt.Errorf("%s: is of another plan", folder.Path(name+recordSuffix))
	}
	for i, at := range s.pieces {
		it, rec := &p.Items[at.item], &u.Pieces[i]
		if rec.Tensor != it.Tensor.Name || rec.From != at.from || rec.To != at.to || len(rec.Sums) != len(it.stored) ||
			len(rec.Matrices) != (at.to-at.from)/(it.N/max(it.Experts, 1)) {
			return nil, fmt.Errorf("%s: does not say what %s should", folder.Path(name+recordSuffix), name)
		}
	}
	_, size := s.placesIn(p)
	info, err := os.Stat(folder.Path(name + dataSuffix))
	if err != nil {
		return nil, err
	}
	if info.Size() != size {
		return nil, fmt.Errorf("%s: has %d bytes: want %d", folder.Path(name+dataSuffix), info.Size(), size)
	}
	return u, nil
}

// MissingError means that parts are not finished.
type MissingError struct {
	Folder string
	Parts  []int // of N, which are not
	N      int
	Files  int    // that are missing, of All
	All    int    // files
	Layer  string // that is missing, the first
}

func (e *MissingError) Error() string {
	if e.Files == e.All {
		return e.Folder + ": no part is finished"
	}
	var parts []string
	const most = 20
	for i, p := range e.Parts {
		if left := len(e.Parts) - i; i == most && left > 1 {
			parts = append(parts, fmt.Sprintf("and %d more", left))
			break
		}
		parts = append(parts, fmt.Sprint(p))
	}
	what := "parts %s of %d are"
	if len(parts) == 1 {
		what = "part %s of %d is"
	}
	return fmt.Sprintf("%s: "+what+" not finished: %d of %d files are missing, that of %s among them",
		e.Folder, strings.Join(parts, ", "), e.N, e.Files, e.All, e.Layer)
}

// Hint says what to do.
func (e *MissingError) Hint() string {
	if e.Files == e.All {
		return "--part I/N makes parts: lutq help cluster"
	}
	return fmt.Sprintf("run --part %d/%d again, which makes what is missing", e.Parts[0], e.N)
}

// DamagedError means that a file of a part is not as it was written. Its record is removed, so that the part is made again.
type DamagedError struct {
	File, Tensor string
	Part         string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s: %s is not as it was written", e.File, e.Tensor)
}

// Hint says what to do.
func (e *DamagedError) Hint() string { return "run --part " + e.Part + " again, which makes it anew" }

// gathering is what parts have made of a plan.
type gathering struct {
	folder  *outdir.Parts
	records []*lotRecord
	lots    []lot
	of      map[int][]found // the pieces of items, in order
}

// found is a piece: which of a lot.
type found struct{ lot, piece int }

// Merge installs at out what parts have made, as [Plan.Run] would have made it, to the same bytes, and removes the parts.
// Where some are not finished its error is a [MissingError], and nothing is written.
func (p *Plan) Merge(ctx context.Context, out string, o RunOptions) (*Result, error) {
	if err := p.Divisible(); err != nil {
		return nil, err
	}
	digest, err := p.digest(ctx)
	if err != nil {
		return nil, err
	}
	left := o.Leave
	o.Leave = true // until the parts are gone
	res, err := p.Finished(out, o)
	if err != nil {
		return nil, err
	}
	inputs := outdir.Options{Inputs: append([]string{p.Source.Dir()}, o.Inputs...), Plan: digest}
	folder, err := outdir.FindParts(out, inputs)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return nil, otherProgram(err)
	}
	if res == nil {
		var g *gathering
		if g, err = p.find(ctx, folder, digest, missing); err != nil {
			return nil, err
		}
		if res, err = p.build(ctx, out, o, g); err != nil {
			return nil, err
		}
	}
	if !missing {
		if err := folder.Remove(); err != nil {
			return nil, err
		}
	}
	if !left {
		return res, outdir.Settle(out)
	}
	return res, nil
}

// find reads the records of all lots.
func (p *Plan) find(ctx context.Context, folder *outdir.Parts, digest string, none bool) (*gathering, error) {
	g := &gathering{folder: folder, lots: p.lots(), of: make(map[int][]found)}
	g.records = make([]*lotRecord, len(g.lots))
	if !none {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(32) // since some file systems are slow to answer
		for i := range g.lots {
			group.Go(func() error {
				g.records[i], _ = readLot(folder, p, i, &g.lots[i], digest) // what cannot be read is missing
				return ctx.Err()
			})
		}
		if err := group.Wait(); err != nil {
			return nil, err
		}
	}
	if slices.Contains(g.records, nil) {
		return nil, g.missing(p)
	}
	for u := range g.records {
		for i, at := range g.lots[u].pieces {
			g.of[at.item] = append(g.of[at.item], found{u, i})
		}
	}
	for i := range g.of {
		slices.SortFunc(g.of[i], func(a, b found) int { return g.at(a).from - g.at(b).from })
	}
	return g, nil
}

func (g *gathering) at(f found) piece            { return g.lots[f.lot].pieces[f.piece] }
func (g *gathering) record(f found) *pieceRecord { return &g.records[f.lot].Pieces[f.piece] }

// missing says what is missing, in parts of as many as most of what is there were made by.
func (g *gathering) missing(p *Plan) error {
	e := &MissingError{Folder: g.folder.Name(), N: 1, All: len(g.records)}
	count := make(map[int]int)
	for _, u := range g.records {
		if u == nil {
			continue
		}
		if part, err := ParsePart(u.Part); err == nil {
			if count[part.N]++; count[part.N] > count[e.N] {
				e.N = part.N
			}
		}
	}
	of := make([]int, len(g.records))
	for part := 1; part <= e.N; part++ {
		for _, i := range (Part{part, e.N}).of(g.lots) {
			of[i] = part
		}
	}
	for i, u := range g.records {
		if u != nil {
			continue
		}
		if e.Files++; e.Layer == "" {
			e.Layer = p.Items[g.lots[i].pieces[0].item].Layer
		}
		if !slices.Contains(e.Parts, of[i]) {
			e.Parts = append(e.Parts, of[i])
		}
	}
	slices.Sort(e.Parts)
	return e
}

// gather writes every tensor of the plan: what parts have made, and the rest as it is.
func (r *run) gather(ctx context.Context) (resumed int, err error) {
	all := make([]int, len(r.plan.Items))
	for i := range r.plan.Items {
		all[i] = i
		it := &r.plan.Items[i]
		if !it.Quantized() || !it.undecided() {
			continue
		}
		rec := r.from.record(r.from.of[i][0])
		if err := it.use(rec.Codebook); err != nil {
			return 0, fmt.Errorf("%s: %w", it.Tensor.Name, err)
		}
		r.records[i].Codebook = rec.Codebook
	}
	return r.pass(ctx, all, r.finished, (*worker).do)
}

// fetch copies an item from the files of parts.
func (w *worker) fetch(b block) error {
	it := b.item
	for n, f := range w.from.of[b.at.item] {
		rec := w.from.record(f)
		if err := w.fetchPiece(b, f, n == 0); err != nil {
			return err
		}
		for _, m := range rec.Matrices {
			b.record.addAll(m)
		}
		b.record.Remarks = append(b.record.Remarks, rec.Remarks...)
		b.record.Routed = append(b.record.Routed, rec.Routed...)
	}
	w.advance(it.Tensor.StoredBytes(), it.Tensor.Name)
	return w.finish(b.task)
}

// fetchPiece copies one piece, whose bytes must have the sums of its record. What has no rows is the same in all, and copied
// of the first.
func (w *worker) fetchPiece(b block, f found, first bool) error {
	it, at, rec := b.item, w.from.at(f), w.from.record(f)
	name := lotName(f.lot)
	file, err := input.Open(w.from.folder.Path(name + dataSuffix))
	if err != nil {
		return err
	}
	defer file.Close()
	places, _ := w.from.lots[f.lot].placesIn(w.plan)
	damaged := func(tensor string) error {
		err := &DamagedError{File: w.from.folder.Name() + "/" + name + dataSuffix, Tensor: tensor, Part: w.from.records[f.lot].Part}
		return errors.Join(err, os.Remove(w.from.folder.Path(name+recordSuffix)))
	}
	const piece = 1 << 20
	buf := grow(&w.raw, piece)
	for i, s := range it.of(at) {
		h := sha256.New()
		to := int64(0)
		if it.parts[i].Rows {
			to = int64(it.rowsBytes(i, at.from))
		}
		for off := int64(0); off < s.size; off += piece {
			data := buf[:min(piece, s.size-off)]
			if _, err := file.ReadAt(data, places[s.Name]+off); err != nil {
				return fmt.Errorf("%s: %w", w.from.folder.Path(name+dataSuffix), err)
			}
			h.Write(data)
			if it.parts[i].Rows || first {
				if err := w.writeChecked(b.task.to, s.Name, data, to+off); err != nil {
					return err
				}
			}
		}
		shared := w.from.record(w.from.of[b.at.item][0]).Sums[i]
		if lutq.Sum(h.Sum(nil)) != rec.Sums[i] || !it.parts[i].Rows && rec.Sums[i] != shared {
			return damaged(s.Name)
		}
	}
	return nil
}
