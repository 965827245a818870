package model_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/racetest"
)

// numbered are operations of one of several devices, which fail from so many products on; 0 is never.
type numbered struct {
	watched
	number, fails int
	products      int
	err           error
}

func (o *numbered) Label() string { return fmt.Sprintf("GPU %d", o.number) }

func (o *numbered) Gram(h, x model.Array, rows int) {
	if o.products++; o.products == o.fails {
		o.err = errors.New("out of memory")
	}
	o.Ops.Gram(h, x, rows)
}

func (o *numbered) Err() error { return o.err }

func devices(t *testing.T, n int) (all []*numbered, stats []model.StatsOps) {
	for i := range n {
		all = append(all, &numbered{watched: watched{Ops: newOps(t, 1)}, number: i})
		stats = append(stats, all[i])
	}
	return all, stats
}

// TestWalkDevices: devices that have some of the windows each see the same statistics as one, to the bit, but for experts that
// tokens are routed to: those have them of the same tokens, added up in another order.
func TestWalkDevices(t *testing.T) {
	racetest.Skip(t)
	for _, g := range archtest.Goldens(t) {
		if !slices.Contains([]string{"llama", "gemma2", "qwen2-moe", "gemma4"}, g.Name) {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			src := openCheckpoint(t, dir)
			expert := make(map[string]bool)
			for _, b := range src.Decoder().Blocks {
				if b.MoE == nil {
					continue
				}
				for _, m := range b.MoE.Experts {
					for _, l := range m.Linears() {
						expert[l.Stored.Path] = true
					}
				}
			}
			var windows [][]int
			for i := range 11 {
				windows = append(windows, g.Tokens[i%5:len(g.Tokens)-i])
			}
			run := func(n int) *visitor {
				all, stats := devices(t, n)
				v, last := newVisitor(t, src), ""
				o := model.WalkOptions{Windows: windows, Original: true, Beside: stats[1:], Progress: func(done, all int) { last = fmt.Sprint(all - done) }}
				if err := model.Walk(t.Context(), src, stats[0], v, o); err != nil {
					t.Fatal(err)
				}
				for _, ops := range all {
					if ops.weights != 0 || ops.floats != 0 {
						t.Errorf("%d devices: %d weights and %d elements of arrays are left on %s", n, ops.weights, ops.floats, ops.Label())
					}
					if ops.products == 0 {
						t.Errorf("%d devices: %s took no part", n, ops.Label())
					}
				}
				if last != "0" {
					t.Errorf("%d devices: %s of the work are left", n, last)
				}
				return v
			}
			one := run(1)
			for _, n := range []int{2, 3, 8} {
				got := run(n)
				if !slices.Equal(got.order, one.order) {
					t.Fatalf("%d devices: came by %v: want %v", n, got.order, one.order)
				}
				exact := true // nothing that experts make has a part in it yet
				for _, path := range one.order {
					exact = exact && !expert[path]
					for e, want := range one.stats[path] {
						s := got.stats[path][e]
						if s.tokens != want.tokens || s.routed != want.routed {
							t.Fatalf("%d devices: %s: %d tokens and %d routed: want %d and %d", n, path, s.tokens, s.routed, want.tokens, want.routed)
						}
						if exact && (firstDiff(s.h, want.h) >= 0 || firstDiff(s.d, want.d) >= 0) {
							t.Fatalf("%d devices: %s has other statistics", n, path)
						}
						if h, d := apart(s.h, want.h), apart(s.d, want.d); h > 1e-6 || d > 1e-4 {
							t.Errorf("%d devices: %s: H is %.2g and D %.2g apart", n, path, h, d)
						}
					}
				}
			}
		})
	}
}

// TestWalkDevicesFail: what fails on one device ends the walk on all, gives their memory back, and names the device. So does what is
// no device's, without a name.
func TestWalkDevicesFail(t *testing.T) {
	src := openCheckpoint(t, small().build().folder(t))
	var windows [][]int
	for i := range 6 {
		windows = append(windows, randomTokens(uint64(i), 20, 50))
	}
	walk := func(ctx context.Context, v *visitor, fails int) error {
		all, stats := devices(t, 3)
		all[1].fails = fails
		err := model.Walk(ctx, src, stats[0], v, model.WalkOptions{Windows: windows, Original: true, Beside: stats[1:]})
		for _, ops := range all {
			if ops.weights != 0 || ops.floats != 0 {
				t.Errorf("%d weights and %d elements of arrays are left on %s", ops.weights, ops.floats, ops.Label())
			}
		}
		return err
	}
	for _, at := range []int{1, 5} {
		if err := walk(t.Context(), newVisitor(t, src), at); err == nil || err.Error() != "GPU 1: out of memory" {
			t.Errorf("device that fails at product %d: error %v", at, err)
		}
	}
	stop := newVisitor(t, src)
	stop.err = errors.New("stop")
	if err := walk(t.Context(), stop, 0); err == nil || err.Error() != "stop" {
		t.Errorf("the visitor fails: error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ends := newVisitor(t, src)
	ends.visit = func(path string) {
		if strings.HasSuffix(path, "o_proj") {
			cancel()
		}
	}
	if err := walk(ctx, ends, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: error %v", err)
	}
}

// TestWalkFewWindows: devices that there are no windows for take no part.
func TestWalkFewWindows(t *testing.T) {
	src := openCheckpoint(t, small().build().folder(t))
	all, stats := devices(t, 3)
	v := newVisitor(t, src)
	o := model.WalkOptions{Windows: [][]int{randomTokens(1, 20, 50), randomTokens(2, 20, 50)}, Beside: stats[1:]}
	if err := model.Walk(t.Context(), src, stats[0], v, o); err != nil || len(v.order) == 0 || all[2].products > 0 {
		t.Errorf("error %v, %d layers, %d products of a device without windows", err, len(v.order), all[2].products)
	}
}
