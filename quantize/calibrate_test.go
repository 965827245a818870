package quantize

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/quantize/gptq"
	"github.com/lutq/lutq/quantize/rounding"
)

// text is a calibrator whose statistics follow from the layers written before.
type text struct {
	decoder *arch.Decoder
	key     string
	apart   bool // statistics follow from nothing
	block   int
	devices int
	memory  int64
	tokens  func(layer string, expert int) int // nil: enough
	change  func(stats []rounding.Stats) []rounding.Stats
	skips   func(layer string) bool

	visited []string
}

func newText(t *testing.T, dir string) *text {
	t.Helper()
	d, err := arch.Read(dir, open(t, dir).Has)
	if err != nil {
		t.Fatal(err)
	}
	return &text{decoder: d}
}

func (x *text) Flags() []string                     { return []string{"--text"} }
func (x *text) Key() string                         { return x.key }
func (x *text) Record() *lutq.Calibration           { return &lutq.Calibration{Windows: 3, Device: "none"} }
func (x *text) Block() int                          { return x.block }
func (x *text) Devices() int                        { return max(x.devices, 1) }
func (x *text) Apart() bool                         { return x.apart }
func (x *text) Memory(Fitting) (host, device int64) { return x.memory, 0 }

func (x *text) Seconds(_ context.Context, f Fitting) (float64, error) { return f.Products, nil }

// Walk comes by layers that read the same: queries, keys and values, and everything else alone. It shows all experts of a block at a time.
func (x *text) Walk(ctx context.Context, v *Visitor) error {
	var states [][]*arch.Stored
	seen := make(map[*arch.Stored]bool)
	for l := range x.decoder.Linears() {
		if seen[l.Stored] {
			continue
		}
		seen[l.Stored] = true
		if last := len(states) - 1; last >= 0 && strings.Contains(l.Stored.Path, "attn") && states[last][0].K == l.K && !strings.HasSuffix(l.Name, "o_proj") {
			states[last] = append(states[last], l.Stored)
		} else {
			states = append(states, []*arch.Stored{l.Stored})
		}
	}
	var groups [][][]*arch.Stored
	for i, state := range states {
		block, _, of := strings.Cut(state[0].Path, ".experts.")
		if i > 0 && of && strings.HasPrefix(states[i-1][0].Path, block+".experts.") {
			groups[len(groups)-1] = append(groups[len(groups)-1], state)
		} else {
			groups = append(groups, [][]*arch.Stored{state})
		}
	}
	before := fnv.New64()
	for _, group := range groups {
		if err := x.come(ctx, v, group, before); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// come comes by some states.
func (x *text) come(ctx context.Context, v *Visitor, states [][]*arch.Stored, before hash.Hash64) error {
	var all []rounding.Readers
	for _, state := range states {
		var paths []string
		for _, s := range state {
			if v.Wants(s.Path) && (x.skips == nil || !x.skips(s.Path)) {
				paths = append(paths, s.Path)
			}
		}
		if len(paths) > 0 {
			var stats []rounding.Stats
			for e := range state[0].Matrices() {
				tokens := 2 * state[0].K
				if x.tokens != nil {
					tokens = x.tokens(paths[0], e)
				}
				seed := before.Sum64() + uint64(e)
				if x.apart {
					seed = uint64(len(state[0].Path)) + uint64(state[0].N)<<16 + uint64(e)
				}
				stats = append(stats, moments(seed, state[0].K, tokens))
			}
			x.visited = append(x.visited, paths...)
			if x.change != nil {
				stats = x.change(stats)
			}
			all = append(all, rounding.Readers{Layers: paths, Stats: stats})
		}
	}
	if len(all) > 0 {
		if err := v.Quantize(ctx, all); err != nil {
			return err
		}
	}
	for _, state := range states {
		for _, s := range state {
			if v.Wants(s.Path) || x.apart {
				continue
			}
			m, err := v.Weight(s.Path)
			if err != nil {
				return err
			}
			if m == nil {
				continue
			}
			n, k := m.Shape()
			row := make([]float32, k)
			for _, i := range []int{0, n - 1} {
				m.Row(row, i)
				fmt.Fprint(before, row)
			}
		}
	}
	return nil
}

// seen are statistics in memory.
type seen struct {
	k, tokens int
	h, d      []float32
}

func (s *seen) K() int                      { return s.k }
func (s *seen) Tokens() int                 { return s.tokens }
func (s *seen) Hessian() ([]float32, error) { return s.h, nil }
func (s *seen) Drift() ([]float32, error)   { return s.d, nil }
func (s *seen) Diagonal() ([]float32, error) {
	d := make([]float32, s.k)
	for i := range d {
		d[i] = s.h[i*(s.k+1)]
	}
	return d, nil
}

// moments returns statistics of random inputs.
func moments(seed uint64, k, tokens int) *seen {
	rng := rand.New(rand.NewPCG(seed, 5))
	s := &seen{k: k, tokens: tokens, h: make([]float32, k*k), d: make([]float32, k*k)}
	x := make([]float32, k)
	for range tokens {
		common := float32(rng.NormFloat64())
		for i := range x {
			x[i] = common + float32(rng.NormFloat64())
		}
		for i := range x {
			for j := range x {
				s.h[i*k+j] += x[i] * x[j]
				s.d[i*k+j] += x[j] * .1 * float32(i%3)
			}
		}
	}
	return s
}

// textPlan plans a recipe with a text.
func textPlan(t *testing.T, dir, recipe string, x *text, f Refiner) *Plan {
	t.Helper()
	r, err := ParseRecipe([]byte(recipe))
	if err != nil {
		t.Fatal(err)
	}
	r.Methods.GPTQ = gptq.Options{Damp: .01, Retarget: .5}
	r.Refine = f
	if x != nil {
		r.Calibrate = x
	}
	p, err := NewPlan(modeltest.Open(t, dir), r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// textRecipe has layers of every sort: of two methods, in several formats, that stay, and an
// embedding.
const textRecipe = `{"bits": 3, "group": 32, "method": "gptq", "codebook": "nf", "tensors": [
	{"match": "layers\\.1\\..*o_proj", "method": "rtn"}, {"match": "layers\\.0\\..*k_proj", "scale_type": "e4m4", "codebook": "js"},
	{"match": "layers\\.0\\..*down_proj", "keep": true}, {"match": "embed_tokens", "bits": 4}], "split_fused": true}`

// textModels returns models with layers of their own, and with experts in stacks of both orders.
func textModels(t *testing.T) map[string]string {
	dirs := make(map[string]string)
	for _, g := range archtest.Goldens(t) {
		switch g.Name {
		case "llama", "mixtral-fused", "gpt-oss", "qwen3-moe":
			dirs[g.Name] = t.TempDir()
			g.Write(t, dirs[g.Name])
		}
	}
	return dirs
}

// TestCalibrated: layers are those that package gptq makes of the statistics, or the nearest,
// on any number of threads and in any memory.
func TestCalibrated(t *testing.T) {
	for name, dir := range textModels(t) {
		t.Run(name, func(t *testing.T) {
			if name != "mixtral-fused" && name != "qwen3-moe" {
				racetest.Skip(t)
			}
			var want map[string]string
			for _, o := range []RunOptions{{Threads: 1}, {Threads: 2}, {Threads: 5, MaxRAM: littleRAM}} {
				out := filepath.Join(t.TempDir(), "out")
				x := newText(t, dir)
				x.block = o.Threads << 14
				p := textPlan(t, dir, textRecipe, x, nil)
				var last int64
				o.Progress = func(done int64, _ string) { last = done }
				res, err := p.Run(t.Context(), out, o)
				if err != nil {
					t.Fatal(err)
				}
				if last != p.Totals().BytesIn {
					t.Errorf("progress ends at %d of %d", last, p.Totals().BytesIn)
				}
				if want == nil {
					want = files(t, out)
					checkCalibrated(t, p, x, out, res)
					continue
				}
				if diff := cmp.Diff(want, files(t, out)); diff != "" {
					t.Errorf("%+v: the files differ", o)
				}
			}
		})
	}
}

// checkCalibrated holds a container against what package gptq makes of the first layer, and
// what it says of the rest against the plan.
func checkCalibrated(t *testing.T, p *Plan, x *text, out string, res *Result) {
	t.Helper()
	m, err := lutq.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if c := m.Config(); c.Calib == nil || c.Calib.Device != "none" || !strings.HasSuffix(c.Command, "--text") || res.Calib == nil {
		t.Errorf("the configuration says %+v of the text, and %q", c.Calib, c.Command)
	}
	rep, err := m.Verify(t.Context(), lutq.VerifyOptions{Original: p.Source})
	if err != nil || len(rep.Problems) > 0 {
		t.Errorf("verification: %v, problems %q", err, rep.Problems)
	}
	for i := range p.Items {
		it := &p.Items[i]
		if !it.Quantized() {
			continue
		}
		method := methodGPTQ
		if strings.Contains(it.Layer, "embed") || strings.Contains(it.Layer, "1.self_attn.o_proj") {
			method = methodRTN
		}
		if got := m.Spec(it.Layer).Method; got != method || slices.Contains(x.visited, it.Layer) != (method == methodGPTQ) {
			t.Errorf("%s has the method %s, want %s; the text came by %v", it.Layer, got, method, x.visited)
		}
		if it.Layer != "model.layers.0.self_attn.q_proj" {
			continue
		}
		s, err := p.Recipe.Methods.method(methodGPTQ)
		if err != nil {
			t.Fatal(err)
		}
		state, err := s.Prepare(moments(fnv.New64().Sum64(), it.K, 2*it.K), it.Format.Kind, it.Format.Group, 0)
		if err != nil {
			t.Fatal(err)
		}
		q, err := state.Quantizer(it.layer(it.Codebook))
		if err != nil {
			t.Fatal(err)
		}
		w := make([]float32, it.N*it.K)
		if err := it.Tensor.ReadFloat32(w, 0); err != nil {
			t.Fatal(err)
		}
		var parts [][]byte
		for _, s := range it.stored {
			parts = append(parts, make([]byte, s.size))
		}
		if err := q.Rows(parts, make([]rounding.RowError, it.N), w); err != nil {
			t.Fatal(err)
		}
		q.Shared(parts)
		for i, s := range it.stored {
			got, ok := m.Checkpoint().Tensor(s.Name)
			if !ok {
				t.Fatalf("no tensor %s", s.Name)
			}
			data := make([]byte, s.size)
			if _, err := got.ReadAt(data, 0); err != nil && err != io.EOF {
				t.Fatal(err)
			}
			if !slices.Equal(data, parts[i]) {
				t.Errorf("%s is not what the statistics make of it", s.Name)
			}
		}
	}
}

// TestOutputError: of a layer that is fitted to a text the result tells by how much its outputs are off, by H or what is
// known of it, whatever the damping; of all, the root mean square.
func TestOutputError(t *testing.T) {
	dir := textModels(t)["llama"]
	const layer = "model.layers.0.self_attn.q_proj" // which the text comes by first
	for _, method := range []string{methodGPTQ, methodSparseGPT, methodWanda, methodRTN} {
		for _, damp := range []float64{0.01, 1} {
			r, err := ParseRecipe([]byte(`{"method": "` + method + `", "tensors": [{"match": "layers\\.1\\.", "keep": true}]}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Methods.GPTQ = gptq.Options{Damp: damp}
			r.Calibrate = newText(t, dir)
			p, err := NewPlan(modeltest.Open(t, dir), r)
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "out")
			res, err := p.Run(t.Context(), out, RunOptions{})
			if err != nil {
				t.Fatal(err)
			}
			m := openContainer(t, out)
			var squares float64
			for _, l := range res.Layers {
				squares += l.OutputError * l.OutputError / float64(len(res.Layers))
				if l.Layer != layer {
					continue
				}
				var want float64
				if method != methodRTN {
					want = outputError(t, p, m, layer, method == methodWanda)
				}
				if math.Abs(l.OutputError-want) > 1e-4*want {
					t.Errorf("%s damped by %v: outputs are off by %v, want %v", method, damp, l.OutputError, want)
				}
			}
			if want := math.Sqrt(squares); math.Abs(res.OutputError-want) > 1e-9 {
				t.Errorf("%s: %v of all layers, want %v", method, res.OutputError, want)
			}
		}
	}
}

// outputError returns the relative error of a layer's outputs by the statistics that a text shows first.
func outputError(t *testing.T, p *Plan, m *lutq.Model, layer string, diagonal bool) float64 {
	t.Helper()
	stored, err := m.Linear(layer)
	if err != nil {
		t.Fatal(err)
	}
	source, _ := p.Source.Tensor(layer + lutq.WeightSuffix)
	n, k := stored.Shape()
	w, row := make([]float32, n*k), make([]float32, k)
	if err := source.ReadFloat32(w, 0); err != nil {
		t.Fatal(err)
	}
	h := moments(fnv.New64().Sum64(), k, 2*k).h
	var all, off float64
	for r := range n {
		stored.Row(row, r)
		of := w[r*k : (r+1)*k]
		for i := range k {
			for j := range k {
				if diagonal && i != j {
					continue
				}
				all += float64(of[i]) * float64(h[i*k+j]) * float64(of[j])
				off += float64(of[i]-row[i]) * float64(h[i*k+j]) * float64(of[j]-row[j])
			}
		}
	}
	return math.Sqrt(off / all)
}

// TestCalibratedResume stops runs again and again, and damages what they left: what comes of it
// is that of one that was left alone, and layers that stand are not visited again.
func TestCalibratedResume(t *testing.T) {
	racetest.Skip(t)
	for name, dir := range textModels(t) {
		t.Run(name, func(t *testing.T) {
			whole, x := filepath.Join(t.TempDir(), "whole"), newText(t, dir)
			if _, err := textPlan(t, dir, textRecipe, x, nil).Run(t.Context(), whole, RunOptions{}); err != nil {
				t.Fatal(err)
			}
			all := x.visited
			out := filepath.Join(t.TempDir(), "out")
			var visited []string
			stopped := 0
			for after := int32(2); ; after += 7 {
				ctx, cancel := context.WithCancel(t.Context())
				var pieces atomic.Int32
				x := newText(t, dir)
				_, err := textPlan(t, dir, textRecipe, x, nil).Run(ctx, out, RunOptions{Threads: 2, Progress: func(int64, string) {
					if pieces.Add(1) == after {
						cancel()
					}
				}})
				cancel()
				visited = append(visited, x.visited...)
				if err == nil {
					break
				}
				if !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				stopped++
			}
			if stopped < 3 {
				t.Errorf("stopped %d times, want more", stopped)
			}
			if diff := cmp.Diff(files(t, whole), files(t, out)); diff != "" {
				t.Error("the files differ from those of a run that was left alone")
			}
			// A stop lies within one state, of three layers at most.
			if again := len(visited) - len(all); again > 3*stopped {
				t.Errorf("after %d stops the text came by %d layers again: %v", stopped, again, visited)
			}
			slices.Sort(all)
			slices.Sort(visited)
			if !slices.Equal(slices.Compact(visited), all) {
				t.Errorf("the text came by %v, want %v", visited, all)
			}
			other := newText(t, dir)
			other.key = "another text"
			ctx, cancel := context.WithCancel(t.Context())
			x = newText(t, dir)
			x.change = func(s []rounding.Stats) []rounding.Stats { cancel(); return s }
			again := filepath.Join(t.TempDir(), "again")
			if _, err := textPlan(t, dir, textRecipe, x, nil).Run(ctx, again, RunOptions{}); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if _, err := textPlan(t, dir, textRecipe, other, nil).Run(t.Context(), again, RunOptions{}); !errors.Is(err, outdir.ErrOtherRun) {
				t.Errorf("another text over an unfinished run: got error %v", err)
			}
		})
	}
}

// TestCalibratedRefined stops a run of both while what was refined is put in place, and damages the
// codes of one layer: others are quantized after it as it was, not as it was refined.
func TestCalibratedRefined(t *testing.T) {
	racetest.Skip(t)
	const recipe = `{"bits": 3, "group": 32, "method": "gptq", "codebook": "nf"}`
	dir := textModels(t)["llama"]
	refiner := func() *halver { return &halver{knows: func(string) bool { return true }} }
	whole := filepath.Join(t.TempDir(), "whole")
	if _, err := textPlan(t, dir, recipe, newText(t, dir), refiner()).Run(t.Context(), whole, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	want := files(t, whole)
	if !strings.Contains(want["config.json"], `"gptq+learn"`) || !strings.Contains(want["config.json"], "--text --halve") {
		t.Errorf("the configuration is %s", want["config.json"])
	}
	for _, damaged := range []bool{false, true} {
		out := filepath.Join(t.TempDir(), "out")
		ctx, cancel := context.WithCancel(t.Context())
		h := refiner()
		left := 3 // layers in their place
		_, err := textPlan(t, dir, recipe, newText(t, dir), h).Run(ctx, out, RunOptions{Threads: 1, Progress: func(int64, string) {
			if h.calls > 0 {
				if left--; left == 0 {
					cancel()
				}
			}
		}})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		visits := 0
		if damaged {
			spoil(t, filepath.Join(out+".partial", "new", "model.safetensors"), "model.layers.0.mlp.down_proj.codes")
			visits = 1
		}
		x := newText(t, dir)
		if _, err := textPlan(t, dir, recipe, x, h).Run(t.Context(), out, RunOptions{}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, files(t, out)); diff != "" {
			t.Errorf("damaged %v: the files differ from those of a run that was left alone", damaged)
		}
		if (len(x.visited) > 0) != (visits > 0) || (h.calls > 1) != damaged {
			t.Errorf("damaged %v: the text came by %v, and the refiner was called %d times", damaged, x.visited, h.calls)
		}
	}
}

// spoil changes a byte of a tensor of an unfinished run.
func spoil(t *testing.T, file, tensor string) {
	t.Helper()
	c := open(t, filepath.Dir(file))
	x, ok := c.Tensor(tensor)
	if !ok {
		t.Fatalf("no tensor %s", tensor)
	}
	data := make([]byte, x.Bytes())
	if _, err := x.ReadAt(data, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	all, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(all), string(data))
	all[at+1] ^= 0x10
	if err := os.WriteFile(file, all, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestRemarks: experts that read too little are rounded to nearest, which is kept when the run
// is stopped, and said in the end.
func TestRemarks(t *testing.T) {
	racetest.Skip(t)
	dir := textModels(t)["mixtral-fused"]
	few := func(layer string, expert int) int {
		if strings.Contains(layer, "layers.0.mlp.experts") && expert == 1 {
			return 3
		}
		return 200
	}
	out := filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithCancel(t.Context())
	x := newText(t, dir)
	x.tokens = few
	x.change = func(s []rounding.Stats) []rounding.Stats {
		if len(x.visited) > 6 { // in the second block
			cancel()
		}
		return s
	}
	const recipe = `{"bits": 3, "codebook": "nf", "scale": "mse", "method": "gptq"}`
	h := &halver{knows: func(string) bool { return true }} // after which they still hold
	if _, err := textPlan(t, dir, recipe, x, h).Run(ctx, out, RunOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	x = newText(t, dir)
	x.tokens = few
	res, err := textPlan(t, dir, recipe, x, h).Run(t.Context(), out, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(x.visited, "model.layers.0.mlp.experts.down_proj") {
		t.Errorf("the text came by what was finished: %v", x.visited)
	}
	if len(res.Remarks) != 2 {
		t.Fatalf("remarks %+v, want one for each stack of the first block", res.Remarks)
	}
	for _, r := range res.Remarks {
		if !r.Nearest || r.Expert != 1 || r.Experts == 0 || !strings.HasPrefix(r.Layer, "model.layers.0.mlp.experts") || !strings.HasPrefix(r.What, "3 tokens for") {
			t.Errorf("remark %+v", r)
		}
	}

	// What rows lost is kept as well, also when scales have changed since.
	x = newText(t, dir)
	x.tokens = few
	whole, err := textPlan(t, dir, recipe, x, nil).Run(t.Context(), filepath.Join(t.TempDir(), "whole"), RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var sum Fit
	rows := 0
	for i, l := range res.Layers {
		if l.Fit != whole.Layers[i].Fit {
			t.Errorf("%s: fitted %+v, in a run that was not stopped %+v", l.Layer, l.Fit, whole.Layers[i].Fit)
		}
		if l.Fit.NearestRows < l.Fit.Rows && !(l.Fit.Loss < l.Fit.NearestLoss) {
			t.Errorf("%s: fitted %+v", l.Layer, l.Fit)
		}
		sum.addAll(l.Fit)
		if rows += l.N; strings.HasPrefix(l.Layer, "model.layers.0.mlp.experts") {
			rows -= l.N / l.Experts
		}
	}
	if f := res.Fit; f != sum || f.Rows != rows || f.NearestRows >= rows/2 || !(f.Loss < f.NearestLoss) {
		t.Errorf("fitted %+v: want the sum %+v, of %d rows", f, sum, rows)
	}
}

// TestFit: a loss that is not finite counts as rounding to nearest, and spoils no sum.
func TestFit(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	var f Fit
	for _, e := range []rounding.RowError{
		{Loss: 1, NearestLoss: 4}, {Loss: 2, NearestLoss: 2}, {}, {Energy: 5}, {Loss: nan, NearestLoss: nan}, {Loss: inf, NearestLoss: inf},
	} {
		f.add(e)
	}
	if want := (Fit{Rows: 4, NearestRows: 3, Loss: 3, NearestLoss: 6}); f != want {
		t.Errorf("fitted %+v, want %+v", f, want)
	}
}

func TestCalibratedBad(t *testing.T) {
	dir := textModels(t)["llama"]
	unknown, _ := oddModel(t)
	for _, tc := range []struct {
		name, want string
		dir        string
		change     func(x *text)
		ram        int64
	}{
		{name: "no text", want: "there is no text to learn from", dir: dir},
		{name: "not known", want: "method gptq: ", dir: unknown, change: func(*text) {}},
		{name: "not visited", want: "model.layers.1.mlp.up_proj: the text did not come by", dir: dir, change: func(x *text) {
			x.skips = func(layer string) bool { return layer == "model.layers.1.mlp.up_proj" }
		}},
		{name: "too many statistics", want: "2 statistics of 1 matrices", dir: dir, change: func(x *text) {
			x.change = func(s []rounding.Stats) []rounding.Stats { return append(s, s...) }
		}},
		{name: "no drift", want: "retargeting needs", dir: dir, change: func(x *text) {
			x.change = func(s []rounding.Stats) []rounding.Stats { s[0].(*seen).d = nil; return s }
		}},
		{name: "memory", want: "running the text takes about 1000.0 MB", dir: dir, ram: 999_999_999, change: func(x *text) { x.memory = 1e9 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := ParseRecipe([]byte(`{"method": "gptq"}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Methods.GPTQ.Retarget = .5
			if tc.change != nil {
				x := &text{}
				if tc.dir == dir {
					x = newText(t, dir)
				}
				tc.change(x)
				r.Calibrate = x
			}
			out := filepath.Join(t.TempDir(), "out")
			p, err := NewPlan(modeltest.Open(t, tc.dir), r)
			if err == nil {
				_, err = p.Run(t.Context(), out, RunOptions{MaxRAM: tc.ram})
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
			if left, _ := filepath.Glob(out + "*"); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
