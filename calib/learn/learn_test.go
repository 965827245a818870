package learn

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/rtn"
)

const tinyDir = "../testdata/lutq-tiny"

// openTiny opens the small model on the CPU.
func openTiny(t testing.TB, threads int) *model.Model {
	t.Helper()
	e, err := cpu.New(cpu.Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	m, err := model.Open(modeltest.Open(t, tinyDir), modelcpu.New(e), model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// quantized rounds the linear layers of the small model's blocks that match.
func quantized(t testing.TB, match string, bits, group int, st weight.ScaleType) map[string]*lut.Matrix {
	t.Helper()
	c, err := hf.Open(tinyDir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cb, err := lut.NewCodebook("nf", bits, group)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]*lut.Matrix)
	for _, tensor := range c.Tensors() {
		layer, ok := strings.CutSuffix(tensor.Name, lutq.WeightSuffix)
		if !ok || !strings.Contains(layer, match) || !strings.HasSuffix(layer, "_proj") {
			continue
		}
		n, k := tensor.Shape[0], tensor.Shape[1]
		w := make([]float32, n*k)
		if err := tensor.ReadFloat32(w, 0); err != nil {
			t.Fatal(err)
		}
		out[layer], err = rtn.Quantize(w, n, k, lut.Format{Codebook: cb, Group: group, Scale: weight.Absmax, ScaleType: st})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(out) == 0 {
		t.Fatalf("no layer matches %q", match)
	}
	return out
}

// texts cuts the small text into windows.
func texts(t testing.TB, windows, valid, ctx int) (train, hold [][]int) {
	t.Helper()
	tok, err := tokenizer.Load(tinyDir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.Open("../testdata/harbour.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	train, hold, err = corpus.Mix([]corpus.Text{{Name: "harbour.txt", Text: text}}, tok, corpus.MixOptions{Windows: windows, Valid: valid, Context: ctx})
	if err != nil {
		t.Fatal(err)
	}
	return train, hold
}

// inMemory are layers as a test quantized them, and what was learned for them.
type inMemory struct{ initial, learned map[string]*lut.Matrix }

func (l *inMemory) Read(path string) (weight.Matrix, error) {
	return copies(map[string]*lut.Matrix{path: l.initial[path]})[path], nil
}

func (l *inMemory) Write(path string, of weight.Matrix) error {
	m := of.(*lut.Matrix)
	if m.Codes == nil {
		m.Codes = l.initial[path].Codes
	}
	l.learned[path] = m
	return nil
}

// learned is Run for layers in memory.
func learned(ctx context.Context, m *model.Model, initial map[string]*lut.Matrix, o Options) (map[string]*lut.Matrix, *Report, error) {
	layers := &inMemory{initial: initial, learned: make(map[string]*lut.Matrix)}
	report, err := Run(ctx, m, shapes(initial), layers, o)
	if err != nil {
		return nil, nil, err
	}
	return layers.learned, report, nil
}

// shapes returns matrices without codes and scales.
func shapes(in map[string]*lut.Matrix) map[string]weight.Matrix {
	out := make(map[string]weight.Matrix)
	for path, m := range in {
		s := *m
		s.Codes, s.Scales = nil, nil
		out[path] = &s
	}
	return out
}

// same tells matrices apart.
func same(a, b map[string]*lut.Matrix) bool {
	if len(a) != len(b) {
		return false
	}
	for name, m := range a {
		o := b[name]
		if o == nil || !bytes.Equal(m.Codes, o.Codes) || !bytes.Equal(m.Scales, o.Scales) || !slices.Equal(m.Codebook, o.Codebook) {
			return false
		}
	}
	return true
}

// TestModes learns with every combination that makes a difference: what comes
// back must fit, and the loss on the windows learned on must fall.
func TestModes(t *testing.T) {
	racetest.Skip(t)
	train, hold := texts(t, 6, 2, 48)
	m := openTiny(t, 2)
	for _, tc := range []struct {
		name         string
		o            Options
		st           weight.ScaleType
		codes, table bool // whether they may change
	}{
		{name: "lutq", o: Options{Mode: Lutq, Rate: 0.01}, st: weight.F16},
		{name: "lutq, likelihood, byte scales", o: Options{Mode: Lutq, Objective: NLL, Rate: 0.02}, st: weight.S1E4M3},
		{name: "lutq, LSQ, table, batches", o: Options{Mode: Lutq, Rate: 0.01, LSQ: true, Table: true, Batch: 4}, st: weight.BF16, table: true},
		{name: "lutq, new codes", o: Options{Mode: Lutq, Rate: 0.01, Recode: 4, Epochs: 2}, st: weight.F16, codes: true},
		{name: "flute", o: Options{Mode: Flute, Rate: 1e-3}, st: weight.F32, codes: true},
		{name: "flute as published", o: Options{Mode: Flute, BF16: true}, st: weight.BF16, codes: true, table: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			initial := quantized(t, "layers.", 2, 32, tc.st)
			o := tc.o
			o.Windows, o.Valid = train, hold
			if o.Epochs == 0 {
				o.Epochs = 3
			}
			var told []Progress
			o.Progress = func(p Progress) { told = append(told, p) }
			before := copies(initial)
			got, rep, err := learned(t.Context(), m, initial, o)
			if err != nil {
				t.Fatal(err)
			}
			if !same(initial, before) {
				t.Error("the initial matrices were changed")
			}
			if len(told) != rep.Steps || told[len(told)-1].Step != rep.Steps {
				t.Errorf("told of %d steps of %d", len(told), rep.Steps)
			}
			if len(got) != len(initial) || rep.Layers != len(initial) {
				t.Errorf("%d layers, want %d", len(got), len(initial))
			}
			for name, g := range got {
				if err := g.Validate(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if !tc.codes && !bytes.Equal(g.Codes, initial[name].Codes) {
					t.Errorf("%s: codes changed", name)
				}
				if !tc.table && !slices.Equal(g.Codebook, initial[name].Codebook) {
					t.Errorf("%s: the table changed", name)
				}
			}
			if tc.o.Mode == Lutq && rep.Loss > rep.InitialLoss {
				t.Errorf("held-out loss rose from %v to %v", rep.InitialLoss, rep.Loss)
			}
			// What is returned is what was measured.
			if l := loss(t, m, got, hold, rep.Objective); math.Abs(l-rep.Loss) > 1e-5*rep.Loss {
				t.Errorf("the loss of the matrices returned is %v, the report says %v", l, rep.Loss)
			}
			if tc.o.BF16 {
				return // which is there to show that hardly anything moves
			}
			if was, is := loss(t, m, initial, train, rep.Objective), loss(t, m, got, train, rep.Objective); !(is < was) {
				t.Errorf("the loss on what was learned went from %v to %v", was, is)
			}
		})
	}
}

// copies returns copies of matrices.
func copies(in map[string]*lut.Matrix) map[string]*lut.Matrix {
	out := make(map[string]*lut.Matrix)
	for name, m := range in {
		c := *m
		c.Codes, c.Scales, c.Codebook = slices.Clone(m.Codes), slices.Clone(m.Scales), slices.Clone(m.Codebook)
		out[name] = &c
	}
	return out
}

// loss evaluates matrices in the model, through the packed weights.
func loss(t *testing.T, m *model.Model, matrices map[string]*lut.Matrix, windows [][]int, objective Objective) float64 {
	t.Helper()
	weights := make(map[string]model.Weight)
	for name, mat := range matrices {
		w, err := m.Ops().Packed(mat)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Ops().FreeWeight(w)
		weights[name] = w
	}
	q, err := m.With(weights)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	teacher := m
	if objective == NLL {
		teacher = nil
	}
	var sum float64
	for _, w := range windows {
		l, err := q.Loss(t.Context(), w, teacher)
		if err != nil {
			t.Fatal(err)
		}
		sum += l / float64(len(windows))
	}
	return sum
}

// TestResume stops runs at every step: continued, they end as one that was
// left alone, on any number of threads.
func TestResume(t *testing.T) {
	train, hold := texts(t, 5, 1, 24)
	for _, tc := range []struct {
		name string
		o    Options
	}{
		{"lutq", Options{Mode: Lutq, Rate: 0.01, Recode: 2, Table: true, Epochs: 2, Batch: 2, Seed: 3}},
		{"flute", Options{Mode: Flute, Rate: 1e-3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := tc.o
			o.Windows, o.Valid = train, hold
			initial := quantized(t, "layers.1.", 2, 64, weight.F16)
			want, report, err := learned(t.Context(), openTiny(t, 1), initial, o)
			if err != nil {
				t.Fatal(err)
			}
			o.State = filepath.Join(t.TempDir(), "state")
			o.Warn = func(s string) { t.Error(s) }
			m := openTiny(t, 2)
			stopped := 0
			for {
				ctx, cancel := context.WithCancel(t.Context())
				left := 2
				o.Progress = func(Progress) {
					if left--; left == 0 {
						cancel()
					}
				}
				got, rep, err := learned(ctx, m, initial, o)
				cancel()
				if errors.Is(err, context.Canceled) {
					stopped++
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if !same(got, want) {
					t.Error("the matrices differ from those of a run that was left alone")
				}
				if diff := cmp.Diff(report, rep, cmpopts.IgnoreFields(Report{}, "ResumedAt", "Seconds", "TokensPerSecond")); diff != "" {
					t.Errorf("the report differs (-want +got):\n%s", diff)
				}
				if rep.ResumedAt == 0 {
					t.Error("nothing was resumed")
				}
				break
			}
			if stopped < 2 {
				t.Errorf("stopped %d times, want more", stopped)
			}
		})
	}
}

// TestStateOfOthers checks that damaged states, and those of runs with other
// options, are put aside with a message.
func TestStateOfOthers(t *testing.T) {
	train, _ := texts(t, 2, 0, 16)
	initial := quantized(t, "layers.0.self_attn.q", 3, 32, weight.F16)
	m := openTiny(t, 1)
	state := filepath.Join(t.TempDir(), "state")
	o := Options{Mode: Flute, Windows: train, State: state}
	want, _, err := learned(t.Context(), m, initial, o)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		change     func(o *Options) []byte
	}{
		{"other rate", "other options", func(o *Options) []byte { o.Rate = 1e-3; return whole }},
		{"other windows", "other options", func(o *Options) []byte { o.Windows = train[:1]; return whole }},
		{"cut short", "damaged", func(*Options) []byte { return whole[:len(whole)-40] }},
		{"empty", "damaged", func(*Options) []byte { return nil }},
		{"one bit", "damaged", func(*Options) []byte {
			b := slices.Clone(whole)
			b[len(b)/2] ^= 4
			return b
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := o
			if err := os.WriteFile(state, tc.change(&o), 0o644); err != nil {
				t.Fatal(err)
			}
			var warned string
			o.Warn = func(s string) { warned += s }
			got, rep, err := learned(t.Context(), m, initial, o)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(warned, tc.want) || rep.ResumedAt != 0 {
				t.Errorf("warned %q and went on from step %d, want a warning of %q", warned, rep.ResumedAt, tc.want)
			}
			if tc.want == "damaged" && !same(got, want) {
				t.Error("the result is another")
			}
		})
	}
}

// TestSeed checks that a seed gives the same again, and another one something else.
func TestSeed(t *testing.T) {
	train, _ := texts(t, 4, 0, 24)
	initial := quantized(t, "layers.2.mlp", 3, 64, weight.F16)
	var results []map[string]*lut.Matrix
	for _, seed := range []uint64{1, 1, 2} {
		got, _, err := learned(t.Context(), openTiny(t, int(seed)), initial, Options{Mode: Lutq, Windows: train, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, got)
	}
	if !same(results[0], results[1]) {
		t.Error("one seed gave two results")
	}
	if same(results[0], results[2]) {
		t.Error("two seeds gave one result")
	}
}

// TestParameterizations shows that learning σ̃ with s·σ̃/σ stored, or the ratio
// ρ = σ̃/σ, is learning s at another rate, with the optimizer's own code.
func TestParameterizations(t *testing.T) {
	ops := openTiny(t, 1).Ops().(Ops)
	const (
		n     = 9
		rate  = 1e-3
		sigma = 0.5436 // of the normal distribution whose quantiles are the table, for an absmax of 1
	)
	start := make([]float32, n)
	for i := range start {
		start[i] = 0.01 * float32(i+1) * float32(1-2*(i%2))
	}
	// gradient is ∂L/∂s of some loss, another one at every step.
	gradient := func(step int, s float32, i int) float64 {
		return 3*(float64(s)-0.02) + math.Sin(float64(7*step+i))
	}
	// learn takes steps on p, where s = factor[i]·p, group by group at its own rate.
	learn := func(factor, rates []float64) []float32 {
		p := make([]float32, n)
		for i := range p {
			p[i] = float32(float64(start[i]) / factor[i])
		}
		dp, dm, dv, dg := ops.Floats(n), ops.Floats(n), ops.Floats(n), ops.Floats(n)
		defer ops.Free(dp, dm, dv, dg)
		ops.Write(dp, p)
		g := make([]float32, n)
		for step := 1; step <= 20; step++ {
			for i := range g {
				g[i] = float32(factor[i] * gradient(step, float32(factor[i])*p[i], i))
			}
			ops.Write(dg, g)
			for i := range n {
				ops.Adam(model.Adam{
					P: dp.Slice(i, i+1), M: dm.Slice(i, i+1), V: dv.Slice(i, i+1), G: dg.Slice(i, i+1),
					LR: rates[i], B1: 0.9, B2: 0.999, Eps: 1e-12, Step: step,
				})
			}
			ops.Read(p, dp)
		}
		s := make([]float32, n)
		for i := range s {
			s[i] = float32(factor[i]) * p[i]
		}
		return s
	}
	fill := func(f func(i int) float64) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = f(i)
		}
		return v
	}
	one := func(int) float64 { return 1 }
	for _, tc := range []struct {
		name         string
		factor, rate func(i int) float64 // s = factor·p, and the rate of p
		direct       func(i int) float64 // rate of s that should be the same
	}{
		{"σ̃", func(int) float64 { return 1 / sigma }, func(int) float64 { return rate }, func(int) float64 { return rate / sigma }},
		{"ρ", func(i int) float64 { return float64(start[i]) }, func(int) float64 { return rate }, func(i int) float64 { return rate * math.Abs(float64(start[i])) }},
	} {
		got, want := learn(fill(tc.factor), fill(tc.rate)), learn(fill(one), fill(tc.direct))
		for i := range got {
			moved := math.Abs(float64(want[i] - start[i]))
			if d := math.Abs(float64(got[i] - want[i])); !(d <= 2e-3*moved) || moved == 0 {
				t.Errorf("%s: scale %d went from %v to %v, learned directly to %v", tc.name, i, start[i], got[i], want[i])
			}
		}
	}
}

// TestControl checks that the control's factors belong to the original weights.
func TestControl(t *testing.T) {
	train, hold := texts(t, 4, 1, 32)
	initial := quantized(t, "layers.", 3, 64, weight.F16)
	m := openTiny(t, 2)
	got, rep, err := Control(t.Context(), m, shapes(initial), Options{Mode: Lutq, Objective: NLL, Windows: train, Valid: hold, Epochs: 2})
	if err != nil {
		t.Fatal(err)
	}
	var original float64
	for _, w := range hold {
		l, err := m.Loss(t.Context(), w, nil)
		if err != nil {
			t.Fatal(err)
		}
		original += l / float64(len(hold))
	}
	if d := math.Abs(rep.InitialLoss - original); d > 1e-5*original {
		t.Errorf("the loss to begin with is %v, the original's %v", rep.InitialLoss, original)
	}
	if rep.Loss > rep.InitialLoss {
		t.Errorf("held-out loss rose from %v to %v", rep.InitialLoss, rep.Loss)
	}
	for name, f := range got {
		mat := initial[name]
		if f.Group != mat.Group || len(f.Values) != mat.N*mat.Groups() {
			t.Errorf("%s: %d factors for groups of %d", name, len(f.Values), f.Group)
		}
	}
	if len(got) != len(initial) {
		t.Errorf("%d layers, want %d", len(got), len(initial))
	}
}

func TestBadOptions(t *testing.T) {
	m := openTiny(t, 1)
	initial := quantized(t, "layers.0.self_attn.k", 4, 32, weight.F16)
	windows := [][]int{{1, 2, 3}}
	for _, tc := range []struct {
		name, want string
		initial    map[string]*lut.Matrix
		o          Options
	}{
		{"no mode", `unknown mode ""`, initial, Options{Windows: windows}},
		{"objective", `unknown objective "mse"`, initial, Options{Mode: Lutq, Objective: "mse", Windows: windows}},
		{"no windows", "no windows to learn on", initial, Options{Mode: Lutq}},
		{"short window", "window of 1 tokens", initial, Options{Mode: Lutq, Windows: [][]int{{1}}}},
		{"rate", "rate -1", initial, Options{Mode: Lutq, Windows: windows, Rate: -1}},
		{"bf16", "for mode flute", initial, Options{Mode: Lutq, Windows: windows, BF16: true}},
		{"table", "mode lutq only", initial, Options{Mode: Flute, Windows: windows, Table: true}},
		{"no layer", "no linear layer of the model is quantized", map[string]*lut.Matrix{"model.embed_tokens": initial["model.layers.0.self_attn.k_proj"]}, Options{Mode: Lutq, Windows: windows}},
		{"token", "99999", initial, Options{Mode: Lutq, Windows: [][]int{{1, 99999}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, _, err := learned(t.Context(), m, tc.initial, tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestRateOf: after fitting steps are shorter from 3 bits on, and those of rings are of their own length.
func TestRateOf(t *testing.T) {
	for _, tc := range []struct {
		bits          int
		rings, fitted bool
		want          float64
	}{
		{2, false, false, 0.016},
		{2, false, true, 0.016},
		{3, false, false, 0.006},
		{3, false, true, 0.0015},
		{4, false, true, 0.00075},
		{3, true, true, 0.00075},
		{2, true, false, 0.002},
	} {
		if got := rateOf(tc.bits, tc.rings, tc.fitted); got != tc.want {
			t.Errorf("%d bits, rings %v, fitted %v: %v, want %v", tc.bits, tc.rings, tc.fitted, got, tc.want)
		}
	}
}

func TestRate(t *testing.T) {
	s, err := Options{Mode: Lutq, Rate: 1e-2, Windows: make2(100)}.resolve(DefaultRate(4))
	if err != nil {
		t.Fatal(err)
	}
	tr := &trainer{settings: s}
	if first, top, last := tr.rate(0), tr.rate(5), tr.rate(99); first != 1e-2/5 || top != 1e-2 || last <= 0 || last > 1e-5 {
		t.Errorf("the rate is %v at first, %v after the rise, %v at last", first, top, last)
	}
	for i := 6; i < 100; i++ {
		if tr.rate(i) >= tr.rate(i-1) {
			t.Errorf("the rate rises at step %d", i)
		}
	}
}

func make2(n int) [][]int {
	w := make([][]int, n)
	for i := range w {
		w[i] = []int{1, 2}
	}
	return w
}

// FuzzState feeds the reader of states anything. What it accepts must be what
// was written.
func FuzzState(f *testing.F) {
	const key, parameters = "key", 5
	for _, h := range []*header{
		{Key: key, Parameters: parameters},
		{Key: key, Parameters: parameters, Recoded: true, HasBest: true, BestRecoded: true, progress: progress{Step: 2, Losses: []float64{3, 2.5}}},
	} {
		var b bytes.Buffer
		if err := writeState(&b, h, func(i int, dst []float32) {
			for j := range dst {
				dst[j] = float32(i) + float32(j)/8
			}
		}); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
		f.Add(b.Bytes()[:b.Len()/2])
	}
	f.Add([]byte(stateMagic + "\xff\xff\xff\x03{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, arrays, err := readState(bytes.NewReader(data), key, parameters)
		if err != nil {
			if !errors.Is(err, errCorrupt) && !errors.Is(err, errOtherRun) {
				t.Errorf("got error %v", err)
			}
			return
		}
		if len(arrays) != h.count() {
			t.Errorf("%d arrays, want %d", len(arrays), h.count())
		}
		var b bytes.Buffer
		if err := writeState(&b, h, func(i int, dst []float32) { copy(dst, arrays[i]) }); err != nil {
			t.Fatal(err)
		}
		again, _, err := readState(&b, key, parameters)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(h, again, cmp.AllowUnexported(header{})); diff != "" {
			t.Errorf("read again it differs:\n%s", diff)
		}
	})
}
