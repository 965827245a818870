//go:build !linux || (!amd64 && !arm64) || nocuda

package bench

import "errors"

func openSgemm(string, int) (sgemm, error) {
	return nil, errors.New("this build opens no libraries, so there is no --blas")
}
