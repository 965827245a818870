package cuda

import (
	_ "embed"
	"errors"
	"fmt"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/peers"
	"github.com/lutq/lutq/gemm/cuda/ptx"
)

//go:embed peers.cu
var peersSource string

var (
	_ model.Peer      = (*Ops)(nil)
	_ model.SumNormer = (*Ops)(nil)
)

// peersKernel returns what GPUs that have a part of a model each have besides.
func peersKernel(acts driver.DType) driver.Kernel {
	return driver.Kernel{
		Name:    fmt.Sprintf("peers.%v.cu", acts),
		Source:  prelude() + inputs() + ptx.Peers() + peersSource,
		Options: driver.CompileOptions{Defines: []string{fmt.Sprintf("ACTS=%d", actsDefine[acts])}},
		PTX: func(driver.DeviceInfo) ([]byte, error) {
			return nil, errors.New("what several GPUs add up is compiled when it is needed")
		},
	}
}

// sumAddNorm is the kernel's name.
const sumAddNorm = "sum_add_norm"

// sit loads it.
func (o *Ops) sit() error {
	m, err := o.dev.LoadKernel(peersKernel(o.acts))
	if err != nil {
		return err
	}
	o.modules = append(o.modules, m)
	o.functions[sumAddNorm], err = m.Function(sumAddNorm)
	return err
}

// meet waits for the others to have come as far. It is called inside do.
func (o *Ops) meet() {
	check(o.seat != nil, "a GPU by itself adds up with none")
	if o.err == nil && o.seat.Team().Meet() != nil {
		o.fail(model.ErrPeer)
	}
}

// AddUp adds an array up over all GPUs.
func (o *Ops) AddUp(x model.Array) {
	a := x.(*array)
	o.do(func() {
		if o.meet(); o.err == nil {
			o.fail(o.seat.Sum(o.stream, a.ptr, a.ptr, a.n, a.dtype))
		}
	})
}

// Collect collects rows of all GPUs.
func (o *Ops) Collect(y, x model.Array, rows int) {
	cols := floats(x).n / rows
	check(cols*rows == x.Len() && floats(y).n == rows*cols*o.seat.Ranks(), "%d elements of %d rows to %d", x.Len(), rows, y.Len())
	o.do(func() {
		if o.meet(); o.err == nil {
			o.fail(o.seat.Gather(o.stream, ptr(y), ptr(x), rows, cols))
		}
	})
}

// SumAddNorm adds up x over all GPUs and to h, and normalizes.
func (o *Ops) SumAddNorm(y, h, x, w model.Array, rows int, eps float64) bool {
	cols := w.Len()
	check(y.Len() == rows*cols && floats(h).n == rows*cols && x.Len() == rows*cols, "norm of %d rows of %d: %d and %d to %d elements", rows, cols, h.Len(), x.Len(), y.Len())
	grid, block := perRow(rows, cols)
	if rows > peers.MaxBlocks || cols%elementEach != 0 || ceil(cols, elementEach*int(block.X))*int(block.X)*elementEach*o.acts.Size()/4 > peers.MaxWords {
		return false
	}
	plain, prepared, turned := inputOf(y).at()
	o.do(func() {
		if o.meet(); o.err == nil {
			o.launchEarly(sumAddNorm, grid, block, o.seat.Peers(), plain, prepared, turned, h, x, w, cols, float32(eps), peers.SendsAndTakes)
		}
	})
	return true
}

// recorded waits until the graphs of all GPUs are ready: while one runs, others can make none ready. It is called on the device's goroutine.
func (o *Ops) recorded(g *driver.GraphExec) error {
	if o.seat == nil {
		return nil
	}
	if err := errors.Join(g.Upload(o.stream), o.stream.Sync()); err != nil {
		return err
	}
	return o.seat.Team().Meet()
}
