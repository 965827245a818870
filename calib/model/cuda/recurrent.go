package cuda

import (
	"encoding/binary"
	"fmt"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

var (
	_ model.RecurrentOps = (*Ops)(nil)
	_ model.DeltaStepper = (*Ops)(nil)
)

// What the kernels of mixers.cu and delta.cu are made for.
const (
	mostConvolved  = 8   // tokens
	mostDelta      = 256 // elements of a head
	mostDeltaStep  = 128 // likewise, of the newest tokens
	deltaStepParts = 2   // threads of a column, likewise
	deltaColumns   = 32  // of a block
	deltaThreads   = 128 // likewise
	deltaFactors   = 5   // of a row and a head
)

// CopyHeads copies heads of rows.
func (o *Ops) CopyHeads(dst, src model.Array, s model.HeadsShape) {
	to, from := s.Spans()
	check(dst.Len() >= to && src.Len() >= from, "heads %+v of %d elements to %d", s, src.Len(), dst.Len())
	n := s.Rows * s.Heads * s.Width
	if n == 0 {
		return
	}
	grid, block := overAll(n)
	o.do(func() {
		o.launch(o.of("copy_heads", src), grid, block, dst, src, s.Heads, s.Width, s.ToRow, s.ToHead, s.FromRow, s.FromHead, n)
	})
}

// rowsOf returns how many rows a step has, and where they are told: nowhere where nothing is kept.
func rowsOf(at model.Step, kept model.Array) (n int, rows model.Array) {
	for _, r := range at.Runs {
		n += r.Rows
	}
	if kept == nil {
		check(len(at.Runs) == 1, "%d texts of which nothing is kept", len(at.Runs))
		return n, nil
	}
	check(at.Rows.Len() == 2*n, "%d places of %d rows", at.Rows.Len(), n)
	return n, at.Rows
}

// starts is in how many places runs begin at most, so many rows one from the other: each row is looked at where runs differ in length.
func starts(n int, runs []model.Run) (count, stride int) {
	for _, r := range runs {
		if r.Rows != runs[0].Rows {
			return n, 1
		}
	}
	return len(runs), runs[0].Rows
}

// Convolve passes channels through a convolution each.
func (o *Ops) Convolve(y, x, w, bias, kept model.Array, at model.Step, s model.ConvShape) {
	texts, n := textsOf(at, kept)
	check(y.Len() == n*s.Channels && x.Len() == y.Len() && w.Len() == s.Channels*s.Width, "convolution %+v of %d elements to %d", s, x.Len(), y.Len())
	if n == 0 {
		return
	}
	o.do(func() {
		o.convolve(y, convRows{x: x, pitch: s.Channels, w: w, bias: bias, kept: kept, columns: s.Channels, width: s.Width}, texts, n)
	})
}

// DeltaRule takes states through tokens.
func (o *Ops) DeltaRule(out, x, a, b, aLog, bias, state model.Array, at model.Step, s model.DeltaShape) {
	n, rows := rowsOf(at, state)
	check(x.Len() == n*(2*s.KHeads*s.KDim+s.VHeads*s.VDim) && out.Len() == n*s.VHeads*s.VDim && max(s.KDim, s.VDim) <= mostDelta,
		"delta rule %+v of %d rows: %d elements to %d", s, n, x.Len(), out.Len())
	check(a.Len() == n*s.VHeads && b.Len() == n*s.VHeads, "%d and %d gates of %d rows of %d heads", a.Len(), b.Len(), n, s.VHeads)
	if n == 0 {
		return
	}
	count, stride := starts(n, at.Runs)
	grid := driver.Dim{X: uint32(count), Y: uint32(s.VHeads), Z: uint32(ceil(s.VDim, deltaColumns))}
	o.do(func() {
		factors := o.scratch(4 * deltaFactors * n * s.VHeads)
		warps, threads := overAll(32 * n * s.KHeads)
		o.launch("delta_factors", warps, threads, factors, x, a, b, aLog, bias, s.KHeads, s.VHeads, s.KDim, s.VDim, n)
		o.launch(deltaKernel("delta_rule", s), grid, driver.Dim{X: deltaThreads}, out, x, factors, state, rows, stride, s.KHeads, s.VHeads, s.KDim, s.VDim, n)
		o.release(factors)
	})
}

// deltaKernel returns the kernel of a family for heads of that size.
func deltaKernel(family string, s model.DeltaShape) string {
	key := 64
	for key < s.KDim {
		key *= 2
	}
	return fmt.Sprintf("%s_%d", family, key)
}

// deltaStepArgs is DeltaStepArgs in delta.cu.
type deltaStepArgs struct {
	out, prepared, rotated                         driver.Ptr
	qkv, z, x, b, a                                driver.Ptr
	conv, aLog, bias, norm                         driver.Ptr
	kept, state, rows                              driver.Ptr
	qkvPitch, zPitch, head, key, value             uint32
	vHead, zHead, gate                             uint32
	hidden, kHeads, vHeads, keyDim, valueDim, wide uint32
	eps                                            float32
	_                                              uint32
}

// DeltaSteps implements [model.DeltaStepper].
func (o *Ops) DeltaSteps(s model.DeltaShape, c model.ConvShape, gates ...model.Weight) bool {
	for _, w := range gates {
		if m, ok := w.(*matrix); !ok || m.packed != nil || m.home != nil {
			return false
		}
	}
	return max(s.KDim, s.VDim) <= mostDeltaStep && s.KDim%4 == 0 && s.VDim%16 == 0 && s.KDim <= s.VDim && c.Width <= mostConvolved
}

// DeltaStep is a gated delta rule of a token a text.
func (o *Ops) DeltaStep(y model.Array, s model.DeltaStep, at model.Step) {
	n, rows := rowsOf(at, s.State)
	d, c := s.Shape, s.Conv
	check(o.DeltaSteps(d, c, s.B, s.A) && c.Channels == 2*d.KHeads*d.KDim+d.VHeads*d.VDim && len(at.Runs) == n, "a step of %d rows of %+v", n, d)
	x, b, a := inputOf(s.X), s.B.(*matrix), s.A.(*matrix)
	check(x.rows != nil && x.n == n*b.k && b.k == a.k && y.Len() == n*d.VHeads*d.VDim, "gates of %d elements of %d rows to %d", x.n, n, y.Len())
	check(s.QKV.Len() >= (n-1)*s.QKVPitch+c.Channels && s.Z.Len() >= (n-1)*s.ZPitch+d.VHeads*d.VDim, "%d and %d elements of %d rows %d and %d apart", s.QKV.Len(), s.Z.Len(), n, s.QKVPitch, s.ZPitch)
	each := d.VHeads / d.KHeads
	args := deltaStepArgs{
		qkv: ptr(s.QKV), z: ptr(s.Z), x: x.rows.ptr, conv: ptr(s.Weights), aLog: ptr(s.ALog), bias: ptr(s.Bias), norm: ptr(s.Norm),
		kept: ptr(s.Kept), state: ptr(s.State), rows: ptr(rows), qkvPitch: uint32(s.QKVPitch), zPitch: uint32(s.ZPitch),
		head: uint32(d.KDim), key: uint32(d.KHeads * d.KDim), value: uint32(2 * d.KHeads * d.KDim), vHead: uint32(each * d.VDim), zHead: uint32(each * d.VDim), gate: uint32(each),
		hidden: uint32(b.k), kHeads: uint32(d.KHeads), vHeads: uint32(d.VHeads), keyDim: uint32(d.KDim), valueDim: uint32(d.VDim), wide: uint32(c.Width), eps: float32(s.Eps),
	}
	if s.Grouped {
		args.head = uint32(2*d.KDim + 2*each*d.VDim)
		args.key, args.value, args.vHead, args.zHead, args.gate = uint32(d.KDim), uint32(2*d.KDim), args.head, args.head, uint32(2*each)
	}
	o.do(func() {
		args.b, args.a = b.dense, a.dense
		if s.Grouped {
			args.a += driver.Ptr(each * b.k * o.acts.Size())
		}
		step := func(y model.Array) {
			args.out, args.prepared, args.rotated = inputOf(y).at()
			packed, err := binary.Append(nil, binary.LittleEndian, args)
			o.fail(err)
			o.launchEarly(deltaKernel("delta_step", d), driver.Dim{X: uint32(n), Y: uint32(d.VHeads)}, driver.Dim{X: uint32(deltaStepParts * d.VDim)}, packed)
		}
		if d.VDim%trellis.Block != 0 { // of which the forms of products are made
			o.rowByRow(y, step)
			return
		}
		step(y)
	})
}
