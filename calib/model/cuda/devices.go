package cuda

import (
	"fmt"

	"github.com/lutq/lutq/calib/model"
)

var (
	_ model.Labeled  = (*Ops)(nil)
	_ model.Receiver = (*Ops)(nil)
)

// Label names the GPU.
func (o *Ops) Label() string { return fmt.Sprintf("GPU %d", o.dev.Info.Index) }

// Receive implements [model.Receiver]. It waits for both devices.
func (o *Ops) Receive(dst model.Array, from model.Ops, src model.Array) bool {
	other, ok := from.(*Ops)
	if !ok {
		return false
	}
	d, s := dst.(*array), src.(*array)
	check(d.n == s.n && d.dtype == s.dtype, "%d elements of another device to %d", s.n, d.n)
	if other.Err() != nil {
		return true // which the other device tells
	}
	o.do(func() {
		if o.dev.Info.Index == other.dev.Info.Index {
			o.fail(o.stream.Copy(d.ptr, s.ptr, d.bytes()))
		} else {
			o.fail(o.stream.CopyPeer(d.ptr, o.dev, s.ptr, other.dev, d.bytes()))
		}
		if o.err == nil {
			o.fail(o.stream.Sync())
		}
	})
	return true
}
