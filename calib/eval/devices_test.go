package eval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lutq/lutq/calib/model"
)

// labeled are operations of one of several devices.
type labeled struct {
	model.Ops
	label string
}

func (l labeled) Label() string { return l.label }

// on returns a fake's model on a device of its own.
func (f *fake) on(ops model.Ops) *fake { return &fake{ops: ops, table: f.table} }

// scribe writes down what it is told.
type scribe struct {
	busy  atomic.Bool
	lines []string
}

func (s *scribe) Tokens(c *Chunk) error {
	if !s.busy.CompareAndSwap(false, true) {
		return errors.New("two devices at a time")
	}
	defer s.busy.Store(false)
	own, ref, err := c.Logits(len(c.Targets) - 1)
	s.lines = append(s.lines, fmt.Sprint(c.Model, c.Window, c.From, c.Targets, c.Scores, own, ref))
	return err
}

// TestDevices: windows that are divided among devices give the report of one, in the same order, to a watcher too.
func TestDevices(t *testing.T) {
	const vocab = 30
	ref := newFake(vocab, 1, 2)
	candidates := []*fake{ref.near(2, 0.3), ref.near(3, 0.6)}
	set := windows(vocab, 7, 40, 3)
	evaluate := func(devices int, s *scribe) (string, []int) {
		var all []Replica
		for range devices {
			ops := hostOps()
			r := Replica{Ops: ops, Ref: ref.on(ops)}
			for _, c := range candidates {
				r.Candidates = append(r.Candidates, slow{c.on(ops), len(all)})
			}
			all = append(all, r)
		}
		var done []int
		o := Options{Ops: all[0].Ops, Beside: all[1:], Progress: func(p Progress) { done = append(done, p.Done) }}
		if s != nil {
			o.Watch = s
		}
		res, err := Run(t.Context(), all[0].Ref, all[0].Candidates, set, o)
		if err != nil {
			t.Fatal(err)
		}
		for i := range res {
			res[i].TokensPerSecond = 0
		}
		text, err := json.Marshal(struct {
			Results []Result
			Windows [][]float64
			Pair    Difference
		}{res, [][]float64{res[0].WindowKL, res[1].WindowNLL, res[1].WindowReferenceNLL}, Compare(res[1], res[0], 0)})
		if err != nil {
			t.Fatal(err)
		}
		return string(text), done
	}
	var told scribe
	want, order := evaluate(1, &told)
	if !slices.Equal(order, []int{1, 2, 3, 4, 5, 6, 7}) || len(told.lines) != 2*len(set.Windows) {
		t.Fatalf("told of %v, and of %d chunks", order, len(told.lines))
	}
	for _, devices := range []int{2, 3, 9} {
		for _, watched := range []bool{false, true} {
			var s *scribe
			if watched {
				s = new(scribe)
			}
			got, done := evaluate(devices, s)
			if got != want || !slices.Equal(done, order) {
				t.Errorf("%d devices, watched %v: another report:\n%s\nwant\n%s", devices, watched, got, want)
			}
			if watched && !slices.Equal(s.lines, told.lines) {
				t.Errorf("%d devices tell a watcher something else", devices)
			}
		}
	}
}

// slow is a model whose first device takes longer, so that windows end in another order.
type slow struct {
	*fake
	device int
}

func (s slow) Hidden(ctx context.Context, tokens []int) (model.Array, error) {
	if s.device == 0 {
		time.Sleep(time.Millisecond)
	}
	return s.fake.Hidden(ctx, tokens)
}

// TestDevicesFail: what fails on one of several devices ends the run, and says on which.
func TestDevicesFail(t *testing.T) {
	set := windows(10, 5, 20, 1)
	good := newFake(10, 1, 1)
	for _, watched := range []bool{false, true} {
		bad := good.on(hostOps())
		bad.err = errors.New("out of memory")
		o := Options{
			Ops:    labeled{good.ops, "GPU 0"},
			Beside: []Replica{{Ops: labeled{bad.ops, "GPU 1"}, Candidates: []Model{bad}}},
		}
		if watched {
			o.Watch = new(scribe)
		}
		_, err := Run(t.Context(), nil, []Model{good}, set, o)
		if err == nil || !strings.HasPrefix(err.Error(), "GPU 1: window ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("watched %v: %v", watched, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := Options{Ops: good.ops, Beside: []Replica{{Ops: hostOps(), Candidates: []Model{good.on(hostOps())}}}}
	if _, err := Run(ctx, nil, []Model{good}, set, o); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
