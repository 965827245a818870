// Package driver calls the CUDA driver, NVRTC and cuBLAS without cgo: the
// libraries are opened when they are first needed, and a machine without them
// gets an error that says where they were looked for.
package driver
