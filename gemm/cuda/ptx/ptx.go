// Package ptx has the sources that kernels share: CUDA C++ that stands in front of a kernel's own, so that NVRTC needs no header.
// Each needs those that its function names.
package ptx

import _ "embed"

var (
	//go:embed ptx.cuh
	instructions string
	//go:embed wgmma.cuh
	wgmma string
	//go:embed far.cuh
	far string
	//go:embed numbers.cuh
	numbers string
	//go:embed fields.cuh
	fields string
	//go:embed slots.cuh
	slots string
	//go:embed quad.cuh
	quad string
	//go:embed sparse.cuh
	sparse string
	//go:embed glu.cuh
	glu string
	//go:embed prepared.cuh
	prepared string
	//go:embed rotated.cuh
	rotated string
	//go:embed peers.cuh
	peers string
	//go:embed cluster.cuh
	cluster string
	//go:embed left.cuh
	left string
)

// Instructions returns the types of integers and one PTX instruction each under its own name.
func Instructions() string { return instructions }

// WGMMA returns Hopper's products of a warpgroup and what copies their operands. It follows [Instructions].
func WGMMA() string { return wgmma + far + numbers }

// Numbers returns how numbers are rounded to E4M3, and products of two at once, which [WGMMA] has as well. It follows [Instructions], and
// BF16 says of which type pairs are.
func Numbers() string { return numbers }

// Far returns how blocks tell each other of sums, which [WGMMA] has as well. It follows [Instructions].
func Far() string { return far }

// Fields returns how kernels for very many rows of X divide a product among blocks and add up sums. It follows [WGMMA] and lut.cuh.
func Fields() string { return fields }

// Cluster returns how two blocks of a cluster send each other numbers. It follows [WGMMA].
func Cluster() string { return cluster }

// Left returns how blocks leave each other sums without flags. It follows [WGMMA].
func Left() string { return left }

// Slots returns how warps leave sums in shared memory and add them up. It follows lut.cuh.
func Slots() string { return slots }

// Quad returns how four lanes turn four words. It follows [Instructions], or types of the same names.
func Quad() string { return quad }

// Sparse returns the product of a tile of which every four columns keep two. It follows [Instructions].
func Sparse() string { return sparse }

// GLU returns the activations of gates, which are those of package arch: an enum Activation, and activated and other_factor.
// It needs nothing in front.
func GLU() string { return glu }

// Peers returns how GPUs send each other small arrays. It follows [Instructions], or types of the same names.
func Peers() string { return peers }

// Prepared returns how kernels write X as those for many rows read it: functions prepared_at and prepare, of which rows of whole atoms of
// 128 columns take no more. It has [Quad] in front, and follows [Instructions], or types of the same names.
func Prepared() string { return quad + prepared }

// Rotated returns how kernels write X as those for rings read it: a function write_rotated for blocks of 128 columns, and what it is made of. It
// follows [Instructions].
func Rotated() string { return rotated }
