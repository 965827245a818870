package driver

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// ErrNoCUDA is what [Open] returns from a build that cannot open libraries:
// one with the tag nocuda, or for a system other than Linux on amd64 or arm64.
var ErrNoCUDA = errors.New("built without CUDA")

// ErrClosed is what [Device.Do] returns once the device is closed.
var ErrClosed = errors.New("the device is closed")

// Error is a failed call into one of the libraries.
type Error struct {
	Op     string // the function, such as cuMemAlloc_v2
	Code   int    // its result
	Name   string // the result's name, such as CUDA_ERROR_OUT_OF_MEMORY
	Detail string // what the library says about it; for compilers, the log
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (%d)", e.Op, e.Name, e.Code)
	if e.Name == "" {
		s = fmt.Sprintf("%s: error %d", e.Op, e.Code)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Results that callers tell apart.
const (
	codeOutOfMemory        = 2
	codeNoDevice           = 100
	codeInvalidImage       = 200
	codeNoBinaryForGPU     = 209
	codeInvalidPTX         = 218
	codeUnsupportedPTX     = 222
	codePeersAlready       = 704
	codeNVRTCInvalidOption = 5
)

// IsOutOfMemory reports whether an error means that the GPU's memory is full.
func IsOutOfMemory(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == codeOutOfMemory && strings.HasPrefix(e.Op, "cu")
}

// IsNoDevice reports whether an error means that there is a driver but no GPU.
func IsNoDevice(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == codeNoDevice && strings.HasPrefix(e.Op, "cu")
}

// MissingError is a library that was not found, or found and not usable.
type MissingError struct {
	Library string   // the names tried, such as "libnvrtc.so.13 or libnvrtc.so.12"
	Purpose string   // what it is needed for
	Tried   []string // every place looked in, in order
	Broken  []string // for the files that exist, why they could not be opened
}

func (e *MissingError) Error() string {
	s := fmt.Sprintf("%s not found, which is needed to %s (looked in %s)", e.Library, e.Purpose, strings.Join(e.Tried, ", "))
	if len(e.Broken) > 0 {
		s = fmt.Sprintf("%s not usable, which is needed to %s: %s", e.Library, e.Purpose, strings.Join(e.Broken, "; "))
	}
	return s
}

// goString copies a NUL-terminated C string.
func goString(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// cString returns s with a NUL at its end.
func cString(s string) []byte { return append([]byte(s), 0) }
