package arch

import (
	"fmt"
	"math"
	"slices"
)

// builder makes the description of one model. Families call its methods in the
// order in which a decoder is described: sizes first.
type builder struct {
	*fields
	d         *Decoder
	hasTensor func(string) bool // nil: not known

	modes   bool    // one part of a model of several
	nested  bool    // described by a part of a config, which may leave out what is as its class has it
	partial bool    // heads may turn in part
	share   float64 // of a head that turns where a config does not say; 0: all
	su      bool    // rope type yarn is what others call longrope

	root, headPath string // of the decoder's modules, such as "model.", and of the head where it is no part of them
	inter, heads, kvHeads, headDim,
	layers int
	eps    float64
	offset float32 // of norms
}

// names finds what the decoder's modules are called, which for models of
// several modes depends on the version of transformers that wrote them.
func (b *builder) names() {
	all := places(b.modes)
	at := all[0]
	if !b.nested {
		at = all[len(all)-2]
	}
	for _, p := range all {
		if b.exists(p.root + "embed_tokens.weight") {
			at = p
			break
		}
	}
	b.root, b.headPath = at.root, at.head
	b.d.root, b.d.modes = at.root, b.modes
	b.d.Embed = b.root + "embed_tokens"
}

// tie carries over whether the embedding is the head where a model of several modes says so outside: either may.
func (b *builder) tie(outer *fields) {
	const key = "tie_word_embeddings"
	if !b.nested {
		return
	}
	inside, outside := b.boolean(key, false), outer.boolean(key, false)
	switch {
	case inside || outside:
		b.values[key] = []byte("true")
	case !b.has(key) && !outer.has(key) && multis()[outer.text("model_type", "")].tied:
		b.values[key] = []byte("true")
	}
}

// exists reports whether the checkpoint is known to have a tensor.
func (b *builder) exists(tensor string) bool { return b.hasTensor != nil && b.hasTensor(tensor) }

// sizes are what the config classes of families in transformers have where a config leaves them out.
type sizes struct {
	hidden, inter, layers, heads, vocab int  // which a config of its own has to name
	bare                                bool // heads and vocab excepted

	positions int
	kvHeads   int // 0: as many as heads
	headDim   int // 0: hidden / heads
	eps       float64
	tied      bool
}

// read reads the sizes of a decoder.
func (b *builder) read(s sizes) {
	if !b.nested {
		s.hidden, s.inter, s.layers = required, required, required
		if !s.bare {
			s.heads, s.vocab = required, required
		}
	}
	b.d.Hidden = b.size("hidden_size", s.hidden)
	b.inter = b.size("intermediate_size", s.inter)
	b.layers = b.size("num_hidden_layers", s.layers)
	b.heads = b.size("num_attention_heads", s.heads)
	b.d.Vocab = b.size("vocab_size", s.vocab)
	b.d.MaxPositions = b.size("max_position_embeddings", s.positions)
	if s.kvHeads == 0 || b.isNull("num_key_value_heads") {
		s.kvHeads = b.heads
	}
	b.kvHeads = b.size("num_key_value_heads", s.kvHeads)
	if b.isNull("head_dim") {
		s.headDim = 0
	}
	b.headDim = b.size("head_dim", s.headDim)
	b.eps = b.positiveFloat("rms_norm_eps", s.eps)
	b.d.Tied = b.boolean("tie_word_embeddings", s.tied)
	if b.layers > maxLayers {
		b.fail("num_hidden_layers", fmt.Errorf("%d: want at most %d", b.layers, maxLayers))
		b.layers = 0
	}
	if b.heads%b.kvHeads != 0 {
		b.fail("num_attention_heads", fmt.Errorf("%d is not a multiple of %d num_key_value_heads", b.heads, b.kvHeads))
	}
	if b.headDim == 0 {
		if b.d.Hidden%b.heads != 0 {
			b.fail("hidden_size", fmt.Errorf("%d is not a multiple of %d num_attention_heads, and there is no head_dim", b.d.Hidden, b.heads))
		}
		b.headDim = b.d.Hidden / b.heads
	}
	if b.headDim > maxHeadDim {
		b.fail("head_dim", fmt.Errorf("%d: want at most %d", b.headDim, maxHeadDim))
		b.headDim = 2
	}
	// Bounds every product of two sizes that a model computes.
	if width := int64(b.heads) * int64(b.headDim); width > maxSize {
		b.fail("head_dim", fmt.Errorf("%d heads of %d are too wide", b.heads, b.headDim))
		b.layers = 0
	}
	b.d.roles[b.d.Embed+".weight"] = EmbeddingWeight
	b.d.Norm = b.norm(b.root + "norm")
	b.head()
}

// maxLayers bounds what a config alone can make a description allocate; the deepest published
// models have 126.
const maxLayers = 4096

// maxHeadDim bounds the frequencies of a rotary embedding; published models have heads of 512 at most.
const maxHeadDim = 1 << 16

// head describes the output head.
func (b *builder) head() {
	path := b.headPath
	for _, p := range places(b.modes) {
		if !b.exists(path+".weight") && b.exists(p.head+".weight") {
			path = p.head
		}
	}
	s := &Stored{Path: path, Tensor: path + ".weight", N: b.d.Vocab, K: b.d.Hidden, Role: HeadWeight}
	b.d.Head = b.whole(s, &State{Name: b.root + "norm", Width: b.d.Hidden, Absorb: []string{b.d.Norm.Tensor}, Offset: b.offset}, SplitRows, "")
	b.d.roles[s.Tensor] = HeadWeight
}

// norm describes an RMS norm.
func (b *builder) norm(path string) Norm {
	n := Norm{Tensor: path + ".weight", Eps: b.eps, Offset: b.offset}
	b.d.roles[n.Tensor] = NormWeight
	return n
}

// blocks calls describe for each block.
func (b *builder) blocks(describe func(i int, blk *Block)) {
	b.d.Blocks = make([]Block, b.layers)
	for i := range b.d.Blocks {
		blk := &b.d.Blocks[i]
		blk.Path = fmt.Sprintf("%slayers.%d", b.root, i)
		blk.AttnNorm = b.norm(blk.Path + ".input_layernorm")
		blk.MLPNorm = b.norm(blk.Path + ".post_attention_layernorm")
		describe(i, blk)
	}
}

// matrix describes a module that is a linear layer of its own.
func (b *builder) matrix(path string, n, k int, bias bool, role Role) *Stored {
	s := &Stored{Path: path, Tensor: path + ".weight", N: n, K: k, Role: role}
	if bias {
		s.Bias = path + ".bias"
	}
	b.stored(s)
	return s
}

// stored notes the tensors of a stored layer.
func (b *builder) stored(s *Stored) {
	b.d.roles[s.Tensor] = s.Role
	if s.Bias != "" {
		b.d.roles[s.Bias] = BiasVector
	}
}

// whole is the layer that is all of what is stored.
func (b *builder) whole(s *Stored, reads *State, split Axis, fuse string) *Linear {
	return &Linear{Name: s.Path, N: s.N, K: s.K, Stored: s, Step: 1, Reads: reads, Split: split, Fuse: fuse}
}

// part is the layer of n rows of what is stored.
func part(s *Stored, name string, expert, row, step, n int, reads *State, split Axis) *Linear {
	l := &Linear{Name: s.Path + "." + name, N: n, K: s.K, Stored: s, Expert: expert, Row: row, Step: step, Reads: reads, Split: split}
	if s.Experts > 0 {
		l.Name = fmt.Sprintf("%s.%d.%s", s.Path, expert, name)
	}
	if n < s.N {
		l.Fuse = fmt.Sprintf("%s.%d", s.Path, expert)
	}
	return l
}

// biases say which projections of an attention have one.
type biases struct{ qkv, o bool }

// attention describes the attention of a block with a projection each for queries, keys and values.
func (b *builder) attention(blk *Block, bias biases) { b.anyAttention(blk, selfAttn, bias, false) }

// gatedAttention is attention whose queries have gates of what they mix beside them.
func (b *builder) gatedAttention(blk *Block, bias biases) { b.anyAttention(blk, selfAttn, bias, true) }

// selfAttn is what the module of an attention is called in most families.
const selfAttn = "self_attn"

func (b *builder) anyAttention(blk *Block, name string, bias biases, gated bool) {
	p := blk.Path + "." + name + "."
	q, kv := b.heads*b.headDim, b.kvHeads*b.headDim
	rows := q
	if gated {
		rows *= 2
	}
	in := b.normed(p+"in", &blk.AttnNorm)
	out := &State{
		Name: p + "out", Width: q, Absorb: []string{p + "v_proj.weight"},
		Heads: b.heads, KVHeads: b.kvHeads, Dim: b.headDim,
	}
	if bias.qkv {
		out.Absorb = append(out.Absorb, p+"v_proj.bias")
	}
	qkv := func(name string, n int) *Linear {
		return b.whole(b.matrix(p+name, n, b.d.Hidden, bias.qkv, LinearWeight), in, SplitRows, p+"qkv")
	}
	blk.Mixer = &Attention{
		Heads: b.heads, KVHeads: b.kvHeads, Dim: b.headDim, Scale: 1 / math.Sqrt(float64(b.headDim)),
		Gated: gated,
		Q:     qkv("q_proj", rows), K: qkv("k_proj", kv), V: qkv("v_proj", kv),
		O: b.whole(b.matrix(p+"o_proj", b.d.Hidden, q, bias.o, LinearWeight), out, SplitColumns, ""),
	}
}

// qkNorm describes norms of the heads of queries and keys.
func (b *builder) qkNorm(blk *Block) {
	q, k := b.norm(blk.Path+".self_attn.q_norm"), b.norm(blk.Path+".self_attn.k_norm")
	blk.Attn().QNorm, blk.Attn().KNorm = &q, &k
}

// mlpNames are what the three projections of an MLP are called.
type mlpNames struct{ gate, up, down string }

func projNames() mlpNames { return mlpNames{"gate_proj", "up_proj", "down_proj"} }

// mlp describes an MLP whose projections are modules of their own.
func (b *builder) mlp(path string, names mlpNames, inter int, bias bool, act Gating, in *State) *MLP {
	up := path + "." + names.up
	mid := &State{Name: path + ".mid", Width: inter, Absorb: []string{up + ".weight"}}
	if bias {
		mid.Absorb = append(mid.Absorb, up+".bias")
	}
	fuse := path + ".gate_up"
	return &MLP{
		Act:  act,
		Gate: b.whole(b.matrix(path+"."+names.gate, inter, b.d.Hidden, bias, LinearWeight), in, SplitRows, fuse),
		Up:   b.whole(b.matrix(up, inter, b.d.Hidden, bias, LinearWeight), in, SplitRows, fuse),
		Down: b.whole(b.matrix(path+"."+names.down, b.d.Hidden, inter, bias, LinearWeight), mid, SplitColumns, ""),
	}
}

// mlpState is what the MLP of a block reads.
func (b *builder) mlpState(blk *Block) *State {
	return b.normed(blk.Path+".mlp.in", &blk.MLPNorm)
}

// normed is what a norm of the residual stream gives.
func (b *builder) normed(name string, n *Norm) *State {
	s := &State{Name: name, Width: b.d.Hidden, Offset: b.offset}
	if !n.None() {
		s.Absorb = []string{n.Tensor}
	}
	return s
}

// mixture is what families with experts differ in.
type mixture struct {
	path, router  string // of the modules
	names         mlpNames
	experts, top  int
	inter         int
	normalize     bool
	act           Gating
	routerBias    bool
	bias          bool // of the experts
	transposed    bool // a stack's matrices are stored [K, N]
	interleaved   bool // rows of gate and up take turns in a stack
	alwaysStacked bool
	squared       bool      // experts are MLPs of squares, without gates
	latent        int       // how wide what such read and make is; 0: as the residual stream
	stacks        [2]string // tensors below path where that is not as transformers has them

	routing    Routing
	correction string // where it is below path; "": none
}

// at is a mixture of the same at a path.
func (x mixture) at(path string) mixture {
	x.path = path
	return x
}

// maxExperts bounds what a config alone can make a description allocate.
const maxExperts = 1 << 14

// moe describes a mixture. Its experts are modules each, or stacks of all
// experts' gate_up_proj [experts, 2·inter, hidden] and down_proj [experts, hidden, inter].
func (b *builder) moe(x mixture, in *State) *MoE {
	if x.top > x.experts {
		b.fail("num_experts_per_tok", fmt.Errorf("%d of %d experts", x.top, x.experts))
	}
	if x.experts*max(b.layers, 1) > maxExperts*16 || x.experts > maxExperts {
		b.fail("num_experts", fmt.Errorf("%d in each of %d layers are too many", x.experts, b.layers))
		return &MoE{}
	}
	if g := x.routing.Groups; g > 0 && (x.experts%g != 0 || x.routing.TopGroups > g || x.top > x.routing.TopGroups*(x.experts/g)) {
		b.fail("n_group", fmt.Errorf("%d of %d experts from %d of %d groups", x.top, x.experts, x.routing.TopGroups, g))
	}
	if x.correction != "" {
		x.routing.Correction = x.path + "." + x.correction
		b.d.roles[x.routing.Correction] = BiasVector
	}
	m := &MoE{
		Top: x.top, Normalize: x.normalize, Routing: x.routing,
		Router: b.whole(b.matrix(x.path+"."+x.router, x.experts, b.d.Hidden, x.routerBias, RouterWeight), in, Replicated, ""),
	}
	stacks := x.path + ".experts"
	if x.alwaysStacked || b.exists(stacks+".gate_up_proj") {
		b.stacked(m, stacks, x, in)
		return m
	}
	if x.squared && b.exists(stacks+".up_proj") {
		b.stackedSquares(m, stacks, x, in)
		return m
	}
	for e := range x.experts {
		path := fmt.Sprintf("%s.experts.%d", x.path, e)
		if x.squared {
			m.Experts = append(m.Experts, *b.squaredMLP(path, x.width(b), x.inter, x.bias, in))
		} else {
			m.Experts = append(m.Experts, *b.mlp(path, x.names, x.inter, x.bias, x.act, in))
		}
	}
	return m
}

// stacked describes the experts of a mixture that are stored as stacks.
func (b *builder) stacked(m *MoE, path string, x mixture, in *State) {
	gateUp := &Stored{
		Path: path + ".gate_up_proj", Tensor: path + ".gate_up_proj",
		Experts: x.experts, N: 2 * x.inter, K: b.d.Hidden, Transposed: x.transposed, Role: LinearWeight,
	}
	down := &Stored{
		Path: path + ".down_proj", Tensor: path + ".down_proj",
		Experts: x.experts, N: b.d.Hidden, K: x.inter, Transposed: x.transposed, Role: LinearWeight,
	}
	if x.stacks[0] != "" {
		gateUp.Tensor, down.Tensor = x.path+"."+x.stacks[0], x.path+"."+x.stacks[1]
		gateUp.Path, down.Path = gateUp.Tensor, down.Tensor
	}
	if x.bias {
		gateUp.Bias, down.Bias = gateUp.Path+"_bias", down.Path+"_bias"
	}
	b.stored(gateUp)
	b.stored(down)
	for e := range x.experts {
		row, step := x.inter, 1
		if x.interleaved {
			row, step = 1, 2
		}
		mid := &State{Name: fmt.Sprintf("%s.%d.mid", path, e), Width: x.inter}
		m.Experts = append(m.Experts, MLP{
			Act:  x.act,
			Gate: part(gateUp, "gate", e, 0, step, x.inter, in, SplitRows),
			Up:   part(gateUp, "up", e, row, step, x.inter, in, SplitRows),
			Down: part(down, "down", e, 0, 1, b.d.Hidden, mid, SplitColumns),
		})
	}
}

// activation reads the activation of an MLP.
func (b *builder) activation(key, missing string) Gating {
	name := b.text(key, missing)
	switch name {
	case "silu", "swish":
		return Gating{Act: SiLU}
	case "gelu":
		return Gating{Act: GELU}
	case "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh":
		return Gating{Act: GELUTanh}
	case "relu":
		return Gating{Act: ReLU}
	}
	b.fail(key, fmt.Errorf("%.40q is not supported: want silu, gelu, gelu_pytorch_tanh, gelu_new or relu", name))
	return Gating{Act: SiLU}
}

// The kinds of attention that layer_types names.
const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
)

// windows returns the window of every layer: of those that layer_types calls
// sliding, or without that list those that sliding chooses.
func (b *builder) windows(window int, sliding func(layer int) bool) []int {
	types := b.texts("layer_types")
	if types != nil && len(types) != b.layers && b.layers > 0 {
		b.fail("layer_types", fmt.Errorf("%d layers: want %d", len(types), b.layers))
		types = nil
	}
	w := make([]int, b.layers)
	for i := range w {
		slides := types == nil && sliding(i)
		if types != nil {
			if !slices.Contains([]string{fullAttention, slidingAttention}, types[i]) {
				b.fail("layer_types", fmt.Errorf("%.40q is not supported: want %s or %s", types[i], fullAttention, slidingAttention))
			}
			slides = types[i] == slidingAttention
		}
		if slides {
			w[i] = window
		}
	}
	return w
}

// layerNumbers reads a number for each layer, or takes those of a rule.
func (b *builder) layerNumbers(key string, rule func(layer int) int) []int {
	all := b.naturals(key)
	if all != nil && len(all) == b.layers {
		return all
	}
	if all != nil && b.layers > 0 {
		b.fail(key, fmt.Errorf("%d layers: want %d", len(all), b.layers))
	}
	all = make([]int, b.layers)
	for i := range all {
		all[i] = rule(i)
	}
	return all
}

// tokens reads the special tokens, which models of several modes may have outside.
func (b *builder) tokens(outer *fields) {
	for _, f := range []*fields{b.fields, outer} {
		if b.d.BOS == nil && f.has("bos_token_id") {
			if id := f.integer("bos_token_id", math.MinInt32); id >= 0 {
				b.d.BOS = &id
			}
		}
		if b.d.EOS == nil {
			b.d.EOS = f.tokens("eos_token_id")
		}
	}
}
