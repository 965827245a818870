package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
)

// Plan is what becomes of each layer of a model.
type Plan struct {
	Target foreign.Target
	Model  *foreign.Model

	format foreign.Format
	ckpt   *hf.Checkpoint
	input  *lutq.Model // nil: a model that is not quantized by lutq
	items  map[*foreign.Layer]*item
}

// item is what is known of a layer.
type item struct {
	fit   foreign.Fit
	anew  lut.Format
	never string // why there is no form but 16 or 32 bits, where fit.Why is set
	own   bool   // never says what the target does itself
}

// New looks at a model's layers. Any model will do for a target that is [foreign.Universal], whose tensors are all kept where it is
// no container, and a container alone for others. Nothing of that is checked by digests but what the container itself checks
// when it is read.
func New(ctx context.Context, m *source.Model, t foreign.Target) (*Plan, error) {
	container, err := m.IsContainer()
	if err != nil {
		return nil, err
	}
	p := &Plan{Target: t}
	if _, any := t.(foreign.Universal); any && !container {
		err = p.keep(m)
	} else {
		err = p.take(m)
	}
	if err != nil {
		return nil, err
	}
	return p, p.look(ctx)
}

// take takes the layers of a container, and keeps the rest.
func (p *Plan) take(m *source.Model) error {
	c, err := m.Container()
	if err != nil {
		return err
	}
	config, err := configOf(m)
	if err != nil {
		return err
	}
	p.ckpt, p.input = c.Checkpoint(), c
	p.Model = newModel(p.ckpt, config, c.Has)
	entries, err := m.Entries()
	if err != nil {
		return err
	}
	fuse := fuses(p.Model.Decoder)
	for _, e := range entries {
		if e.Layer == nil {
			p.Model.Kept = append(p.Model.Kept, e.Tensor)
			continue
		}
		l, err := newLayer(c, e)
		if err != nil {
			return err
		}
		l.Role, l.Fuse = p.Model.Role(l.Tensor), fuse(e.Name)
		p.Model.Layers = append(p.Model.Layers, l)
	}
	p.Model.Side = slices.DeleteFunc(p.Model.Side, func(name string) bool { return name == lutq.CodeName || name == lutq.FactorsName })
	p.Model.DType = foreign.DTypeOf(config, p.Model.Kept)
	return nil
}

// keep keeps all tensors of a model that lutq did not quantize.
func (p *Plan) keep(m *source.Model) error {
	c, err := m.Weights()
	if err != nil {
		return err
	}
	config, err := c.ConfigJSON()
	if err != nil {
		return err
	}
	if err := c.CheckUnquantized(); err != nil {
		return err
	}
	p.ckpt, p.Model = c, newModel(c, config, c.Has)
	p.Model.Kept = c.Tensors()
	p.Model.DType = foreign.DTypeOf(config, p.Model.Kept)
	return nil
}

func newModel(c *hf.Checkpoint, config []byte, has func(tensor string) bool) *foreign.Model {
	m := &foreign.Model{Dir: c.Dir(), OpenFile: c.OpenFile, Config: config}
	m.Decoder, m.Why = arch.Describe(config, has)
	for _, name := range c.SideFiles() {
		if name != foreign.ConfigName {
			m.Side = append(m.Side, name)
		}
	}
	return m
}

// configOf returns the config.json that a container was made with.
func configOf(m *source.Model) ([]byte, error) {
	config, err := m.AgreedConfig()
	if err != nil {
		return nil, err
	}
	edits := []foreign.Member{{Key: "quantization_config"}}
	if !lutq.OwnCode(config) {
		edits = append(edits, foreign.Member{Key: "auto_map"})
	}
	config, err = foreign.Edit(config, edits...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(m.Dir(), foreign.ConfigName), err)
	}
	return config, nil
}

// fuses returns what names the layers that runtimes make one matrix of.
func fuses(d *arch.Decoder) func(layer string) string {
	if d == nil {
		return arch.FuseByName
	}
	fuse := make(map[string]string)
	for l := range d.Linears() {
		if l.Whole() {
			fuse[l.Stored.Path] = l.Fuse
		}
	}
	return func(layer string) string { return fuse[layer] }
}

// newLayer describes a layer as it is stored.
func newLayer(m *lutq.Model, e source.Entry) (*foreign.Layer, error) {
	name, tc, spec := e.Name, e.Layer, e.Layer.Spec
	l := &foreign.Layer{
		Name: name, N: tc.Shape[0], K: tc.Shape[1], Experts: tc.Experts, Transposed: tc.Transposed,
		Stored: spec, Bits: spec.Bits, Group: spec.Columns(tc.Shape[1]),
	}
	l.Tensor, l.Shape = tc.Original(name)
	if spec.Kind != lut.Name {
		l.Offsets = spec.Kind == bcq.Name && m.Parts(name)[bcq.OffsetsPart] != nil
		return l, nil
	}
	table, err := m.Reader().Tensor(m.Parts(name)[lut.CodebookPart])
	if err != nil {
		return nil, err
	}
	l.Table = make([]float32, 1<<l.Bits)
	num.DecodeF32(l.Table, table)
	return l, lut.Codebook{Name: name, Values: l.Table}.Check(l.Bits)
}

// look finds out what becomes of every layer.
func (p *Plan) look(ctx context.Context) error {
	var err error
	if p.format, err = p.Target.Format(p.Model); err != nil {
		return fmt.Errorf("%s: %w", p.Model.Dir, err)
	}
	p.items = make(map[*foreign.Layer]*item, len(p.Model.Layers))
	for _, l := range p.Model.Layers {
		p.items[l] = new(item)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, l := range p.Model.Layers {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := p.lookAt(p.items[l], l); err != nil {
				return fmt.Errorf("%s: %w", l.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// lookAt finds out what becomes of a layer.
func (p *Plan) lookAt(it *item, l *foreign.Layer) error {
	w, why, err := p.scales(l)
	if err != nil {
		return err
	}
	if it.fit = p.format.Fit(l, w); w == nil && !it.fit.Dense && !it.fit.Stored {
		it.fit.Why = cmp.Or(it.fit.Why, why)
	}
	switch {
	case it.fit.Dense:
		l.As = foreign.Dense
		return nil
	case it.fit.Why == "":
		if l.As = foreign.AsIs; !it.fit.Stored {
			l.Table = w.Codebook
		}
		return nil
	}
	if l.Top, err = p.top(l, w); err != nil {
		return err
	}
	if it.anew, err = p.format.Anew(l); err != nil {
		l.As, it.never = foreign.Dense, err.Error()
		_, it.own = errors.AsType[*foreign.OwnError](err)
		return nil
	}
	l.As, l.Table = foreign.Anew, it.anew.Codebook.Values
	l.Bits, l.Group = it.anew.Codebook.Bits(), min(it.anew.Group, l.K)
	return nil
}

// scales reads a layer without its codes where it has such, and else all of it. A layer that
// no table holds is nil, with the reason.
func (p *Plan) scales(l *foreign.Layer) (w *lut.Matrix, why string, err error) {
	if l.Stored.Kind != lut.Name {
		mat, err := p.input.Linear(l.Name)
		if err != nil {
			return nil, "", err
		}
		if w, err = asTable(mat); err != nil {
			return nil, err.Error(), nil
		}
		return w, "", nil
	}
	r := p.input.Reader()
	scales, err := r.Tensor(p.input.Parts(l.Name)[lut.ScalesPart])
	if err != nil {
		return nil, "", err
	}
	w = &lut.Matrix{
		N: l.N, K: l.K, Bits: l.Bits, Group: l.Group, ScaleType: l.Stored.ScaleType,
		Scales: scales, Codebook: l.Table,
	}
	return w, "", r.Wait()
}

// asTable returns a matrix of any kind as one with a table.
func asTable(m weight.Matrix) (*lut.Matrix, error) {
	switch m := m.(type) {
	case *bcq.Matrix:
		return m.LUT()
	case *lut24.Matrix:
		return m.LUT()
	}
	return lut.Of(m)
}

// top returns a magnitude that no weight of a layer exceeds. w may be nil.
func (p *Plan) top(l *foreign.Layer, w *lut.Matrix) (float32, error) {
	var top float32
	if w != nil {
		row := make([]float32, w.Groups())
		for n := range w.N {
			w.RowScales(row, n)
			for _, s := range row {
				top = max(top, float32(math.Abs(float64(s))))
			}
		}
		return top * lut.Codebook{Values: w.Codebook}.Max(), nil
	}
	mat, err := p.input.Linear(l.Name)
	if err != nil {
		return 0, err
	}
	read := weight.NewReader(mat)
	for n := range l.N {
		for _, v := range read.Row(n) {
			top = max(top, float32(math.Abs(float64(v))))
		}
	}
	return top, nil
}

// Unfit are layers that do not fit the target for one reason.
type Unfit struct {
	Layers int      `json:"layers"`
	Names  []string `json:"names"` // once for all blocks, with * for their numbers
	Why    string   `json:"why"`
	Then   string   `json:"then"` // what becomes of them if they are quantized anew
}

// number matches the index of a layer or an expert in a name.
var number = regexp.MustCompile(`\b\d+\b`)

// Unfit groups the layers that do not fit by the reason, in the order of the model.
func (p *Plan) Unfit() []Unfit {
	all := []Unfit{}
	for _, l := range p.Model.Layers {
		it := p.items[l]
		if it.fit.Why == "" {
			continue
		}
		then := "quantized anew"
		switch {
		case it.own:
			then = it.never
		case it.never != "":
			then = "stored as " + p.Model.DType.String()
		}
		at := slices.IndexFunc(all, func(u Unfit) bool { return u.Why == it.fit.Why && u.Then == then })
		if at < 0 {
			at = len(all)
			all = append(all, Unfit{Why: it.fit.Why, Then: then})
		}
		u := &all[at]
		u.Layers++
		if name := number.ReplaceAllString(l.Name, "*"); !slices.Contains(u.Names, name) {
			u.Names = append(u.Names, name)
		}
	}
	return all
}

// Warnings say what clients may not take that the target holds.
func (p *Plan) Warnings() []string {
	if w, ok := p.format.(foreign.Warner); ok {
		return w.Warnings()
	}
	return nil
}

// Outcome is what becomes of a model.
type Outcome struct {
	Outcome string  `json:"outcome"`          // loss-free, scales re-rounded, weights rounded or re-quantized
	Change  float64 `json:"change,omitempty"` // of a scale or a weight, at most, as a part of it; of those not quantized anew
	AsIs    int     `json:"as_is"`            // layers that are written as they are
	Anew    int     `json:"anew"`             // that are quantized anew
	Dense   int     `json:"dense"`            // that are written in 16 or 32 bits

	Types []foreign.Written `json:"types,omitempty"` // of matrices, where the target has several
	Lacks []string          `json:"lacks,omitempty"` // what programs that open the target have no place for
}

// The outcomes.
const (
	LossFree    = "loss-free"
	Rerounded   = "scales re-rounded"
	Rounded     = "weights rounded"
	Requantized = "re-quantized"
)

// rounds reports whether tensors that are kept lose digits.
func (p *Plan) rounds() bool {
	r, ok := p.format.(foreign.Rounder)
	return ok && r.Rounds()
}

// Outcome says what becomes of the weights.
func (p *Plan) Outcome() Outcome {
	o := Outcome{Outcome: LossFree}
	if t, ok := p.format.(foreign.Typer); ok {
		o.Types = t.Types()
	}
	if l, ok := p.format.(foreign.Lacker); ok {
		o.Lacks = l.Lacks()
	}
	unfit := false
	for _, l := range p.Model.Layers {
		it := p.items[l]
		o.Change = max(o.Change, it.fit.Change)
		switch l.As {
		case foreign.AsIs:
			o.AsIs++
		case foreign.Anew:
			o.Anew++
		case foreign.Dense:
			if it.own {
				o.Anew++
			} else {
				o.Dense++
			}
		}
		unfit = unfit || it.fit.Why != ""
	}
	switch {
	case unfit:
		o.Outcome = Requantized
	case o.Change > 0 && o.Dense > 0 || p.rounds():
		o.Outcome = Rounded
	case o.Change > 0:
		o.Outcome = Rerounded
	}
	return o
}
