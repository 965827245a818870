package driver

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// open returns the way to the libraries, with a cache of its own.
func open(t testing.TB) *CUDA {
	t.Helper()
	c, err := Open(Options{CacheDir: t.TempDir()})
	if errors.Is(err, ErrNoCUDA) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// openCompiler is open for tests that need NVRTC.
func openCompiler(t testing.TB) *CUDA {
	t.Helper()
	c := open(t)
	if _, _, err := c.NVRTCVersion(); err != nil {
		// The environment that the scripts make stands at the repository's root.
		if c, err = Open(Options{CacheDir: t.TempDir(), Path: existing("../../../.venv/lib/python3*/site-packages/nvidia/cu13/lib")}); err != nil {
			t.Fatal(err)
		}
		if _, _, err = c.NVRTCVersion(); err != nil {
			t.Skip(err)
		}
	}
	return c
}

func TestErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{
			"call", &Error{Op: "cuInit", Code: 100, Name: "CUDA_ERROR_NO_DEVICE", Detail: "no CUDA-capable device is detected"},
			"cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected",
		},
		{"unknown code", &Error{Op: "cuInit", Code: 4711}, "cuInit: error 4711"},
		{
			"missing", &MissingError{Library: "libx.so.1", Purpose: "do x", Tried: []string{"/a", "/b"}},
			"libx.so.1 not found, which is needed to do x (looked in /a, /b)",
		},
		{
			"broken", &MissingError{Library: "libx.so.1", Purpose: "do x", Tried: []string{"/a"}, Broken: []string{"/a/libx.so.1: file too short"}},
			"libx.so.1 not usable, which is needed to do x: /a/libx.so.1: file too short",
		},
	} {
		if got := tc.err.Error(); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
	if !IsOutOfMemory(errors.Join(&Error{Op: "cuMemAlloc_v2", Code: 2})) {
		t.Error("IsOutOfMemory does not know code 2 of the driver")
	}
	if IsOutOfMemory(&Error{Op: "nvrtcCompileProgram", Code: 2}) || IsNoDevice(ErrNoCUDA) {
		t.Error("an error of another library or kind is taken for the driver's")
	}
}

// TestLayout holds the structs that C reads to the layout that cuda.h of CUDA
// 13.2 gives them on 64-bit Linux, as its compiler reports it.
func TestLayout(t *testing.T) {
	var c cLaunchConfig
	var a cLaunchAttribute
	var k cKernelNodeParams
	for _, tc := range []struct {
		name      string
		got, want uintptr
	}{
		{"sizeof CUlaunchConfig", unsafe.Sizeof(c), 56},
		{"gridDimX", unsafe.Offsetof(c.grid), 0},
		{"blockDimX", unsafe.Offsetof(c.block), 12},
		{"sharedMemBytes", unsafe.Offsetof(c.shared), 24},
		{"hStream", unsafe.Offsetof(c.stream), 32},
		{"attrs", unsafe.Offsetof(c.attrs), 40},
		{"numAttrs", unsafe.Offsetof(c.numAttrs), 48},
		{"sizeof CUlaunchAttribute", unsafe.Sizeof(a), 72},
		{"value", unsafe.Offsetof(a.value), 8},
		{"alignof CUlaunchAttribute", unsafe.Alignof(a), 8},
		{"sizeof CUlaunchAttributeValue", unsafe.Sizeof(a.value), 64},
		{"sizeof CUDA_KERNEL_NODE_PARAMS", unsafe.Sizeof(k), 72},
		{"kernelParams", unsafe.Offsetof(k.values), 40},
		{"extra", unsafe.Offsetof(k.extra), 48},
		{"kern", unsafe.Offsetof(k.kernel), 56},
		{"ctx", unsafe.Offsetof(k.ctx), 64},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, tc.got, tc.want)
		}
	}
}

// memory returns n bytes at p.
func memory(p unsafe.Pointer, n int) []byte { return slices.Clone(unsafe.Slice((*byte)(p), n)) }

func TestArgs(t *testing.T) {
	book := []float32{1, -2, 3.5}
	a := new(Args)
	for range 2 { // again after Reset
		a.Reset().Ptr(0x1122334455667788).I32(-2).U32(7).F32(1.5).I64(-3).Struct(Bytes(book)).Int(-9)
		want := [][]byte{
			{0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11},
			{0xfe, 0xff, 0xff, 0xff},
			{7, 0, 0, 0},
			Bytes([]uint32{math.Float32bits(1.5)}),
			{0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
			{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0, 0x60, 0x40},
			{0xf7, 0xff, 0xff, 0xff},
		}
		if a.n != len(want) || a.err != nil {
			t.Fatalf("got %d arguments and error %v, want %d", a.n, a.err, len(want))
		}
		for i, w := range want {
			if got := memory(a.values[i], len(w)); !slices.Equal(got, w) {
				t.Errorf("argument %d: got % x, want % x", i, got, w)
			}
		}
	}
}

// TestArgsKeepTheirBytes adds arguments of any sizes and finds each one's
// bytes where its pointer leads, or an error where there are too many.
func TestArgsKeepTheirBytes(t *testing.T) {
	a := new(Args)
	rapid.Check(t, func(t *rapid.T) {
		a.Reset()
		args := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 1, 600), 0, 60).Draw(t, "args")
		room := len(args) <= maxArgs
		used := 0
		for _, v := range args {
			used += (len(v) + 7) &^ 7
			a.Struct(v)
		}
		room = room && used <= maxArgBytes
		if (a.err == nil) != room {
			t.Fatalf("%d arguments of %d bytes: got error %v", len(args), used, a.err)
		}
		if !room {
			return
		}
		for i, v := range args {
			if got := memory(a.values[i], len(v)); !slices.Equal(got, v) {
				t.Fatalf("argument %d: got % x, want % x", i, got, v)
			}
		}
	})
}

func TestArgsRefuse(t *testing.T) {
	for _, tc := range []struct {
		name string
		add  func(*Args)
		want string
	}{
		{"too wide", func(a *Args) { a.Ptr(0).Int(1 << 31) }, "argument 1: 2147483648 does not fit in 32 bits"},
		{"too large", func(a *Args) { a.Struct(make([]byte, 4097)) }, "argument 0 of 4097 bytes"},
		{"empty", func(a *Args) { a.Struct(nil) }, "argument 0 of 0 bytes"},
		{"the first error stays", func(a *Args) { a.Struct(nil).Int(1 << 40) }, "argument 0 of 0 bytes"},
	} {
		a := new(Args)
		tc.add(a)
		err := a.prepare(&Launch{}, 0)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got error %v, want %q", tc.name, err, tc.want)
		}
		if err := a.Reset().prepare(&Launch{}, 0); err != nil {
			t.Errorf("%s: after Reset: %v", tc.name, err)
		}
	}
	if err := new(Args).prepare(&Launch{Shared: -1}, 0); err == nil {
		t.Error("a negative size of shared memory is accepted")
	}
}

func TestLaunchAttributes(t *testing.T) {
	a := new(Args)
	all := Launch{Grid: Dim{X: 4}, Block: Dim{32, 2, 0}, Shared: 100, Cluster: Dim{X: 2, Y: 3}, Programmatic: true, Cooperative: true}
	if err := a.prepare(&all, 77); err != nil {
		t.Fatal(err)
	}
	if c := a.config; c.grid != [3]uint32{4, 1, 1} || c.block != [3]uint32{32, 2, 1} || c.shared != 100 || c.stream != 77 || c.numAttrs != 3 {
		t.Errorf("got configuration %+v", c)
	}
	want := map[uint32][3]uint32{launchProgrammatic: {1}, launchCluster: {2, 3, 1}, launchCooperative: {1}}
	got := make(map[uint32][3]uint32)
	for _, at := range a.attrs[:3] {
		got[at.id] = *(*[3]uint32)(unsafe.Pointer(&at.value)) // as C reads the union
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	if err := a.prepare(&Launch{}, 0); err != nil || a.config.numAttrs != 0 {
		t.Errorf("a plain launch: got %d attributes and error %v, want none", a.config.numAttrs, err)
	}
}

func TestArch(t *testing.T) {
	for want, i := range map[string]DeviceInfo{
		"sm_80":   {Major: 8},
		"sm_89":   {Major: 8, Minor: 9},
		"sm_90a":  {Major: 9},
		"sm_120a": {Major: 12},
	} {
		if got := i.Arch(); got != want {
			t.Errorf("%d.%d: got %s, want %s", i.Major, i.Minor, got, want)
		}
	}
}

func TestBytes(t *testing.T) {
	if got := Bytes([]uint16{0x0102, 0x0304}); !slices.Equal(got, []byte{2, 1, 4, 3}) {
		t.Errorf("got % x", got)
	}
	if got := Bytes([]float64(nil)); len(got) != 0 {
		t.Errorf("of nothing: got % x", got)
	}
}

func TestParsePTXAS(t *testing.T) {
	for _, tc := range []struct {
		name, log string
		want      []KernelInfo
		rest      string
	}{
		{
			"CUDA 13", `ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'tiny' for 'sm_90a'
ptxas info    : Function properties for tiny
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
ptxas info    : Compile time = 1.148 ms
k.cu(3): warning #177-D: variable "x" was declared but never referenced
ptxas info    : Compiling entry function 'spill' for 'sm_90a'
ptxas info    : Function properties for spill
ptxas         .     16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 256 bytes smem
ptxas info    : Compile time = 450.932 ms`,
			[]KernelInfo{{Name: "tiny", Registers: 10}, {"spill", 255, 16, 24, 32, 256}},
			`k.cu(3): warning #177-D: variable "x" was declared but never referenced`,
		},
		{
			"CUDA 12, a function called", `ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 12 registers, 16 bytes smem, 364 bytes cmem[0]
ptxas info    : Function properties for _Z4helpi
    96 bytes stack frame, 96 bytes spill stores, 96 bytes spill loads`,
			[]KernelInfo{{"k", 12, 8, 4, 4, 16}},
			"",
		},
		{"nothing", "", nil, ""},
		{"warnings alone", "a\nb\n", nil, "a\nb"},
	} {
		got, rest := parsePTXAS(tc.log)
		if diff := cmp.Diff(tc.want, got); diff != "" || rest != tc.rest {
			t.Errorf("%s: rest %q, want %q; kernels (-want +got):\n%s", tc.name, rest, tc.rest, diff)
		}
	}
}

func FuzzParsePTXAS(f *testing.F) {
	f.Add("ptxas info    : Compiling entry function 'k' for 'sm_80'\nptxas info    : Used 12 registers, 16 bytes smem")
	f.Add("ptxas info    : Function properties for k\n 99999999999999999999 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads")
	f.Fuzz(func(t *testing.T, log string) {
		kernels, rest := parsePTXAS(log)
		if len(kernels) > strings.Count(log, "Compiling entry function '") || len(rest) > len(log) {
			t.Errorf("%d kernels and %d bytes of rest are more than the log has", len(kernels), len(rest))
		}
		for _, k := range kernels {
			if !strings.Contains(log, "'"+k.Name+"'") {
				t.Errorf("kernel %q is not in the log", k.Name)
			}
		}
	})
}

// TestWithoutPurego holds the tag nocuda to its promise: no package that makes
// the program link to the C library.
func TestWithoutPurego(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command to list the imports with")
	}
	for _, tc := range []struct {
		env  []string
		args []string
	}{
		{nil, []string{"-tags", "nocuda"}},
		{[]string{"GOOS=darwin", "GOARCH=arm64"}, nil},
		{[]string{"GOOS=windows", "GOARCH=amd64"}, nil},
	} {
		c := exec.Command(goTool, append(append([]string{"list", "-deps"}, tc.args...), ".")...)
		c.Env = append(append(os.Environ(), "CGO_ENABLED=0"), tc.env...)
		out, err := c.CombinedOutput()
		if err != nil {
			if _, statErr := os.Stat("doc.go"); statErr != nil {
				t.Skip("the sources are not here")
			}
			t.Fatalf("%v: %v\n%s", c.Args, err, out)
		}
		if strings.Contains(string(out), "purego") {
			t.Errorf("%v %v imports purego", tc.env, tc.args)
		}
	}
}

func TestOpenWithoutSupport(t *testing.T) {
	_, err := Open(Options{})
	if supported && err != nil || !supported && !errors.Is(err, ErrNoCUDA) {
		t.Errorf("got %v from a build that supports CUDA: %t", err, supported)
	}
}

func TestSearchPlaces(t *testing.T) {
	venv, env, given := t.TempDir(), t.TempDir(), t.TempDir()
	site := filepath.Join(venv, "lib/python3.12/site-packages/nvidia")
	for _, dir := range []string{"cu13/lib", "cuda_nvrtc/lib", "cublas/lib", "cudnn/lib"} {
		if err := os.MkdirAll(filepath.Join(site, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("VIRTUAL_ENV", venv)
	t.Setenv("LUTQ_CUDA_PATH", env+string(os.PathListSeparator)+given+string(os.PathListSeparator))
	p := searchPlaces([]string{given})
	if diff := cmp.Diff([]string{given, env}, p.first); diff != "" {
		t.Errorf("before the loader's path (-want +got):\n%s", diff)
	}
	var got []string
	for _, dir := range p.behind {
		if strings.HasPrefix(dir, venv) {
			got = append(got, dir)
		}
	}
	want := []string{filepath.Join(site, "cu13/lib"), filepath.Join(site, "cuda_nvrtc/lib"), filepath.Join(site, "cublas/lib")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("of the Python environment (-want +got):\n%s", diff)
	}
}

func TestFind(t *testing.T) {
	if !supported {
		t.Skip(ErrNoCUDA)
	}
	empty, broken, good := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "liblutq-test.so.2"), []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	names := []string{"liblutq-test.so.2", "liblutq-test.so.1"}

	_, err := places{first: []string{empty}, behind: []string{good}}.find("test", names, nil)
	var missing *MissingError
	if !errors.As(err, &missing) {
		t.Fatalf("got error %v, want a MissingError", err)
	}
	want := &MissingError{
		Library: "liblutq-test.so.2 or liblutq-test.so.1", Purpose: "test",
		Tried: []string{empty, "the loader's path", good},
	}
	if diff := cmp.Diff(want, missing); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, err = places{first: []string{broken, empty}}.find("test", names, nil)
	if !errors.As(err, &missing) || len(missing.Broken) != 1 || !strings.Contains(missing.Broken[0], broken) {
		t.Errorf("got error %v, want one that names the broken file", err)
	}

	libs, _ := filepath.Glob("/lib*/*-linux-gnu/libm.so.6")
	if len(libs) == 0 {
		t.Skip("no library to find on this system")
	}
	if err := os.Symlink(libs[0], filepath.Join(good, "liblutq-test.so.1")); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]places{
		"before the loader's path": {first: []string{empty, broken, good}},
		"behind it":                {first: []string{broken}, behind: []string{empty, good}},
	} {
		l, err := p.find("test", names, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if l.path != filepath.Join(good, "liblutq-test.so.1") {
			t.Errorf("%s: got %s", name, l.path)
		}
		var cos, none uintptr
		if err := l.resolve("test", []symbol{{"cos", &cos}}); err != nil || cos == 0 {
			t.Errorf("%s: cos is at %d, error %v", name, cos, err)
		}
		if err := l.resolve("test", []symbol{{"lutq_none", &none}}); !errors.As(err, &missing) || missing.Library != "lutq_none" {
			t.Errorf("%s: got error %v for a function that is not there", name, err)
		}
	}
}

// TestMissingEverything has all that can be asked for without libraries give
// errors that name them.
func TestMissingEverything(t *testing.T) {
	c := open(t)
	lost := func(lib string) error { return &MissingError{Library: lib, Purpose: "x"} }
	c.api = func() (*cudaAPI, error) { return nil, lost("libcuda") }
	c.nvrtc = func() (*nvrtcAPI, error) { return nil, lost("libnvrtc") }
	c.blas = func() (*blasAPI, error) { return nil, lost("libcublas") }
	c.nccl = func() (*ncclAPI, error) { return nil, lost("libnccl") }
	c.nvml = func() (*nvmlAPI, error) { return nil, lost("libnvidia-ml") }
	for _, l := range c.Libraries() {
		if l.Err == nil || l.Path != "" || l.Version != "" || l.Purpose == "" {
			t.Errorf("got %+v", l)
		}
	}
	_, errCount := c.DeviceCount()
	_, errInfo := c.DeviceInfo(0)
	_, errOpen := c.OpenDevice(0)
	_, errCompile := c.Compile("", "k.cu", CompileOptions{Arch: "sm_80"})
	_, _, errCubin := c.Cubin(Kernel{})
	_, errComms := c.NewComms(nil)
	_, errMeter := (&Device{cuda: c}).Meter()
	for i, err := range []error{errCount, errInfo, errOpen, errCompile, errCubin, errComms, errMeter} {
		var missing *MissingError
		if !errors.As(err, &missing) {
			t.Errorf("call %d: got error %v, want a MissingError", i, err)
		}
	}
	c.api = func() (*cudaAPI, error) { return &cudaAPI{initErr: &Error{Op: "cuInit", Code: codeNoDevice}}, nil }
	if n, err := c.DeviceCount(); n != 0 || err != nil {
		t.Errorf("a driver without a GPU: got %d GPUs and error %v, want 0", n, err)
	}
	if !slices.Equal(c.majors(), []int{12, 13}) {
		t.Errorf("an old driver: got majors %v, want 12 first", c.majors())
	}
}
