package cpu

import (
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestParallel(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		e, err := New(Options{Threads: threads})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, 1, 2, 4, 5, 6, 1000} {
			calls := make([]int, n)
			busy := make([]atomic.Bool, threads)
			e.Parallel(n, func(worker, i int) {
				if busy[worker].Swap(true) {
					t.Errorf("worker %d of %d does two tasks at once", worker, threads)
				}
				calls[i]++
				busy[worker].Store(false)
			})
			for i, c := range calls {
				if c != 1 {
					t.Errorf("%d threads, %d tasks: task %d ran %d times", threads, n, i, c)
				}
			}
		}
		e.Close()
	}
}

// TestConcurrentCallers shares an engine between goroutines.
func TestConcurrentCallers(t *testing.T) {
	e, err := New(Options{Threads: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	const n, k = 40, 64
	data := make([]byte, 4*n*k)
	for i := range data {
		data[i] = byte(i % 61)
	}
	w, err := NewDense(n, k, "F32", data)
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, 20*k)
	for i := range x {
		x[i] = float32(i % 7)
	}
	want := poisoned(20 * n)
	e.MatMul(want, x, 20, w)
	done := make(chan []float32)
	for range 4 {
		go func() {
			y := poisoned(20 * n)
			e.MatMul(y, x, 20, w)
			done <- y
		}()
	}
	for range 4 {
		if y := <-done; diff(y, want) >= 0 {
			t.Error("a product differs among concurrent callers")
		}
	}
}

func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 10 {
		e, err := New(Options{Threads: 8})
		if err != nil {
			t.Fatal(err)
		}
		e.Parallel(20, func(int, int) {})
		e.Close()
	}
	// Close waits for the workers' last statement; the runtime may take a
	// moment more to forget them.
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d goroutines: want %d as before", runtime.NumGoroutine(), before)
}

func TestOptions(t *testing.T) {
	t.Setenv("LUTQ_ISA", "")
	e, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if got, want := e.Threads(), runtime.GOMAXPROCS(0); got != want {
		t.Errorf("threads: got %d, want %d", got, want)
	}
	names := ISAs()
	if got, want := e.ISA(), names[len(names)-1]; got != want {
		t.Errorf("instruction set: got %s, want the best, %s", got, want)
	}

	t.Setenv("LUTQ_ISA", "generic")
	forced, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer forced.Close()
	if forced.ISA() != "generic" {
		t.Errorf("LUTQ_ISA=generic gave %s", forced.ISA())
	}
	over, err := New(Options{ISA: names[len(names)-1]})
	if err != nil {
		t.Fatal(err)
	}
	defer over.Close()
	if got, want := over.ISA(), names[len(names)-1]; got != want {
		t.Errorf("Options.ISA beside LUTQ_ISA: got %s, want %s", got, want)
	}

	t.Setenv("LUTQ_ISA", "mmx")
	if _, err := New(Options{}); err == nil || !strings.Contains(err.Error(), `"mmx"`) {
		t.Errorf("LUTQ_ISA=mmx: got error %v", err)
	}
	for _, name := range []string{"avx2", "avx512"} {
		if slices.Contains(names, name) {
			continue
		}
		if _, err := New(Options{ISA: name}); err == nil || !strings.Contains(err.Error(), "not available") {
			t.Errorf("%s, which is missing here: got error %v", name, err)
		}
	}
}
