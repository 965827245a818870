package driver

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/racetest"
)

const addSource = `#include "op.cuh"
extern "C" __global__ void add(float *y, const float *x, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = op(y[i], x[i]) * SCALE;
}
`

func addOptions(arch string) CompileOptions {
	return CompileOptions{
		Arch:    arch,
		Defines: []string{"SCALE=2"},
		Headers: []Header{{"op.cuh", "__device__ float op(float a, float b) { return a + b; }\n"}},
	}
}

func TestCompile(t *testing.T) {
	racetest.Skip(t)
	c := openCompiler(t)
	for _, tc := range []struct {
		arch  string
		cubin bool
	}{{"sm_80", true}, {"sm_90a", true}, {"sm_90a", true}, {"compute_80", false}} {
		out, err := c.Compile(addSource, "add.cu", addOptions(tc.arch))
		if err != nil {
			t.Errorf("%s: %v", tc.arch, err)
			continue
		}
		if got := bytes.HasPrefix(out.Cubin, []byte("\x7fELF")); got != tc.cubin {
			t.Errorf("%s: machine code is %t, want %t", tc.arch, got, tc.cubin)
		}
		if !bytes.Contains(out.PTX, []byte(".entry add(")) || out.PTX[len(out.PTX)-1] == 0 {
			t.Errorf("%s: the PTX has no kernel add, or a NUL at its end", tc.arch)
		}
		if tc.cubin && (len(out.Kernels) != 1 || out.Kernels[0].Name != "add" || out.Kernels[0].Registers < 4) {
			t.Errorf("%s: got kernels %+v, want add with its registers", tc.arch, out.Kernels)
		}
		if out.Log != "" {
			t.Errorf("%s: got log %q, want none", tc.arch, out.Log)
		}
	}
}

// TestCompileSpills compiles a kernel that needs more registers than it may
// have.
func TestCompileSpills(t *testing.T) {
	racetest.Skip(t)
	c := openCompiler(t)
	const source = `extern "C" __global__ void k(float *x) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = x[64 * threadIdx.x + i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i++) x[64 * threadIdx.x + i] = a[63 - i] * a[(i + 7) % 64];
}
`
	out, err := c.Compile(source, "k.cu", CompileOptions{Arch: "sm_80", MaxRegs: 32})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Kernels) != 1 {
		t.Fatalf("got kernels %+v, want one", out.Kernels)
	}
	if k := out.Kernels[0]; k.Registers > 32 || k.SpillStores == 0 || k.SpillLoads == 0 || k.Stack == 0 {
		t.Errorf("got %+v, want at most 32 registers and spills", k)
	}
}

func TestCompileErrors(t *testing.T) {
	racetest.Skip(t)
	c := openCompiler(t)
	_, err := c.Compile("extern \"C\" __global__ void k() {\n  nonsense;\n}\n", "bad.cu", CompileOptions{Arch: "sm_80"})
	var e *Error
	if !errors.As(err, &e) || e.Name != "NVRTC_ERROR_COMPILATION" || !strings.Contains(err.Error(), "bad.cu(2)") {
		t.Errorf("got error %v, want one with the place in the file", err)
	}
	if replaceable(err) {
		t.Error("PTX would stand in for a source with a mistake")
	}
	_, err = c.Compile("", "none.cu", CompileOptions{Arch: "sm_1"})
	if !errors.As(err, &e) || e.Op != "nvrtcCompileProgram" || !replaceable(err) {
		t.Errorf("an unknown architecture: got error %v, want one that PTX may replace", err)
	}
}

func TestCubinCache(t *testing.T) {
	c := openCompiler(t)
	k := Kernel{Name: "add.cu", Source: addSource, Options: addOptions("sm_80")}
	first, cached, err := c.Cubin(k)
	if err != nil || cached {
		t.Fatalf("the first time: cached %t, error %v", cached, err)
	}
	second, cached, err := c.Cubin(k)
	if err != nil || !cached || !bytes.Equal(first, second) {
		t.Errorf("the second time: cached %t, equal %t, error %v", cached, bytes.Equal(first, second), err)
	}

	key, err := c.cacheKey(k)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(c.cache.path(key), 100); err != nil {
		t.Fatal(err)
	}
	again, cached, err := c.Cubin(k)
	if err != nil || cached || !bytes.Equal(first, again) {
		t.Errorf("after damage: cached %t, equal %t, error %v", cached, bytes.Equal(first, again), err)
	}
	if _, cached, err := c.Cubin(k); err != nil || !cached {
		t.Errorf("after the repair: cached %t, error %v", cached, err)
	}

	// Everything that the code depends on makes another key.
	seen := map[string]string{key: "unchanged"}
	for name, change := range map[string]func(*Kernel){
		"name":     func(k *Kernel) { k.Name = "b.cu" },
		"source":   func(k *Kernel) { k.Source += " " },
		"arch":     func(k *Kernel) { k.Options.Arch = "sm_90a" },
		"define":   func(k *Kernel) { k.Options.Defines = []string{"SCALE=3"} },
		"moved":    func(k *Kernel) { k.Options.Defines, k.Options.Flags = nil, []string{"-DSCALE=2", ""} },
		"header":   func(k *Kernel) { k.Options.Headers = []Header{{"op.cuh", ""}} },
		"maxregs":  func(k *Kernel) { k.Options.MaxRegs = 64 },
		"flag":     func(k *Kernel) { k.Options.Flags = []string{"-lineinfo"} },
		"includes": func(k *Kernel) { k.Options.Headers = nil },
	} {
		other := k
		change(&other)
		key, err := c.cacheKey(other)
		if err != nil {
			t.Fatal(err)
		}
		if twin, ok := seen[key]; ok {
			t.Errorf("%s has the key of %s", name, twin)
		}
		seen[key] = name
	}
	k.PTX = func(DeviceInfo) ([]byte, error) { return nil, nil }
	if same, err := c.cacheKey(k); err != nil || same != key {
		t.Errorf("the fallback changes the key, error %v", err)
	}
	if _, _, err := c.Cubin(Kernel{Name: "add.cu", Source: addSource, Options: addOptions("compute_80")}); err == nil {
		t.Error("a virtual architecture gives machine code")
	}
}

func TestCubinWithoutCache(t *testing.T) {
	c := openCompiler(t)
	k := Kernel{Name: "add.cu", Source: addSource, Options: addOptions("sm_80")}
	for name, cache := range map[string]*Cache{"none": nil, "not writable": NewCache("/dev/null/kernels")} {
		c.cache = cache
		for i := range 2 {
			want := cache != nil && i > 0 // in memory
			if code, cached, err := c.Cubin(k); err != nil || cached != want || len(code) == 0 {
				t.Errorf("%s, time %d: %d bytes, cached %t, error %v", name, i, len(code), cached, err)
			}
		}
		c.kept.Clear()
	}
}

// TestPrepare compiles kernels together, one of them twice and one that does not compile.
func TestPrepare(t *testing.T) {
	c := openCompiler(t)
	c.cache = NewCache(t.TempDir())
	d := &Device{cuda: c, Info: DeviceInfo{Major: 8}}
	good := Kernel{Name: "add.cu", Source: addSource, Options: addOptions("")}
	other, bad := good, good
	other.Name, bad.Source = "other.cu", "no kernel"
	d.Prepare([]Kernel{good, bad, good, other})
	if n, _, err := c.cache.Size(); n != 2 || err != nil {
		t.Errorf("%d kernels are kept, %v: want 2", n, err)
	}
	for _, k := range []Kernel{good, other} {
		k.Options.Arch = "sm_80"
		if _, cached, err := c.Cubin(k); !cached || err != nil {
			t.Errorf("%s: cached %v, %v", k.Name, cached, err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	c := openCompiler(b)
	for b.Loop() {
		if _, err := c.Compile(addSource, "add.cu", addOptions("sm_90a")); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCubinCached(b *testing.B) {
	c := openCompiler(b)
	k := Kernel{Name: "add.cu", Source: addSource, Options: addOptions("sm_90a")}
	if _, _, err := c.Cubin(k); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, cached, err := c.Cubin(k); err != nil || !cached {
			b.Fatal(cached, err)
		}
	}
}

func TestProbeCompiler(t *testing.T) {
	c := openCompiler(t)
	if took, err := c.ProbeCompiler("sm_80"); err != nil || took <= 0 {
		t.Errorf("took %v, error %v", took, err)
	}
	if _, err := c.ProbeCompiler("sm_1"); err == nil {
		t.Error("an unknown architecture compiles")
	}
}
