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
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// peer is the processor as one of several devices, which tell each other by channels.
type peer struct {
	*modelcpu.Ops
	rank int
	to   [][]chan []float32 // from each to each
}

// peers returns operations of so many devices.
func peers(t testing.TB, n int) []model.Peer {
	to := make([][]chan []float32, n)
	for i := range to {
		for range n {
			to[i] = append(to[i], make(chan []float32, 1))
		}
	}
	all := make([]model.Peer, n)
	for i := range all {
		all[i] = &peer{newOps(t, 1), i, to}
	}
	return all
}

// tell tells all others some numbers and returns those of each.
func (p *peer) tell(x model.Array) [][]float32 {
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
func (p *peer) AddUp(x model.Array) {
	sum := make([]float32, x.Len())
	for _, v := range p.tell(x) {
		for i, f := range v {
			sum[i] += f
		}
	}
	p.Write(x, sum)
}

// Collect implements [model.Peer].
func (p *peer) Collect(y, x model.Array, rows int) {
	all := p.tell(x)
	var v []float32
	cols := x.Len() / rows
	for row := range rows {
		for _, of := range all {
			v = append(v, of[row*cols:(row+1)*cols]...)
		}
	}
	p.Write(y, v)
}

// divided are how many families of the golden ones can be divided at least, by 2 devices and by 4: all have 4 heads or 8.
var divided = map[int]int{2: 48, 4: 2}

// TestDivided holds the logits of models that are divided to those of whole ones, of a window and token by token. What is not divided is
// refused, by name.
func TestDivided(t *testing.T) {
	racetest.Skip(t)
	count, refused := make(map[int]int), make(map[string]bool)
	for _, g := range archtest.Goldens(t) {
		dir := t.TempDir()
		g.Write(t, dir)
		for _, n := range []int{2, 3, 4} {
			t.Run(fmt.Sprintf("%s by %d", g.Name, n), func(t *testing.T) {
				from := modeltest.Open(t, dir)
				d, err := from.Decoder()
				if err != nil {
					t.Fatal(err)
				}
				_, reason := arch.Divide(d, 0, n)
				if reason != nil && refused[reason.Error()] {
					return // as others
				} else if reason != nil {
					refused[reason.Error()] = true
				}
				m, err := model.OpenDivided(from, peers(t, n), model.OpenOptions{})
				if (err == nil) != (reason == nil) || err != nil && !strings.HasSuffix(err.Error(), reason.Error()) {
					t.Fatalf("error %v, want %v", err, reason)
				}
				if err != nil {
					return
				}
				defer m.Close()
				count[n]++
				if m.Decoder() != d && m.Decoder().Blocks[0].Attn().Heads != d.Blocks[0].Attn().Heads {
					t.Error("the description is a part's")
				}
				ctx, tokens, vocab := context.Background(), g.Tokens, m.Vocab()
				whole := open(t, dir, 2)
				defer whole.Close()
				want := logits(t, whole, tokens)
				if _, err := m.Hidden(ctx, tokens); err != nil {
					t.Fatal(err)
				}
				l := m.Ops().Floats(len(want))
				got := make([]float32, len(want))
				if err := m.LogitsOf(l, 0, len(tokens)); err != nil {
					t.Fatal(err)
				}
				m.Ops().Read(got, l)
				if e := worst(got, want); !(e <= 1e-5) {
					t.Errorf("a window: logits are off by %.2g", e)
				}
				if err := m.Logits(l, l, 1); err == nil {
					t.Error("logits of states of one part: no error")
				}

				// A prompt, and a token at a time beside another text.
				half := len(tokens) / 2
				steps := func(m *model.Model) (rows []float32) {
					c, err := m.NewCache(2, len(tokens))
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					if _, err := c.Continue(ctx, model.Part{Slot: 0, Tokens: tokens[:half]}, model.Part{Slot: 1, Tokens: tokens[half : half+2]}); err != nil {
						t.Fatal(err)
					}
					l := m.Ops().Floats(vocab)
					if err := m.LogitsOf(l, half-1, 1); err != nil {
						t.Fatal(err)
					}
					rows = make([]float32, vocab)
					m.Ops().Read(rows, l)
					c.Cut(0, half-1)
					for at := half - 1; at < half+3; at++ {
						next, _, err := c.Step(ctx, []int{1, 0}, []int{tokens[at-2], tokens[at]})
						if err != nil {
							t.Fatal(err)
						}
						some := make([]float32, next.Len())
						m.Ops().Read(some, next)
						rows = append(rows, some...)
					}
					return rows
				}
				first := steps(m)
				if e := worst(first, steps(whole)); !(e <= 1e-5) {
					t.Errorf("steps: logits are off by %.2g", e)
				}
				if !slices.Equal(first, steps(m)) {
					t.Error("other logits the second time")
				}
				done, cancel := context.WithCancel(ctx)
				cancel()
				if _, err := m.Hidden(done, tokens); !errors.Is(err, context.Canceled) {
					t.Errorf("a context that is done: %v", err)
				}
			})
		}
	}
	for n, least := range divided {
		if count[n] < least {
			t.Errorf("%d models are divided by %d, want %d", count[n], n, least)
		}
	}
}

// worst is the largest difference over the largest value.
func worst(got, want []float32) float64 {
	var most, scale float64
	for i, w := range want {
		scale = max(scale, math.Abs(float64(w)))
		d := math.Abs(float64(got[i]) - float64(w))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		most = max(most, d)
	}
	return most / scale
}

// spread stands for a kind of weights that is not divided as it is packed.
type spread struct{ weight.Matrix }

func (spread) Kind() string { return "spread" }

func (s spread) Rows(first, step, n int) weight.Matrix { return spread{s.Matrix.Rows(first, step, n)} }

// TestDividedPacked divides quantized layers: tables where no group is parted, which is refused, and other kinds as numbers.
func TestDividedPacked(t *testing.T) {
	format := func(group int) lut.Format {
		book, err := lut.NewCodebook("nf", 3, group)
		if err != nil {
			t.Fatal(err)
		}
		return lut.Format{Codebook: book, Group: group, Scale: weight.Absmax, ScaleType: weight.F16}
	}
	tokens := []int{5, 9, 300, 17, 2, 4000}
	for _, tc := range []struct {
		name      string
		group, by int
		other     bool
		want      string // in the error
	}{
		{"groups of 64", 64, 2, false, ""},
		{"groups of 128", 128, 2, false, "model.layers.0.mlp.down_proj: a part of 2: columns 0 to 192 part groups of 128"},
		{"groups of 96, which is a part of no row", 96, 2, false, "model.layers.0.self_attn.o_proj: a part of 2: columns 0 to 64 part groups of 96"},
		{"another kind", 96, 2, true, ""},
		{"three parts", 64, 3, false, "model.layers.0: 4 heads are not as many for each of 3 GPUs"},
		{"four parts", 32, 4, false, "model.layers.0: 2 heads of keys and values are not as many for each of 4 GPUs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src := quantizeWith(t, openCheckpoint(t, tiny), func(name string) bool { return strings.HasSuffix(name, "_proj.weight") }, func(w []float32, n, k int) *lut.Matrix {
				return quantizeMatrix(t, w, n, k, format(min(tc.group, k)))
			})
			if tc.other {
				for name, m := range src.layers {
					src.layers[name] = spread{m}
				}
			}
			whole, err := model.New(src, newOps(t, 1))
			if err != nil {
				t.Fatal(err)
			}
			defer whole.Close()
			var sources []model.Source
			for rank := range tc.by {
				part, divideErr := model.Divide(src, rank, tc.by)
				if err = divideErr; err != nil {
					break
				}
				sources = append(sources, part)
			}
			var m *model.Model
			if err == nil {
				m, err = model.NewDivided(src.Decoder(), sources, peers(t, tc.by), 0)
			}
			if tc.want != "" {
				if err == nil || !strings.HasSuffix(err.Error(), tc.want) {
					t.Fatalf("got error %v, want %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if _, err := m.Hidden(context.Background(), tokens); err != nil {
				t.Fatal(err)
			}
			want := logits(t, whole, tokens)
			l, got := m.Ops().Floats(len(want)), make([]float32, len(want))
			if err := m.LogitsOf(l, 0, len(tokens)); err != nil {
				t.Fatal(err)
			}
			m.Ops().Read(got, l)
			if e := worst(got, want); !(e <= 1e-5) {
				t.Errorf("logits are off by %.2g", e)
			}
		})
	}
}

// failing is a peer that fails on a window.
type failing struct{ model.Peer }

func (f failing) NotFinite(model.Array, int, int) int { return 0 }

// TestDividedFails tells why the device that failed did.
func TestDividedFails(t *testing.T) {
	on := peers(t, 2)
	on[1] = failing{on[1]}
	m, err := model.OpenDivided(modeltest.Open(t, tiny), on, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c, err := m.NewCache(1, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Continue(context.Background(), model.Part{Tokens: []int{3, 4}}); !errors.Is(err, model.ErrNotFinite) {
		t.Errorf("got error %v", err)
	}
}
