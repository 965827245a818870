package cuda

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/lut"
)

var long = flag.Bool("long", false, "compile and multiply in more formats")

// compiler returns a way to NVRTC, which needs no GPU.
func compiler(t testing.TB) *driver.CUDA {
	t.Helper()
	// The environment that the scripts make stands at the repository's root.
	venv, _ := filepath.Glob("../../.venv/lib/python3*/site-packages/nvidia/cu13/lib")
	c, err := driver.Open(driver.Options{Path: venv, NoCache: true})
	if err != nil {
		t.Skip(err)
	}
	if _, _, err := c.NVRTCVersion(); err != nil {
		t.Skip(err)
	}
	return c
}

// TestCompile compiles the kernels with the options that the program uses. A
// configuration that does not leave its loop in registers has no place in the list.
func TestCompile(t *testing.T) {
	c := compiler(t)
	type variant struct {
		format Format
		config Config
		rows   int
		arch   string
	}
	var variants []variant
	if *long {
		// Every width, group and type of X with one scale type each, and every
		// scale type with every width.
		for i, f := range Formats() {
			if i/2%5 != (f.Bits+i/10)%5 {
				continue
			}
			for _, rows := range []int{rowsOfB, MaxRows} {
				for j, config := range f.configs(rows) {
					variants = append(variants, variant{f, config, rows, "sm_90a"})
					if j == 0 {
						variants = append(variants, variant{f, config, rows, "sm_80"})
					}
				}
			}
		}
	} else {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			f := Format{bits, 128, lut.F16, driver.F16}
			variants = append(variants, variant{f, f.configs(1)[0], 1, "sm_90a"})
		}
		wide := Format{4, 64, lut.BF16, driver.BF16}
		bytes := Format{3, 32, lut.E4M4, driver.F16}
		row := Format{4, 0, lut.F32, driver.F16}
		variants = append(variants,
			variant{wide, wide.configs(16)[0], 16, "sm_90a"},
			variant{bytes, bytes.configs(1)[0], 1, "sm_90a"},
			variant{row, row.configs(1)[0], 1, "sm_80"})
	}
	for _, v := range variants {
		t.Run(fmt.Sprintf("%s/%d rows/%v/%s", v.format.name(), v.rows, v.config, v.arch), func(t *testing.T) {
			t.Parallel()
			k := v.format.Kernel(v.config, v.rows)
			k.Options.Arch = v.arch
			out, err := c.Compile(k.Source, k.Name, k.Options)
			if err != nil {
				t.Fatal(err)
			}
			if out.Log != "" {
				t.Errorf("got log %q, want none", out.Log)
			}
			if len(out.Kernels) != 2 {
				t.Fatalf("got kernels %+v: want %s and %s", out.Kernels, gemmName, readName)
			}
			for _, info := range out.Kernels {
				t.Logf("%+v", info)
				if v.arch == "sm_90a" && info.SpillLoads > 64 {
					t.Errorf("%s spills %d bytes of registers", info.Name, info.SpillLoads)
				}
			}
		})
	}
}

// TestNoHeaders holds the kernels to what NVRTC has without a toolkit.
func TestNoHeaders(t *testing.T) {
	k := Format{4, 128, lut.F16, driver.F16}.Kernel(Config{2, 4, 2, 1, 1}, 1)
	if strings.Contains(k.Source, "#include") {
		t.Error("the kernel includes a header")
	}
}
