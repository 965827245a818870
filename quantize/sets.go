package quantize

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/gptq"
	"github.com/lutq/lutq/quantize/rings"
	"github.com/lutq/lutq/quantize/rounding"
)

// A Set are layers that are stored alike, as runtimes want those that they fuse.
type Set struct {
	Tensors []string // of the source
	Layers  []string // the same, as a container names them
	Weights int64
	End     bool // it is the token embedding or the output head, see [Ends]
}

// Name tells a set in reports by its first layer.
func (s *Set) Name() string {
	if more := len(s.Layers) - 1; more > 0 {
		return fmt.Sprintf("%s +%d", s.Layers[0], more)
	}
	return s.Layers[0]
}

// SetsOf divides the linear layers of a model's blocks, and its ends, into sets: queries, keys and values of a block; what comes
// after them; gate and up; down; and gates and ups, and downs, of all experts of a block. It fails on a model of no known family.
func SetsOf(m *source.Model) ([]Set, error) {
	src, err := m.Weights()
	if err != nil {
		return nil, err
	}
	names := newNames(m, src)
	if names.model == nil {
		return nil, names.why
	}
	var sets []Set
	add := func(layers ...*arch.Linear) {
		var s Set
		for _, l := range layers {
			t, ok := src.Tensor(l.Stored.Tensor)
			if !ok || names.kept(t) != "" || slices.Contains(s.Layers, l.Stored.Path) {
				continue
			}
			s.Tensors, s.Layers = append(s.Tensors, t.Name), append(s.Layers, l.Stored.Path)
			s.Weights += t.Elements()
		}
		if len(s.Layers) > 0 {
			sets = append(sets, s)
		}
	}
	for i := range names.model.Blocks {
		b := &names.model.Blocks[i]
		for _, stage := range b.Mixer.Stages() {
			add(stage...)
		}
		latent := b.MoE != nil && b.MoE.Into != nil
		if latent {
			add(b.MoE.Into)
		}
		var in, out []*arch.Linear
		for _, mlp := range b.MLPs() {
			if b.MoE != nil && mlp == b.MoE.Shared {
				continue
			}
			in, out = append(in, mlp.In()...), append(out, mlp.Down)
		}
		add(in...)
		add(out...)
		if latent {
			add(b.MoE.Back)
		}
		if b.MoE != nil && b.MoE.Shared != nil {
			add(b.MoE.Shared.In()...)
			add(b.MoE.Shared.Down)
		}
		if b.Told != nil {
			add(b.Told.Gate)
			add(b.Told.Proj)
		}
	}
	ends, err := EndsOf(m)
	if err != nil {
		return nil, err
	}
	for _, name := range ends.All() {
		t, _ := src.Tensor(name)
		sets = append(sets, Set{Tensors: []string{name}, Layers: []string{names.layer(t).Path}, Weights: t.Elements(), End: true})
	}
	return sets, nil
}

// item returns the item of a tensor.
func (p *Plan) item(tensor string) *Item {
	if p.at == nil {
		p.at = make(map[string]int, len(p.Items))
		for i := range p.Items {
			p.at[p.Items[i].Tensor.Name] = i
		}
	}
	i, ok := p.at[tensor]
	if !ok {
		return nil
	}
	return &p.Items[i]
}

// Stored returns how a tensor is stored by the plan, a zero spec where it is copied, and its bytes.
func (p *Plan) Stored(tensor string) (weight.Spec, int64) {
	it := p.item(tensor)
	if it == nil {
		return weight.Spec{}, 0
	}
	if !it.Quantized() {
		return weight.Spec{}, it.BytesOut
	}
	return it.Format, it.BytesOut
}

// Nearest returns a layer as it were rounded to nearest in the plan's format, by the path that it is stored under. Its table was
// chosen.
func (p *Plan) Nearest(ctx context.Context, layer string, o RunOptions) (weight.Matrix, error) {
	i := slices.IndexFunc(p.Items, func(it Item) bool { return it.Layer == layer })
	if i < 0 {
		return nil, fmt.Errorf("%s is not quantized", layer)
	}
	it := &p.Items[i]
	mem, err := p.memory(o)
	if err != nil {
		return nil, err
	}
	kind, err := lutq.KindOf(it.Format.Kind)
	if err != nil {
		return nil, err
	}
	parts, err := emptyParts(kind, it.Format, it.N, it.K)
	if err != nil {
		return nil, err
	}
	r := &run{plan: p, memory: mem}
	cb, err := r.scaledCodebook(it)
	if err != nil {
		return nil, err
	}
	rows := max(it.unit(), mem.block/it.K/it.unit()*it.unit())
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(mem.workers)
	for from := 0; from < it.N; from += rows {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			w := worker{run: r}
			to := min(from+rows, it.N)
			weights, err := w.rows(it, from, to)
			if err != nil {
				return err
			}
			q, err := it.plain.Quantizer(it.layer(cb))
			if err != nil {
				return err
			}
			own := make([][]byte, len(parts))
			for j, part := range it.parts {
				own[j] = make([]byte, len(parts[j]))
				if part.Rows {
					own[j] = parts[j][it.rowsBytes(j, from):it.rowsBytes(j, to)]
				}
			}
			if err := q.Rows(own, make([]rounding.RowError, to-from), weights); err != nil {
				return err
			}
			if from == 0 {
				q.Shared(own)
				for j, part := range it.parts {
					if !part.Rows {
						copy(parts[j], own[j])
					}
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w", it.Tensor.Name, err)
	}
	return kind.Open(it.Format, it.N, it.K, parts)
}

// sampledWeights is about how many weights of a layer its error is told by, in errorRows rows at most.
const (
	sampledWeights = 1 << 16
	errorRows      = 64
)

// SampleError returns about what share of a layer's sum of squares rounding to nearest would lose: of rings what they lose of
// normal numbers, which rotated weights are, and of others that of a sample of rows, by the first table of the choice where that is
// open. It is 0 of what is copied.
func (p *Plan) SampleError(ctx context.Context, tensor string) (float64, error) {
	it := p.item(tensor)
	if it == nil || !it.Quantized() {
		return 0, nil
	}
	if it.Format.Kind == trellis.Name {
		return rings.Error(it.Format.Rate()), nil
	}
	kind, err := lutq.KindOf(it.Format.Kind)
	if err != nil {
		return 0, err
	}
	if it.undecided() {
		own := *it
		it = &own
		if err := it.use(autoTables()[0]); err != nil {
			return 0, err
		}
	}
	q, err := it.plain.Quantizer(it.layer(it.Codebook))
	if err != nil {
		return 0, err
	}
	var energy, squared float64
	looked := evenly(max(it.Experts, 1), stackedExperts)
	most := min(errorRows, max(sampledWeights/it.K, 8))
	for _, e := range looked {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		rows := it.reading(e, max(most/len(looked), 1), nil, nil).rows
		w, err := it.sample(e, rows)
		if err != nil {
			return 0, err
		}
		parts, err := emptyParts(kind, it.Format, len(rows), it.K)
		if err != nil {
			return 0, err
		}
		errs := make([]rounding.RowError, len(rows))
		if err := q.Rows(parts, errs, w); err != nil {
			return 0, fmt.Errorf("%s: %w", tensor, err)
		}
		for _, e := range errs {
			energy, squared = energy+e.Energy, squared+e.Squared
		}
	}
	return squared / max(energy, 1e-300), nil
}

// SampleFit returns what fitting loses of a sample of a layer's rows, by the layer's path, and what rounding to nearest does, in the
// plan's format: with statistics of what the layer reads, of a stack those of each expert. The method is gptq without retargeting.
func (p *Plan) SampleFit(ctx context.Context, layer string, stats []rounding.Stats, damp float64) (fit Fit, err error) {
	i := slices.IndexFunc(p.Items, func(it Item) bool { return it.Layer == layer })
	if i < 0 {
		return fit, fmt.Errorf("%s is not quantized", layer)
	}
	it := &p.Items[i]
	kind, err := lutq.KindOf(it.Format.Kind)
	if err != nil {
		return fit, err
	}
	looked := evenly(len(stats), stackedExperts)
	for _, e := range looked {
		if stats[e].Tokens() == 0 {
			continue
		}
		state, err := (feedback{MethodOptions{GPTQ: gptq.Options{Damp: damp}}}).Prepare(stats[e], it.Format.Kind, it.Format.Group, 0)
		if err != nil {
			return fit, err
		}
		err = func() error {
			defer state.Close()
			q, err := state.Quantizer(it.layer(it.Codebook))
			if err != nil {
				return err
			}
			rows := it.reading(e, errorRows/len(looked), nil, nil).rows
			w, err := it.sample(e, rows)
			if err != nil {
				return err
			}
			parts, err := emptyParts(kind, it.Format, len(rows), it.K)
			if err != nil {
				return err
			}
			errs := make([]rounding.RowError, len(rows))
			if err := q.Rows(parts, errs, w); err != nil {
				return err
			}
			for _, e := range errs {
				fit.add(e)
			}
			return ctx.Err()
		}()
		if err != nil {
			return fit, fmt.Errorf("%s: %w", layer, err)
		}
	}
	return fit, nil
}
