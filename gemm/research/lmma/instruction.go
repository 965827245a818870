// Package lmma simulates the instruction of LUT Tensor Core (Mo et al., ISCA 2025). It asks what
// the instruction computes, and how many tables, lookups and additions a product takes with it. No
// machine has it, so it tells no time, and nothing that lutq multiplies needs this package.
//
// lmma.m2n64k4.f16.i2.f32.f16 multiplies a tile: A [2, 4] in float16 by weights of 2 bits
// [64, 4], transposed, adds them to sums in float32, and gives those out in float16:
//
//	O[m,n] = Acc[m,n] + Σₖ A[m,k]·(q'[n,k] − z'[n]),  q' = 2q − (2^b − 1)
//
// with codes q, zero points z' that are whole numbers, and scales left to what follows: see package
// lookup. A half table of each row of A is made of sums that are rounded once to the
// type of the sums; each cycle adds what one bit of the codes chooses, times a power of two, and
// rounds once. Where there are zero points a last step adds z' times the first entry.
// Sums in i32 wrap.
package lmma

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Type is a number format.
type Type string

// The types of operands and results.
const (
	F16    Type = "f16"
	BF16   Type = "bf16"
	F8E4M3 Type = "f8e4m3"
	F32    Type = "f32"
	I8     Type = "i8"
	I32    Type = "i32"
)

// Instruction is a parsed one.
type Instruction struct {
	M, N, K int  // of a tile
	A       Type // f16, bf16, f8e4m3 or i8
	Bits    int  // of a weight: 1, 2 or 4
	Acc     Type // of sums: f32 or f16, or of i8 i32
	O       Type // of results: the same
}

// maxSide bounds M and N of a tile.
const maxSide = 1024

// Parse reads an instruction such as lmma.m2n64k4.f16.i2.f32.f16.
func Parse(s string) (Instruction, error) {
	fail := func(format string, args ...any) (Instruction, error) {
		return Instruction{}, fmt.Errorf("instruction %.80q: %s", s, fmt.Sprintf(format, args...))
	}
	f := strings.Split(s, ".")
	if len(f) != 6 || f[0] != "lmma" {
		return fail("want lmma.m{M}n{N}k{K}.{A}.{W}.{Acc}.{O}")
	}
	var in Instruction
	rest := f[1]
	for _, side := range []struct {
		letter string
		to     *int
	}{{"m", &in.M}, {"n", &in.N}, {"k", &in.K}} {
		after, ok := strings.CutPrefix(rest, side.letter)
		digits := len(after) - len(strings.TrimLeft(after, "0123456789"))
		v, err := strconv.Atoi(after[:digits])
		if !ok || err != nil || after[0] == '0' || v > maxSide {
			return fail("tile %.40q: want m{M}n{N}k{K} with numbers from 1 to %d", f[1], maxSide)
		}
		*side.to, rest = v, after[digits:]
	}
	if rest != "" {
		return fail("tile %.40q ends in %.20q", f[1], rest)
	}
	if !slices.Contains([]int{2, 4, 8}, in.K) {
		return fail("K is %d: want 2, 4 or 8", in.K)
	}
	in.A, in.Acc, in.O = Type(f[2]), Type(f[4]), Type(f[5])
	if !slices.Contains([]Type{F16, BF16, F8E4M3, I8}, in.A) {
		return fail("A of type %.20q: want f16, bf16, f8e4m3 or i8", f[2])
	}
	switch f[3] {
	case "i1", "i2", "i4":
		in.Bits = int(f[3][1] - '0')
	default:
		return fail("weights of type %.20q: want i1, i2 or i4", f[3])
	}
	types := []Type{F32, F16}
	if in.A == I8 {
		types = []Type{I32}
	}
	for i, t := range []Type{in.Acc, in.O} {
		if !slices.Contains(types, t) {
			return fail("%s of type %.20q: with A of type %s want %s", []string{"sums", "results"}[i], t, in.A, join(types))
		}
	}
	return in, nil
}

func join(types []Type) string {
	var names []string
	for _, t := range types {
		names = append(names, string(t))
	}
	return strings.Join(names, " or ")
}

// String returns what [Parse] reads.
func (in Instruction) String() string {
	return fmt.Sprintf("lmma.m%dn%dk%d.%s.i%d.%s.%s", in.M, in.N, in.K, in.A, in.Bits, in.Acc, in.O)
}

// entryBits is the width of a table's entries: of float sums theirs, of i8 what holds the sum of 8.
func (in Instruction) entryBits() int {
	switch in.Acc {
	case F32:
		return 32
	default:
		return 16
	}
}

// float describes a floating format: the bits of its significand, the exponent of its smallest number, and its
// largest.
type float struct {
	digits, least int
	most          float64
	saturates     bool // has no infinity
}

func (t Type) float() (f float, ok bool) {
	switch t {
	case F16:
		return float{11, -24, 65504, false}, true
	case BF16:
		return float{8, -133, 0x1.fep127, false}, true
	case F8E4M3:
		return float{4, -9, 448, true}, true
	case F32:
		return float{24, -149, math.MaxFloat32, false}, true
	}
	return float{}, false
}

// Round returns the nearest number of the type, of equals the even one. What is too large becomes
// infinite, in f8e4m3 the largest; integers wrap.
func (t Type) Round(v float64) float64 {
	f, ok := t.float()
	switch {
	case t == F32:
		return float64(float32(v))
	case t == I8:
		return float64(int8(int64(math.RoundToEven(v))))
	case !ok:
		return float64(int32(int64(math.RoundToEven(v))))
	case v == 0 || math.IsInf(v, 0) || math.IsNaN(v):
		return v
	}
	_, e := math.Frexp(v)
	unit := max(e-f.digits, f.least)
	v = math.Ldexp(math.RoundToEven(math.Ldexp(v, -unit)), unit)
	if math.Abs(v) > f.most {
		if f.saturates {
			return math.Copysign(f.most, v)
		}
		return math.Copysign(math.Inf(1), v)
	}
	return v
}
