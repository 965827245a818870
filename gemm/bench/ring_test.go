package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cpu"
)

// heapNow returns the bytes of the heap, garbage included, and of all that was ever taken from it.
func heapNow() (now, ever int64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.TotalAlloc)
}

// fixes reports whether products with an instruction set are in fixed point.
func fixes(t *testing.T, isa string) bool {
	t.Helper()
	e, err := cpu.New(cpu.Options{Threads: 1, ISA: isa})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	return e.Fixes()
}

// TestMemory: on a machine with a huge cache and little memory rings take a quarter of it, for all widths the same memory, and
// what is planned is what is taken.
func TestMemory(t *testing.T) {
	for _, test := range []struct {
		name string
		o    Options
	}{
		{"tables", Options{Shapes: []Shape{{256, 256}}, Bits: []int{2, 3, 4, 5}, M: []int{1, 16}}},
		{"many copies", Options{Shapes: []Shape{{17, 33}}, Bits: []int{3, 4}}},
		{"one copy", Options{Shapes: []Shape{{1024, 1024}}, Bits: []int{4, 5}}},
		{"many rows", Options{Shapes: []Shape{{16, 2048}}, Bits: []int{4}, M: []int{600}}},
		{"binary codes", Options{Shapes: []Shape{{512, 512}}, Kind: bcq.Name, Bits: []int{2, 4}, M: []int{64}}},
		{"two of four", Options{Shapes: []Shape{{512, 512}}, Kind: lut24.Name, Bits: []int{4}}},
	} {
		for _, isa := range cpu.ISAs() {
			o := test.o
			o.ISA, o.LastCache, o.Memory, o.Time, o.Threads = isa, 480<<20, 32<<20, time.Microsecond, 2
			o.Group = 64
			runtime.GC()
			before, everBefore := heapNow()
			var most, first, last int64
			o.Done = func(r Row, _ int) {
				now, ever := heapNow()
				most = max(most, now-before)
				if first == 0 {
					first = ever
				}
				last = ever
				if !r.ShortRing && r.Ring < maxCopies {
					t.Errorf("%s, %s: a row of %d copies does not say that they are few", test.name, isa, r.Ring)
				}
			}
			rows, err := CPU(t.Context(), o)
			if err != nil || len(rows) == 0 {
				t.Fatalf("%s, %s: %v", test.name, isa, err)
			}
			if len(o.M) == 0 {
				o.M = []int{1}
			}
			o.PoolBytes = o.pastCaches()
			p, err := o.plan(fixes(t, isa))
			if err != nil {
				t.Fatal(err)
			}
			// Beside what is planned goroutines and the test itself take a little, by how they happen to run.
			const others = 256 << 10
			if total := int64(p.total()) + others; most > total || last-everBefore < total*3/4 {
				t.Errorf("%s, %s: %d bytes were taken at once, %d in all: %d are planned: %+v", test.name, isa, most, last-everBefore, total, p)
			}
			copies := p.f32 + p.f16 + p.packed + p.rounded
			if one := 4 * o.Shapes[0].N * o.Shapes[0].K; copies > 32<<20/memoryPart+4*one {
				t.Errorf("%s, %s: rings of %d bytes", test.name, isa, copies)
			}
			// After the first width only matrices are made, not rings.
			if more := last - first; more > int64(len(o.Bits)*p.rest)+others {
				t.Errorf("%s, %s: later widths took %d bytes more, of a ring are %d", test.name, isa, more, copies)
			}
			if everAfter := last - everBefore; everAfter > int64(p.total()+len(o.Bits)*p.rest)+others {
				t.Errorf("%s, %s: %d bytes were taken in all", test.name, isa, everAfter)
			}
		}
	}
}

// TestPlan: what does not fit is refused before any of it is made, and no ring is larger than eight times the cache.
func TestPlan(t *testing.T) {
	_, err := CPU(t.Context(), Options{Shapes: []Shape{{4096, 4096}}, LastCache: 480 << 20, Memory: 64 << 20})
	if err == nil || !strings.HasPrefix(err.Error(), "4096×4096, m 1: needs 0.1") || !strings.HasSuffix(err.Error(), " GB of memory: 0.0671 GB are available") {
		t.Errorf("got error %v", err)
	}
	for _, test := range []struct {
		memory     int64
		pool, most int
		short      bool
	}{
		{0, 8 << 20, 8<<20 + 4<<20, false},
		{1 << 40, 8 << 20, 8<<20 + 4<<20, false},
		{60 << 20, 5 << 20, 5<<20 + 4<<20, true},
	} {
		o := Options{Shapes: []Shape{{1024, 1024}}, Bits: []int{4}, M: []int{1}, Group: 64, PoolBytes: 8 << 20, Memory: test.memory}
		p, err := o.plan(false)
		if err != nil || p.pool != test.pool || p.short != test.short || p.f32 < test.pool || p.f32 > test.most {
			t.Errorf("of %d bytes of memory %+v, %v", test.memory, p, err)
		}
	}
	// A layer that is there already takes what is made for it less: 512 bytes of codes a row, and 16 scales with their float32.
	made := Options{Shapes: []Shape{{1024, 1024}}, Bits: []int{4}, M: []int{1}, Group: 64, PoolBytes: 1}
	there := Options{M: []int{1}, PoolBytes: 1, Layers: []Layer{{Matrix: conform.RandomMatrix(rand.New(rand.NewPCG(1, 2)), 1024, 1024, 4, 64, weight.F16)}}}
	a, errA := made.plan(false)
	b, errB := there.plan(false)
	if errA != nil || errB != nil || a.rest-b.rest != 1024*(512+16*6) || a.packed != b.packed {
		t.Errorf("made %+v, there %+v, %v, %v", a, b, errA, errB)
	}
	o := Options{LastCache: 3 << 20}
	if got := o.pastCaches(); got != 25<<20 {
		t.Errorf("eight times a cache of 3 MiB and a little are %d bytes", got)
	}
	if o.LastCache = 0; o.pastCaches() != 8*lastCache()+1<<20 {
		t.Errorf("got %d", o.pastCaches())
	}
}

// TestRepetitions: a row that has too little time is repeated less often.
func TestRepetitions(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m := conform.RandomMatrix(r, 20, 70, 4, 32, weight.F16)
	e, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	o := Options{M: []int{1}, PoolBytes: 1 << 14, Time: 25 * time.Millisecond, Layers: []Layer{{Matrix: m}}}
	p, err := o.plan(e.Fixes())
	if err != nil {
		t.Fatal(err)
	}
	f, err := formOf(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		time time.Duration
		left int
		want int
	}{{time.Hour, 2, Repetitions}, {30 * time.Millisecond, 1, 1}, {time.Hour, int(time.Hour / (30 * time.Millisecond)), 1}} {
		b := bench{Options: o, engine: e, rand: r, plan: p, end: time.Now().Add(test.time), left: test.left}
		s := subject{m, f}
		w, err := b.pools(t.Context(), o.Layers[0])
		if err != nil {
			t.Fatal(err)
		}
		rows, err := b.row(t.Context(), s, w, 1)
		if err != nil || rows[0].Repetitions != test.want {
			t.Errorf("in %v for %d rows: %+v, %v", test.time, test.left, rows, err)
		}
	}
}

// patience is what a run may take on a busy machine that would take minutes if it went on.
const patience = 10 * time.Second

// TestLimit: when the time is up the rows so far are there.
func TestLimit(t *testing.T) {
	o := Options{Shapes: []Shape{{8, 8}}, Bits: []int{4}, PoolBytes: 1 << 12, Threads: 1, Time: 100 * time.Millisecond, Limit: 300 * time.Millisecond}
	for m := range 200 {
		o.M = append(o.M, m+1)
	}
	start := time.Now()
	rows, err := CPU(t.Context(), o)
	if took := time.Since(start); !errors.Is(err, ErrLimit) || len(rows) >= 200 || took > patience {
		t.Errorf("%d rows in %v, %v", len(rows), took, err)
	}
	o.Limit = 1
	if rows, err := CPU(t.Context(), o); !errors.Is(err, ErrLimit) || len(rows) > 0 {
		t.Errorf("%d rows in no time, %v", len(rows), err)
	}
}

// TestInterrupt: whatever the work is at, nobody waits long for it once the context has ended.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	block, ended := make(chan bool), make(chan error, 1)
	var got []int
	start := time.Now()
	err := inParts(ctx, func(done func(int) error) error {
		if err := done(1); err != nil {
			t.Error(err)
		}
		cancel()
		<-block // as a product that takes minutes
		err := done(2)
		ended <- err
		return err
	}, func(part int) { got = append(got, part) })
	if took := time.Since(start); !errors.Is(err, context.Canceled) || took > patience || len(got) != 1 {
		t.Errorf("%v after %v, with parts %v", err, took, got)
	}
	close(block)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the work went on: %v", err)
	}

	// At every stage: in the rings, in timing, between rows.
	for _, after := range []time.Duration{0, time.Millisecond, 30 * time.Millisecond, 200 * time.Millisecond} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(after, cancel)
		start := time.Now()
		_, err := CPU(ctx, Options{Shapes: []Shape{{512, 512}}, PoolBytes: 64 << 20, Time: time.Minute, Threads: 1})
		if took := time.Since(start); !errors.Is(err, context.Canceled) || took > patience {
			t.Errorf("interrupted after %v: %v after %v", after, err, took)
		}
		cancel()
	}
}
