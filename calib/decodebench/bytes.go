package decodebench

import (
	"math"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Size is what a matrix takes on a device.
type Size struct {
	Bytes int64
	Bits  int // of a code, or of a number where it is not quantized
}

// Sizes are those of a model's matrices, by their paths.
type Sizes map[string]Size

// Held says how a device holds weights.
type Held struct {
	// Dense is the size of a number of a dense weight that is stored as a type.
	Dense func(t hf.DType) int
	// Multiplies reports whether there is a kernel for a kind. Others are held as float32, or as
	// Unpacked bytes each.
	Multiplies func(kind string) bool
	Unpacked   int
}

// stored calls f for every matrix that a token may pass: those of the layers, the head and the embedding.
func stored(d *arch.Decoder, f func(s *arch.Stored)) {
	for _, s := range d.Stored() {
		f(s)
	}
	f(embedding(d))
	if d.Tied {
		f(d.Head.Stored)
	}
	if d.Tokens != nil {
		f(d.Tokens.Embed)
		f(d.Tokens.Project.Stored)
	}
	for i := range d.Blocks {
		for _, l := range d.Blocks[i].Gates() {
			f(l.Stored)
		}
	}
}

// embedding returns the matrix of the token embedding.
func embedding(d *arch.Decoder) *arch.Stored {
	return &arch.Stored{Path: d.Embed, Tensor: d.Embed + ".weight", N: d.Vocab, K: d.Hidden}
}

// SizesOf returns the sizes of a model's weights.
func SizesOf(m *source.Model, h Held) (Sizes, error) {
	d, err := m.Decoder()
	if err != nil {
		return nil, err
	}
	entries, err := m.Entries()
	if err != nil {
		return nil, err
	}
	sizes, tensors := make(Sizes), make(map[string]*hf.Tensor)
	for _, e := range entries {
		if e.Layer == nil {
			tensors[e.Name] = e.Tensor
		}
	}
	stored(d, func(s *arch.Stored) {
		if _, has := sizes[d.Embed]; has && d.Tied && s == d.Head.Stored {
			return // a copy, which is not read
		}
		if t := tensors[s.Tensor]; t != nil {
			n := h.Dense(t.DType)
			sizes[s.Path] = Size{t.Elements() * int64(n), 8 * n}
		}
	})
	for _, e := range entries {
		switch l := e.Layer; {
		case l == nil:
		case h.Multiplies(l.Kind):
			sizes[e.Name] = Size{e.Bytes, l.Bits}
		default:
			sizes[e.Name] = Size{int64(h.Unpacked) * int64(l.Shape[0]) * int64(l.Shape[1]), 8 * h.Unpacked}
		}
	}
	return sizes, nil
}

// Sum returns what all of them take.
func (s Sizes) Sum() int64 {
	var sum float64
	for _, size := range s {
		sum += float64(size.Bytes)
	}
	return int64(min(sum, 1<<62))
}

// Part returns what one of several GPUs takes of them at most, of a model that each has a part of and one matrix, the embedding, whole.
func (s Sizes) Part(gpus int) int64 {
	if gpus < 2 {
		return s.Sum()
	}
	var largest int64
	for _, size := range s {
		largest = max(largest, size.Bytes)
	}
	return s.Sum()/int64(gpus) + largest
}

// Head returns the size of the output head, which may be the embedding.
func (s Sizes) Head(d *arch.Decoder) Size {
	if size, ok := s[d.Head.Stored.Path]; ok {
		return size
	}
	return s[d.Embed]
}

// QuantizeHead makes the output head, apart from an embedding that it is tied to, one of [model.OpenOptions].HeadBits.
func (s Sizes) QuantizeHead(d *arch.Decoder, bits int) {
	n, k := int64(d.Vocab), d.Hidden
	s[d.Head.Stored.Path] = Size{n*int64(lut.RowBytes(k, bits)) + 2*n*int64(weight.GroupsIn(k, model.HeadGroup)), bits}
}

// of returns the bytes of a layer, which may be a part of a matrix.
func (s Sizes) of(l *arch.Linear) float64 {
	all := l.Stored.Matrices() * l.Stored.N
	return float64(s[l.Stored.Path].Bytes) * float64(l.N) / float64(all)
}

// mlp returns the bytes of an MLP.
func (s Sizes) mlp(m *arch.MLP) (sum float64) {
	for _, l := range m.Linears() {
		sum += s.of(l)
	}
	return sum
}

// layers returns what a step of some rows reads of the weights of all layers, each once: of experts
// as many as rows meet that choose evenly.
func (s Sizes) layers(d *arch.Decoder, rows int) float64 {
	var sum float64
	if d.Tokens != nil {
		sum += s.of(d.Tokens.Project)
	}
	for i := range d.Blocks {
		b := &d.Blocks[i]
		if b.Told != nil {
			sum += s.of(b.Told.Gate) + s.of(b.Told.Proj)
		}
		for _, stage := range b.Mixer.Stages() {
			for _, l := range stage {
				sum += s.of(l)
			}
		}
		for _, l := range b.Gates() {
			sum += s.of(l)
		}
		if b.MLP != nil {
			sum += s.mlp(b.MLP)
		}
		if b.MoE == nil {
			continue
		}
		var experts float64
		for j := range b.MoE.Experts {
			experts += s.mlp(&b.MoE.Experts[j])
		}
		missed := math.Pow(1-float64(b.MoE.Top)/float64(len(b.MoE.Experts)), float64(rows))
		sum += experts * (1 - missed)
		if b.MoE.Into != nil {
			sum += s.of(b.MoE.Into) + s.of(b.MoE.Back)
		}
		if b.MoE.Shared != nil {
			sum += s.mlp(b.MoE.Shared)
		}
	}
	return sum
}

// kept returns what is read of what is kept of a text for a token at a position, its own included.
func kept(d *arch.Decoder, position, actBytes int) float64 {
	var sum float64
	for i := range d.Blocks {
		sum += float64(d.Blocks[i].Mixer.Kept(position+1) * actBytes)
	}
	return sum
}

// bytesPerToken returns what a test reads for a token at least: weights once a step, and the keys and values that
// the tokens of a step see once a text.
func (o *Options) bytesPerToken(m *model.Model, t Test, batch int) float64 {
	d, chunk, together := m.Decoder(), decode.DefaultChunk(m), decode.Together(m, batch)
	head := float64(o.Sizes.Head(d).Bytes)
	var sum float64
	if t.Window > 0 {
		return (o.Sizes.layers(d, t.Window) + head) / float64(t.Window)
	}
	if t.Prompt > 0 {
		for from := 0; from < t.Prompt; from += chunk {
			rows := min(chunk, t.Prompt-from)
			sum += o.Sizes.layers(d, rows) + kept(d, t.Depth+from+rows-1, o.ActBytes)
		}
		return (sum + head) / float64(t.Prompt) // what follows is asked for once
	}
	for from := 0; from < batch; from += together {
		sum += o.Sizes.layers(d, min(together, batch-from)) + head
	}
	var kv float64
	for i := range t.Tokens {
		kv += kept(d, t.before()+i, o.ActBytes)
	}
	return sum/float64(batch) + kv/float64(t.Tokens)
}
