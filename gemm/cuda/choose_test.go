package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// fake are tiles whose ways are numbers, of which one to three multiply rows in one launch, and more all rows.
type fake struct {
	Base
	source string
	kinds  []int // of ways for many rows
}

type fakeWay int

func (w fakeWay) String() string { return fmt.Sprintf("way %d", int(w)) }
func (fakeWay) Rows() int        { return MaxRows }

func (w fakeWay) Needs(n, _, m int) Needs {
	if w > 3 {
		return Needs{Form: fakeForm(int(w)), Sums: 100 * n, Flags: true}
	}
	return Needs{}
}

// fakeForm is a form of as many bytes a number.
type fakeForm int

func (f fakeForm) Bytes(m, k int) int { return int(f) * m * k }
func (f fakeForm) Written(k int) bool { return f == 5 && k%128 == 0 }

func (f fakeForm) Prepare(GPU, driver.DType, driver.Ptr, driver.Ptr, int, int) Launch {
	return Launch{}
}

func (t *fake) Runs(GPU) error { return nil }

func (t *fake) Configs(_ GPU, m int) ([]Way, error) {
	if m > MaxRows {
		return nil, errors.New("too many rows")
	}
	return []Way{fakeWay(1), fakeWay(2), fakeWay(3)}, nil
}

func (t *fake) Twins(GPU, int) []Way { return nil }

func (t *fake) Ways(g GPU, m int) []Way {
	if len(t.kinds) == 0 {
		return t.Base.Ways(g, m)
	}
	all := []Way{InTurns, AsNumbers}
	for _, kind := range t.kinds {
		all = append(all, fakeWay(kind))
	}
	return all
}

func (t *fake) Kernels(_ GPU, by Way, _ int) []driver.Kernel {
	return []driver.Kernel{{Name: by.String(), Source: t.source}}
}

func (t *fake) RowKernels() []driver.Kernel { return nil }

func (t *fake) Launch(GPU, []driver.Ptr, Way, Operands) ([]Launch, error) { return nil, nil }

func (t *fake) Rows(GPU, []driver.Ptr, Rows) (Launch, error) { return Launch{}, nil }

func newFake(n, k int, kinds ...int) *fake {
	return &fake{Base{Family: "fake", N: n, K: k, Of: Format{4, 128, weight.F16, driver.F16}, Parts: []int{10, 20}}, "source", kinds}
}

// TestChosen holds choices to the best guess, and to what was kept if that is still to be had, by engines of this process and others, for
// rows that are treated alike and matrices of a shape.
func TestChosen(t *testing.T) {
	cache := driver.NewCache(t.TempDir())
	gpu := GPU{DeviceInfo: driver.DeviceInfo{Name: "a", SMs: 132}}
	e := Planner(gpu, cache)
	w, other := newFake(64, 256, 4, 5), newFake(64, 512, 4, 5)
	config := func(e *Engine, w Tiles, m int) string {
		by, err := e.Chosen(w, m)
		if err != nil {
			t.Fatal(err)
		}
		return by.String()
	}
	if got := config(e, w, 3) + ", " + e.Way(w, 100).String(); got != "way 1, packed" {
		t.Errorf("nothing was measured: %s", got)
	}
	e.keep(choice{ofConfig, w.Key(gpu, 4)}, w, 4, fakeWay(3))
	e.keep(choice{ofWay, w.Key(gpu, 112)}, w, 112, fakeWay(5))
	e.keep(choice{ofWay, w.Key(gpu, 128)}, w, 128, fakeWay(9)) // which there is not
	later := Planner(gpu, cache)
	for range 2 { // from the file, and remembered
		for _, e := range []*Engine{e, later} {
			if got := config(e, w, 3) + ", " + config(e, w, 4) + ", " + config(e, w, 5); got != "way 3, way 3, way 1" {
				t.Errorf("configurations %s", got)
			}
			if got := e.Way(w, 97).String() + ", " + e.Way(w, 112).String() + ", " + e.Way(w, 96).String() + ", " + e.Way(w, MaxRows).String(); got != "way 5, way 5, packed, packed" {
				t.Errorf("ways %s", got)
			}
		}
	}
	if got := later.Way(w, 120); got != InTurns {
		t.Errorf("what is no more is chosen: %v", got)
	}
	if got := config(later, other, 3) + ", " + later.Way(other, 100).String(); got != "way 1, packed" {
		t.Errorf("another shape: %s", got)
	}
	changed := newFake(64, 256, 4, 5)
	changed.source = "another"
	for name, e := range map[string]*Engine{"GPU": Planner(GPU{DeviceInfo: driver.DeviceInfo{Name: "b", SMs: 132}}, cache), "source": Planner(gpu, cache)} {
		w := w
		if name == "source" {
			w = changed
		}
		if got := config(e, w, 3) + ", " + e.Way(w, 100).String(); got != "way 1, packed" {
			t.Errorf("another %s: %s", name, got)
		}
	}
	e.Prefer(w, 97, AsNumbers)
	if !e.Unpacks(w, 100) || e.Unpacks(w, 96) {
		t.Error("what is preferred is not chosen")
	}
}

// TestNeeds holds scratch memory to the form that X is prepared in, and to sums before it.
func TestNeeds(t *testing.T) {
	e := Planner(GPU{}, driver.NewCache(t.TempDir()))
	w := newFake(64, 256, 4, 5)
	if e.ScratchBytes(w, 8) != 0 || e.ScratchBytes(w, 100) != 0 {
		t.Error("in turns: scratch memory")
	}
	if got, want := e.MostScratch(w, 100), 100*64+5*100*256+5*100*256; got != want { // the second is written by others
		t.Errorf("%d bytes to tune with, want %d", got, want)
	}
	e.Prefer(w, 100, fakeWay(4))
	if needs := e.Needs(w, 100); needs.Form != fakeForm(4) || needs.Sums != 6400 || e.ScratchBytes(w, 100) != 6400+4*100*256 {
		t.Errorf("needs %+v, %d bytes", needs, e.ScratchBytes(w, 100))
	}
}

// TestBase holds tiles of few kernels to launches of up to 16 rows each, and to numbers for many rows.
func TestBase(t *testing.T) {
	e := Planner(GPU{}, driver.NewCache(t.TempDir()))
	w := newFake(64, 256)
	for m, once := range map[int]int{1: 1, 16: 16, 17: 9, 48: 16, 49: 13} {
		if got := w.AtOnce(GPU{}, m); got != once {
			t.Errorf("%d rows: %d at once, want %d", m, got, once)
		}
		if by := e.Way(w, m); (by == AsNumbers) != (m > 48) {
			t.Errorf("%d rows: %v", m, by)
		}
	}
	if e.CanGate(w, 1, Gates{Activation: "silu"}) || e.CanMix(w, 1, Gates{}) {
		t.Error("there are kernels for gates and experts")
	}
	if m := (&Matrix{Tiles: w}); e.RoundToFP8(m) || m.Bytes() != 30 || Joined(m, m) != nil {
		t.Error("there are kernels in E4M3, or joined")
	}
}

// TestShortlist keeps ways that are not taken to be much slower.
func TestShortlist(t *testing.T) {
	cost := func(by Way) float64 { return float64(by.(fakeWay)) }
	all := func() []Way { return []Way{fakeWay(30), fakeWay(10), fakeWay(12), fakeWay(11)} }
	if got := Shortlist(all(), cost, 3, 1.15); !slices.Equal(got, []Way{fakeWay(10), fakeWay(11)}) {
		t.Errorf("got %v", got)
	}
	if got := Shortlist(all(), cost, 3, 5); !slices.Equal(got, []Way{fakeWay(10), fakeWay(11), fakeWay(12)}) {
		t.Errorf("got %v", got)
	}
}

// TestBadOperands refuses what kernels would read or write elsewhere.
func TestBadOperands(t *testing.T) {
	open := &Matrix{Tiles: newFake(8, 32), at: []driver.Ptr{1}}
	for _, test := range []struct {
		name string
		w    *Matrix
		o    Operands
	}{
		{"closed", &Matrix{Tiles: newFake(8, 32)}, Operands{X: 16, Y: 16, M: 1}},
		{"no rows", open, Operands{X: 16, Y: 16}},
		{"no X", open, Operands{Y: 16, M: 1}},
		{"X not aligned", open, Operands{X: 8, Y: 16, M: 1}},
		{"Y not aligned", open, Operands{X: 16, Y: 17, M: 1}},
		{"scratch memory not aligned", open, Operands{X: 16, Y: 16, M: 1, Scratch: 8}},
		{"prepared", open, Operands{X: 16, Y: 16, M: 1, Form: fakeForm(4)}},
		{"no groups", open, Operands{X: 16, Y: 16, M: 1, Experts: &Experts{Count: 2}}},
	} {
		if err := test.o.check(test.w); err == nil {
			t.Errorf("%s: no error", test.name)
		}
	}
	if err := (Operands{X: 16, Y: 16, M: 99}).check(open); err != nil {
		t.Error(err)
	}
	for _, r := range []Rows{{Type: driver.BF16, Count: 1}, {Type: driver.F16, First: 8, Count: 1}, {Type: driver.F16, First: -1, Count: 1}} {
		if err := open.Rows(nil, r); err == nil {
			t.Errorf("rows %+v: no error", r)
		}
	}
	if err := Foreign(fakeWay(7), newFake(8, 32)); !strings.Contains(err.Error(), "way 7") {
		t.Error(err)
	}
}
