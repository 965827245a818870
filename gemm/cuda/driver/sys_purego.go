//go:build linux && (amd64 || arm64) && !nocuda

package driver

import (
	"golang.org/x/sys/unix"

	"github.com/ebitengine/purego"
)

// supported says that this build can open libraries at all.
const supported = true

// dlopen opens a library with its symbols visible to the ones opened later.
func dlopen(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
}

func dlsym(lib uintptr, name string) (uintptr, error) { return purego.Dlsym(lib, name) }

// call calls a C function that takes no floating-point arguments and returns
// what it leaves in the first result register. Go objects whose addresses are
// converted in the argument list stay alive and in place until it returns.
//
//go:uintptrescapes
func call(fn uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}

// threadID identifies the calling thread.
func threadID() int { return unix.Gettid() }
