package driver

import (
	"errors"
	"fmt"
	"unsafe"
)

// Graph is work with its order, to be launched as one. It is made by
// [Stream.Capture] or node by node.
type Graph struct {
	api    *cudaAPI
	handle uintptr
}

// Node is a piece of work of a [Graph].
type Node uintptr

// Capture makes a graph of what fn queues on the stream, instead of doing it.
// Until fn returns nothing may be waited for, allocated or freed.
func (s *Stream) Capture(fn func() error) (*Graph, error) {
	a := s.api
	if err := a.check("cuStreamBeginCapture_v2", call(a.streamBeginCapture, s.handle, cuCaptureModeThreadLocal)); err != nil {
		return nil, err
	}
	g := &Graph{api: a}
	ended := false
	end := func() error {
		ended = true
		return a.check("cuStreamEndCapture", call(a.streamEndCapture, s.handle, uintptr(unsafe.Pointer(&g.handle))))
	}
	defer func() {
		if !ended { // fn panicked
			_ = end()
		}
	}()
	err := fn()
	if endErr := end(); err == nil {
		err = endErr
	}
	if err != nil {
		if g.handle != 0 {
			_ = g.Close()
		}
		return nil, err
	}
	return g, nil
}

// NewGraph makes an empty graph.
func (d *Device) NewGraph() (*Graph, error) {
	g := &Graph{api: d.api}
	if err := d.api.check("cuGraphCreate", call(d.api.graphCreate, uintptr(unsafe.Pointer(&g.handle)), 0)); err != nil {
		return nil, err
	}
	return g, nil
}

// Close releases the graph. What was instantiated from it stays.
func (g *Graph) Close() error {
	return g.api.check("cuGraphDestroy", call(g.api.graphDestroy, g.handle))
}

// Nodes returns how many pieces of work the graph has.
func (g *Graph) Nodes() (int, error) {
	var n uint64
	err := g.api.check("cuGraphGetNodes", call(g.api.graphGetNodes, g.handle, 0, uintptr(unsafe.Pointer(&n))))
	return int(n), err
}

// cKernelNodeParams is CUDA_KERNEL_NODE_PARAMS_v2.
type cKernelNodeParams struct {
	function    uintptr
	grid, block [3]uint32
	shared      uint32
	_           uint32
	values      unsafe.Pointer
	extra       uintptr
	kernel, ctx uintptr
}

func kernelNode(f *Function, a *Args) *cKernelNodeParams {
	return &cKernelNodeParams{
		function: f.handle, grid: a.config.grid, block: a.config.block,
		shared: a.config.shared, values: unsafe.Pointer(&a.values[0]),
	}
}

var errProgrammaticNode = errors.New("a programmatic launch becomes part of a graph by capture only")

// AddKernel adds a kernel that runs after the nodes given. The arguments are
// copied.
func (g *Graph) AddKernel(f *Function, l Launch, a *Args, after ...Node) (Node, error) {
	if l.Programmatic {
		return 0, fmt.Errorf("kernel %s: %w", f.name, errProgrammaticNode)
	}
	if err := a.prepare(&l, 0); err != nil {
		return 0, fmt.Errorf("kernel %s: %w", f.name, err)
	}
	params := kernelNode(f, a)
	var n Node
	err := g.api.check("cuGraphAddKernelNode_v2", call(g.api.graphAddKernelNode,
		uintptr(unsafe.Pointer(&n)), g.handle, uintptr(unsafe.Pointer(unsafe.SliceData(after))), uintptr(len(after)),
		uintptr(unsafe.Pointer(params))))
	for i := 0; err == nil && i < int(a.config.numAttrs); i++ {
		at := &a.attrs[i]
		err = g.api.check("cuGraphKernelNodeSetAttribute", call(g.api.graphKernelNodeSetAttribute,
			uintptr(n), uintptr(at.id), uintptr(unsafe.Pointer(&at.value))))
	}
	if err != nil {
		return 0, fmt.Errorf("kernel %s: %w", f.name, err)
	}
	return n, nil
}

// Instantiate makes the graph ready for launching.
func (g *Graph) Instantiate() (*GraphExec, error) {
	e := &GraphExec{api: g.api}
	err := g.api.check("cuGraphInstantiateWithFlags", call(g.api.graphInstantiate, uintptr(unsafe.Pointer(&e.handle)), g.handle, 0))
	if err != nil {
		return nil, err
	}
	return e, nil
}

// GraphExec is a graph that can be launched.
type GraphExec struct {
	api    *cudaAPI
	handle uintptr
	args   [2]uintptr
}

// Launch queues all of the graph.
func (e *GraphExec) Launch(s *Stream) error {
	e.args = [2]uintptr{e.handle, s.handle}
	return e.api.check("cuGraphLaunch", call(e.api.graphLaunch, e.args[:]...))
}

// Upload does what the first launch would otherwise do before it runs.
func (e *GraphExec) Upload(s *Stream) error {
	return e.api.check("cuGraphUpload", call(e.api.graphUpload, e.handle, s.handle))
}

// SetKernel changes what a kernel node of the graph runs from the next launch
// on. The attributes of the node stay.
func (e *GraphExec) SetKernel(n Node, f *Function, l Launch, a *Args) error {
	err := a.prepare(&l, 0)
	if err == nil {
		params := kernelNode(f, a)
		err = e.api.check("cuGraphExecKernelNodeSetParams_v2", call(e.api.graphExecKernelNodeSetParams,
			e.handle, uintptr(n), uintptr(unsafe.Pointer(params))))
	}
	if err != nil {
		return fmt.Errorf("kernel %s: %w", f.name, err)
	}
	return nil
}

// Close releases it, once it does not run any more.
func (e *GraphExec) Close() error {
	return e.api.check("cuGraphExecDestroy", call(e.api.graphExecDestroy, e.handle))
}
