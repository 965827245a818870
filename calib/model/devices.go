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

// On says on which of several devices something failed.
func On(ops Ops, err error) error { return fmt.Errorf("%s: %w", Label(ops), err) }
