package cpu

import (
	"sync"
	"sync/atomic"
	"time"
)

// spinTime is how long a worker without work, and a caller without a result,
// looks out for it before parking. Waking a parked goroutine takes longer
// than a small product does, and products of a model follow each other closely.
const spinTime = 20 * time.Microsecond

// pool is a fixed number of goroutines that run jobs together with the one
// that calls. A pool at rest takes no processor time.
type pool struct {
	workers []worker
	spin    time.Duration // 0 where there are more workers than processors
	wake    chan struct{} // for the caller
	done    sync.WaitGroup
}

// worker is the mailbox of one goroutine.
type worker struct {
	job    atomic.Pointer[job]
	parked atomic.Bool
	wake   chan struct{}
	_      [64]byte // the next one's cache line
}

// job is a function that several workers run at once. It divides its work
// among the calls itself, so that it is complete when all calls that began
// have returned.
type job struct {
	run   func(worker int) // nil to stop
	left  atomic.Int32     // workers that have not finished
	state atomic.Int32
}

// States of a job.
const (
	jobRuns     = iota
	jobAwaited  // the caller is parked
	jobFinished // by all workers
)

// newPool starts n workers. The caller is worker 0, they are 1 to n.
func newPool(n int, spin time.Duration) *pool {
	p := &pool{workers: make([]worker, n), spin: spin, wake: make(chan struct{}, 1)}
	for i := range p.workers {
		w := &p.workers[i]
		w.wake = make(chan struct{}, 1)
		p.done.Go(func() {
			for {
				j := w.next(p.spin)
				if j.run == nil {
					return
				}
				j.run(i + 1)
				p.finish(j, 1)
			}
		})
	}
	return p
}

// next waits for a job.
func (w *worker) next(spin time.Duration) *job {
	for {
		if j := w.job.Swap(nil); j != nil {
			return j
		}
		if spin > 0 {
			for start := time.Now(); time.Since(start) < spin && w.job.Load() == nil; {
			}
			if w.job.Load() != nil {
				continue
			}
		}
		w.parked.Store(true)
		// A job may have come before that was seen. Whoever takes the mark
		// back decides whether there is a signal to wait for.
		if w.job.Load() != nil && w.parked.CompareAndSwap(true, false) {
			continue
		}
		<-w.wake
	}
}

// give hands w a job, and wakes it where need be.
func (w *worker) give(j *job) {
	w.job.Store(j)
	if w.parked.CompareAndSwap(true, false) {
		w.wake <- struct{}{}
	}
}

// run calls f on up to n workers and on the calling goroutine, as worker 0,
// and returns when they are done. A worker that has not begun when the caller
// is done is not waited for. Calls of run must not overlap.
func (p *pool) run(n int, f func(worker int)) {
	n = min(n, len(p.workers))
	if n <= 0 {
		f(0)
		return
	}
	j := &job{run: f}
	j.left.Store(int32(n))
	for i := range n {
		p.workers[i].give(j)
	}
	f(0)
	late := 0
	for i := range n {
		if p.workers[i].job.CompareAndSwap(j, nil) {
			late++
		}
	}
	p.finish(j, late)
	if p.spin > 0 {
		for start := time.Now(); time.Since(start) < p.spin && j.state.Load() != jobFinished; {
		}
	}
	if !j.state.CompareAndSwap(jobRuns, jobAwaited) {
		return
	}
	<-p.wake
}

// finish notes that n workers have finished j.
func (p *pool) finish(j *job, n int) {
	if j.left.Add(int32(-n)) == 0 && j.state.Swap(jobFinished) == jobAwaited {
		p.wake <- struct{}{}
	}
}

// stop ends the workers and waits for them.
func (p *pool) stop() {
	quit := new(job)
	for i := range p.workers {
		p.workers[i].give(quit)
	}
	p.done.Wait()
}
