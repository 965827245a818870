package cpu

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestPool gives a pool many small jobs, in quick succession and with pauses
// in which its workers park, and counts what is done.
func TestPool(t *testing.T) {
	for _, test := range []struct {
		name    string
		workers int
		spin    time.Duration
	}{
		{"no workers", 0, spinTime},
		{"spinning", 1, spinTime},
		{"parking", 1, 0},
		{"several", 4, spinTime},
		{"several, parking", 4, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPool(test.workers, test.spin)
			defer p.stop()
			inside := make([]atomic.Bool, test.workers+1)
			for i := range 2000 {
				n, tasks := i%(test.workers+3), i%7
				var next, done atomic.Int64
				p.run(n, func(worker int) {
					if worker > n {
						t.Errorf("job for %d workers ran on worker %d", n, worker)
					}
					if inside[worker].Swap(true) {
						t.Errorf("worker %d runs two jobs at once", worker)
					}
					for int(next.Add(1)) <= tasks {
						done.Add(1)
					}
					inside[worker].Store(false)
				})
				if got := int(done.Load()); got != tasks {
					t.Fatalf("job %d: %d tasks were done when it returned, want %d", i, got, tasks)
				}
				if i%200 == 0 {
					time.Sleep(2 * spinTime)
				}
			}
		})
	}
}

// TestPoolHelp has a job that cannot end without all its workers, asleep and
// awake.
func TestPoolHelp(t *testing.T) {
	p := newPool(3, spinTime)
	defer p.stop()
	for i := range 50 {
		var here atomic.Int64
		p.run(3, func(int) {
			here.Add(1)
			for start := time.Now(); here.Load() < 4; time.Sleep(10 * time.Microsecond) {
				if time.Since(start) > 10*time.Second {
					t.Error("a worker did not come")
					return
				}
			}
		})
		if i%10 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// TestPoolRest sees the workers park after their work.
func TestPoolRest(t *testing.T) {
	p := newPool(3, spinTime)
	defer p.stop()
	for range 20 {
		p.run(3, func(int) {})
	}
	for i := range p.workers {
		for start := time.Now(); !p.workers[i].parked.Load(); time.Sleep(time.Millisecond) {
			if time.Since(start) > 10*time.Second {
				t.Fatalf("worker %d is still looking for work", i+1)
			}
		}
	}
}

// BenchmarkDispatch is an empty parallel section.
func BenchmarkDispatch(b *testing.B) {
	e, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	for b.Loop() {
		e.Parallel(e.Threads(), func(int, int) {})
	}
}
