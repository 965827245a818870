//go:build !(amd64 || arm64) || noasm

package rtn

const assembled = false

// available lists the kernels that run here, the fastest first.
func available() []kernels { return []kernels{portable()} }

type vectors struct{}

func newVectors(*table) vectors { return vectors{} }
