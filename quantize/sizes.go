package quantize

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
)

// sizes tells about how large the components of what layers read are, by the weights of a model alone: the
// mean squares that they would have if what the model computes were independent from component to
// component. It follows the residual stream from the embedding on, block by block:
//
//	a norm's result           h²ₖ / mean h² · (Offset+wₖ)²
//	a layer's output, row i   Σₖ Wᵢₖ² x²ₖ + bᵢ²
//	values, mixed             as they are
//	gate and up, multiplied   up² · (gate²)³, or where they are one up² · up²
//	what a block adds         as it is, or by the norm that comes after
//
// The power of the gate's is what was measured: what is gated has heavy tails. The units that are largest on some
// tokens, and drown what others add to the stream there, have large rows in both matrices, and a mean
// square far above the product of theirs. That of up stays as it is, so that nothing changes where a row of it is
// multiplied and the column that reads it divided. NOTES.md has the numbers.
//
// What is not known, for want of a tensor of the right shape, counts as 1.
type sizes struct {
	run *run
	src *hf.Checkpoint
	d   *arch.Decoder
	h   []float64                 // mean squares of the residual stream
	of  map[*arch.State][]float64 // of the states of the block at hand
}

// embeddingRows is how many tokens are looked at, at most: they are drawn evenly from the vocabulary.
const embeddingRows = 4096

// stackedExperts is how many experts of a stack are looked at, at most.
const stackedExperts = 4

// newSizes begins before the first block.
func newSizes(ctx context.Context, r *run) (*sizes, error) {
	z := &sizes{run: r, src: r.plan.Source, d: r.plan.names.model}
	z.h = ones(z.d.Hidden)
	t, ok := z.src.Tensor(z.d.Embed + ".weight")
	if !ok || !slices.Equal(t.Shape, []int{z.d.Vocab, z.d.Hidden}) || !readable(t) {
		return z, nil
	}
	clear(z.h)
	row := make([]float32, z.d.Hidden)
	for _, n := range evenly(z.d.Vocab, embeddingRows) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := t.ReadFloat32(row, int64(n)*int64(len(row))); err != nil {
			return nil, err
		}
		for k, v := range row {
			z.h[k] += float64(v) * float64(v)
		}
	}
	factor := z.d.EmbedScale * z.d.EmbedScale / float64(min(z.d.Vocab, embeddingRows))
	for k := range z.h {
		z.h[k] *= factor
	}
	return z, nil
}

// evenly returns n numbers below of, or all if there are no more.
func evenly(of, n int) []int {
	n = min(n, of)
	all := make([]int, n)
	for i := range all {
		all[i] = int(int64(i) * int64(of) / int64(n))
	}
	return all
}

func ones(n int) []float64 { return slices.Repeat([]float64{1}, n) }

// readable reports whether a tensor is one of numbers.
func readable(t *hf.Tensor) bool {
	return slices.Contains([]hf.DType{hf.F64, hf.F32, hf.F16, hf.BF16}, t.DType)
}

// block goes through a block: of has what its layers read then.
func (z *sizes) block(ctx context.Context, b *arch.Block) error {
	z.of = make(map[*arch.State][]float64)
	if err := z.mixer(ctx, b); err != nil {
		return err
	}
	if err := z.mlps(ctx, b); err != nil {
		return err
	}
	return z.end(ctx, b)
}

// end goes through what comes after the MLP.
func (z *sizes) end(ctx context.Context, b *arch.Block) error {
	if t := b.Told; t != nil {
		z.of[t.Gate.Reads] = slices.Clone(z.h)
		mid, err := z.output(ctx, t.Gate, z.h)
		if err != nil {
			return err
		}
		for i, g := range mid { // what it is told is normalized
			mid[i] = g * g * g
		}
		z.of[t.Proj.Reads] = mid
		added, err := z.output(ctx, t.Proj, mid)
		if err != nil {
			return err
		}
		if err := z.add(added, &t.Out); err != nil {
			return err
		}
	}
	scale, ok := z.src.Tensor(b.Scale)
	if !ok || scale.Elements() != 1 || !readable(scale) {
		return nil
	}
	var by [1]float32
	if err := scale.ReadFloat32(by[:], 0); err != nil {
		return err
	}
	for k := range z.h {
		z.h[k] *= float64(by[0]) * float64(by[0])
	}
	return nil
}

func (z *sizes) mixer(ctx context.Context, b *arch.Block) error {
	in, err := z.normed(b.AttnNorm)
	if err != nil {
		return err
	}
	stages := b.Mixer.Stages()
	if len(stages) == 0 {
		return nil
	}
	z.of[stages[0][0].Reads] = in
	out := stages[len(stages)-1][0]
	mixed := ones(out.K)
	if a := b.Attn(); a != nil && a.ValueEps == 0 && a.From == nil && a.V != nil {
		values, err := z.output(ctx, a.V, in)
		if err != nil {
			return err
		}
		for i := range mixed {
			mixed[i] = values[out.Reads.Source(i)-out.Reads.From]
		}
	} else { // of which all that is known is that they are normalized somewhere on the way
		for _, stage := range stages[1 : len(stages)-1] {
			z.of[stage[0].Reads] = ones(stage[0].K)
		}
	}
	z.of[out.Reads] = mixed
	added, err := z.output(ctx, out, mixed)
	if err != nil {
		return err
	}
	return z.add(added, b.AttnOut)
}

// mlps goes through the MLP of a block, or its experts: each of those that a token goes to has an equal
// share in what is added.
func (z *sizes) mlps(ctx context.Context, b *arch.Block) error {
	in, err := z.normed(b.MLPNorm)
	if err != nil {
		return err
	}
	all, residual := make([]float64, z.d.Hidden), in
	one := func(m *arch.MLP, share float64) error {
		added, err := z.mlp(ctx, m, in)
		for k := range added {
			all[k] += share * added[k]
		}
		return err
	}
	if b.MLP != nil {
		if err := one(b.MLP, 1); err != nil {
			return err
		}
		return z.add(all, b.MLPOut)
	}
	if b.MoE == nil {
		return nil
	}
	if into := b.MoE.Into; into != nil {
		z.of[into.Reads] = in
		if in, err = z.output(ctx, into, in); err != nil {
			return err
		}
		all = make([]float64, into.N)
	}
	experts := len(b.MoE.Experts)
	looked := evenly(experts, experts)
	if experts > 0 && b.MoE.Experts[0].Down.Stored.Experts > 0 {
		looked = evenly(experts, stackedExperts)
	}
	for _, e := range looked {
		if err := one(&b.MoE.Experts[e], 1/float64(len(looked)*max(b.MoE.Top, 1))); err != nil {
			return err
		}
	}
	if back := b.MoE.Back; back != nil {
		z.of[back.Reads] = all
		if all, err = z.output(ctx, back, all); err != nil {
			return err
		}
		in = residual
	}
	if b.MoE.Shared == nil {
		return z.add(all, b.MLPOut)
	}
	if x := b.MoE.Apart; x != nil { // parts are as large as their norms make them
		if all, err = z.norm(x.ExpertsOut, all); err != nil {
			return err
		}
		if in, err = z.normed(x.Shared); err != nil {
			return err
		}
		added, err := z.mlp(ctx, b.MoE.Shared, in)
		if err != nil {
			return err
		}
		if added, err = z.norm(x.SharedOut, added); err != nil {
			return err
		}
		for k := range added {
			all[k] += added[k]
		}
	} else if err := one(b.MoE.Shared, 1); err != nil {
		return err
	}
	return z.add(all, b.MLPOut)
}

// mlp returns what one MLP gives.
func (z *sizes) mlp(ctx context.Context, m *arch.MLP, in []float64) ([]float64, error) {
	z.of[m.Up.Reads] = in
	mid, err := z.output(ctx, m.Up, in)
	if err != nil {
		return nil, err
	}
	if m.Gate == m.Up {
		for i, g := range mid {
			mid[i] *= g
		}
	} else {
		gate, err := z.output(ctx, m.Gate, in)
		if err != nil {
			return nil, err
		}
		for i, g := range gate {
			mid[i] *= g * g * g
		}
	}
	z.of[m.Down.Reads] = mid
	return z.output(ctx, m.Down, mid)
}

// add adds what a block has computed to the stream, through a norm if there is one.
func (z *sizes) add(x []float64, through *arch.Norm) error {
	if through != nil {
		var err error
		if x, err = z.norm(*through, x); err != nil {
			return err
		}
	}
	for k, v := range x {
		z.h[k] += v
	}
	return nil
}

// normed returns the result of a norm of the stream.
func (z *sizes) normed(n arch.Norm) ([]float64, error) { return z.norm(n, z.h) }

func (z *sizes) norm(n arch.Norm, x []float64) ([]float64, error) {
	if n.None() {
		return x, nil
	}
	var mean float64
	for _, v := range x {
		mean += v / float64(len(x))
	}
	if mean == 0 {
		return ones(len(x)), nil
	}
	w, err := z.vector(n.Tensor, len(x))
	if err != nil {
		return nil, err
	}
	y := make([]float64, len(x))
	for k, v := range x {
		y[k] = v / mean
		if w != nil {
			y[k] *= float64(n.Offset+w[k]) * float64(n.Offset+w[k])
		}
	}
	return y, nil
}

// vector reads a tensor of n elements, nil where there is no such.
func (z *sizes) vector(name string, n int) ([]float32, error) {
	t, ok := z.src.Tensor(name)
	if !ok || t.Elements() != int64(n) || !readable(t) {
		return nil, nil
	}
	w := make([]float32, n)
	return w, t.ReadFloat32(w, 0)
}

// output returns the mean squares of a layer's output.
func (z *sizes) output(ctx context.Context, l *arch.Linear, in []float64) ([]float64, error) {
	t, ok := z.src.Tensor(l.Stored.Tensor)
	if !ok || !slices.Equal(t.Shape, l.Stored.Shape()) || !readable(t) || len(in) != l.K {
		return ones(l.N), nil
	}
	y := make([]float64, l.N)
	rows := max(1, z.run.memory.block/l.K/l.Step)
	if l.Stored.Transposed {
		rows = l.N
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(z.run.memory.workers)
	for from := 0; from < l.N; from += rows {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			to := min(from+rows, l.N)
			w, err := readRows(t, l, from, to)
			if err != nil {
				return err
			}
			for i := from; i < to; i++ {
				y[i] = weighted(w[(i-from)*l.Step*l.K:][:l.K], in)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return y, z.addBias(l, y)
}

// readRows reads rows [from, to) of a layer, each l.Step rows of K after the one before.
func readRows(t *hf.Tensor, l *arch.Linear, from, to int) (w []float32, err error) {
	s := l.Stored
	start := int64(l.Expert) * int64(s.N) * int64(s.K)
	if s.Transposed {
		w = make([]float32, s.N*s.K)
		err = t.ReadTransposed(w, start, s.K, s.N)
		return w[(l.Row+from*l.Step)*l.K:], err
	}
	w = make([]float32, ((to-from-1)*l.Step+1)*l.K)
	return w, t.ReadFloat32(w, start+int64(l.Row+from*l.Step)*int64(l.K))
}

// addBias adds the squares of a layer's bias.
func (z *sizes) addBias(l *arch.Linear, y []float64) error {
	if l.Stored.Bias == "" {
		return nil
	}
	bias, err := z.vector(l.Stored.Bias, l.Stored.Matrices()*l.Stored.N)
	if err != nil || bias == nil {
		return err
	}
	for i := range y {
		b := float64(bias[l.Expert*l.Stored.N+l.Row+i*l.Step])
		y[i] += b * b
	}
	return nil
}

// weighted returns Σ wₖ² xₖ.
func weighted(w []float32, x []float64) (sum float64) {
	for k, v := range w {
		sum += float64(v) * float64(v) * x[k]
	}
	return sum
}
