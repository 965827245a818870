package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure an [Engine].
type Options struct {
	// Threads is the number of workers, the calling goroutine included; 0
	// means GOMAXPROCS.
	Threads int

	// ISA forces an instruction set: "avx512", "avx2", "neon" or "generic". Empty
	// means $LUTQ_ISA, and where that is unset the best that the machine has.
	ISA string

	// Exact has [Engine.Arrange] leave quantized weights in float32.
	Exact bool
}

// Engine runs products and other parallel work on a fixed set of workers. Its
// methods may be called from several goroutines; those that run in parallel
// take turns.
type Engine struct {
	isa     isa
	threads int
	exact   bool

	mu            sync.Mutex      // serializes parallel sections; guards the scratch
	xbuf          []float32       // packed activations
	units         []unit          // of the product at hand
	bufs          [][]float32     // decoded panels, by worker
	tiles         []edgeTile      // by worker
	back          packed          // of MatMulBack and Outer
	fused         []fusedOp       // of the product at hand
	fixed, others []Op            // of the product at hand
	fixedX        fixedRows       // of the product at hand
	rows          []rowOp         // of the product at hand
	planes        []planesOp      // of the product at hand
	planeTables   PlaneTables     // of the product at hand
	rings         ringsScratch    // of the product at hand
	fusedScratch  []fusedScratch  // by worker
	fixedScratch  []*fixedScratch // by worker
	tableScratch  []tableScratch  // by worker
	pool          *pool           // the workers but for worker 0, the caller
}

// New starts an engine. [Engine.Close] stops its workers.
func New(o Options) (*Engine, error) {
	s, err := pickISA(o.ISA)
	if err != nil {
		return nil, err
	}
	threads := o.Threads
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	e := &Engine{
		isa:          s,
		threads:      threads,
		exact:        o.Exact,
		bufs:         make([][]float32, threads),
		tiles:        make([]edgeTile, threads),
		fusedScratch: make([]fusedScratch, threads),
		fixedScratch: make([]*fixedScratch, threads),
		tableScratch: make([]tableScratch, threads),
	}
	e.rings.native = s.fixesRings()
	var spin time.Duration
	if threads <= runtime.GOMAXPROCS(0) {
		spin = spinTime
	}
	e.pool = newPool(threads-1, spin)
	return e, nil
}

// Close stops the workers and waits for them. The engine must not be used
// afterwards.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pool.stop()
	e.pool.workers = nil
}

// Threads returns the number of workers.
func (e *Engine) Threads() int { return e.threads }

// ISA returns the name of the instruction set in use.
func (e *Engine) ISA() string { return e.isa.String() }

// Parallel calls f(worker, i) for every i from 0 to n-1 and returns when all
// are done. Calls with the same worker, a number below Threads, do not
// overlap, so that f may keep scratch memory by worker; which worker gets
// which i is not fixed. f must not call a method of e that runs in parallel
// itself.
func (e *Engine) Parallel(n int, f func(worker, i int)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.parallel(n, f)
}

// parallel is Parallel with e.mu held.
func (e *Engine) parallel(n int, f func(worker, i int)) {
	if n <= 0 {
		return
	}
	var next atomic.Int64
	e.pool.run(min(e.threads, n)-1, func(worker int) {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			f(worker, i)
		}
	})
}

// split calls f for parts of the numbers from 0 to n-1, from s0 to s1, with
// e.mu held. There are a few parts for every worker, so that one who is late
// or disturbed leaves his to the others.
func (e *Engine) split(n int, f func(worker, s0, s1 int)) {
	const each = 4
	parts := min(n, each*e.threads)
	e.parallel(parts, func(worker, i int) { f(worker, n*i/parts, n*(i+1)/parts) })
}
