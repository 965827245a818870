package cuda

import (
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/weight"
	"github.com/lutq/lutq/repack"
)

// emulator does what lutgemm.cu does, lane by lane and address by address, in
// float64 where the GPU sums. What it computes depends on the layout of the tiles,
// the table and the slots, on the fragments of the mma and on the plan, so an error
// in any of these shows without a GPU.
type emulator struct {
	t      interface{ Fatalf(string, ...any) }
	f      Format
	c      Config
	p      params
	launch driver.Launch
	codes  []byte
	scales []byte
	x      []uint16
	y      []float64
	shared []byte
	slots  map[uint32]float64 // shared memory behind the float32 of the slots, by address
	tiles  int
}

func (e *emulator) float(v uint16) float64 {
	if e.f.Type == driver.BF16 {
		return float64(num.BF16ToF32(v))
	}
	return float64(num.F16ToF32(v))
}

func (e *emulator) fillTable() {
	b := e.f.Bits
	put := func(at, lo, hi uint32) {
		binary.LittleEndian.PutUint32(e.shared[at:], lo)
		binary.LittleEndian.PutUint32(e.shared[at+4:], hi)
	}
	pair := func(c0, c1 uint32) uint32 { return e.p.codebook[c0] | e.p.codebook[c1]<<16 }
	entries, pitch, chunks := uint32(256), uint32(256), uint32(8)
	switch b {
	case 2:
		chunks = 16
	case 5:
		entries, pitch = 1024, 128
	}
	for v := range entries {
		var lo, hi uint32
		switch b {
		case 2:
			lo, hi = pair(v&3, v>>2&3), pair(v>>4&3, v>>6)
		case 3:
			lo = pair(v&3|v>>2&4, v>>2&3|v>>3&4)
			hi = lo
		default:
			lo = pair(v&(1<<b-1), v>>b)
			hi = lo
		}
		for j := range chunks {
			put(v*pitch+16*j, lo, hi)
			put(v*pitch+16*j+8, lo, hi)
		}
	}
}

// prmt puts byte i of q into byte 1 of l.
func prmt(q, l uint32, i int) uint32 { return l&^0xff00 | q>>(8*i)&0xff<<8 }

func (e *emulator) lookup(at uint32) uint32 { return binary.LittleEndian.Uint32(e.shared[at:]) }

// dequantize looks up half an atom, as the kernel's function of that name.
func (e *emulator) dequantize(w []uint32, atom, half int, lane uint32) (a [4][4]uint32) {
	b := e.f.Bits
	self := 4 * lane
	switch b {
	case 2:
		self = 8 * lane
		for i := range 8 {
			if 2*half+i/4 == e.planesChunk(atom) {
				e.lookUpPlanes(&a, w[e.planesChunk(atom)])
				break
			}
			at := prmt(w[2*half+i/4], self, i%4)
			a[i/2][i%2*2], a[i/2][i%2*2+1] = e.lookup(at), e.lookup(at+4)
		}
	case 3:
		const m = 0x0f0f0f0f
		a0, a1, h := w[2*half], w[2*half+1], w[4+half]
		q := [4]uint32{a0&m | h&^m, a0>>4&m | h>>2&^m, a1&m | h<<2&^m, a1>>4&m | h<<4&^m}
		for i := range 16 {
			a[i/4][i%4] = e.lookup(prmt(q[i/4], self, i%4))
		}
	case 4:
		for i := range 16 {
			a[i/4][i%4] = e.lookup(prmt(w[4*half+i/4], self, i%4))
		}
	case 5:
		var last uint32
		for j := range 5 {
			v := w[5*half+j]
			for f := range 3 {
				i := 3*j + f
				a[i/4][i%4] = e.lookup(bits.RotateLeft32(v, -(2+2*j+10*f))&0x1ff80 | self)
			}
			last |= v & (3 << (7 + 2*j))
		}
		a[3][3] = e.lookup(last | self)
	}
	return a
}

// planesChunk returns which 32 columns of an atom of a unit are looked up in registers
// at 2 bits, 4 for none.
func (e *emulator) planesChunk(atom int) int {
	if e.p.m > rowsOfB {
		return 4
	}
	return 2*atom + 1
}

// lookUpPlanes looks up the last two steps of half an atom byte by byte, as the general
// form of prmt picks them.
func (e *emulator) lookUpPlanes(a *[4][4]uint32, word uint32) {
	var planes [8]byte // the low bytes of the four values, then the high ones
	for i, v := range e.p.codebook {
		planes[i], planes[4+i] = byte(v), byte(v>>8)
	}
	pick := func(selector uint32) (d uint32) {
		for i := range 4 {
			nibble := selector >> (4 * i) & 15
			if nibble > 7 {
				e.t.Fatalf("selector %#x repeats a sign", selector)
			}
			d |= uint32(planes[nibble]) << (8 * i)
		}
		return d
	}
	for i := range 4 {
		selectors := (word>>(2*i)&0x03030303)*0x11 + 0x40404040
		a[2][i/2+i%2*2] = pick(selectors)
		a[3][i/2+i%2*2] = pick(selectors >> 16)
	}
}

// words loads what a lane holds of the codes of an atom.
func (e *emulator) words(at, lane int) []uint32 {
	b := e.f.Bits
	w := make([]uint32, 0, 2*b)
	for i := range b / 2 {
		for j := range 4 {
			w = append(w, binary.LittleEndian.Uint32(e.codes[at+512*i+16*lane+4*j:]))
		}
	}
	if b%2 == 1 {
		for j := range 2 {
			w = append(w, binary.LittleEndian.Uint32(e.codes[at+512*(b/2)+8*lane+4*j:]))
		}
	}
	return w
}

func (e *emulator) scaleAt(at int) float64 {
	var v [1]float32
	size := e.f.Scale.Size()
	e.f.Scale.Decode(v[:], e.scales[at:at+size])
	return float64(v[0])
}

func (e *emulator) slot(tile, slice, q, g uint32) uint32 {
	at := e.p.slotBase + ((tile*e.p.slices+slice)*e.p.pairs+q)*e.p.slotPitch + (g+2*q)%8*16
	if int(at)+16 > e.launch.Shared {
		e.t.Fatalf("slot at %d of %d bytes of shared memory", at, e.launch.Shared)
	}
	if e.p.slotPitch == 256 && at%256 < 128 || e.p.slotPitch == 128 && int(at) < e.tableBytes() {
		e.t.Fatalf("slot at %d lies in the table", at)
	}
	return at
}

func (e *emulator) tableBytes() int { n, _ := e.f.tableBytes(); return n }

// half of a register.
func (e *emulator) half(r uint32, i int) float64 { return e.float(uint16(r >> (16 * i))) }

func (e *emulator) block(block int) {
	p := &e.p
	tile0 := block*int(p.tilesEach) + min(block, int(p.tilesOver))
	tiles := int(p.tilesEach)
	if block < int(p.tilesOver) {
		tiles++
	}
	e.tiles += tiles
	clear(e.shared)
	e.fillTable()
	groups := 1
	if e.f.Group != 0 && e.f.Group < 128 {
		groups = 128 / e.f.Group
	}
	size := e.f.Scale.Size()
	for first := 0; first < tiles; first += int(p.run) {
		e.slots = map[uint32]float64{}
		run := min(int(p.run), tiles-first)
		slices := int(p.slices)
		for w := range e.c.warpsOfBlock() {
			slice, group := w%slices, w/slices
			for unit := slice; unit < int(p.units); unit += slices {
				for a := range 2 {
					for tile := group; tile < run; tile += int(p.groups) {
						e.atom(tile0+first+tile, tile, slice, unit, a, groups, size)
					}
				}
			}
		}
		e.finish(tile0, first, run, size)
	}
}

// atom multiplies an atom by X and adds it to the slots of a tile.
func (e *emulator) atom(tile, slotTile, slice, unit, a, groups, size int) {
	p := &e.p
	var frag [8][32][4]uint32
	for lane := range 32 {
		w := e.words(((tile*int(p.units)+unit)*2+a)*256*e.f.Bits, lane)
		for half := range 2 {
			r := e.dequantize(w, a, half, uint32(lane))
			for s := range 4 {
				frag[4*half+s][lane] = r[s]
			}
		}
	}
	for xt := range (int(p.m) + rowsOfB - 1) / rowsOfB {
		var sum [32][4]float64 // of the lanes' C fragments
		for s := range 8 {
			// The 16×16 and 16×8 operands, out of the lanes' registers as PTX
			// defines them.
			var wA [16][16]float64
			var xB [16][8]float64
			for lane := range 32 {
				g, t := lane/4, lane%4
				for r := range 4 {
					for i := range 2 {
						wA[g+r%2*8][2*t+i+r/2*8] = e.half(frag[s][lane][r], i)
					}
				}
				row, col := 8*xt+g, (2*unit+a)*128+s/2*32+8*t
				for i := range 4 { // registers b0, b1 of this step: half of a 16-byte load
					v, at := 0.0, i
					if e.f.Bits == 2 && s/2 == e.planesChunk(a) {
						at = i/2 + i%2*2 // neighbours but one
					}
					if row < int(p.m) && col < int(p.k) {
						v = e.float(e.x[row*int(p.k)+col+s%2*4+at])
					}
					xB[2*t+i%2+i/2*8][g] = v
				}
			}
			for lane := range 32 {
				g, t := lane/4, lane%4
				for j := range 4 {
					row, col := g+j/2*8, 2*t+j%2
					dot := 0.0
					for k := range 16 {
						dot += wA[row][k] * xB[k][col]
					}
					if e.f.Group != 0 {
						i := 0
						if groups > 1 {
							i = s / (8 / groups)
						}
						block := (tile*int(p.units)+unit)*2 + a
						if e.f.Group == 256 {
							block = tile*int(p.units) + unit
						}
						dot *= e.scaleAt(((block*8+g)*groups+i)*2*size + j/2*size)
					}
					sum[lane][j] += dot
				}
			}
		}
		for lane := range 32 {
			q := uint32(lane%4 + 4*xt)
			if q >= p.pairs {
				continue
			}
			at := e.slot(uint32(slotTile), uint32(slice), q, uint32(lane/4))
			for j := range 4 {
				e.slots[at+uint32(4*j)] += sum[lane][j]
			}
		}
	}
}

func (e *emulator) finish(tile0, first, run, size int) {
	p := &e.p
	for i := range uint32(run) * p.pairs * 8 {
		g, tile := i%8, i/8
		if p.pairs != 1 {
			hi, _ := bits.Mul32(i/8, p.pairsInverse)
			tile = hi
		}
		q := i/8 - tile*p.pairs
		for j := range uint32(4) {
			v := 0.0
			for s := range p.slices {
				if s < p.units {
					v += e.slots[e.slot(tile, s, q, g)+4*j]
				}
			}
			row := (tile0+first+int(tile))*16 + int(g)
			if e.f.Group == 0 {
				v *= e.scaleAt((row-int(g)+2*int(g))*size + int(j/2)*size)
			}
			n, m := row+int(j/2)*8, int(2*q+j%2)
			if n < int(p.n) && m < int(p.m) {
				e.y[m*int(p.n)+n] = v
			}
		}
	}
}

func randomMatrix(seed uint64, n, k, b, group int, st weight.ScaleType) *lut.Matrix {
	r := rand.New(rand.NewPCG(seed, 2))
	m := &lut.Matrix{N: n, K: k, Bits: b, Group: group, ScaleType: st}
	codes := make([]uint8, k)
	m.Codes = make([]byte, n*m.RowBytes())
	for i := range n {
		for j := range codes {
			codes[j] = uint8(r.IntN(1 << b))
		}
		lut.PackCodes(m.Codes[i*m.RowBytes():(i+1)*m.RowBytes()], codes, b)
	}
	scales := make([]float32, n*m.Groups())
	for i := range scales {
		scales[i] = 0.01 + 0.05*r.Float32()
	}
	m.Scales = make([]byte, len(scales)*st.Size())
	st.Encode(m.Scales, scales)
	for i := range 1 << b {
		m.Codebook = append(m.Codebook, -1+2*(float32(i)+0.4*r.Float32())/float32(int(1)<<b))
	}
	return m
}

func randomX(seed uint64, n int, dtype driver.DType) []uint16 {
	r := rand.New(rand.NewPCG(seed, 3))
	x := make([]uint16, n)
	for i := range x {
		v := float32(2*r.Float64() - 1)
		if x[i] = num.F32ToF16(v); dtype == driver.BF16 {
			x[i] = num.F32ToBF16(v)
		}
	}
	return x
}

// rounded returns m with the table that the kernel holds, and x in float32.
func rounded(m *lut.Matrix, x []uint16, f Format) (*lut.Matrix, []float32) {
	back := num.F16ToF32
	if f.Type == driver.BF16 {
		back = num.BF16ToF32
	}
	r := *m
	r.Codebook = nil
	for _, v := range m.Codebook {
		r.Codebook = append(r.Codebook, back(f.convert(v)))
	}
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = back(v)
	}
	return &r, y
}

// product returns Y in float64, with exact products of table value and scale.
func product(m *lut.Matrix, x []float32, rows int) []float64 {
	w := make([]float64, m.N*m.K)
	codes, scales := make([]uint8, m.K), make([]float32, m.Groups())
	for n := range m.N {
		m.RowCodes(codes, n)
		m.RowScales(scales, n)
		for k, c := range codes {
			w[n*m.K+k] = float64(m.Codebook[c]) * float64(scales[k/m.Group])
		}
	}
	return ref.MatMul(x, w, rows, m.N, m.K)
}

func TestEmulated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := 32 * rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(65, 80)).Draw(t, "k/32")
		n := rapid.IntRange(1, 70).Draw(t, "n")
		group := rapid.SampledFrom([]int{32, 64, 128, 256, k}).Draw(t, "group")
		if group > k {
			group = k
		}
		rows := rapid.IntRange(1, MaxRows).Draw(t, "m")
		b := rapid.IntRange(lut.MinBits, lut.MaxBits).Draw(t, "bits")
		st := rapid.SampledFrom([]weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3}).Draw(t, "scale type")
		m := randomMatrix(rapid.Uint64().Draw(t, "seed"), n, k, b, group, st)
		tiles, err := repack.CUDA(m)
		if err != nil {
			t.Fatal(err)
		}
		f, err := FormatOf(tiles, rapid.SampledFrom([]driver.DType{driver.F16, driver.BF16}).Draw(t, "type"))
		if err != nil {
			t.Fatal(err)
		}
		configs := lutgemm{}.variants(f, rows)
		c := rapid.SampledFrom(configs).Draw(t, "config")
		// Few multiprocessors, so that blocks have several tiles, in several runs.
		l := limits{sms: rapid.IntRange(1, 3).Draw(t, "sms"), sharedBlock: 227 << 10}
		slices := rapid.SampledFrom(c.splits()).Draw(t, "slices")
		p, launch, err := shape{f, n, k, rows, slices}.plan(c, l)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range tiles.Codebook {
			p.codebook = append(p.codebook, uint32(f.convert(v)))
		}
		if b := rapid.Bool().Draw(t, "short runs"); b && p.run > p.groups {
			p.run = p.groups
		}
		e := &emulator{
			t: t, f: f, c: c, p: p, launch: launch, codes: tiles.Codes, scales: f.scales(tiles),
			x: randomX(1, rows*k, f.Type), y: make([]float64, rows*n), shared: make([]byte, max(launch.Shared, 1<<17)),
		}
		for i := range e.y {
			e.y[i] = math.NaN()
		}
		for block := range int(launch.Grid.X) {
			e.block(block)
		}
		if e.tiles != tiles.Tiles() {
			t.Fatalf("the blocks have %d tiles: want %d", e.tiles, tiles.Tiles())
		}
		rm, rx := rounded(m, e.x, f)
		if err := ref.RelErr(e.y, product(rm, rx, rows)); !(err < 1e-12) {
			t.Errorf("relative error %g: want none", err)
		}
	})
}
