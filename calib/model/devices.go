package model

import "fmt"

// Labeled are operations of one of several devices, which its label tells apart: "GPU 1".
type Labeled interface{ Label() string }

// Label tells a device apart from others.
func Label(ops Ops) string {
	if l, ok := ops.(Labeled); ok {
		return l.Label()
	}
	return ops.Name()
}

// Receiver are operations of a device that another can send arrays to without the host.
type Receiver interface {
	// Receive copies src, floats of another device, to dst once what is queued there is done. It reports false where there is
	// no way from that device. Both arrays may be used when it returns.
	Receive(dst Array, from Ops, src Array) bool
}

// Send copies src, floats of a device, to dst, as many floats of another.
func Send(dst Array, to Ops, src Array, from Ops) {
	if r, ok := to.(Receiver); ok && r.Receive(dst, from, src) {
		return
	}
	v := make([]float32, src.Len())
	from.Read(v, src)
	to.Write(dst, v)
}

// On says on which of several devices something failed.
func On(ops Ops, err error) error { return fmt.Errorf("%s: %w", Label(ops), err) }
