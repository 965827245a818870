//go:build linux && (amd64 || arm64) && !nocuda

package driver

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
)

// The C functions of fakeAPI. They are made once, because what purego makes
// for them is never released.
var fakeFunctions = sync.OnceValue(func() *cudaAPI {
	text := []byte("CUDA_ERROR_TEST\x00a test\x00")
	ok := purego.NewCallback(func(uintptr, uintptr) uintptr { return 0 })
	return &cudaAPI{
		getErrorName: purego.NewCallback(func(code uintptr, s **byte) uintptr {
			if code == 999 {
				return 1 // the driver does not know it
			}
			*s = &text[0]
			return 0
		}),
		getErrorString: purego.NewCallback(func(code uintptr, s **byte) uintptr {
			if code == 999 {
				return 1
			}
			*s = &text[16]
			return 0
		}),
		primaryCtxRetain:  purego.NewCallback(func(ctx *uintptr, dev int32) uintptr { *ctx = 0xc0; return 0 }),
		primaryCtxRelease: ok,
		ctxSetCurrent:     ok,
		ctxSynchronize:    purego.NewCallback(func() uintptr { return 700 }),
		streamSynchronize: purego.NewCallback(func(uintptr) uintptr { return 999 }),
		launchKernelEx: purego.NewCallback(func(c *cLaunchConfig, f uintptr, values *[2]unsafe.Pointer, extra uintptr) uintptr {
			if f != 0xf || extra != 0 {
				return 1
			}
			// What the kernel would see goes to where its first argument leads.
			out := *(**fakeLaunch)(values[0])
			out.config = *c
			copy(out.book[:], unsafe.Slice((*float32)(values[1]), len(out.book)))
			if c.numAttrs > 0 {
				out.attr = *(*cLaunchAttribute)(c.attrs)
			}
			return 0
		}),
	}
})

// fakeLaunch is what the fake launch saw.
type fakeLaunch struct {
	config cLaunchConfig
	attr   cLaunchAttribute
	book   [32]float32
}

// fakeDevice returns a device on functions that are written in Go and called
// as C.
func fakeDevice(t *testing.T) *Device {
	t.Helper()
	api := *fakeFunctions()
	d := &Device{api: &api, work: make(chan request), stop: make(chan struct{}), dead: make(chan struct{})}
	ready := make(chan error, 1)
	go d.serve(ready)
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDo(t *testing.T) {
	d := fakeDevice(t)
	if d.ctx != 0xc0 {
		t.Errorf("the context is %#x, want what the driver gave", d.ctx)
	}
	failure := errors.New("failure")
	var threads []int
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			err := d.Do(func() error {
				threads = append(threads, threadID()) // Do takes turns: there is no race
				runtime.Gosched()
				return d.Do(func() error { threads = append(threads, threadID()); return failure })
			})
			if !errors.Is(err, failure) {
				t.Errorf("got error %v, want the function's", err)
			}
		})
	}
	wait.Wait()
	if len(threads) != 40 || slices.Min(threads) != slices.Max(threads) {
		t.Errorf("%d functions ran on threads %v, want 40 on one", len(threads), threads)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Do(func() error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: got error %v, want ErrClosed", err)
	}
}

// TestDoGoexit ends the device's goroutine from inside, as a failing test does.
func TestDoGoexit(t *testing.T) {
	d := fakeDevice(t)
	done := make(chan error)
	go func() { done <- d.Do(func() error { runtime.Goexit(); return nil }) }()
	select {
	case err := <-done:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("got error %v, want ErrClosed", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Do never returned")
	}
	if err := d.Do(func() error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("the next Do: got error %v, want ErrClosed", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	d := fakeDevice(t)
	defer d.Close()
	var e *Error
	if err := d.Do(d.Sync); !errors.As(err, &e) || *e != (Error{"cuCtxSynchronize", 700, "CUDA_ERROR_TEST", "a test"}) {
		t.Errorf("got error %+v", err)
	}
	s := &Stream{api: d.api}
	if err := d.Do(s.Sync); err == nil || err.Error() != "cuStreamSynchronize: error 999" {
		t.Errorf("a code that the driver does not know: got %v", err)
	}
	if err := d.Do(func() error { return d.Write(1, []byte{1}) }); !errors.As(err, &e) || e.Code != 700 {
		t.Errorf("a write after a failed kernel: got %v, want the kernel's error", err)
	}
}

// TestLaunchReachesC launches a kernel through the C calling convention.
func TestLaunchReachesC(t *testing.T) {
	d := fakeDevice(t)
	defer d.Close()
	f, s := &Function{api: d.api, handle: 0xf, name: "k"}, &Stream{api: d.api, handle: 0x5}
	got := new(fakeLaunch)
	var book [32]float32
	for i := range book {
		book[i] = float32(i) / 4
	}
	l := Launch{Grid: Dim{X: 7}, Block: Dim{X: 128}, Shared: 99, Programmatic: true}
	err := d.Do(func() error {
		var a Args
		a.Ptr(Ptr(uintptr(unsafe.Pointer(got)))).Struct(Bytes(book[:]))
		return f.Launch(s, l, &a)
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := got.config; c.grid != [3]uint32{7, 1, 1} || c.block != [3]uint32{128, 1, 1} || c.shared != 99 || c.stream != 5 || c.numAttrs != 1 {
		t.Errorf("got configuration %+v", c)
	}
	if got.attr.id != launchProgrammatic || got.attr.value[0] != 1 {
		t.Errorf("got attribute %+v", got.attr)
	}
	if got.book != book {
		t.Errorf("got codebook %v, want %v", got.book, book)
	}
	f.handle = 1
	err = d.Do(func() error {
		var a Args
		return f.Launch(s, l, a.Ptr(0).Ptr(0))
	})
	var e *Error
	if !errors.As(err, &e) || e.Op != "cuLaunchKernelEx" || e.Code != 1 {
		t.Errorf("got error %v, want cuLaunchKernelEx's", err)
	}
}

// TestPeersReachC copies between devices and lets one reach the other through the C calling convention.
func TestPeersReachC(t *testing.T) {
	d, peer := fakeDevice(t), fakeDevice(t)
	defer d.Close()
	defer peer.Close()
	var saw [6]uintptr
	d.api.memcpyPeerAsync = purego.NewCallback(func(dst, to, src, from, n, stream uintptr) uintptr {
		saw = [6]uintptr{dst, to, src, from, n, stream}
		return 0
	})
	var reached []uintptr
	result := uintptr(0)
	d.api.ctxEnablePeerAccess = purego.NewCallback(func(ctx uintptr, flags uint32) uintptr {
		reached = append(reached, ctx, uintptr(flags))
		return result
	})
	d.ctx, peer.ctx = 0xa, 0xb
	s := &Stream{api: d.api, handle: 0x5}
	err := d.Do(func() error {
		return errors.Join(s.CopyPeer(0, peer, 0, d, 0), s.CopyPeer(1, peer, 2, d, 3), d.reach(peer))
	})
	if err != nil || saw != [6]uintptr{1, 0xb, 2, 0xa, 3, 5} || !slices.Equal(reached, []uintptr{0xb, 0}) {
		t.Errorf("copied by %v, reached %v, error %v", saw, reached, err)
	}
	for _, tc := range []struct {
		name   string
		result uintptr
		fails  bool
	}{{"already", codePeersAlready, false}, {"refused", 217, true}} {
		result = tc.result
		if err := d.Do(func() error { return d.reach(peer) }); (err != nil) != tc.fails {
			t.Errorf("%s: got error %v", tc.name, err)
		}
	}
}

// TestNCCLReachesC asks for sums through the C calling convention.
func TestNCCLReachesC(t *testing.T) {
	var saw []uintptr
	text := []byte("unhandled\x00why\x00")
	a := &ncclAPI{
		allReduce: purego.NewCallback(func(src, dst, n uintptr, dtype, op int32, comm, stream uintptr) uintptr {
			saw = []uintptr{src, dst, n, uintptr(dtype), uintptr(op), comm, stream}
			return 0
		}),
		allGather: purego.NewCallback(func(src, dst, n uintptr, dtype int32, comm, stream uintptr) uintptr {
			saw = []uintptr{src, dst, n, uintptr(dtype), comm, stream}
			return 1
		}),
		getErrorString: purego.NewCallback(func(int32) uintptr { return uintptr(unsafe.Pointer(&text[0])) }),
		getLastText:    purego.NewCallback(func(uintptr) uintptr { return uintptr(unsafe.Pointer(&text[10])) }),
	}
	m, s := &Comm{api: a, handle: 0xc}, &Stream{handle: 0x5}
	if err := m.AllReduce(s, 2, 1, 9, F16); err != nil || !slices.Equal(saw, []uintptr{1, 2, 9, 6, 0, 0xc, 5}) {
		t.Errorf("AllReduce: got %v, error %v", saw, err)
	}
	err := m.AllGather(s, 2, 1, 9, F32)
	if !slices.Equal(saw, []uintptr{1, 2, 9, 7, 0xc, 5}) {
		t.Errorf("AllGather: got %v", saw)
	}
	if err == nil || err.Error() != "ncclAllGather: unhandled (1): why" {
		t.Errorf("AllGather: got error %v", err)
	}
}
