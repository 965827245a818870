package cuda

import (
	"encoding/binary"
	"errors"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// What mixture.cu is built on; it has the same numbers.
const (
	mixtureRows   = 64
	mostExperts   = 1024
	mostChosen    = 32
	mostRegions   = 32
	chooseThreads = 1024
	rowsThreads   = 256

	addMixtureThreads = 512 // at most
)

// mixture is a mixture of experts in a step.
type mixture struct {
	o             *Ops
	router        *matrix
	routerBias    model.Array
	top           int
	normalize     bool
	routing       arch.Routing
	correction    model.Array
	act           arch.Gating
	hidden, inter int

	// first are gates, and where they are packed ups in turns with them, which else are apart; or where there are no gates ups.
	first, ups, downs experts
	single            bool // there are no gates
	arrived           driver.Ptr
}

// experts are those of a layer: packed, as one matrix, or each by itself.
type experts struct {
	count  int
	packed *gemmcuda.Matrix
	bias   model.Array // of all, of packed ones; or nil

	weights, biases driver.Ptr // addresses of dense ones and of their biases, or 0
}

// chooseArgs is ChooseArgs in mixture.cu.
type chooseArgs struct {
	logits, arrived, groups, row, pair, weight driver.Ptr
	x, router, bias, correction                driver.Ptr
	rows, cols, experts, top                   uint32
	normalize, sigmoid, regions, topRegions    uint32
	scale                                      float32
	_                                          uint32
}

// Mixture prepares a mixture whose weights lie on the device and are all packed alike, or dense.
func (o *Ops) Mixture(w model.MixtureWeights) (model.Mixture, error) {
	count := len(w.Ups)
	router := w.Router.(operand).base()
	r := w.Routing
	if count > mostExperts || w.Top > min(mostChosen, count) || router.packed != nil || router.home != nil ||
		r.OnInput || r.Groups > mostRegions || !r.Sigmoid && (w.Correction != nil || r.Groups > 0) {
		return nil, nil
	}
	m := &mixture{o: o, router: router, routerBias: w.RouterBias, top: w.Top, normalize: w.Normalize, routing: r, correction: w.Correction, act: w.Act, single: len(w.Gates) == 0}
	m.inter, m.hidden = w.Ups[0].Shape()
	first, biases := w.Ups, [][]model.Array{w.UpBias}
	if !m.single {
		first, biases = nil, [][]model.Array{w.GateBias, w.UpBias}
		for e := range count {
			first = append(first, w.Gates[e], w.Ups[e])
		}
	}
	err := o.now(func() {
		packed, alike := o.alike(first, count, m.gates())
		packedDowns, alikeDowns := o.alike(w.Downs, count, gemmcuda.Gates{})
		// The kernel of packed downs begins when the first packed one has seen who is chosen.
		if !alike || !alikeDowns || packedDowns && !packed {
			m = nil
			return
		}
		switch {
		case packed:
			m.first = o.joinExperts(first, count, biases...)
		case m.single:
			m.first = o.listExperts(w.Ups, w.UpBias)
		default:
			m.first, m.ups = o.listExperts(w.Gates, w.GateBias), o.listExperts(w.Ups, w.UpBias)
		}
		if packedDowns {
			m.downs = o.joinExperts(w.Downs, count, w.DownBias)
		} else {
			m.downs = o.listExperts(w.Downs, w.DownBias)
		}
		if m.arrived = o.scratch(4); o.err == nil {
			o.fail(o.stream.Fill32(m.arrived, 0, 1))
		}
	})
	if err != nil || m == nil {
		return nil, err
	}
	return m, nil
}

// gates is what the first product does.
func (m *mixture) gates() gemmcuda.Gates {
	if m.single {
		return gemmcuda.Gates{}
	}
	return gates(m.act)
}

// alike reports whether weights of so many experts are packed, and whether they all are so that they can be multiplied by, or all dense. It is
// called inside do.
func (o *Ops) alike(weights []model.Weight, count int, g gemmcuda.Gates) (packed, ok bool) {
	all := packedOf(weights)
	if len(all) == 0 {
		for _, w := range weights {
			if m := w.(operand).base(); m.packed != nil || m.home != nil {
				return false, false
			}
		}
		return false, true
	}
	if len(all) < len(weights) {
		return true, false
	}
	of := gemmcuda.Joined(all...)
	return true, of != nil && o.engine.CanMix(of, count, g)
}

// packedOf returns those of some weights that are packed.
func packedOf(weights []model.Weight) []*gemmcuda.Matrix {
	var all []*gemmcuda.Matrix
	for _, w := range weights {
		if m := w.(operand).base(); m.packed != nil {
			all = append(all, m.packed)
		}
	}
	return all
}

// joinExperts joins packed experts, and the biases of each in turns. It is called inside do.
func (o *Ops) joinExperts(weights []model.Weight, count int, biases ...[]model.Array) experts {
	x := experts{count: count}
	if o.err == nil {
		o.fail(o.stream.Sync())
	}
	if o.err == nil {
		var err error
		x.packed, err = o.engine.Join(packedOf(weights)...)
		o.fail(err)
	}
	if biases[0] == nil || o.err != nil {
		return x
	}
	n := 0
	for _, b := range biases {
		n += b[0].Len()
	}
	x.bias = o.Acts(count * n)
	at := 0
	for e := range count {
		for _, b := range biases {
			to := at + b[e].Len()
			o.Copy(x.bias.Slice(at, to), b[e])
			at = to
		}
	}
	return x
}

// listExperts tells the device where dense experts lie. It is called inside do.
func (o *Ops) listExperts(weights []model.Weight, biases []model.Array) experts {
	x := experts{count: len(weights)}
	list := func(n int, at func(i int) driver.Ptr) driver.Ptr {
		all := make([]uint64, n)
		for i := range all {
			all[i] = uint64(at(i))
		}
		to := o.scratch(8 * n)
		o.upload(to, driver.Bytes(all))
		return to
	}
	x.weights = list(len(weights), func(i int) driver.Ptr { return weights[i].(operand).base().dense })
	if biases != nil {
		x.biases = list(len(biases), func(i int) driver.Ptr { return ptr(biases[i]) })
	}
	return x
}

// Rows returns how many rows a step may have.
func (m *mixture) Rows() int { return mixtureRows }

// Close gives back what is the mixture's own.
func (m *mixture) Close() {
	_ = m.o.dev.Do(func() error { // after a failure too
		m.o.release(m.arrived)
		for _, x := range []experts{m.first, m.ups, m.downs} {
			m.o.release(x.weights)
			m.o.release(x.biases)
			m.o.Free(x.bias)
			if x.packed != nil {
				m.o.fail(errors.Join(m.o.stream.Sync(), x.packed.Close()))
			}
		}
		return nil
	})
}

// chosen is who is chosen in a step, as choose_experts and gemm's kernels have it.
type chosen struct {
	rows, pairs, groups      int // the last at most
	list, row, pair, weights driver.Ptr
}

// Mix adds a mixture.
func (o *Ops) Mix(mix model.Mixture, s model.MixStep) {
	m := mix.(*mixture)
	in, wide := s.X.(*array), s.Rows*m.hidden
	check(0 < s.Rows && s.Rows <= m.Rows() && in.dtype == o.acts && in.n == wide && s.Y.Len() == wide && floats(s.H).n == wide && s.Norm.Len() == m.hidden,
		"a mixture of %d rows of %d: %d, %d and %d elements", s.Rows, m.hidden, s.X.Len(), s.Y.Len(), s.H.Len())
	check((s.Shared == nil || s.Shared.Len() == wide) && (s.SharedGate == nil || s.Shared != nil && floats(s.SharedGate).n == s.Rows),
		"what an expert of all tokens has made of %d rows has another length", s.Rows)
	o.do(func() {
		c := chosen{rows: s.Rows, pairs: s.Rows * m.top}
		count := m.first.count
		c.groups = min(c.pairs, count+c.pairs/gemmcuda.GroupRows)
		c.list, c.row, c.pair, c.weights = o.scratch(16*(1+c.groups)), o.scratch(4*c.pairs), o.scratch(4*c.pairs), o.scratch(4*c.pairs)
		logits, mid, out := o.scratch(4*s.Rows*count), o.scratch(c.pairs*m.inter*o.acts.Size()), o.scratch(wide*m.top*o.acts.Size())
		defer func() {
			for _, p := range []driver.Ptr{c.list, c.row, c.pair, c.weights, logits, mid, out} {
				o.release(p)
			}
		}()
		args, err := binary.Append(nil, binary.LittleEndian, chooseArgs{
			logits: logits, arrived: m.arrived, groups: c.list, row: c.row, pair: c.pair, weight: c.weights,
			x: in.ptr, router: m.router.dense, bias: ptr(m.routerBias), correction: ptr(m.correction),
			rows: uint32(s.Rows), cols: uint32(m.hidden), experts: uint32(count), top: uint32(m.top), normalize: uint32(truth(m.normalize)),
			sigmoid: uint32(truth(m.routing.Sigmoid)), regions: uint32(m.routing.Groups), topRegions: uint32(m.routing.TopGroups), scale: float32(m.routing.Factor()),
		})
		o.fail(err)
		o.launchEarly("choose_experts", driver.Dim{X: uint32(count)}, driver.Dim{X: chooseThreads}, args)
		up := mid
		if m.first.packed != nil {
			o.mixed(mid, in.ptr, m.first, c, c.row, m.gates())
		} else {
			o.someExperts(mid, in.ptr, m.first, c, c.row, m.inter, m.hidden)
			if !m.single {
				up = o.scratch(c.pairs * m.inter * o.acts.Size())
				defer o.release(up)
				o.someExperts(up, in.ptr, m.ups, c, c.row, m.inter, m.hidden)
			}
		}
		if m.single || m.first.packed == nil {
			o.glu(&array{mid, c.pairs * m.inter, o.acts}, mid, up, c.pairs, m.inter, m.act)
		}
		if m.downs.packed != nil {
			o.mixed(out, mid, m.downs, c, 0, gemmcuda.Gates{})
		} else {
			o.someExperts(out, mid, m.downs, c, 0, m.hidden, m.inter)
		}
		grid, block := perRow(s.Rows, min(m.hidden, addMixtureThreads*elementEach))
		o.launchEarly("add_mixture", grid, block, s.Y, s.H, out, c.pair, c.weights, s.Shared, s.SharedGate, s.Norm, m.top, m.hidden, float32(s.Eps))
	})
}

// mixed queues products by packed experts. It is called inside do.
func (o *Ops) mixed(y, x driver.Ptr, e experts, c chosen, rows driver.Ptr, g gemmcuda.Gates) {
	if o.err != nil {
		return
	}
	o.product(gemmcuda.Follower{})
	o.fail(o.engine.MatMul(o.stream, e.packed, gemmcuda.Operands{
		Y: y, X: x, Bias: ptr(e.bias), M: min(c.rows, gemmcuda.GroupRows), Gates: g,
		Experts: &gemmcuda.Experts{Count: e.count, Rows: rows, Groups: c.list, Most: c.groups},
	}))
}

// someExperts queues products by dense experts. It is called inside do.
func (o *Ops) someExperts(y, x driver.Ptr, e experts, c chosen, rows driver.Ptr, n, k int) {
	o.product(gemmcuda.Follower{})
	grid := driver.Dim{X: uint32(ceil(n, rowsThreads/32)), Y: uint32(c.groups)}
	o.launchEarly("expert_rows", grid, driver.Dim{X: rowsThreads}, y, x, e.weights, e.biases, c.list, rows, n, k)
}
