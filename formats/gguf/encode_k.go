package gguf

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/num"
)

// super is the number of weights in a block of the K types and of IQ4_XS.
const super = 256

// searched describes a type of blocks whose 256 weights are in parts, each with an integer for
// its scale and maybe one for its minimum:
//
//	weight = d·scale·(low + code) - dmin·minimum
//
// or with levels in the place of low + code.
type searched struct {
	size   int // weights of a part
	codes  int
	low    int
	levels *[16]float32 // nil: low + code

	scales [2]int // the least and the largest of a part
	mins   int    // the largest; 0: no minima
}

// searchedOf returns how a type is searched, nil for one that is not.
func searchedOf(t Type) *searched {
	switch t {
	case Q2_K:
		return &searched{size: 16, codes: 4, scales: [2]int{0, 15}, mins: 15}
	case Q3_K:
		return &searched{size: 16, codes: 8, low: -4, scales: [2]int{-32, 31}}
	case Q4_K:
		return &searched{size: 32, codes: 16, scales: [2]int{0, 63}, mins: 63}
	case Q5_K:
		return &searched{size: 32, codes: 32, scales: [2]int{0, 63}, mins: 63}
	case Q6_K:
		return &searched{size: 16, codes: 64, low: -32, scales: [2]int{-128, 127}}
	case IQ4_XS:
		return &searched{size: 32, codes: 16, levels: iq4Values(), scales: [2]int{-32, 31}}
	}
	return nil
}

// An Encoder rounds weights to blocks of one of the types Q2_K to Q6_K and IQ4_XS. It has scratch
// memory, so each goroutine needs its own.
type Encoder struct {
	t       Type
	kind    *searched
	nearest *[512]uint8 // of levels: the code of the level nearest to v, at ⌊2v⌋ + 256

	best, at   kBlock
	errors     [super / 16]float64 // of the parts of at
	importance [super]float32
	// What the parts would have if their scales and minima were any numbers.
	scale, min [super / 16]float32
}

// kBlock is a block before it is packed.
type kBlock struct {
	d, dmin      uint16 // F16
	scales, mins [super / 16]int
	codes        [super]uint8
}

// NewEncoder returns an encoder, nil for a type that it does not encode.
func NewEncoder(t Type) *Encoder {
	kind := searchedOf(t)
	if kind == nil {
		return nil
	}
	e := &Encoder{t: t, kind: kind}
	if kind.levels != nil {
		e.nearest = new([512]uint8)
		for i := range e.nearest {
			// Half way between two levels is a multiple of 1/2, so that an interval has one nearest.
			v, best := float64(i-256)/2+0.25, 0
			for c, l := range kind.levels {
				if math.Abs(v-float64(l)) < math.Abs(v-float64(kind.levels[best])) {
					best = c
				}
			}
			e.nearest[i] = uint8(best)
		}
	}
	return e
}

// Encode writes whole blocks of weights. importance, of as many elements, are the factors of the
// squared errors whose sum is made small; nil is for all the same. Weights that are no finite
// numbers, or that no F16 is a scale of, are an error.
//
// The search is in two steps. First each part is given the scale and the minimum that fit it best, of
// some that are tried, each improved by least squares. Then scales and minima are integers times d and
// dmin: those around the first step's are tried with the nearest codes, after which least squares give a
// better d and dmin for another round. The best block of all rounds is written.
func (e *Encoder) Encode(dst []byte, w, importance []float32) error {
	_, size := e.t.Block()
	for ; len(w) >= super; w, dst = w[super:], dst[size:] {
		for i := range e.importance {
			e.importance[i] = 1
		}
		if importance != nil {
			copy(e.importance[:], importance[:super])
			importance = importance[super:]
		}
		if err := e.block(w[:super]); err != nil {
			return err
		}
		e.best.pack(e.t, dst[:size])
	}
	return nil
}

// block finds the best block for weights.
func (e *Encoder) block(w []float32) error {
	top := float32(0)
	for i, v := range w {
		if v-v != 0 {
			return fmt.Errorf("weight %d of a block is %v", i, v)
		}
		top = max(top, max(v, -v))
	}
	e.best = e.zero()
	if top == 0 {
		return nil
	}
	k := e.kind
	beyond := fmt.Errorf("weights up to %v are beyond %s", top, e.t)
	if most := max(abs32(k.level(0)), k.level(uint8(k.codes-1))); top > 65504*most*float32(k.scales[1]) {
		return beyond
	}
	for p := range super / k.size {
		part, imp := w[p*k.size:(p+1)*k.size], e.importance[p*k.size:(p+1)*k.size]
		if k.mins > 0 {
			e.scale[p], e.min[p] = e.fitRange(part, imp)
		} else {
			e.scale[p], e.min[p] = e.fitScale(part, imp), 0
		}
	}
	best := math.Inf(1)
	const starts, rounds = 2, 3
	for start := range starts {
		e.at = kBlock{}
		if !e.start(start) {
			return beyond
		}
		for range rounds {
			sum := 0.0
			for p := range super / k.size {
				e.choose(w, p)
				sum += e.errors[p]
			}
			if sum < best {
				best, e.best = sum, e.at
			}
			if !e.refit(w) {
				break
			}
		}
	}
	return nil
}

// zero is the block of nothing but zeros.
func (e *Encoder) zero() (b kBlock) {
	zero := -e.kind.low
	for i := range b.codes {
		b.codes[i] = uint8(zero)
	}
	return b
}

// toF16 rounds to F16, and reports whether that is finite.
func toF16(v float32) (uint16, bool) {
	h := num.F32ToF16(v)
	return h, h&0x7c00 != 0x7c00
}

// start sets d and dmin so that the largest scale and minimum are the largest that there are, or of the other
// sign where scales have one.
func (e *Encoder) start(which int) (ok bool) {
	k := e.kind
	var scale, low float32
	for p := range super / k.size {
		if abs32(e.scale[p]) > abs32(scale) {
			scale = e.scale[p]
		}
		low = max(low, e.min[p])
	}
	limit := float32(k.scales[1-which%2])
	if k.scales[0] == 0 { // of one sign: the second start leaves room above
		limit = float32(k.scales[1]) - 0.5*float32(which)
	}
	var also bool
	e.at.d, ok = toF16(scale / limit)
	e.at.dmin, also = toF16(low / max(float32(k.mins), 1))
	return ok && also
}

func abs32(v float32) float32 { return max(v, -v) }

// around are what is tried around an integer.
func around(at, least, most int) (from, to int) {
	return min(max(at-1, least), most), max(min(at+1, most), least)
}

// choose gives a part the integers and codes of least error for the d and dmin that there are.
func (e *Encoder) choose(w []float32, p int) {
	k := e.kind
	from, to := p*k.size, (p+1)*k.size
	w, imp := w[from:to], e.importance[from:to]
	d, dmin := num.F16ToF32(e.at.d), num.F16ToF32(e.at.dmin)
	ratio := func(v, unit float32, least, most int) (int, int) {
		if unit == 0 {
			return min(max(0, least), most), min(max(0, least), most)
		}
		return around(int(math.Round(float64(min(max(v/unit, float32(least)), float32(most))))), least, most)
	}
	s0, s1 := ratio(e.scale[p], d, k.scales[0], k.scales[1])
	m0, m1 := 0, 0
	if k.mins > 0 {
		m0, m1 = ratio(e.min[p], dmin, 0, k.mins)
	}
	best := math.Inf(1)
	var codes [32]uint8
	for s := s0; s <= s1; s++ {
		for m := m0; m <= m1; m++ {
			sum := e.round(codes[:k.size], w, imp, d*float32(s), dmin*float32(m))
			if sum < best {
				best = sum
				e.at.scales[p], e.at.mins[p] = s, m
				copy(e.at.codes[from:to], codes[:k.size])
			}
		}
	}
	e.errors[p] = best
}

// round finds the nearest codes, and returns the sum of squared errors.
func (e *Encoder) round(codes []uint8, w, imp []float32, scale, low float32) (sum float64) {
	k := e.kind
	inv := float32(0)
	if scale != 0 {
		inv = 1 / scale
		if inv-inv != 0 { // of a subnormal
			inv = 0
		}
	}
	total := float32(0)
	if k.levels != nil {
		for i, v := range w {
			c := e.code(v * inv)
			codes[i] = c
			diff := v - scale*k.levels[c&15]
			total += imp[i] * diff * diff
		}
		return float64(total)
	}
	least, top := float32(k.low), float32(k.codes-1)
	for i, v := range w {
		c := whole((v+low)*inv-least, top)
		codes[i] = uint8(c)
		diff := v - (scale*(least+float32(c)) - low)
		total += imp[i] * diff * diff
	}
	return float64(total)
}

// whole rounds to the nearest integer from 0 to top.
func whole(v, top float32) int32 {
	if v < 0 {
		return 0
	}
	if v > top {
		return int32(top)
	}
	return int32(v + 0.5)
}

// level returns what a code stands for.
func (k *searched) level(c uint8) float32 {
	if k.levels != nil {
		return k.levels[c&15]
	}
	return float32(k.low + int(c))
}

// code returns the code of the level nearest to v.
func (e *Encoder) code(v float32) uint8 {
	k := e.kind
	if k.levels != nil {
		return e.nearest[int(math.Floor(float64(min(max(2*v, -256), 255))))+256]
	}
	return uint8(whole(v-float32(k.low), float32(k.codes-1)))
}

// fitScale finds a scale for a part without a minimum.
func (e *Encoder) fitScale(w, imp []float32) float32 {
	k := e.kind
	top := float32(0)
	for _, v := range w {
		top = max(top, max(v, -v))
	}
	if top == 0 {
		return 0
	}
	most := -k.level(0) // the largest level, which is negative
	best, scale := float64(0), top/-most
	const tries = 16
	for i := range 2 * tries {
		// The largest weight is from 0.65 to 1.2 of the largest level, of either sign.
		at := most * (0.65 + 0.55*float32(i/2)/(tries-1))
		if i&1 == 1 {
			at = -at
		}
		inv := at / top
		xq, qq := e.products(w, imp, inv)
		// With the scale of least squares the error is Σx² - (Σxq)²/Σq².
		if qq > 0 {
			if gain := float64(xq) * float64(xq) / float64(qq); gain > best {
				best, scale = gain, xq/qq
			}
		}
	}
	return scale
}

// products returns the sums of weights times levels and of squares of levels, for the levels nearest to the
// weights times inv.
func (e *Encoder) products(w, imp []float32, inv float32) (xq, qq float32) {
	k := e.kind
	if k.levels != nil {
		for j, v := range w {
			q := k.levels[e.code(v*inv)&15]
			xq += imp[j] * v * q
			qq += imp[j] * q * q
		}
		return xq, qq
	}
	least, top := float32(k.low), float32(k.codes-1)
	for j, v := range w {
		q := least + float32(whole(v*inv-least, top))
		xq += imp[j] * v * q
		qq += imp[j] * q * q
	}
	return xq, qq
}

// fitRange finds a scale and a minimum, which is not negative and taken from the codes, for a part.
func (e *Encoder) fitRange(w, imp []float32) (scale, low float32) {
	k := e.kind
	lo, hi := float32(0), w[0]
	for _, v := range w {
		lo, hi = min(lo, v), max(hi, v)
	}
	if hi <= lo {
		return 0, -lo
	}
	best := float32(math.Inf(1))
	top := float32(k.codes - 1)
	const tries = 14
	try := func(s, m float32) (float32, float32) {
		if s, m = k.solve(w, imp, s, m); s <= 0 {
			return s, m
		}
		sum, inv := float32(0), 1/s
		for j, v := range w {
			diff := v - (s*float32(whole((v+m)*inv, top)) - m)
			sum += imp[j] * diff * diff
		}
		if sum < best {
			best, scale, low = sum, s, m
		}
		return s, m
	}
	for i := range tries {
		// The range is cut off at its ends, or widened a little.
		s := (hi - lo) / (top * (0.75 + 0.5*float32(i)/(tries-1)))
		try(s, max(top/2*s-(hi+lo)/2, 0))
	}
	if scale > 0 {
		try(scale, low)
	}
	return scale, low
}

// solve returns the scale and the minimum of least squares for the codes that others give.
func (k *searched) solve(w, imp []float32, scale, low float32) (float32, float32) {
	var sw, sq, sqq, sx, sxq float32
	inv, top := 1/scale, float32(k.codes-1)
	for j, v := range w {
		q := float32(whole((v+low)*inv, top))
		a := imp[j]
		sw += a
		sq += a * q
		sqq += a * q * q
		sx += a * v
		sxq += a * v * q
	}
	det := sw*sqq - sq*sq
	if !(det > 0) {
		return scale, low
	}
	s, m := (sw*sxq-sx*sq)/det, (sxq*sq-sx*sqq)/det
	if m < 0 {
		m = 0
		if sqq > 0 {
			s = sxq / sqq
		}
	}
	return s, m
}

// refit finds the d and dmin of least squares for the block's integers and codes. It reports
// whether they differ from those that there were.
func (e *Encoder) refit(w []float32) bool {
	k := e.kind
	var aa, ab, bb, ax, bx float64 // weight = d·a - dmin·b
	for p := range super / k.size {
		s, m := float64(e.at.scales[p]), float64(e.at.mins[p])
		for i := p * k.size; i < (p+1)*k.size; i++ {
			a, x, imp := s*float64(k.level(e.at.codes[i])), float64(w[i]), float64(e.importance[i])
			aa += imp * a * a
			ab += imp * a * m
			bb += imp * m * m
			ax += imp * a * x
			bx += imp * m * x
		}
	}
	if !(aa > 0) {
		return false
	}
	d, dmin := ax/aa, float64(num.F16ToF32(e.at.dmin))
	if det := aa*bb - ab*ab; k.mins > 0 && det > 1e-9*aa*bb {
		d, dmin = (ax*bb-bx*ab)/det, (ax*ab-bx*aa)/det
	} else if k.mins > 0 {
		d = (ax + dmin*ab) / aa
	}
	hd, ok := toF16(float32(d))
	hm, also := toF16(float32(max(dmin, 0)))
	if !ok || !also || hd == e.at.d && hm == e.at.dmin {
		return false
	}
	e.at.d, e.at.dmin = hd, hm
	return true
}

// pack writes the block as a type has it; see the decoders for the layouts.
func (b *kBlock) pack(t Type, dst []byte) {
	clear(dst)
	le := binary.LittleEndian
	switch t {
	case Q2_K:
		for i, s := range b.scales {
			dst[i] = byte(s) | byte(b.mins[i])<<4
		}
		packPairs(dst[16:80], b.codes[:])
		le.PutUint16(dst[80:], b.d)
		le.PutUint16(dst[82:], b.dmin)
	case Q3_K:
		for i, c := range b.codes {
			dst[i%32] |= c >> 2 << (i / 32)
		}
		packPairs(dst[32:96], b.codes[:])
		for j, s := range b.scales {
			c := byte(s + 32)
			dst[96+j%8] |= c & 15 << (j / 8 * 4)
			dst[104+j%4] |= c >> 4 << (j / 4 * 2)
		}
		le.PutUint16(dst[108:], b.d)
	case Q4_K, Q5_K:
		le.PutUint16(dst, b.d)
		le.PutUint16(dst[2:], b.dmin)
		packScales(dst[4:16], b)
		qs := dst[16:]
		if t == Q5_K {
			for i, c := range b.codes {
				dst[16+i%32] |= c >> 4 << (i / 32)
			}
			qs = dst[48:]
		}
		for i, c := range b.codes {
			qs[i/64*32+i%32] |= c & 15 << (i / 32 % 2 * 4)
		}
	case Q6_K:
		for i, c := range b.codes {
			half, quarter, l := i/128, i/32%4, i%32
			dst[half*64+quarter%2*32+l] |= c & 15 << (quarter / 2 * 4)
			dst[128+half*32+l] |= c >> 4 << (2 * quarter)
		}
		for i, s := range b.scales {
			dst[192+i] = byte(int8(s))
		}
		le.PutUint16(dst[208:], b.d)
	case IQ4_XS:
		le.PutUint16(dst, b.d)
		var high uint16
		for i, s := range b.scales[:8] {
			c := uint16(s + 32)
			high |= c >> 4 << (2 * i)
			dst[4+i/2] |= byte(c&15) << (4 * (i & 1))
		}
		le.PutUint16(dst[2:], high)
		for i, c := range b.codes {
			dst[8+i/32*16+i%16] |= c << (i / 16 % 2 * 4)
		}
	}
}

// packPairs writes the lower two bits of codes, four of each half a byte.
func packPairs(dst []byte, codes []uint8) {
	for i, c := range codes {
		dst[i/128*32+i%32] |= c & 3 << (i / 32 % 4 * 2)
	}
}

// packScales is the inverse of [unpackScales].
func packScales(dst []byte, b *kBlock) {
	for j := range 4 {
		s, m, s4, m4 := byte(b.scales[j]), byte(b.mins[j]), byte(b.scales[j+4]), byte(b.mins[j+4])
		dst[j] = s | s4>>4<<6
		dst[j+4] = m | m4>>4<<6
		dst[j+8] = s4&15 | m4&15<<4
	}
}

// values returns what the block stands for, in the arithmetic of the decoders.
func (b *kBlock) values(k *searched) (v [super]float32) {
	d, dmin := num.F16ToF32(b.d), num.F16ToF32(b.dmin)
	for i, c := range b.codes {
		p := i / k.size
		v[i] = float32(d*float32(b.scales[p])) * k.level(c)
		if k.mins > 0 {
			v[i] -= dmin * float32(b.mins[p])
		}
	}
	return v
}

// FallbackOf returns the type that rows of k weights, which do not fill blocks of t, are written in,
// as llama.cpp's own tool chooses, and t itself for rows that do.
func FallbackOf(t Type, k int) (Type, error) {
	if n, _ := t.Block(); k%n == 0 {
		return t, nil
	}
	to := Q8_0
	switch t {
	case Q2_K, Q3_K, IQ4_XS:
		to = IQ4_NL
	case Q4_K:
		to = Q5_0
	case Q5_K:
		to = Q5_1
	}
	if n, _ := to.Block(); k%n != 0 {
		to = F16
	}
	if searchedOf(t) == nil {
		return 0, fmt.Errorf("rows of %d weights do not fill blocks of %s", k, t)
	}
	return to, nil
}
