//go:build linux && (amd64 || arm64) && !nocuda

package bench

import (
	"fmt"

	"github.com/ebitengine/purego"
)

// openSgemm finds sgemm in a CBLAS library and has it use so many threads, where it
// is OpenBLAS.
func openSgemm(name string, threads int) (sgemm, error) {
	lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("library of --blas: %w", err)
	}
	at, err := purego.Dlsym(lib, "cblas_sgemm")
	if err != nil {
		return nil, fmt.Errorf("%s has no cblas_sgemm: %w", name, err)
	}
	if set, err := purego.Dlsym(lib, "openblas_set_num_threads"); err == nil {
		purego.SyscallN(set, uintptr(threads))
	}
	var f sgemm
	purego.RegisterFunc(&f, at)
	return f, nil
}
