//go:build linux && (amd64 || arm64) && !nocuda

package kerneltest

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

//go:embed host_gpu.h
var hostGPUSource string

// hostGPU returns the libraries of CUDA, compiled.
var hostGPU = sync.OnceValues(func() ([]byte, error) { return compiled(hostNumbersSource+hostGPUSource, "-O1", "-shared", "-ldl") })

// HostGPU makes package driver find a GPU, until the test ends, that is none: the
// libraries of CUDA are ones that run kernels on the host, compiled when they are asked for.
// It has compute capability major.0 and few multiprocessors, so that blocks have much to
// do; reverse turns the order of a block's threads around. What a kernel does wrong
// ends the process, with a message. The test is skipped where [OnHost] skips it.
func HostGPU(t *testing.T, major int, reverse bool) {
	t.Helper()
	compiler, dir := cpp(t), t.TempDir()
	path := filepath.Join(dir, "libcuda.so.1")
	code, err := hostGPU()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, code, 0o600); err != nil { // a library of its own for each test
		t.Fatal(err)
	}
	for _, name := range []string{"libnvrtc.so.13", "libcublas.so.13"} {
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	library, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	set, err := purego.Dlsym(library, "host_set")
	if err != nil {
		t.Fatal(err)
	}
	compile := purego.NewCallback(func(source, options, to *byte) uintptr {
		if err := compileLibrary(compiler, text(source), strings.Fields(text(options)), text(to)); err != nil {
			fmt.Fprintln(os.Stderr, err) // the test gets an error without details
			return 1
		}
		return 0
	})
	const multiprocessors = 2
	order := 0
	if reverse {
		order = 1
	}
	purego.SyscallN(set, compile, uintptr(major), multiprocessors, uintptr(order))
	t.Setenv("LUTQ_CUDA_PATH", dir)
}

// text returns a C string.
func text(s *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(s, n))
}

// compileLibrary compiles a module, with NVRTC's options, to a library that host_gpu.h loads.
func compileLibrary(compiler, source string, options []string, to string) error {
	arch := 0
	var defines []string
	for _, o := range options {
		if d, ok := strings.CutPrefix(o, "-D"); ok {
			defines = append(defines, d)
		}
		if _, err := fmt.Sscanf(o, "--gpu-architecture=sm_%d", &arch); err == nil {
			arch *= 10
		}
	}
	return compileModule(compiler, source, hostDefines(arch, defines), to, "-shared")
}
