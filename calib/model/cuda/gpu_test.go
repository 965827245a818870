package cuda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cpu"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/rtn"
)

// types are those of activations, with how far results may be from float64 in
// ‖difference‖/‖result‖.
var types = []struct {
	acts driver.DType
	tol  float64 // of an operation
	deep float64 // of the logits of a model
	loss float64 // of its mean loss, absolute
}{
	{driver.F32, 3e-5, 1e-5, 1e-5},
	{driver.F16, 5e-3, 2e-3, 1e-3},
	{driver.BF16, 2e-2, 2e-2, 1e-2},
}

// cacheDir keeps the compiled kernels for all tests.
var cacheDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lutq-kernels-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cacheDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// onGPU runs a test with the operations of the first GPU, for every type of
// activations.
func onGPU(t *testing.T, test func(t *testing.T, o *Ops, i int)) {
	t.Helper()
	onGPUWith(t, driver.Options{CacheDir: cacheDir}, test)
}

func onGPUWith(t *testing.T, options driver.Options, test func(t *testing.T, o *Ops, i int)) {
	t.Helper()
	c, d := cudatest.First(t, options)
	var e *gemmcuda.Engine
	if err := d.Do(func() (err error) { e, err = gemmcuda.New(d, c.Cache()); return err }); err != nil {
		t.Skip(err)
	}
	for i, tt := range types {
		t.Run(tt.acts.String(), func(t *testing.T) {
			o, err := New(d, e, Options{Type: tt.acts})
			var missing *driver.MissingError
			if errors.As(err, &missing) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			if d.Info.Name == "the host's GPU" { // which runs one kernel at a time
				o.lanes.once.Do(func() {})
			}
			test(t, o, i)
			if err := errors.Join(o.Err(), o.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	if err := d.Do(e.Close); err != nil {
		t.Error(err)
	}
}

// TestGPUOps compares every operation with float64.
func TestGPUOps(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		opstest.Run(t, o, opstest.Options{Acts: types[i].tol})
	})
}

func newCPU(t testing.TB) *modelcpu.Ops {
	t.Helper()
	e, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return modelcpu.New(e)
}

// distance is ‖got − want‖/‖want‖.
func distance(got, want []float32) float64 {
	var diff, norm float64
	for i, w := range want {
		d := float64(got[i]) - float64(w)
		diff += d * d
		norm += float64(w) * float64(w)
	}
	return math.Sqrt(diff / norm)
}

// TestGPULongAttention takes more queries than a block has.
func TestGPULongAttention(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		host := newCPU(t)
		for _, s := range []model.AttentionShape{
			{T: 1300, Heads: 6, KVHeads: 2, Dim: 64},
			{T: 1301, Heads: 8, KVHeads: 1, Dim: 32},
			{T: 1111, Heads: 4, KVHeads: 4, Dim: 128, Window: 700},
			{T: 1500, Heads: 6, KVHeads: 3, Dim: 64, Window: 100},
		} {
			s.Scale = float32(1 / math.Sqrt(float64(s.Dim)))
			wide, narrow := s.T*s.Heads*s.Dim, s.T*s.KVHeads*s.Dim
			r := rand.New(rand.NewPCG(1, uint64(s.T)))
			run := func(ops model.Ops, q, k, v []float32) (out, lse []float32) {
				qa, ka, va, oa, la := ops.Acts(wide), ops.Acts(narrow), ops.Acts(narrow), ops.Acts(wide), ops.Floats(s.Heads*s.T)
				ops.Write(qa, q)
				ops.Write(ka, k)
				ops.Write(va, v)
				ops.Read(q, qa) // as they are rounded
				ops.Read(k, ka)
				ops.Read(v, va)
				ops.Attention(oa, la, qa, ka, va, s)
				out, lse = make([]float32, wide), make([]float32, s.Heads*s.T)
				ops.Read(out, oa)
				ops.Read(lse, la)
				ops.Free(qa, ka, va, oa, la)
				return out, lse
			}
			random := func(n int) []float32 {
				v := make([]float32, n)
				for i := range v {
					v[i] = float32(r.NormFloat64())
				}
				return v
			}
			q, k, v := random(wide), random(narrow), random(narrow)
			out, lse := run(o, q, k, v)
			wantOut, wantLSE := run(host, q, k, v)
			if e := distance(out, wantOut); !(e <= types[i].tol) {
				t.Errorf("%+v: results differ by %.2g", s, e)
			}
			if e := distance(lse, wantLSE); !(e <= 1e-5) {
				t.Errorf("%+v: lse differs by %.2g", s, e)
			}
			again, _ := run(o, q, k, v)
			if !slices.Equal(again, out) {
				t.Errorf("%+v: other bits the second time", s)
			}
		}
	})
}

// TestGPUScore compares the scores of an evaluation with float64.
func TestGPUScore(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i == 0 {
			testScore(t, o)
		}
	})
}

func testScore(t *testing.T, o *Ops) {
	for _, c := range []struct {
		rows, vocab int
		sigma, far  float64 // of logits, and of what the teacher's are away
	}{{1, 1, 1, 1}, {3, 7, 5, 1}, {5, 100, 3, 0.01}, {4, 8209, 4, 0.05}, {2, 20000, 30, 3}} {
		n := c.rows * c.vocab
		x, y := randoms(1, n, c.sigma), randoms(2, n, c.far)
		targets := make([]int, c.rows)
		for r := range targets {
			targets[r] = (r*7919 + 3) % c.vocab
			row := x[r*c.vocab : (r+1)*c.vocab]
			row[c.vocab/2] = slices.Max(row) + 1
			row[c.vocab-1] = row[c.vocab/2] // of two that are equal the first counts
		}
		for j := range y {
			y[j] += x[j]
		}
		ref, refX, refY := opstest.Reference{}, make(opstest.Array, n), make(opstest.Array, n)
		ref.Write(refX, x)
		ref.Write(refY, y)
		want := make(opstest.Array, 3*c.rows)
		ref.CrossEntropy(want[:c.rows], nil, refX, targets, c.vocab, 1)
		ref.ArgMax(want[c.rows:2*c.rows], refX, c.rows, c.vocab)
		ref.Divergence(want[2*c.rows:], nil, refX, refY, c.rows, c.vocab, 1)

		logits, teacher, scores := o.Floats(n), o.Floats(n), o.Floats(3*c.rows)
		o.Write(logits, x)
		o.Write(teacher, y)
		got := make([]float32, 3*c.rows)
		for _, taught := range []bool{true, false} {
			o.Write(scores, slices.Repeat([]float32{float32(math.NaN())}, len(got)))
			if taught {
				o.Score(scores, logits, teacher, targets, c.vocab)
			} else {
				o.Score(scores, logits, nil, targets, c.vocab)
			}
			o.Read(got, scores)
			for j, v := range got {
				w := want[j]
				if j >= 2*c.rows && !taught {
					w = 0
				}
				// Sums of exponentials of float32 are as exact as these; a divergence is what remains of larger numbers.
				if e := math.Abs(float64(v) - w); !(e <= 2e-6*math.Abs(w)+2e-8*c.sigma) {
					t.Errorf("%+v, with a teacher %v: score %d of row %d is %v, want %v", c, taught, j/c.rows, j%c.rows, v, w)
				}
			}
		}
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
			x[c.vocab/3] = bad
			o.Write(logits, x)
			o.Score(scores, logits, teacher, targets, c.vocab)
			o.Read(got, scores)
			if v := float64(got[0]); !math.IsNaN(v) && !math.IsInf(v, 0) {
				t.Errorf("%+v: with a logit of %v, −ln p is %v", c, bad, v)
			}
		}
		o.Free(logits, teacher, scores)
	}
}

const tiny = "../../testdata/lutq-tiny"

// quantized is a checkpoint some of whose matrices are quantized.
type quantized struct {
	*model.Checkpoint
	layers map[string]*lut.Matrix
}

func (q *quantized) Quantized(layer string) (weight.Matrix, error) {
	if m := q.layers[layer]; m != nil {
		return m, nil
	}
	return nil, nil
}

func (q *quantized) Tensor(name string) (*hf.Tensor, bool) {
	if q.layers[strings.TrimSuffix(name, ".weight")] != nil {
		return nil, false
	}
	return q.Checkpoint.Tensor(name)
}

// source opens the tiny model, quantized unless bits is 0: by the group given, and
// all of it with the embedding.
func source(t testing.TB, bits, group int, embedding bool) model.Source {
	t.Helper()
	from := modeltest.Open(t, tiny)
	ckpt, err := from.Weights()
	if err != nil {
		t.Fatal(err)
	}
	src, err := model.NewCheckpoint(from)
	if err != nil {
		t.Fatal(err)
	}
	q := &quantized{Checkpoint: src, layers: map[string]*lut.Matrix{}}
	for _, tensor := range ckpt.Tensors() {
		layer := strings.TrimSuffix(tensor.Name, ".weight")
		if bits == 0 || len(tensor.Shape) != 2 || !strings.HasSuffix(layer, "_proj") && !embedding {
			continue
		}
		book, err := lut.NewCodebook("nf", bits, group)
		if err != nil {
			t.Fatal(err)
		}
		n, k := tensor.Shape[0], tensor.Shape[1]
		w := make([]float32, n*k)
		if err := tensor.ReadFloat32(w, 0); err != nil {
			t.Fatal(err)
		}
		q.layers[layer], err = rtn.Quantize(w, n, k, lut.Format{Codebook: book, Group: group, Scale: weight.Absmax, ScaleType: weight.F16})
		if err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// window returns tokens of the text that the tiny model knows, over and over.
func window(t testing.TB, n int) []int {
	t.Helper()
	data, err := os.ReadFile(tiny + "/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		IDs []int `json:"first64_ids"`
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	tokens := make([]int, n)
	for i := range tokens {
		tokens[i] = golden.IDs[i%len(golden.IDs)]
	}
	return tokens
}

// result is what a model makes of a window.
type result struct {
	logits, loss []float32
}

func evaluate(t testing.TB, src model.Source, ops model.Ops, tokens []int) result {
	t.Helper()
	m, err := model.New(src, ops)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	h, err := m.Hidden(context.Background(), tokens)
	if err != nil {
		t.Fatal(err)
	}
	rows := len(tokens) - 1
	logits, loss := ops.Floats(rows*m.Vocab()), ops.Floats(rows)
	defer ops.Free(logits, loss)
	if err := m.Logits(logits, h.Slice(0, rows*m.Decoder().Hidden), rows); err != nil {
		t.Fatal(err)
	}
	ops.CrossEntropy(loss, nil, logits, tokens[1:], m.Vocab(), 1)
	r := result{make([]float32, logits.Len()), make([]float32, rows)}
	ops.Read(r.logits, logits)
	ops.Read(r.loss, loss)
	if err := ops.Err(); err != nil {
		t.Fatal(err)
	}
	return r
}

func mean(v []float32) float64 {
	var sum float64
	for _, x := range v {
		sum += float64(x)
	}
	return sum / float64(len(v))
}

// TestGPUPrebuilt runs a model without a compiler.
func TestGPUPrebuilt(t *testing.T) {
	onGPUWith(t, driver.Options{CacheDir: cacheDir, NoCompiler: true}, func(t *testing.T, o *Ops, i int) {
		for _, bits := range []int{0, 4} {
			src, tokens := source(t, bits, 64, true), window(t, 100)
			want, got := evaluate(t, src, newCPU(t), tokens), evaluate(t, src, o, tokens)
			if d := distance(got.logits, want.logits); !(d <= types[i].deep) {
				t.Errorf("%d bits: logits differ by %.2g, want at most %.2g", bits, d, types[i].deep)
			}
		}
	})
}

// TestGPUModel compares a model, dense and quantized, with the CPU.
func TestGPUModel(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		for _, test := range []struct {
			name        string
			bits, group int
			embedding   bool
			tokens      int
		}{
			{"dense", 0, 0, false, 64},
			{"dense", 0, 0, false, 1100},
			{"fused", 4, 64, false, 64},
			{"fused", 3, 128, true, 600},
			{"fused", 5, 32, true, 61},
			{"without a layout", 4, 48, true, 64},
		} {
			t.Run(fmt.Sprintf("%s, %d bits, %d tokens", test.name, test.bits, test.tokens), func(t *testing.T) {
				src := source(t, test.bits, test.group, test.embedding)
				tokens := window(t, test.tokens)
				want := evaluate(t, src, newCPU(t), tokens)
				got := evaluate(t, src, o, tokens)
				logits, nll := distance(got.logits, want.logits), mean(got.loss)-mean(want.loss)
				t.Logf("logits differ by %.2g, mean loss %.6f by %.2g", logits, mean(want.loss), nll)
				if !(logits <= types[i].deep) || !(math.Abs(nll) <= types[i].loss) {
					t.Errorf("want at most %.2g and %.2g", types[i].deep, types[i].loss)
				}
				again := evaluate(t, src, o, tokens)
				if !slices.Equal(again.logits, got.logits) {
					t.Error("other bits the second time")
				}
			})
		}
	})
}

// TestGPUErrors holds on to the first error.
func TestGPUErrors(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, _ int) {
		if _, err := o.Dense(2, 3, hf.F32, make([]byte, 23)); err == nil {
			t.Error("a matrix of too few bytes: no error")
		}
		if _, err := o.Dense(2, 3, hf.U8, make([]byte, 6)); err == nil {
			t.Error("a matrix of bytes: no error")
		}
		if err := o.Err(); err != nil {
			t.Fatalf("refused weights leave error %v", err)
		}
		huge := o.Floats(1 << 50)
		o.Zero(huge)
		err := o.Err()
		if !driver.IsOutOfMemory(err) {
			t.Errorf("a petabyte: got error %v", err)
		}
		a := o.Floats(10)
		o.Write(a, make([]float32, 10))
		o.Read(make([]float32, 10), a)
		o.Free(a, huge)
		if again := o.Err(); again != err {
			t.Errorf("got error %v, want the first, %v", again, err)
		}
		o.err = nil // for the test's end
	})
}
