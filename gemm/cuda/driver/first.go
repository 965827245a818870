package driver

import (
	"errors"
	"fmt"
)

// ErrNoGPU is in the chain of the error of a machine or a build without a GPU
// to use.
var ErrNoGPU = errors.New("no GPU")

// FirstGPU describes the first GPU, or fails with [ErrNoGPU] and the reason.
func FirstGPU() (DeviceInfo, error) {
	c, err := OpenGPU()
	if err != nil {
		return DeviceInfo{}, err
	}
	return c.DeviceInfo(0)
}

// OpenGPU is [Open] where there is a GPU, and fails with [ErrNoGPU] and the
// reason where there is none.
func OpenGPU() (*CUDA, error) {
	c, err := Open(Options{})
	if err == nil {
		var n int
		if n, err = c.DeviceCount(); err == nil && n == 0 {
			err = errors.New("the NVIDIA driver sees none")
		}
	}
	var missing *MissingError
	switch {
	case err == nil:
		return c, nil
	case errors.As(err, &missing) && len(missing.Broken) == 0:
		err = errors.New("no NVIDIA driver found") // where it was looked for, doctor tells
	}
	return nil, fmt.Errorf("%w: %w", ErrNoGPU, err)
}
