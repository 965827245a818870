package cuda

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// compiler returns a way to NVRTC, which needs no GPU.
func compiler(t testing.TB) *driver.CUDA {
	t.Helper()
	// The environment that the scripts make stands at the repository's root.
	venv, _ := filepath.Glob("../../../.venv/lib/python3*/site-packages/nvidia/cu13/lib")
	c, err := driver.Open(driver.Options{Path: venv, NoCache: true})
	if err != nil {
		t.Skip(err)
	}
	if _, _, err := c.NVRTCVersion(); err != nil {
		t.Skip(err)
	}
	return c
}

// TestCompile compiles the kernels for every type of activations.
func TestCompile(t *testing.T) {
	c := compiler(t)
	for _, arch := range []string{"sm_80", "sm_90a"} {
		for acts := range actsDefine {
			for _, k := range Kernels(acts) {
				t.Run(k.Name+"/"+arch, func(t *testing.T) {
					k.Options.Arch = arch
					out, err := c.Compile(k.Source, k.Name, k.Options)
					if err != nil {
						t.Fatal(err)
					}
					if out.Log != "" {
						t.Errorf("got log %q, want none", out.Log)
					}
					for _, info := range out.Kernels {
						if info.SpillLoads > 0 {
							t.Errorf("%s spills %d bytes of registers", info.Name, info.SpillLoads)
						}
					}
				})
			}
		}
	}
}

// TestNoHeaders holds the kernels to what NVRTC has without a toolkit.
func TestNoHeaders(t *testing.T) {
	for _, k := range Kernels(driver.F16) {
		if strings.Contains(k.Source, "#include") {
			t.Errorf("%s includes a header", k.Name)
		}
	}
}
