package model

import (
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Ops are the operations that decoders are made of, on one device. The decoder is
// written once over them; calib/model/cpu and calib/model/cuda implement them.
//
// Arrays are row-major. An operation may be queued: what it wrote is there for the
// operations after it, and for the host through Read. Sums are taken in float32 or
// wider and in an order that depends on shapes alone, so that the same operations give
// the same bits again. Sizes that do not fit are a programming error and panic; what
// fails while the program runs (memory, the device) is kept: operations after it do
// nothing, and Err returns the first.
type Ops interface {
	// Name is the device's, for reports: "cpu" or "cuda".
	Name() string
	// Err waits for what is queued and returns the first error of any operation.
	Err() error

	// Floats allocates n float32 elements, zeroed; Acts n elements in the device's
	// type of activations, zeroed: float32 on the CPU, and float16, bfloat16 or float32 on a GPU.
	Floats(n int) Array
	Acts(n int) Array
	// Free gives arrays back. Nil ones are skipped.
	Free(a ...Array)
	// Write fills an array from the host, rounding to its type, and Read the host's
	// slice from an array. Lengths are equal.
	Write(dst Array, src []float32)
	Read(dst []float32, src Array)
	// Copy converts src to dst's type. Zero clears.
	Copy(dst, src Array)
	Zero(a Array)

	// Dense uploads an [n, k] matrix of F32, F16 or BF16 numbers.
	Dense(n, k int, t hf.DType, data []byte) (Weight, error)
	// Packed uploads a quantized matrix, to be multiplied as it is packed where the
	// device has a kernel for its kind, and as the numbers that it stands for elsewhere.
	Packed(m weight.Matrix) (Weight, error)
	// Multiplies reports whether the device has a kernel for a kind.
	Multiplies(kind string) bool
	// Layout uploads a quantized matrix in one of the layouts, best the device's own.
	Layout(l lut.Layout) (Weight, error)
	// FreeWeight gives a weight back.
	FreeWeight(w Weight)

	// Embed writes rows tokens[i] of w, times scale, to h [len(tokens), K], floats.
	Embed(h Array, tokens []int, w Weight, scale float32)
	// RMSNorm writes y = x/√(mean x² + eps)·w for rows of len(w) elements. x is
	// floats or acts, y acts, w floats. y may be x.
	RMSNorm(y, x, w Array, rows int, eps float64)
	// Linear multiplies x [rows, K], acts, by several weights of equal K.
	Linear(x Array, rows int, to ...Product)
	// Rope rotates the first 2·s.Half elements of the heads of x, acts, in place: (a, b) at (i, i+half), or where s.Adjacent
	// is set at (2i, 2i+1), becomes (a·cos − b·sin, b·cos + a·sin) with cos and sin
	// at [row, i] of two floats [≥ rows, half]. back takes −sin, which is the gradient.
	Rope(x Array, s RopeShape, cos, sin Array, back bool)
	// CopyHeads copies heads of rows to where they stand in other ones, both acts or both floats: elements r·FromRow + h·FromHead to +Width
	// of src to r·ToRow + h·ToHead of dst.
	CopyHeads(dst, src Array, s HeadsShape)
	// Attention is causal attention: token i sees tokens max(0, i−Window+1) to i.
	// q and o are acts [T, Heads, Dim], k and v acts [T, KVHeads, Dim]. lse, floats [Heads, T] or nil,
	// takes ln Σ exp of the scores, a sink's among them, which the gradient needs. o may be q where lse is nil.
	// No more than a block of queries' scores exists at a time.
	Attention(o, lse, q, k, v Array, s AttentionShape)
	// Keep writes keys k and values v [rows, KVHeads, Dim], acts, of the rows of a step to their places in a
	// cache: keys and values are acts, [CacheShape.Elements] each, in an order of the device's own.
	Keep(keys, values, k, v Array, at Step, c CacheShape)
	// Recall is Attention for queries q [rows, Heads, Dim] of a step over what is kept of their slots, their own
	// keys and values included: a row at position p sees positions max(0, p−Window+1) to p. s.T is not
	// read. What lies behind p may be anything. o may be q.
	Recall(o, q, keys, values Array, at Step, c CacheShape, s AttentionShape)
	// GLU writes y = act(g)∘u, n = len elements of acts; for arch.SwiGLUOAI what is said there.
	// y may be g.
	GLU(y, g, u Array, act arch.Gating)
	// SoftCap writes x = c·tanh(x/c), floats.
	SoftCap(x Array, c float64)
	// Scale multiplies x, floats, by a number.
	Scale(x Array, by float32)
	// AddTo adds x, acts or floats, to h, floats.
	AddTo(h, x Array)
	// Gather writes rows[i] of src, acts or floats, times weights[i] where those are not nil, to row
	// i of dst, acts.
	Gather(dst, src Array, rows []int, weights []float32)
	// Scatter adds row i of src, acts or floats, times weights[i] where those are not nil, to row rows[i]
	// of h, floats. No row is named twice.
	Scatter(h, src Array, rows []int, weights []float32)

	// CrossEntropy writes loss[i] = ln Σ exp(logits[i]) − logits[i, targets[i]], floats,
	// for rows of vocab logits, floats. Where dlogits, acts, is not nil it takes
	// scale·∂loss/∂logits. A logit that is not finite gives a loss that is not.
	CrossEntropy(loss, dlogits, logits Array, targets []int, vocab int, scale float32)
	// Divergence is the same for loss[i] = KL(softmax(teacher[i])‖softmax(logits[i])).
	Divergence(loss, dlogits, logits, teacher Array, rows, vocab int, scale float32)
	// ArgMax writes the index of the largest of each row, the first of equals, as a float.
	ArgMax(dst, x Array, rows, cols int)
	// NotFinite returns the first row of x [rows, cols] with a NaN or infinity, in it or in the
	// float32 sum of its squares, which no RMS norm can read; or −1.
	NotFinite(x Array, rows, cols int) int

	// MLPRows is how many tokens best pass through an MLP at a time when no gradient is wanted; 0 is all.
	MLPRows() int
}

// Array is memory of a device.
type Array interface {
	Len() int // elements
	// Slice is the elements [from, to), in the same memory.
	Slice(from, to int) Array
}

// Weight is an [N, K] matrix on a device, in the form that its Ops multiply by.
type Weight interface {
	Shape() (n, k int)
}

// Product asks [Ops.Linear] for Y = x·Wᵀ + Bias. Y [rows, N] is acts or floats;
// Bias is floats or nil. Add adds it to Y, which is floats then, instead of writing it:
// the sums of a dense product without rounding.
type Product struct {
	Y    Array
	W    Weight
	Bias Array
	Add  bool
}

// RopeShape are the sizes of what turns: [Rows, Heads, Dim], of which x may begin within a head, so that its last has less.
type RopeShape struct {
	Rows, Heads, Dim int
	Half             int // pairs of a head
	Adjacent         bool
}

// HeadsShape says where the heads of rows stand, of Width elements each: how far rows, and heads, are apart.
type HeadsShape struct {
	Rows, Heads, Width int
	ToRow, ToHead      int
	FromRow, FromHead  int
}

// Spans returns how many elements they take of what they are copied to, and from.
func (s HeadsShape) Spans() (to, from int) {
	if s.Rows*s.Heads*s.Width == 0 {
		return 0, 0
	}
	return (s.Rows-1)*s.ToRow + (s.Heads-1)*s.ToHead + s.Width, (s.Rows-1)*s.FromRow + (s.Heads-1)*s.FromHead + s.Width
}

// AttentionShape are the sizes of an attention.
type AttentionShape struct {
	T, Heads, KVHeads, Dim int
	Window                 int     // tokens that a token sees, itself among them; 0 is all before it
	Scale                  float32 // of the scores
	Cap                    float32 // c in c·tanh(score/c), after that; 0 is none
	Sinks                  Array   // floats [Heads]: a score that every softmax has beside the tokens', without a value; or nil
}

// CacheShape are the sizes of a cache of the keys and values of one attention: of Slots texts, each of
// at most Positions tokens.
type CacheShape struct{ Slots, Positions, KVHeads, Dim int }

// cacheUnit is what a cache has its positions and the elements of a head in multiples of, so that a
// device may keep them in panels as wide.
const cacheUnit = 16

// Head is how many elements of the keys, and of the values, belong to a head of a slot.
func (c CacheShape) Head() int {
	up := func(n int) int { return (n + cacheUnit - 1) / cacheUnit * cacheUnit }
	return up(c.Positions) * up(c.Dim)
}

// Elements is how many a cache has for keys, and as many for values. Those of head h of slot s begin at
// (s·KVHeads + h)·Head.
func (c CacheShape) Elements() int { return c.Slots * c.KVHeads * c.Head() }

// Step says where the rows of some states stand in a cache.
type Step struct {
	Runs []Run // of all rows, in order
	Rows Array // floats [rows, 2]: slot and position of each row
}

// Run are rows of a slot that follow each other, the first at position From.
type Run struct {
	Slot, From, Rows int
	Whole            int // tokens of the text by which the rows turn, at least From + Rows; operations need not look
}
