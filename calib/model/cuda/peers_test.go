package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/source/modeltest"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/gemm/cuda/peers"
)

// TestCompilePeers compiles what GPUs that have a part of a model each have besides.
func TestCompilePeers(t *testing.T) {
	var variants []kerneltest.Variant
	for _, tt := range types {
		spills := 40 // a thread has 64 registers
		if tt.acts == driver.F32 {
			spills = 240
		}
		k := peersKernel(tt.acts)
		k.Options.Arch = "sm_90a"
		variants = append(variants, kerneltest.Variant{Group: k.Name, Kernel: k, Spills: spills})
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *cudatest.Long), variants)
}

// TestHostPeers has GPUs add up on the way to a norm by turns, each of which sends before any takes.
func TestHostPeers(t *testing.T) {
	stamps := kerneltest.NewStamps(t, kerneltest.StampOptions{Update: *cudatest.Update, All: *cudatest.Long})
	for _, c := range []struct {
		acts              driver.DType
		ranks, rows, cols int
	}{{driver.F16, 2, 2, 8200}, {driver.F32, 3, 1, 264}} { // the first more than a thread has at once
		t.Run(fmt.Sprintf("%v of %d", c.acts, c.ranks), func(t *testing.T) {
			k := peersKernel(c.acts)
			stamps.Due(t, kerneltest.Modules(900, k)...)
			host := stamps.OnHost(t, k, 900)
			r := rand.New(rand.NewPCG(1, 2))
			normal := func(n int) []float32 {
				v := make([]float32, n)
				for i := range v {
					v[i] = float32(r.NormFloat64())
				}
				return v
			}
			var mem kerneltest.Memory
			boxes, sent := make([]driver.Ptr, c.ranks), make([]driver.Ptr, c.ranks)
			for i := range boxes {
				boxes[i], sent[i] = mem.Upload(make([]byte, peers.BoxBytes(c.ranks, c.rows))), mem.Upload(make([]byte, 4*c.rows))
			}
			ended := mem.Upload(make([]byte, 64))
			n := c.rows * c.cols
			h, w := normal(n), normal(c.cols)
			atW := mem.Upload(driver.Bytes(w))
			var x, y, hs []driver.Ptr
			sums := slices.Clone(h)
			added := make([]float32, n)
			for range c.ranks {
				v := normal(n)
				raw := make([]byte, n*c.acts.Size())
				encodeAs(c.acts, raw, v)
				decodeAs(c.acts, v, raw)
				for i := range v {
					added[i] += v[i]
				}
				x, y, hs = append(x, mem.Upload(raw)), append(y, mem.Upload(make([]byte, len(raw)))), append(hs, mem.Upload(driver.Bytes(h)))
			}
			for i := range sums {
				sums[i] += added[i]
			}
			grid, block := perRow(c.rows, c.cols)
			for _, does := range []int{1, 2} {
				for rank := range c.ranks {
					host.Launch(t, &mem, sumAddNorm, driver.Launch{Grid: grid, Block: block, Programmatic: true}, rank > 0,
						kerneltest.Struct(peers.Bytes(boxes, sent[rank], ended, rank)), y[rank], driver.Ptr(0), driver.Ptr(0), hs[rank], x[rank], atW, c.cols, float32(1e-5), does)
				}
			}
			got := make([]float32, n)
			decodeAs(c.acts, got, mem.Read(y[0]))
			for row := range c.rows {
				var squares float64
				for _, v := range sums[row*c.cols : (row+1)*c.cols] {
					squares += float64(v) * float64(v)
				}
				scale := 1 / math.Sqrt(squares/float64(c.cols)+1e-5)
				for i := range c.cols {
					at := row*c.cols + i
					if want := float64(sums[at]) * scale * float64(w[i]); math.Abs(float64(got[at])-want) > types[0].tol*100*(1+math.Abs(want)) {
						t.Fatalf("element %d of row %d is %v, want %v", i, row, got[at], want)
					}
				}
			}
			for rank := range c.ranks {
				if !bytes.Equal(mem.Read(hs[rank]), driver.Bytes(sums)) || !bytes.Equal(mem.Read(y[rank]), mem.Read(y[0])) {
					t.Errorf("rank %d has other sums", rank)
				}
			}
		})
	}
}

// decodeAs is the inverse of encodeAs.
func decodeAs(t driver.DType, v []float32, raw []byte) {
	switch t {
	case driver.F16:
		num.DecodeF16(v, raw)
	case driver.BF16:
		num.DecodeBF16(v, raw)
	default:
		num.DecodeF32(v, raw)
	}
}

// onTeam runs a test with the operations of all GPUs, for every type of activations, and those of the first by itself.
func onTeam(t *testing.T, test func(t *testing.T, team []model.Peer, alone *Ops, i int)) {
	t.Helper()
	c, err := driver.Open(driver.Options{CacheDir: cacheDir})
	if err != nil {
		t.Skip(err)
	}
	n, err := c.DeviceCount()
	if err != nil || n < 2 {
		t.Skipf("%d GPUs, error %v", n, err)
	}
	indices := make([]int, min(n, peers.MaxRanks))
	for i := range indices {
		indices[i] = i
	}
	devs, err := c.OpenDevices(indices)
	if err != nil {
		t.Fatal(err)
	}
	crew, err := peers.NewTeam(c, devs)
	if errors.Is(err, driver.ErrNoPeers) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	engines := make([]*gemmcuda.Engine, len(devs))
	for i, d := range devs {
		if err := d.Do(func() (err error) { engines[i], err = gemmcuda.New(d, c.Cache()); return err }); err != nil {
			t.Fatal(err)
		}
	}
	for i, tt := range types {
		t.Run(tt.acts.String(), func(t *testing.T) {
			var team []model.Peer
			var all []*Ops
			for rank, d := range devs {
				o, err := New(d, engines[rank], Options{Type: tt.acts, Seat: crew.Seat(rank)})
				if err != nil {
					t.Fatal(err)
				}
				team, all = append(team, o), append(all, o)
			}
			alone, err := New(devs[0], engines[0], Options{Type: tt.acts})
			if err != nil {
				t.Fatal(err)
			}
			test(t, team, alone, i)
			for _, o := range append(all, alone) {
				if err := errors.Join(o.Err(), o.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i, d := range devs {
		if err := d.Do(engines[i].Close); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(crew.Close(), driver.CloseDevices(devs)); err != nil {
		t.Error(err)
	}
}

// TestGPUDivided holds the logits of models that all GPUs have a part of to those of whole ones on one: of a window, of a prompt and of steps, which the GPUs
// record, and what they go on with by themselves to what they say step by step. Again they say the same, to the bit.
func TestGPUDivided(t *testing.T) {
	some := []string{"llama", "llama-bias", "gemma3", "phi3", "qwen3", "smollm3"} // in 16 bits
	onTeam(t, func(t *testing.T, team []model.Peer, alone *Ops, i int) {
		for _, g := range archtest.Goldens(t) {
			dir := t.TempDir()
			g.Write(t, dir)
			from := modeltest.Open(t, dir)
			d, err := from.Decoder()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := arch.Divide(d, 0, len(team)); err != nil || i > 0 && !slices.Contains(some, g.Name) {
				continue
			}
			t.Run(g.Name, func(t *testing.T) {
				m, err := model.OpenDivided(from, team, model.OpenOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				whole, err := model.Open(modeltest.Open(t, dir), alone, model.OpenOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer whole.Close()
				ctx, tokens, vocab := context.Background(), g.Tokens, m.Vocab()
				const slots = 2
				run := func(m *model.Model) (rows []float32, texts []int) {
					read := func(n int, from model.Array) {
						some := make([]float32, n)
						m.Ops().Read(some, from.Slice(0, n))
						rows = append(rows, some...)
					}
					c, err := m.NewCache(slots, len(tokens))
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					if _, err := c.Continue(ctx, model.Part{Slot: 0, Tokens: tokens[:7]}, model.Part{Slot: 1, Tokens: tokens[3:5]}); err != nil {
						t.Fatal(err)
					}
					l := m.Ops().Floats(9 * vocab)
					defer m.Ops().Free(l)
					if err := m.LogitsOf(l, 0, 9); err != nil {
						t.Fatal(err)
					}
					read(9*vocab, l)
					for at := 7; at < 11; at++ {
						next, _, err := c.Step(ctx, []int{1, 0}, []int{tokens[at-2], tokens[at]})
						if err != nil {
							t.Fatal(err)
						}
						read(slots*vocab, next)
					}
					a, err := c.Ahead(ctx, []int{0}, tokens[11:12], 5)
					if err != nil {
						t.Fatal(err)
					}
					if a == nil {
						return rows, nil
					}
					defer a.Close()
					for range 5 {
						best, err := a.Next(ctx)
						if err != nil {
							t.Fatal(err)
						}
						texts = append(texts, best...)
					}
					return rows, texts
				}
				got, text := run(m)
				want, wantText := run(whole)
				bound := max(10*types[i].deep, 1e-4)
				if d := distance(got, want); !(d <= bound) {
					t.Errorf("logits are off by %.2g, want at most %.2g", d, bound)
				}
				if types[i].acts == driver.F32 && !slices.Equal(text, wantText) {
					t.Errorf("goes on with %v, whole with %v", text, wantText)
				}
				again, textAgain := run(m)
				if !slices.Equal(again, got) || !slices.Equal(textAgain, text) {
					t.Error("other logits or another text the second time")
				}
			})
		}
	})
}

// told is the host's stand-in for one of several GPUs, which tell each other through the host.
type told struct {
	*Ops
	rank int
	to   [][]chan []float32 // from each to each
}

func (p *told) tell(x model.Array) [][]float32 {
	v := make([]float32, x.Len())
	p.Read(v, x)
	all := make([][]float32, len(p.to))
	for i := range p.to {
		p.to[p.rank][i] <- v
	}
	for i := range p.to {
		all[i] = <-p.to[i][p.rank]
	}
	return all
}

// AddUp implements [model.Peer].
func (p *told) AddUp(x model.Array) {
	sum := make([]float32, x.Len())
	for _, v := range p.tell(x) {
		for i, f := range v {
			sum[i] += f
		}
	}
	p.Write(x, sum)
}

// Collect implements [model.Peer].
func (p *told) Collect(y, x model.Array, rows int) {
	all, cols := p.tell(x), x.Len()/rows
	var v []float32
	for row := range rows {
		for _, of := range all {
			v = append(v, of[row*cols:(row+1)*cols]...)
		}
	}
	p.Write(y, v)
}

// TestHostDivided holds windows of models that two GPUs have a part of each to those of whole ones, in 16 bits, by the host's stand-in.
func TestHostDivided(t *testing.T) {
	stamps := kerneltest.NewStamps(t, kerneltest.StampOptions{Update: *cudatest.Update, All: *cudatest.Long})
	kerneltest.HostGPU(t, 8, false)
	c, err := driver.Open(driver.Options{CacheDir: cacheDir})
	if err != nil {
		t.Skip(err)
	}
	for _, name := range []string{"llama", "gemma3"} {
		t.Run(name, func(t *testing.T) {
			const n, i = 2, 1
			stamps.Due(t, kerneltest.Modules(800, Kernels(types[i].acts)...)...)
			all := archtest.Goldens(t)
			g := all[slices.IndexFunc(all, func(g archtest.Golden) bool { return g.Name == name })]
			dir := t.TempDir()
			g.Write(t, dir)
			to := make([][]chan []float32, n)
			for i := range to {
				for range n {
					to[i] = append(to[i], make(chan []float32, 1))
				}
			}
			open := func() *Ops {
				d, err := c.OpenDevice(0)
				if err != nil {
					t.Fatal(err)
				}
				var e *gemmcuda.Engine
				if err := d.Do(func() (err error) { e, err = gemmcuda.New(d, c.Cache()); return err }); err != nil {
					t.Skip(err)
				}
				o, err := New(d, e, Options{Type: types[i].acts})
				if err != nil {
					t.Fatal(err)
				}
				o.lanes.once.Do(func() {})
				t.Cleanup(func() {
					if err := errors.Join(o.Err(), o.Close(), d.Do(e.Close), d.Close()); err != nil {
						t.Error(err)
					}
				})
				return o
			}
			var team []model.Peer
			for rank := range n {
				team = append(team, &told{open(), rank, to})
			}
			ctx, tokens := context.Background(), g.Tokens
			run := func(m *model.Model, err error) []float32 {
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				if _, err := m.Hidden(ctx, tokens); err != nil {
					t.Fatal(err)
				}
				l, v := m.Ops().Floats(len(tokens)*m.Vocab()), make([]float32, len(tokens)*m.Vocab())
				if err := m.LogitsOf(l, 0, len(tokens)); err != nil {
					t.Fatal(err)
				}
				m.Ops().Read(v, l)
				m.Ops().Free(l)
				return v
			}
			got := run(model.OpenDivided(modeltest.Open(t, dir), team, model.OpenOptions{}))
			want := run(model.Open(modeltest.Open(t, dir), open(), model.OpenOptions{}))
			if d := distance(got, want); !(d <= 2*types[i].deep) || d == 0 {
				t.Errorf("logits are off by %.2g", d)
			}
		})
	}
}
