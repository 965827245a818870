package decodebench

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/repack"
)

// RandomOptions say what weights [NewRandom] makes up.
type RandomOptions struct {
	Kind     string   // of the layers: tables or, with [trellis.Name], rings
	Bits     int      // of a code of the layers, 2 to 5, of rings 1 to 6; 0: numbers of type DType
	Group    int      // columns that share a scale, or [weight.RowGroup]
	HeadBits int      // of a code of the output head, 2 to 5; 0: numbers of type DType
	DType    hf.DType // of what is not quantized: F16 or BF16

	// Upload means that weights are copied to a device, one after another: then all lie in the same memory
	// here, and those that need no padding come as tiles of the CUDA kernels.
	Upload bool
}

// Random is a [model.Source] of random weights, about as large as those that a model begins to be trained with, so
// that states stay finite. Norms are as if they were not there. The same description gives the same weights.
type Random struct {
	name string
	desc *arch.Decoder
	o    RandomOptions

	packed  map[string]*arch.Stored // by path
	cut     map[string]bool         // those that layers are parts of
	tensors map[string]*hf.Tensor
	filled  map[string]float32 // tensors of one value
	tables  map[int]lut.Codebook

	once                               sync.Once // fills:
	codes, scales, numbers, ringScales pool
}

var _ model.Source = (*Random)(nil)

// spread is the magnitude of weights, a half on average.
const spread = 0.035

// NewRandom returns a model of a description, by the name that messages have. It takes memory when it is read.
func NewRandom(name string, d *arch.Decoder, o RandomOptions) (*Random, error) {
	r := &Random{
		name: name, desc: d, o: o, packed: make(map[string]*arch.Stored), cut: make(map[string]bool), tensors: make(map[string]*hf.Tensor),
		filled: make(map[string]float32), tables: make(map[int]lut.Codebook),
	}
	widths := []int{o.HeadBits}
	if o.Kind != trellis.Name {
		widths = append(widths, o.Bits)
	}
	for _, bits := range widths {
		if bits == 0 {
			continue
		}
		// Its values sum to 0: else what layers have in common would grow from one to the next.
		table, err := lut.NewCodebook("kbit", bits, o.Group)
		if err != nil {
			return nil, err
		}
		r.tables[bits] = table
	}
	if o.Kind == trellis.Name && o.Bits > 0 {
		if _, err := trellis.NewCode(trellis.Pairs, 2*o.Bits); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := r.describe(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// needs returns how large the pools must be.
func (r *Random) needs() (codes, scales, numbers int) {
	for _, s := range r.packed {
		if r.rings(s) {
			parts := r.ringParts(s)
			codes, scales = max(codes, partBytes(parts[trellis.RingsPart])), max(scales, partBytes(parts[trellis.ScalesPart]))
			continue
		}
		t := r.tiles(s) // no layout takes more
		codes, scales = max(codes, t.Tiles()*t.TileBytes()), max(scales, t.Tiles()*t.TileScaleBytes(), 2*t.N*weight.GroupsIn(t.K, t.Group))
	}
	for tensor, t := range r.tensors {
		if _, ok := r.filled[tensor]; !ok {
			numbers = max(numbers, int(t.Bytes()))
		}
	}
	return codes, scales, numbers
}

// HostBytes returns the memory of the host that the weights take, apart from what a device does with them.
func (r *Random) HostBytes() int64 {
	codes, scales, numbers := r.needs()
	bytes := float64(codes) + float64(scales) + float64(numbers)
	if !r.o.Upload {
		bytes += float64(r.Sizes().Sum())
	}
	return int64(min(bytes, 1<<62))
}

// fill makes the pools.
func (r *Random) fill() {
	codes, scales, numbers := r.needs()
	rng := rand.NewChaCha8([32]byte{1})
	r.codes = newPool(codes, func(some []byte) { _, _ = rng.Read(some) }) // which does not fail
	random := rand.New(rng)
	r.scales = newPool(scales, func(some []byte) {
		encode(weight.F16, some, func() float32 { return spread * (0.5 + random.Float32()) })
	})
	if r.o.Kind == trellis.Name { // whose values have a deviation of 1, and are mixed
		r.ringScales = newPool(scales, func(some []byte) {
			encode(weight.F16, some, func() float32 { return spread / 20 * (0.5 + random.Float32()) })
		})
	}
	r.numbers = newPool(numbers, func(some []byte) {
		encode(r.scaleType(), some, func() float32 { return spread * (2*random.Float32() - 1) })
	})
}

// scaleType is the type of dense numbers.
func (r *Random) scaleType() weight.ScaleType {
	if r.o.DType == hf.F16 {
		return weight.F16
	}
	return weight.BF16
}

// encode fills dst with numbers of 16 bits.
func encode(t weight.ScaleType, dst []byte, next func() float32) {
	v := make([]float32, len(dst)/2)
	for i := range v {
		v[i] = next()
	}
	if t == weight.F16 {
		num.EncodeF16(dst, v)
	} else {
		num.EncodeBF16(dst, v)
	}
}

// pool is random memory that matrices take theirs from, each from a place of its own.
type pool []byte

// What of a pool is random in itself, over and over, and how far apart places are.
const (
	poolBytes = 1 << 24
	placeStep = 16
	places    = 1 << 14
)

func newPool(most int, fill func(some []byte)) pool {
	if most == 0 {
		return nil
	}
	p := make(pool, most+placeStep*places)
	some := min(len(p), poolBytes)
	fill(p[:some])
	for at := some; at < len(p); {
		at += copy(p[at:], p[:some])
	}
	return p
}

// take returns n bytes for what has a name.
func (p pool) take(name string, n int, clone bool) []byte {
	at := int(crc32.ChecksumIEEE([]byte(name))%places) * placeStep
	if clone {
		return slices.Clone(p[at : at+n])
	}
	return p[at : at+n : at+n]
}

// describe lists what there is.
func (r *Random) describe() error {
	d := r.desc
	var err error
	add := func(name string, shape ...int) {
		if name == "" || err != nil {
			return
		}
		var t *hf.Tensor
		if t, err = hf.NewTensor(name, r.o.DType, shape...); err == nil {
			r.tensors[name] = t
		}
	}
	fill := func(name string, value float32, shape ...int) {
		if name != "" {
			add(name, shape...)
			r.filled[name] = value
		}
	}
	norm := func(n *arch.Norm, width int) {
		if n != nil {
			fill(n.Tensor, 1-n.Offset, width)
		}
	}
	bias := func(s *arch.Stored) {
		shape := []int{s.N}
		if s.Experts > 0 {
			shape = []int{s.Experts, s.N}
		}
		fill(s.Bias, 0, shape...)
	}
	matrix := func(s *arch.Stored, bits int) {
		add(s.Tensor, s.Shape()...) // or an error for a shape that is too large
		if bits > 0 {
			r.packed[s.Path] = s
			delete(r.tensors, s.Tensor)
		}
		bias(s)
	}
	for l := range d.Linears() {
		if !l.Whole() {
			r.cut[l.Stored.Path] = true
		}
	}
	for _, s := range d.Stored() {
		if s != d.Head.Stored {
			matrix(s, r.o.Bits)
		}
	}
	if d.Tied {
		matrix(embedding(d), r.o.HeadBits)
	} else {
		matrix(embedding(d), 0)
		matrix(d.Head.Stored, r.o.HeadBits)
	}
	norm(&d.Norm, d.Hidden)
	if d.Tokens != nil {
		matrix(d.Tokens.Embed, 0)
		matrix(d.Tokens.Project.Stored, 0)
		norm(&d.Tokens.Norm, d.Tokens.Width)
	}
	for i := range d.Blocks {
		b := &d.Blocks[i]
		for _, n := range b.Norms() {
			norm(n, d.Hidden)
		}
		for _, v := range b.Mixer.Vectors() {
			if v.Norm != nil {
				norm(v.Norm, v.Shape[0])
			} else {
				fill(v.Tensor, 0, v.Shape...)
			}
		}
		for _, l := range b.Gates() {
			matrix(l.Stored, 0)
		}
		fill(b.Scale, 1, 1)
		if b.MoE != nil {
			fill(b.MoE.Routing.Correction, 0, len(b.MoE.Experts))
			if b.MoE.Apart != nil {
				fill(b.MoE.Apart.ExpertScale, 1, len(b.MoE.Experts))
			}
		}
	}
	return err
}

// bits returns the width of a quantized matrix's codes.
func (r *Random) bits(s *arch.Stored) int {
	if s.Path == r.desc.Head.Stored.Path || s.Path == r.desc.Embed {
		return r.o.HeadBits
	}
	return r.o.Bits
}

// rings reports whether a quantized matrix is one of rings.
func (r *Random) rings(s *arch.Stored) bool {
	return r.o.Kind == trellis.Name && s.Path != r.desc.Head.Stored.Path && s.Path != r.desc.Embed
}

// ringParts returns the parts of a matrix of rings. Its shape is one that a model has, and its width has been checked.
func (r *Random) ringParts(s *arch.Stored) []weight.Part {
	parts, err := trellis.Kind{}.Parts(r.ringSpec(), s.Matrices()*s.N, s.K)
	if err != nil {
		panic(err)
	}
	return parts
}

// partBytes returns what a part takes, of bytes or of numbers of 16 bits.
func partBytes(p weight.Part) int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	if p.DType == "U8" {
		return n
	}
	return 2 * n
}

func (r *Random) ringSpec() weight.Spec {
	return weight.Spec{Kind: trellis.Name, Bits: r.o.Bits, ScaleType: weight.F16}
}

// tiles returns a matrix as tiles, without data.
func (r *Random) tiles(s *arch.Stored) *repack.CUDATiles {
	bits := r.bits(s)
	return &repack.CUDATiles{
		N: s.Matrices() * s.N, K: s.K, Bits: bits, Group: weight.Spec{Group: r.o.Group}.Columns(s.K),
		ScaleType: weight.F16, Codebook: r.tables[bits].Values,
	}
}

// Sizes returns what the weights take.
func (r *Random) Sizes() Sizes {
	sizes := make(Sizes)
	stored(r.desc, func(s *arch.Stored) {
		n := int64(s.Matrices()) * int64(s.N)
		if _, ok := r.packed[s.Path]; ok && r.rings(s) {
			parts := r.ringParts(s)
			sizes[s.Path] = Size{int64(partBytes(parts[trellis.RingsPart]) + partBytes(parts[trellis.ScalesPart])), r.o.Bits}
		} else if ok {
			t := r.tiles(s)
			sizes[s.Path] = Size{n*int64(lut.RowBytes(s.K, t.Bits)) + 2*n*int64(weight.GroupsIn(s.K, t.Group)), t.Bits}
		} else if _, ok := r.tensors[s.Tensor]; ok {
			sizes[s.Path] = Size{2 * n * int64(s.K), 16}
		}
	})
	return sizes
}

// Name implements [model.Source].
func (r *Random) Name() string { return r.name }

// Decoder implements [model.Source].
func (r *Random) Decoder() *arch.Decoder { return r.desc }

// Tensor implements [model.Source].
func (r *Random) Tensor(name string) (*hf.Tensor, bool) {
	t, ok := r.tensors[name]
	return t, ok
}

// Read implements [model.Source].
func (r *Random) Read(t *hf.Tensor) ([]byte, error) {
	r.once.Do(r.fill)
	value, ok := r.filled[t.Name]
	if !ok {
		return r.numbers.take(t.Name, int(t.Bytes()), !r.o.Upload), nil
	}
	data := make([]byte, t.Bytes())
	encode(r.scaleType(), data, func() float32 { return value })
	return data, nil
}

// Layout returns a layer as tiles, or nil where it is to be laid out: it has padding, which would have to be zero, or
// layers are parts of it.
func (r *Random) Layout(layer string) (lut.Layout, error) {
	s, ok := r.packed[layer]
	if !ok || r.rings(s) || !r.o.Upload || r.cut[layer] || s.N%repack.TileRows != 0 || s.K%repack.UnitCols != 0 {
		return nil, nil
	}
	r.once.Do(r.fill)
	t := r.tiles(s)
	t.Codes = r.codes.take(layer, t.Tiles()*t.TileBytes(), false)
	t.Scales = r.scales.take(layer, t.Tiles()*t.TileScaleBytes(), false)
	return t, t.Validate()
}

// Quantized implements [model.Source].
func (r *Random) Quantized(layer string) (weight.Matrix, error) {
	s, ok := r.packed[layer]
	if !ok {
		return nil, nil
	}
	r.once.Do(r.fill)
	if r.rings(s) {
		parts := r.ringParts(s)
		rings := r.codes.take(layer, partBytes(parts[trellis.RingsPart]), !r.o.Upload)
		return trellis.Kind{}.Open(r.ringSpec(), s.Matrices()*s.N, s.K, [][]byte{rings, r.ringScales.take(layer, partBytes(parts[trellis.ScalesPart]), !r.o.Upload)})
	}
	t := r.tiles(s)
	m := &lut.Matrix{N: t.N, K: t.K, Bits: t.Bits, Group: t.Group, ScaleType: t.ScaleType, Codebook: t.Codebook}
	m.Codes = r.codes.take(layer, m.N*m.RowBytes(), !r.o.Upload)
	m.Scales = r.scales.take(layer, 2*m.N*m.Groups(), !r.o.Upload)
	return m, m.Validate()
}

// Wait implements [model.Source].
func (r *Random) Wait() error { return nil }
