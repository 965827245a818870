package cuda

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// flashShape is what flash is compiled for.
type flashShape struct {
	dim   int // elements of a head that there is room for
	keys  int // of a tile
	warps int // of a block
}

// flashShapes returns all of them: of those with room for a head the first that the device has shared memory for.
func flashShapes() []flashShape {
	return []flashShape{
		{64, 128, 4}, {80, 64, 4}, {96, 64, 4}, {128, 64, 4}, {128, 32, 4}, {192, 32, 4}, {256, 64, 8}, {256, 32, 4},
	}
}

// prebuilt reports whether there is PTX for where there is no compiler: heads of most models have 64 or 128 elements.
func (s flashShape) prebuilt() bool {
	return s == flashShape{64, 128, 4} || s == flashShape{128, 64, 4}
}

// queries is how many a block has: 32 a warp, or 16 of large heads.
func (s flashShape) queries() int {
	if s.dim <= 128 {
		return 32 * s.warps
	}
	return 16 * s.warps
}

// shared is how many bytes of shared memory a block has: queries, and twice a tile of keys and one of values.
func (s flashShape) shared() int { return (s.queries() + 4*s.keys) * (2*s.dim + 16) }

func (s flashShape) kernel(acts driver.DType) driver.Kernel {
	k := driver.Kernel{
		Name:   fmt.Sprintf("flash.%d.%d.%d.%v.cu", s.dim, s.keys, s.warps, acts),
		Source: prelude() + tiles() + flashSource,
		Options: driver.CompileOptions{Defines: []string{
			fmt.Sprintf("ACTS=%d", actsDefine[acts]), fmt.Sprintf("DIM=%d", s.dim), fmt.Sprintf("KEYS=%d", s.keys), fmt.Sprintf("WARPS=%d", s.warps),
		}},
	}
	if s.prebuilt() {
		k.PTX = builtAhead(k)
	}
	return k
}

// flash queues attention by the kernel flash, and reports whether it could. It is called inside do.
func (o *Ops) flash(out, q model.Array, s model.AttentionShape, seen past) bool {
	keys, values := seen.keys(0), seen.values(0)
	if o.acts == driver.F32 || s.Dim%8 != 0 || !(s.Scale > 0) {
		return false
	}
	plain, prepared, turned := inputOf(out).at()
	if turned != 0 || plain != 0 && prepared != 0 || prepared != 0 && s.Dim%32 != 0 || (ptr(q)|plain|keys.ptr|values.ptr)%16 != 0 {
		return false
	}
	for _, shape := range flashShapes() {
		if s.Dim > shape.dim || shape.shared() > o.dev.Info.SharedPerBlock {
			continue
		}
		f := o.flashFunction(shape)
		if f == nil {
			return false
		}
		o.start(f, driver.Launch{
			Grid:  driver.Dim{X: uint32(s.Heads), Y: uint32(ceil(s.T, shape.queries()))},
			Block: driver.Dim{X: uint32(32 * shape.warps)}, Shared: shape.shared(), Programmatic: o.dev.Info.Major >= 9,
		}, []any{
			plain, q, keys.ptr, values.ptr, s.T, s.Heads, s.Heads / s.KVHeads, s.Dim, keys.ld, int64(keys.stride),
			seen.tokens, s.Window, s.Sinks, s.Scale, s.Cap, prepared,
		})
		return true
	}
	return false
}

// flashFunction returns the kernel, or nil where it takes a compiler and there is none.
func (o *Ops) flashFunction(s flashShape) *driver.Function {
	if f, ok := o.flashes[s]; ok || o.err != nil {
		return f
	}
	m, err := o.dev.LoadKernel(s.kernel(o.acts))
	var missing *driver.MissingError
	if errors.As(err, &missing) {
		o.flashes[s] = nil
		return nil
	}
	if err != nil {
		o.fail(err)
		return nil
	}
	o.modules = append(o.modules, m)
	f, err := m.Function("flash")
	if err == nil {
		err = f.SetMaxDynamicShared(s.shared())
	}
	o.fail(err)
	o.flashes[s] = f
	return f
}
