package model_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
)

// watched counts what is on the device, and shows what weights are multiplied by.
type watched struct {
	*modelcpu.Ops
	linear func(w model.Weight, x []float32) // or nil

	weights, most int // weights on the device
	floats        int // elements of arrays
}

func (o *watched) Linear(x model.Array, rows int, to ...model.Product) {
	if o.linear != nil {
		v := make([]float32, x.Len())
		o.Read(v, x)
		for _, p := range to {
			o.linear(p.W, v)
		}
	}
	o.Ops.Linear(x, rows, to...)
}

func (o *watched) uploaded(w model.Weight, err error) (model.Weight, error) {
	if err == nil {
		n, k := w.Shape()
		o.weights += n * k
		o.most = max(o.most, o.weights)
	}
	return w, err
}

func (o *watched) Dense(n, k int, t hf.DType, data []byte) (model.Weight, error) {
	return o.uploaded(o.Ops.Dense(n, k, t, data))
}

func (o *watched) Packed(m weight.Matrix) (model.Weight, error) { return o.uploaded(o.Ops.Packed(m)) }

func (o *watched) FreeWeight(w model.Weight) {
	n, k := w.Shape()
	o.weights -= n * k
	o.Ops.FreeWeight(w)
}

func (o *watched) Floats(n int) model.Array { o.floats += n; return o.Ops.Floats(n) }
func (o *watched) Acts(n int) model.Array   { o.floats += n; return o.Ops.Acts(n) }

func (o *watched) Free(arrays ...model.Array) {
	for _, a := range arrays {
		if a != nil {
			o.floats -= a.Len()
		}
	}
}

// visitor quantizes a source's layers to nearest, and keeps the statistics.
type visitor struct {
	t    testing.TB
	src  *model.Checkpoint
	nope bool // quantizes nothing

	wants  func(path string) bool
	stats  map[string][]hostStats // by path; of every expert
	order  []string
	layers map[string]weight.Matrix
	err    error
	visit  func(path string)
}

// hostStats are statistics that were read.
type hostStats struct {
	tokens, routed int
	h, d           []float32
}

func newVisitor(t testing.TB, src *model.Checkpoint) *visitor {
	return &visitor{
		t: t, src: src, wants: func(string) bool { return true },
		stats: make(map[string][]hostStats), layers: make(map[string]weight.Matrix),
	}
}

func (v *visitor) Wants(path string) bool { return v.wants(path) }

func (v *visitor) Quantize(_ context.Context, all []rounding.Readers) error {
	for _, of := range all {
		if err := v.quantize(of.Layers, of.Stats); err != nil {
			return err
		}
	}
	return v.err
}

func (v *visitor) quantize(paths []string, stats []rounding.Stats) error {
	for _, path := range paths {
		v.order = append(v.order, path)
		if v.visit != nil {
			v.visit(path)
		}
		for _, s := range stats {
			host := hostStats{tokens: s.Tokens(), routed: s.(interface{ Routed() int }).Routed()}
			var err error
			if host.h, err = s.Hessian(); err != nil {
				return err
			}
			if host.d, err = s.Drift(); err != nil {
				return err
			}
			diagonal, err := s.Diagonal()
			if err != nil || diagonal[s.K()-1] != host.h[len(host.h)-1] {
				v.t.Errorf("%s: the diagonal ends with %v, error %v: want %v", path, diagonal[s.K()-1], err, host.h[len(host.h)-1])
			}
			v.stats[path] = append(v.stats[path], host)
		}
		if !v.nope {
			v.layers[path] = v.nearest(path)
		}
	}
	return nil
}

func (v *visitor) Weight(path string) (weight.Matrix, error) { return v.layers[path], nil }

// nearest rounds what is stored under a path to 3 bits.
func (v *visitor) nearest(path string) *lut.Matrix {
	all := v.src.Decoder().Stored()
	s := all[slices.IndexFunc(all, func(s *arch.Stored) bool { return s.Path == path })]
	tensor, _ := v.src.Tensor(s.Tensor)
	w := make([]float32, tensor.Elements())
	if err := tensor.ReadFloat32(w, 0); err != nil {
		v.t.Fatal(err)
	}
	if s.Transposed {
		turned := make([]float32, 0, len(w))
		for e := range s.Matrices() {
			for n := range s.N {
				for k := range s.K {
					turned = append(turned, w[(e*s.K+k)*s.N+n])
				}
			}
		}
		w = turned
	}
	table, err := lut.NewCodebook("nf", 3, 32)
	if err != nil {
		v.t.Fatal(err)
	}
	return quantizeMatrix(v.t, w, s.Matrices()*s.N, s.K, lut.Format{Codebook: table, Group: 32, Scale: weight.Absmax, ScaleType: weight.F16})
}

// captured runs windows through a model and returns what its layers and routers read, by the layers' names
// and the routers' blocks, of every window.
func captured(t testing.TB, src model.Source, windows [][]int) (*model.Model, map[string][][]float32) {
	t.Helper()
	ops := &watched{Ops: newOps(t, 1)}
	m, err := model.New(src, ops)
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[model.Weight][]string) // experts without tokens read nothing
	for _, name := range m.Linears() {
		names[m.Weight(name)] = append(names[m.Weight(name)], name)
	}
	for block, w := range m.Routers() {
		names[w] = []string{block}
	}
	read := make(map[string][][]float32)
	for i, tokens := range windows {
		ops.linear = func(w model.Weight, x []float32) {
			for _, name := range names[w] {
				for len(read[name]) < i {
					read[name] = append(read[name], nil)
				}
				read[name] = append(read[name], x)
			}
		}
		h, err := m.Hidden(context.Background(), tokens)
		if err != nil {
			t.Fatal(err)
		}
		states := make([]float32, h.Len())
		ops.Read(states, h)
		head := m.Decoder().Head.Name
		read[head] = append(read[head], states)
		ops.linear = nil
	}
	return m, read
}

// walkWindows are three of different lengths.
func walkWindows(tokens []int) [][]int {
	back := slices.Clone(tokens)
	slices.Reverse(back)
	return [][]int{tokens, back[:len(back)/2], back}
}

// sums adds the products of what was read of every window, as a walk does.
func sums(ops model.StatsOps, k int, xq, x [][]float32) hostStats {
	h, d := ops.Floats(k*k), ops.Floats(k*k)
	s := hostStats{h: make([]float32, k*k), d: make([]float32, k*k)}
	for i := range xq {
		rows := len(xq[i]) / k
		a, b := ops.Acts(len(xq[i])), ops.Acts(len(xq[i]))
		ops.Write(a, xq[i])
		ops.Gram(h, a, rows)
		s.tokens += rows
		if x != nil {
			ops.Write(b, x[i])
			ops.Cross(d, b, a, rows)
		}
	}
	ops.Mirror(h, k)
	ops.Read(s.h, h)
	ops.Read(s.d, d)
	return s
}

// exactGram is the same sum in float64.
func exactGram(k int, xs [][]float32) []float64 {
	h := make([]float64, k*k)
	for _, x := range xs {
		for ; len(x) > 0; x = x[k:] {
			for i, a := range x[:k] {
				for j, b := range x[:k] {
					h[i*k+j] += float64(a) * float64(b)
				}
			}
		}
	}
	return h
}

// TestWalk compares the statistics that a walk takes with sums over what the layers of whole
// models read, bit for bit: without quantization, where those of the original model are to
// come out, and with it. On two threads and on three they are the same.
func TestWalk(t *testing.T) {
	racetest.Skip(t)
	for i, g := range archtest.Goldens(t) {
		if testing.Short() && i%4 != 0 {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			src := openCheckpoint(t, dir)
			windows := walkWindows(g.Tokens)
			original, x := captured(t, src, windows)
			for i, c := range []struct {
				name               string
				nothing, original_ bool
			}{{"as it is", true, true}, {"quantized", false, true}, {"one stream", false, false}} {
				t.Run(c.name, func(t *testing.T) {
					ops := &watched{Ops: newOps(t, 2+i%2)}
					v := newVisitor(t, src)
					v.nope = c.nothing
					if err := model.Walk(context.Background(), src, ops, v, model.WalkOptions{Windows: windows, Original: c.original_}); err != nil {
						t.Fatal(err)
					}
					if ops.weights != 0 || ops.floats != 0 {
						t.Errorf("%d weights and %d elements of arrays are left on the device", ops.weights, ops.floats)
					}
					xq, quantized := x, original
					if !c.nothing {
						quantized, xq = captured(t, &quantizedSource{Checkpoint: src, layers: v.layers}, windows)
					}
					compareWalk(t, src.Decoder(), v, original, quantized, x, xq, c.original_)
				})
			}
		})
	}
}

// compareWalk compares what a visitor saw with what the layers of the original model (x) and the
// quantized one (xq) read.
func compareWalk(t *testing.T, d *arch.Decoder, v *visitor, original, quantized *model.Model, x, xq map[string][][]float32, cross bool) {
	ops := newOps(t, 1)
	compare := func(l *arch.Linear, read, x [][]float32, routed int) {
		all := v.stats[l.Stored.Path]
		if len(all) != l.Stored.Matrices() {
			t.Fatalf("%s: statistics of %d matrices: want %d", l.Stored.Path, len(all), l.Stored.Matrices())
		}
		got := all[l.Expert]
		if got.routed != routed {
			t.Errorf("%s: %d tokens were routed to it: want %d", l.Name, got.routed, routed)
		}
		want := sums(ops, l.K, read, x)
		if got.tokens != want.tokens {
			t.Errorf("%s: statistics of %d tokens: want %d", l.Name, got.tokens, want.tokens)
		}
		if i := firstDiff(got.h, want.h); i >= 0 {
			t.Errorf("%s: H[%d, %d] is %v: want %v", l.Name, i/l.K, i%l.K, got.h[i], want.h[i])
		}
		exact := exactGram(l.K, read)
		for i, h := range got.h {
			if e := math.Abs(float64(h) - exact[i]); e > 1e-6*math.Sqrt(exact[i/l.K*(l.K+1)]*exact[i%l.K*(l.K+1)]) {
				t.Fatalf("%s: H[%d, %d] is %v: want %v", l.Name, i/l.K, i%l.K, h, exact[i])
			}
		}
		if (got.d != nil) != cross {
			t.Errorf("%s: cross products %v: want %v", l.Name, got.d != nil, cross)
		} else if i := firstDiff(got.d, want.d); cross && x != nil && i >= 0 {
			t.Errorf("%s: D[%d, %d] is %v: want %v", l.Name, i/l.K, i%l.K, got.d[i], want.d[i])
		}
	}
	for i := range d.Blocks {
		b := &d.Blocks[i]
		for _, stage := range b.Mixer.Stages() {
			for _, l := range stage {
				compare(l, xq[l.Name], x[l.Name], -1)
			}
		}
		var given *routing
		if b.MoE != nil {
			given = routingOf(original, i, xq[b.Path])
		}
		if b.MoE != nil && b.MoE.Into != nil {
			compare(b.MoE.Into, xq[b.MoE.Into.Name], x[b.MoE.Into.Name], -1)
			compare(b.MoE.Back, xq[b.MoE.Back.Name], x[b.MoE.Back.Name], -1)
		}
		for j, m := range b.MLPs() {
			if b.MoE == nil || j >= len(b.MoE.Experts) {
				compare(m.Gate, xq[m.Gate.Name], x[m.Gate.Name], -1)
				compare(m.Up, xq[m.Up.Name], x[m.Up.Name], -1)
				compare(m.Down, xq[m.Down.Name], x[m.Down.Name], -1)
				continue
			}
			if b.MoE.Apart != nil || b.MoE.Into != nil { // whose routers read other states
				if given.filled[j] {
					continue
				}
				compare(m.Gate, xq[m.Gate.Name], nil, given.routed[j])
				compare(m.Down, xq[m.Down.Name], nil, given.routed[j])
				continue
			}
			in, mid := given.states(original, i, j, x[b.Path])
			inQ, midQ := given.states(quantized, i, j, xq[b.Path])
			if !given.filled[j] && !slices.EqualFunc(slices.Concat(inQ, midQ), slices.Concat(padded(xq[m.Gate.Name], inQ), padded(xq[m.Down.Name], midQ)), slices.Equal) {
				t.Errorf("%s reads what is not routed to it", m.Gate.Name)
			}
			compare(m.Gate, inQ, in, given.routed[j])
			compare(m.Up, inQ, in, given.routed[j])
			compare(m.Down, midQ, mid, given.routed[j])
		}
		if b.Told != nil {
			compare(b.Told.Gate, xq[b.Told.Gate.Name], x[b.Told.Gate.Name], -1)
			compare(b.Told.Proj, xq[b.Told.Proj.Name], x[b.Told.Proj.Name], -1)
		}
	}
	if !d.Tied {
		compare(d.Head, xq[d.Head.Name], x[d.Head.Name], -1)
	}
	want := len(d.Stored())
	if len(v.order) != want {
		t.Errorf("%d layers were quantized: want %d: %v", len(v.order), want, v.order)
	}
}

// routing is where the tokens of windows go in a block: to each expert, in every window.
type routing struct {
	tokens [][][]int
	probs  [][]float64 // [t, experts] of every window, that what experts read is multiplied by; nil: nothing
	routed []int       // how many a router sends to each
	filled []bool      // whether it has others as well
}

// routingOf works it out of what a router reads in every window. An expert with fewer tokens than inputs has those of the next
// choice as well, and one with too few of these has all.
func routingOf(m *model.Model, block int, read [][]float32) *routing {
	moe := m.Decoder().Blocks[block].MoE
	n := len(moe.Experts)
	r := &routing{tokens: make([][][]int, n), routed: make([]int, n), filled: make([]bool, n)}
	wider := make([]int, n)
	each := make([][][2][]int, n)
	for _, states := range read {
		tokens, next, probs := m.Route(block, states)
		if moe.Routing.OnInput {
			r.probs = append(r.probs, probs)
		}
		for e := range n {
			each[e] = append(each[e], [2][]int{tokens[e], next[e]})
			r.routed[e] += len(tokens[e])
			wider[e] += len(tokens[e]) + len(next[e])
		}
	}
	for e := range n {
		inputs := max(moe.Experts[e].Gate.K, moe.Experts[e].Down.K)
		r.filled[e] = r.routed[e] < inputs
		for i, of := range each[e] {
			list := of[0]
			if r.filled[e] {
				list = slices.Concat(of[0], of[1])
				if wider[e] < inputs {
					list = nil
					for t := range len(read[i]) / m.Decoder().Hidden {
						list = append(list, t)
					}
				}
				slices.Sort(list)
			}
			r.tokens[e] = append(r.tokens[e], list)
		}
	}
	return r
}

// states returns what an expert of a model reads and makes of it, given what the router reads.
func (r *routing) states(m *model.Model, block, expert int, read [][]float32) (in, mid [][]float32) {
	width := m.Decoder().Hidden
	for i, tokens := range r.tokens[expert] {
		var states []float32
		for _, t := range tokens {
			row := slices.Clone(read[i][t*width : (t+1)*width])
			if r.probs != nil {
				for k := range row {
					row[k] *= float32(r.probs[i][t*len(r.tokens)+expert])
				}
			}
			states = append(states, row...)
		}
		in, mid = append(in, states), append(mid, m.Gated(block, expert, states))
	}
	return in, mid
}

// padded has an empty window at the end where an expert has read nothing in the last ones.
func padded(read, like [][]float32) [][]float32 {
	for len(read) < len(like) {
		read = append(read, nil)
	}
	return read
}

func firstDiff(a, b []float32) int {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}

// walkSmall is a walk over a small model of two layers, whose head is a layer too.
func walkSmall(t *testing.T, o model.WalkOptions, change func(v *visitor)) (*visitor, *watched, error) {
	s := small()
	s.tied = false
	src := openCheckpoint(t, s.build().folder(t))
	ops := &watched{Ops: newOps(t, 2)}
	v := newVisitor(t, src)
	change(v)
	if o.Windows == nil {
		o.Windows = [][]int{randomTokens(1, 20, s.vocab), randomTokens(2, 20, s.vocab)}
	}
	err := model.Walk(context.Background(), src, ops, v, o)
	if ops.weights != 0 || ops.floats != 0 {
		t.Errorf("%d weights and %d elements of arrays are left on the device", ops.weights, ops.floats)
	}
	return v, ops, err
}

// TestWalkBlocks has one block on the device, and the embedding only before them.
func TestWalkBlocks(t *testing.T) {
	s := small()
	block := s.hidden*s.headDim*2*(s.heads+s.kvHeads) + 3*s.hidden*s.inter
	for _, original := range []bool{false, true} {
		_, ops, err := walkSmall(t, model.WalkOptions{Original: original}, func(*visitor) {})
		if err != nil {
			t.Fatal(err)
		}
		want := max(block, s.vocab*s.hidden)
		if original {
			want = max(2*block, s.vocab*s.hidden)
		}
		if ops.most > want {
			t.Errorf("with the original model %v: %d weights on the device at once: want at most %d", original, ops.most, want)
		}
	}
}

// TestWalkResumed passes by what is quantized already, and gives the rest the same statistics.
func TestWalkResumed(t *testing.T) {
	whole, _, err := walkSmall(t, model.WalkOptions{Original: true}, func(*visitor) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, done := range []int{1, 4, 8, len(whole.order)} {
		rest, ops, err := walkSmall(t, model.WalkOptions{Original: true}, func(v *visitor) {
			for _, path := range whole.order[:done] {
				v.layers[path] = whole.layers[path]
			}
			v.wants = func(path string) bool { return !slices.Contains(whole.order[:done], path) }
		})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(rest.order, whole.order[done:]) {
			t.Errorf("after %d layers: came by %v", done, rest.order)
		}
		for _, path := range rest.order {
			if firstDiff(rest.stats[path][0].h, whole.stats[path][0].h) >= 0 || firstDiff(rest.stats[path][0].d, whole.stats[path][0].d) >= 0 {
				t.Errorf("after %d layers: %s has other statistics", done, path)
			}
		}
		if done == len(whole.order) && ops.most > 0 {
			t.Error("with nothing to quantize the model was read")
		}
	}
}

func TestWalkErrors(t *testing.T) {
	stop := errors.New("stop")
	for _, c := range []struct {
		name   string
		o      model.WalkOptions
		change func(v *visitor)
		want   string
	}{
		{"token", model.WalkOptions{Windows: [][]int{{1, 2}, {3, 50}}}, func(*visitor) {}, "window 1: token 50 at position 1 is outside the vocabulary of 50"},
		{"empty", model.WalkOptions{Windows: [][]int{{}}}, func(*visitor) {}, "window 0: no tokens"},
		{"quantizing", model.WalkOptions{Original: true}, func(v *visitor) { v.err = stop }, "stop"},
		{"shape", model.WalkOptions{}, func(v *visitor) {
			v.wants = func(path string) bool { return strings.HasSuffix(path, "o_proj") }
			v.layers["model.layers.0.self_attn.k_proj"] = v.nearest("model.layers.0.mlp.up_proj")
		}, "quantized model.layers.0.self_attn.k_proj has shape [40, 24]: want [12, 24]"},
	} {
		if _, _, err := walkSmall(t, c.o, c.change); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v: want %q", c.name, err, c.want)
		}
	}
}

// TestWalkCanceled ends between two windows.
func TestWalkCanceled(t *testing.T) {
	src := openCheckpoint(t, small().build().folder(t))
	ops := &watched{Ops: newOps(t, 2)}
	ctx, cancel := context.WithCancel(context.Background())
	v := newVisitor(t, src)
	v.visit = func(path string) {
		if strings.HasSuffix(path, "o_proj") {
			cancel()
		}
	}
	var last string
	err := model.Walk(ctx, src, ops, v, model.WalkOptions{
		Windows:  [][]int{randomTokens(1, 20, 50), randomTokens(2, 20, 50)},
		Progress: func(done, all int) { last = fmt.Sprint(done, " of ", all) },
	})
	if !errors.Is(err, context.Canceled) || ops.weights != 0 || ops.floats != 0 {
		t.Errorf("error %v, %d weights and %d elements of arrays are left on the device", err, ops.weights, ops.floats)
	}
	if want := "4 of 20"; last != want {
		t.Errorf("the last progress was %s: want %s", last, want)
	}
}

// TestWalkEnds ends with the last block that has a layer to quantize.
func TestWalkEnds(t *testing.T) {
	src := openCheckpoint(t, small().build().folder(t))
	v := newVisitor(t, src)
	v.wants = func(path string) bool { return path == "model.layers.0.mlp.up_proj" }
	var last string
	err := model.Walk(context.Background(), src, newOps(t, 2), v, model.WalkOptions{
		Windows:  [][]int{randomTokens(1, 20, 50), randomTokens(2, 20, 50)},
		Progress: func(done, all int) { last = fmt.Sprint(done, " of ", all) },
	})
	if want := "10 of 10"; err != nil || last != want {
		t.Errorf("error %v, the last progress was %s: want %s", err, last, want)
	}
}

// TestWalkTogether: experts whose statistics are taken in groups have the same, bit for bit. Those of windows that pass through experts
// together are of the same tokens, but for how their sums are rounded.
func TestWalkTogether(t *testing.T) {
	racetest.Skip(t)
	for _, g := range archtest.Goldens(t) {
		dir := t.TempDir()
		g.Write(t, dir)
		src := openCheckpoint(t, dir)
		d := src.Decoder()
		if !slices.ContainsFunc(d.Blocks, func(b arch.Block) bool { return b.MoE != nil }) {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			run := func(o model.WalkOptions) *visitor {
				ops, v, last := &watched{Ops: newOps(t, 2)}, newVisitor(t, src), ""
				o.Windows, o.Original = walkWindows(g.Tokens), true
				o.Progress = func(done, all int) { last = fmt.Sprint(all - done) }
				if err := model.Walk(context.Background(), src, ops, v, o); err != nil {
					t.Fatal(err)
				}
				if ops.weights != 0 || ops.floats != 0 || last != "0" {
					t.Errorf("%d weights and %d elements of arrays are left on the device, and %s of the work", ops.weights, ops.floats, last)
				}
				return v
			}
			alone := run(model.WalkOptions{})
			for _, c := range []struct {
				name  string
				o     model.WalkOptions
				exact bool
			}{
				{"in groups", model.WalkOptions{StatsBytes: 1}, true},
				{"two windows", model.WalkOptions{Together: len(g.Tokens) * 3 / 2}, false},
				{"all windows in groups", model.WalkOptions{Together: 4 * len(g.Tokens), StatsBytes: int64(3 * 8 * d.Hidden * d.Hidden)}, false},
			} {
				got := run(c.o)
				if len(got.order) != len(alone.order) {
					t.Fatalf("%s: came by %d layers: want %d", c.name, len(got.order), len(alone.order))
				}
				for path, all := range alone.stats {
					for e, want := range all {
						s := got.stats[path][e]
						if s.tokens != want.tokens || s.routed != want.routed {
							t.Fatalf("%s: %s: %d tokens and %d routed: want %d and %d", c.name, path, s.tokens, s.routed, want.tokens, want.routed)
						}
						if c.exact && (firstDiff(s.h, want.h) >= 0 || firstDiff(s.d, want.d) >= 0) {
							t.Fatalf("%s: %s has other statistics", c.name, path)
						}
						if h, d := apart(s.h, want.h), apart(s.d, want.d); h > 1e-6 || d > 1e-4 {
							t.Errorf("%s: %s: H is %.2g and D %.2g apart", c.name, path, h, d)
						}
					}
				}
			}
		})
	}
}

// apart returns the distance of two vectors, as a share of the second.
func apart(a, b []float32) float64 {
	var sum, all float64
	for i := range b {
		sum += math.Pow(float64(a[i])-float64(b[i]), 2)
		all += math.Pow(float64(b[i]), 2)
	}
	return math.Sqrt(sum / max(all, 1e-30))
}
