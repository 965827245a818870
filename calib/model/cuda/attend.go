package cuda

import (
	"encoding/binary"
	"fmt"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// What attend.cu is built on; it has the same numbers.
const (
	attendHeads = 8   // of queries that share what is read, at most
	attendChunk = 256 // keys of a part of a text that has several

	// Blocks that parts of texts make of a row at most, more than GPUs have multiprocessors.
	attendBlocks = 256

	// Blocks of eight warps that an H200 has room for at once: of more than these each has four. They do not depend on
	// the GPU, nor on how long texts are, so that texts beside as many others have the same bits.
	attendAtOnce = 2 * 132
)

// attendArgs is AttendArgs in attend.cu.
type attendArgs struct {
	out, prepared, rotated            driver.Ptr
	parts, arrived                    driver.Ptr
	q, k, v                           driver.Ptr
	qBias, kBias, vBias, qNorm, kNorm driver.Ptr
	cos, sin, rows, keys, values      driver.Ptr
	sinks                             driver.Ptr
	head                              uint64
	gated                             uint32
	qPitch, kvPitch, heads, group     uint32
	half, window                      uint32
	qEps, kEps, scale, limit          float32
	_                                 uint32
}

// attendKernel returns the kernel for heads of so many elements and so many blocks of each part of texts, and its threads.
func attendKernel(dim, blocks int) (name string, threads uint32) {
	switch {
	case dim > 128:
		return fmt.Sprintf("attend_%d", dim), 128
	case blocks > attendAtOnce:
		return fmt.Sprintf("attend_many_%d", dim), 128
	}
	return fmt.Sprintf("attend_%d", dim), 256
}

// Attends implements [model.Recorder].
func (o *Ops) Attends(s model.AttentionShape) bool {
	return o.acts != driver.F32 && s.Dim%32 == 0 && (s.Dim <= 128 || s.Dim == 256)
}

// Attend is attention of a token a text.
func (o *Ops) Attend(out, keys, values model.Array, h model.StepHeads, at model.Step, c model.CacheShape, s model.AttentionShape, arrived model.Array) {
	rows, wide, narrow := checkStep(at, c, keys, values), s.Heads*s.Dim, s.KVHeads*s.Dim
	queries := wide
	if h.Gated {
		queries *= 2
	}
	check(o.Attends(s) && s.KVHeads == c.KVHeads && s.Dim == c.Dim && s.Heads%s.KVHeads == 0 && 2*h.Half <= s.Dim, "attention %+v over %+v", s, c)
	ends := func(a model.Array, pitch, width int) bool { return pitch >= width && a.Len() >= (rows-1)*pitch+width }
	check(ends(h.Q, h.QPitch, queries) && ends(h.K, h.KVPitch, narrow) && ends(h.V, h.KVPitch, narrow) && out.Len() == rows*wide,
		"%d queries, %d and %d elements, %d results of %d rows of %+v", h.Q.Len(), h.K.Len(), h.V.Len(), out.Len(), rows, s)
	check(h.Cos.Len() >= rows*h.Half && h.Sin.Len() >= rows*h.Half && arrived.Len() >= rows*s.Heads, "%d and %d angles, room for %d of %d rows", h.Cos.Len(), h.Sin.Len(), arrived.Len(), rows)
	for _, some := range []struct {
		a model.Array
		n int
	}{{h.QBias, wide}, {h.KBias, narrow}, {h.VBias, narrow}, {h.QNorm, s.Dim}, {h.KNorm, s.Dim}, {s.Sinks, s.Heads}} {
		check(some.a == nil || some.a.Len() == some.n, "biases, norms or sinks of %+v have another length", s)
	}
	o.do(func() {
		if in, ok := out.(*input); ok && in.form == rotated && !attendsBlocks(s) {
			o.rowByRow(out, func(out model.Array) { o.attendStep(out, keys, values, h, at, rows, c, s, arrived) })
			return
		}
		o.attendStep(out, keys, values, h, at, rows, c, s, arrived)
	})
}

// attendsBlocks reports whether heads that a block of attend.cu has are whole blocks of what rotations mix.
func attendsBlocks(s model.AttentionShape) bool {
	return (trellis.Block%s.Dim == 0 || s.Dim%trellis.Block == 0) && s.Heads/s.KVHeads*s.Dim%trellis.Block == 0
}

// attendStep queues attention of some rows. It is called inside do.
func (o *Ops) attendStep(out, keys, values model.Array, h model.StepHeads, at model.Step, rows int, c model.CacheShape, s model.AttentionShape, arrived model.Array) {
	group := s.Heads / s.KVHeads
	blocks := s.KVHeads * ceil(group, attendHeads)
	parts := min(ceil(c.Positions, attendChunk), max(attendBlocks/blocks, 1))
	plain, prepared, turned := inputOf(out).at()
	check(plain == 0 || prepared|turned == 0, "attention is read in two forms")
	var room driver.Ptr
	if parts > 1 {
		room = o.scratch(4 * rows * s.Heads * parts * (s.Dim + 2))
		defer o.release(room)
	}
	args, err := binary.Append(nil, binary.LittleEndian, attendArgs{
		out: plain, prepared: prepared, rotated: turned, parts: room, arrived: ptr(arrived), q: ptr(h.Q), k: ptr(h.K), v: ptr(h.V),
		qBias: ptr(h.QBias), kBias: ptr(h.KBias), vBias: ptr(h.VBias), qNorm: ptr(h.QNorm), kNorm: ptr(h.KNorm),
		cos: ptr(h.Cos), sin: ptr(h.Sin), rows: ptr(at.Rows), keys: ptr(keys), values: ptr(values), sinks: ptr(s.Sinks),
		head: uint64(c.Head()), gated: uint32(truth(h.Gated)), qPitch: uint32(h.QPitch), kvPitch: uint32(h.KVPitch), heads: uint32(s.Heads), group: uint32(group),
		half: uint32(h.Half), window: uint32(s.Window), qEps: float32(h.QEps), kEps: float32(h.KEps), scale: s.Scale, limit: s.Cap,
	})
	o.fail(err)
	grid := driver.Dim{X: uint32(rows), Y: uint32(blocks), Z: uint32(parts)}
	name, threads := attendKernel(s.Dim, rows*blocks)
	o.launchEarly(name, grid, driver.Dim{X: threads}, args)
}
