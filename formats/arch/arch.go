package arch

import (
	"encoding/json"
	"iter"
	"slices"
)

// Decoder describes a decoder language model:
//
//	h = EmbedScale · embed[token]
//	for each block:
//	    h += AttnOut(Mixer(n))    n = AttnNorm(h)
//	    h += MLPOut(mlp(n))       n = MLPNorm(h)
//	    h += Told.Out(told(h))    see [Told]
//	    h *= Scale
//	logits = cap(LogitScale · Head · Norm(h))
//
// with mlp(n) = Down · (act(Gate·n) ∘ Up·n), or the sum of such over the experts
// that a router chooses, and a [Mixer] of the states of tokens. A norm that a block has not is the identity, and a mixer or an MLP
// that it has not adds nothing.
type Decoder struct {
	Family       string // the name of a file of this package, such as "llama"
	Architecture string // the first of the config's "architectures"; may be empty
	ModelType    string

	Vocab, Hidden int
	MaxPositions  int

	Embed      string  // module path of the token embedding, [Vocab, Hidden]
	EmbedScale float64 // 1 for most
	// Residual, if not 0, is what a model multiplies by what its blocks add. Here h is divided by it instead, which
	// comes to the same: EmbedScale and the Eps of norms of h have it in them.
	Residual   float64
	Tied       bool // Head is the embedding; the one matrix may lie under either name
	Head       *Linear
	LogitScale float64 // 1 for most
	LogitCap   float64 // c in c·tanh(logit/c); 0: none
	Norm       Norm
	Blocks     []Block

	// Tokens is what blocks are told of tokens besides the residual stream; nil: nothing.
	Tokens *TokenInputs

	// Reread, if not 0, is how many tokens a text may have before it is read once more: when it grows beyond them, what was
	// read of it with the frequencies of shorter ones is given up. In other families that stays as it is.
	Reread int

	BOS   *int // nil where there is none
	EOS   []int
	DType string // as transformers spells it, such as "bfloat16"; may be empty

	// Quantization is the quantization_config as it stands, nil where there is none.
	Quantization json.RawMessage

	roles map[string]Role
	modes bool   // one part of a model of several modes
	root  string // of its modules
}

// Block is one layer of a decoder.
type Block struct {
	Path     string // of the module, such as "model.layers.0"
	AttnNorm Norm
	Mixer    Mixer // [Nothing] where it has none
	AttnOut  *Norm // nil: none
	MLPNorm  Norm
	MLP      *MLP   // or
	MoE      *MoE   // or neither
	MLPOut   *Norm  // nil: none
	Told     *Told  // nil: none
	Scale    string // tensor [1] that the residual stream is multiplied by at the end; "": none
}

// TokenInputs are what the blocks of a decoder are told of each token, Width numbers each, all blocks' in a row:
//
//	u = (Norm(Project·e) + √Width · Embed[token]) / √2    e = EmbedScale · embed[token]
//
// as Gemma 3n and 4 have it (transformers' modeling_gemma4.py, project_per_layer_inputs). The norm is of each block's.
type TokenInputs struct {
	Width   int
	Embed   *Stored // [Vocab, blocks·Width]
	Project *Linear // never quantized by itself
	Norm    Norm    // Eps is that of what Project gives
}

// Told is what a block makes of what it is told of a token: Proj · (Act(Gate·h) ∘ u), with h the residual stream as it is.
type Told struct {
	Gate, Proj *Linear
	Act        Gating
	Out        Norm
	At         int // which block it is
}

// Norm is x/√(mean x² + Eps) · (Offset + weight), or x where Tensor is "".
type Norm struct {
	Tensor string
	Eps    float64
	Offset float32
}

// None reports whether a norm is the identity.
func (n *Norm) None() bool { return n.Tensor == "" }

// Activation is the function of a gate.
type Activation string

// The activations. SwiGLUOAI is gpt-oss's, see [Gating].
const (
	SiLU      Activation = "silu"
	GELU      Activation = "gelu"      // x·Φ(x)
	GELUTanh  Activation = "gelu_tanh" // its approximation by tanh
	ReLU      Activation = "relu"
	SwiGLUOAI Activation = "swiglu_oai"
	Sigmoid   Activation = "sigmoid" // 1/(1+e^−x), of gates that stand alone
)

// Gating is how the gate g and the other factor u of an MLP become one: Act(g)·u. For SwiGLUOAI it is
// g·sigmoid(Alpha·g)·(u+1), with g at most Limit and u within ±Limit.
type Gating struct {
	Act          Activation
	Alpha, Limit float64 // of SwiGLUOAI
}

// MLP is Down · (Act(Gate·x) ∘ Up·x). Gate may be Up: with [ReLU] the MLP is of the squares of what is above 0.
type MLP struct {
	Gate, Up, Down *Linear
	Act            Gating
}

// In returns the layers that read what the MLP reads, and Linears these and Down.
func (m *MLP) In() []*Linear {
	if m.Gate == m.Up {
		return []*Linear{m.Up}
	}
	return []*Linear{m.Gate, m.Up}
}

func (m *MLP) Linears() []*Linear { return append(m.In(), m.Down) }

// MoE is a mixture: of the Top experts whose router logits are largest, the sum
// weighted by the softmax of the logits over all experts, which Normalize makes sum to 1.
type MoE struct {
	Router    *Linear // logits, [experts]
	Experts   []MLP
	Top       int
	Normalize bool
	// Routing is how experts are chosen where that is not by the logits alone.
	Routing Routing
	// Shared is an expert of every token; the sigmoid of SharedGate, [1], is its weight, or 1 where that is nil. nil: none.
	Shared     *MLP
	SharedGate *Linear
	// Into and Back, if not nil, are before and behind the experts, the shared one excepted: these read latents, Into·x, and Back makes
	// what is added of their weighted sum.
	Into, Back *Linear
	// Apart, if not nil, says how the shared expert, the others and the router read the residual stream and add to it each by norms
	// of their own. The block's MLPNorm is then the experts'.
	Apart *Apart
}

// Apart are the norms of the parts of a mixture, as Gemma 4 has them.
type Apart struct {
	Router                Norm    // factors of what the router reads, which Scale multiplies
	Scale                 float64 // of them
	Shared                Norm    // of what the shared expert reads
	SharedOut, ExpertsOut Norm    // of what they add
	ExpertScale           string  // tensor [experts] that the weight of each is multiplied by
}

// Routing is how a mixture goes from logits to weights. The zero value is the softmax, of which the largest choose.
type Routing struct {
	// Sigmoid says that the score of an expert is the sigmoid of its logit; else it is its part of the softmax.
	Sigmoid bool
	// Correction is a tensor [experts] that is added to the scores where experts are chosen, but not where they are weighed;
	// "": none.
	Correction string
	// Groups that follow each other have as many experts each. Only those of the TopGroups groups can be chosen whose
	// two best scores sum to the most. 0: all can.
	Groups, TopGroups int
	Scale             float64 // that weights are multiplied by; 0: 1
	// OnInput says that a weight multiplies what its expert reads, not what it makes of it.
	OnInput bool
}

// Factor returns what weights are multiplied by.
func (r *Routing) Factor() float64 {
	if r.Scale == 0 {
		return 1
	}
	return r.Scale
}

// Linear is y = x·Wᵀ + b as a model computes it. Its weight is all of what is
// stored, or rows of it.
type Linear struct {
	Name string // unique in a model: the stored path, and where it is a part, which
	N, K int

	Stored *Stored
	Expert int // which matrix of a stack; 0 where there is one
	Row    int // row i of the layer is row Row + i·Step of that matrix
	Step   int

	Reads *State
	Fuse  string // layers of the same name here are one matrix in runtimes; "": none
	Split Axis
}

// Whole reports whether the layer is all that is stored.
func (l *Linear) Whole() bool {
	return l.Stored.Experts == 0 && l.Row == 0 && l.Step == 1 && l.N == l.Stored.N
}

// Axis is what a layer is split along over several GPUs.
type Axis int

// The axes: rows (output features), or columns (input features), after which sums are added up.
const (
	SplitRows Axis = iota
	SplitColumns
	Replicated
)

// Stored is a matrix, or a stack of matrices, as a checkpoint holds it.
type Stored struct {
	Path   string // module path: the name of the layer in a container
	Tensor string // that holds the weights in a checkpoint
	Bias   string // tensor [N], of a stack [Experts, N]; "": none

	Experts    int // matrices in the stack; 0: not a stack
	N, K       int // of a matrix
	Transposed bool

	Role Role
}

// Matrices returns how many matrices are stored, 1 for what is no stack.
func (s *Stored) Matrices() int { return max(s.Experts, 1) }

// Shape returns the shape that the tensor has in a checkpoint.
func (s *Stored) Shape() []int {
	shape := []int{s.N, s.K}
	if s.Transposed {
		shape = []int{s.K, s.N}
	}
	if s.Experts > 0 {
		shape = append([]int{s.Experts}, shape...)
	}
	return shape
}

// State is what linear layers read. Those that read one share its statistics.
type State struct {
	Name  string // unique in a model
	Width int
	// Absorb are tensors that take a factor on the state: where the state's component
	// i is to be divided by f[i], row (or element) j of each is divided by f[i] for all i with
	// Source(i) = j. Empty where nothing can.
	Absorb []string
	// Heads, KVHeads and Dim, if set, are those of an attention whose values the state
	// is a mixture of: component i comes from row (i/Dim)/(Heads/KVHeads)·Dim + i%Dim.
	Heads, KVHeads, Dim int
	From                int     // first row of the absorbing tensors that counts
	Offset              float32 // that the absorbing tensors' elements are taken with, see [Norm]
}

// Source returns the row of the absorbing tensors that component i comes from.
func (s *State) Source(i int) int {
	if s.Dim > 0 {
		i = i/s.Dim/(s.Heads/s.KVHeads)*s.Dim + i%s.Dim
	}
	return s.From + i
}

// Norms returns the norms of a block that are as wide as the residual stream. Some may be the identity.
func (b *Block) Norms() []*Norm {
	all := []*Norm{&b.AttnNorm, &b.MLPNorm}
	for _, n := range []*Norm{b.AttnOut, b.MLPOut} {
		if n != nil {
			all = append(all, n)
		}
	}
	if b.MoE != nil && b.MoE.Apart != nil {
		x := b.MoE.Apart
		all = append(all, &x.Router, &x.Shared, &x.SharedOut, &x.ExpertsOut)
	}
	if b.Told != nil {
		all = append(all, &b.Told.Out)
	}
	return all
}

// Role is what a tensor is for.
type Role int

// The roles. A tensor that the description does not name is [Other].
const (
	Other Role = iota
	LinearWeight
	EmbeddingWeight
	HeadWeight
	RouterWeight // of a mixture, and small gates, which are never quantized
	NormWeight
	BiasVector
	SinkVector
)

// String names a role in reports.
func (r Role) String() string {
	return [...]string{"other", "linear layer", "embedding", "output head", "router", "norm", "bias", "attention sink"}[r]
}

// Role returns what a tensor of a checkpoint, by its full name, is for.
func (d *Decoder) Role(tensor string) Role { return d.roles[tensor] }

// Linears returns the layers of the blocks that are quantized, in order, and the head where it is no
// embedding.
func (d *Decoder) Linears() iter.Seq[*Linear] {
	return func(yield func(*Linear) bool) {
		for i := range d.Blocks {
			for _, l := range d.Blocks[i].Linears() {
				if !yield(l) {
					return
				}
			}
		}
		if !d.Tied {
			yield(d.Head)
		}
	}
}

// Linears returns the layers of a block in order, without routers.
func (b *Block) Linears() []*Linear {
	var ls []*Linear
	for _, stage := range b.Mixer.Stages() {
		ls = append(ls, stage...)
	}
	if b.MoE != nil && b.MoE.Into != nil {
		ls = append(ls, b.MoE.Into)
	}
	for _, m := range b.MLPs() {
		ls = append(ls, m.Linears()...)
	}
	if b.MoE != nil && b.MoE.Back != nil {
		ls = append(ls, b.MoE.Back)
	}
	if b.Told != nil {
		ls = append(ls, b.Told.Gate, b.Told.Proj)
	}
	return ls
}

// Forgets reports whether a text cannot be taken back to a shorter one where it goes on, see [Mixer].
func (d *Decoder) Forgets() bool {
	return slices.ContainsFunc(d.Blocks, func(b Block) bool { return b.Mixer.Forgets() })
}

// Gates returns the small layers of a block that are never quantized: gates of its mixer, the router, and the gate of the
// shared expert.
func (b *Block) Gates() []*Linear {
	ls := b.Mixer.Gates()
	if b.MoE != nil {
		ls = append(ls, b.MoE.Router)
		if b.MoE.SharedGate != nil {
			ls = append(ls, b.MoE.SharedGate)
		}
	}
	return ls
}

// MLPs returns the MLPs of a block: none, one, or every expert and the shared one after them.
func (b *Block) MLPs() []*MLP {
	if b.MLP != nil {
		return []*MLP{b.MLP}
	}
	if b.MoE == nil {
		return nil
	}
	var all []*MLP
	for i := range b.MoE.Experts {
		all = append(all, &b.MoE.Experts[i])
	}
	if b.MoE.Shared != nil {
		all = append(all, b.MoE.Shared)
	}
	return all
}

// Stored returns what the linear layers of the blocks are stored as, and the head where it is no
// embedding, each once and in order.
func (d *Decoder) Stored() []*Stored {
	var all []*Stored
	seen := make(map[*Stored]bool)
	for l := range d.Linears() {
		if !seen[l.Stored] {
			seen[l.Stored] = true
			all = append(all, l.Stored)
		}
	}
	return all
}

// AllStored returns what every matrix of the model but the embedding is stored as, routers and the head among them
// whether or not it is an embedding. It may return one several times.
func (d *Decoder) AllStored() iter.Seq[*Stored] {
	return func(yield func(*Stored) bool) {
		for i := range d.Blocks {
			b := &d.Blocks[i]
			for _, l := range append(b.Linears(), b.Gates()...) {
				if !yield(l.Stored) {
					return
				}
			}
		}
		if d.Tokens != nil && !(yield(d.Tokens.Embed) && yield(d.Tokens.Project.Stored)) {
			return
		}
		yield(d.Head.Stored)
	}
}
