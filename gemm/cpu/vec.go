package cpu

import "math"

// sumChunk is the number of elements that the lanes of a sum take before they
// are added up in float64.
const sumChunk = 1024

// addLanes returns the sum of the lanes, in order.
func addLanes(lanes *[16]float32) float64 {
	var s float64
	for _, v := range lanes {
		s += float64(v)
	}
	return s
}

// split16 divides n into a multiple of 16 and the rest.
func split16(n int) (whole, rest int) { return n &^ 15, n & 15 }

// ExpSum writes exp(src[i] − shift) to dst, which may be src, and returns the
// sum. shift is finite, as the maximum of a softmax is. The exponential is
// within a relative error of 2e-7; −Inf gives 0, as does everything that
// would be below the smallest normal float32. The sum is of float32 values in
// 16 lanes, in float64 between chunks of 1024 elements.
func (e *Engine) ExpSum(dst, src []float32, shift float32) float64 {
	return e.expSum(dst[:len(src)], src, shift)
}

// SumExp returns what [Engine.ExpSum] does without storing the terms, for the
// logarithm of a softmax's denominator.
func (e *Engine) SumExp(src []float32, shift float32) float64 {
	return e.expSum(nil, src, shift)
}

func (e *Engine) expSum(dst, src []float32, shift float32) float64 {
	var lanes [16]float32
	var sum float64
	for len(src) >= 16 {
		n := min(sumChunk, len(src)&^15)
		var d []float32
		if dst != nil {
			d, dst = dst[:n], dst[n:]
		}
		e.isa.expSum(d, src[:n], shift, &lanes)
		sum += addLanes(&lanes)
		src = src[n:]
	}
	if len(src) > 0 {
		var t [16]float32
		for i := range t {
			t[i] = float32(math.Inf(-1))
		}
		copy(t[:], src)
		e.isa.expSum(t[:], t[:], shift, &lanes)
		if dst != nil {
			copy(dst, t[:len(src)])
		}
		sum += addLanes(&lanes)
	}
	return sum
}

// Max returns the largest element of src, −Inf if there is none.
func (e *Engine) Max(src []float32) float32 {
	m := float32(math.Inf(-1))
	whole, _ := split16(len(src))
	if whole > 0 {
		var lanes [16]float32
		e.isa.max(src[:whole], &lanes)
		for _, v := range lanes {
			m = max(m, v)
		}
	}
	for _, v := range src[whole:] {
		m = max(m, v)
	}
	return m
}

// SiLUMul computes dst = silu(gate) · up elementwise, silu(g) = g/(1+e^−g).
// dst may be gate or up.
func (e *Engine) SiLUMul(dst, gate, up []float32) {
	dst, up = dst[:len(gate)], up[:len(gate)]
	whole, rest := split16(len(gate))
	if whole > 0 {
		e.isa.siluMul(dst[:whole], gate[:whole], up[:whole])
	}
	if rest > 0 {
		siluMulGeneric(dst[whole:], gate[whole:], up[whole:])
	}
}

// Dot returns Σ x[i]·y[i], in 16 lanes of float32 multiply-adds and in
// float64 between chunks of 1024 elements.
func (e *Engine) Dot(x, y []float32) float64 {
	y = y[:len(x)]
	var lanes [16]float32
	var sum float64
	for len(x) >= 16 {
		n := min(sumChunk, len(x)&^15)
		e.isa.dot(x[:n], y[:n], &lanes)
		sum += addLanes(&lanes)
		x, y = x[n:], y[n:]
	}
	if len(x) > 0 {
		var a, b [16]float32
		copy(a[:], x)
		copy(b[:], y)
		e.isa.dot(a[:], b[:], &lanes)
		sum += addLanes(&lanes)
	}
	return sum
}

// Axpy computes y[i] += alpha·x[i], one fused multiply-add each.
func (e *Engine) Axpy(alpha float32, x, y []float32) {
	y = y[:len(x)]
	whole, rest := split16(len(x))
	if whole > 0 {
		e.isa.axpy(y[:whole], x[:whole], alpha)
	}
	if rest > 0 {
		axpyGeneric(y[whole:], x[whole:], alpha)
	}
}

// Scale computes dst[i] = alpha·x[i]. dst may be x.
func (e *Engine) Scale(dst, x []float32, alpha float32) {
	dst = dst[:len(x)]
	whole, rest := split16(len(x))
	if whole > 0 {
		e.isa.scale(dst[:whole], x[:whole], alpha)
	}
	if rest > 0 {
		scaleGeneric(dst[whole:], x[whole:], alpha)
	}
}

// Add computes dst[i] = x[i] + y[i]. dst may be x or y.
func (e *Engine) Add(dst, x, y []float32) {
	dst, y = dst[:len(x)], y[:len(x)]
	whole, rest := split16(len(x))
	if whole > 0 {
		e.isa.add(dst[:whole], x[:whole], y[:whole])
	}
	if rest > 0 {
		addGeneric(dst[whole:], x[whole:], y[whole:])
	}
}

// RMSNorm computes dst[i] = (x[i]·s)·w[i] with s = 1/√(mean x² + eps) rounded
// to float32; the sum of squares is that of [Engine.Dot]. dst may be x.
func (e *Engine) RMSNorm(dst, x, w []float32, eps float64) {
	dst, w = dst[:len(x)], w[:len(x)]
	s := float32(1 / math.Sqrt(e.Dot(x, x)/float64(len(x))+eps))
	whole, rest := split16(len(x))
	if whole > 0 {
		e.isa.scaleMul(dst[:whole], x[:whole], w[:whole], s)
	}
	if rest > 0 {
		scaleMulGeneric(dst[whole:], x[whole:], w[whole:], s)
	}
}
