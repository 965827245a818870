package probe

import (
	"math"

	"github.com/lutq/lutq/formats/arch"
)

// A Runtime is a program that runs models, on one GPU.
type Runtime string

// The runtimes whose memory is known.
const (
	Lutq         Runtime = "lutq"
	Transformers Runtime = "transformers"
	VLLM         Runtime = "vllm"
	LlamaCPP     Runtime = "llama.cpp"
)

// Runtimes lists them.
func Runtimes() []string {
	return []string{string(Lutq), string(Transformers), string(VLLM), string(LlamaCPP)}
}

// Memory is what running one text takes, in bytes.
type Memory struct {
	Runtime Runtime `json:"runtime"`
	Context int     `json:"ctx"` // tokens of the text
	Weights int64   `json:"weights"`
	Cache   int64   `json:"cache"`   // of keys and values
	Working int64   `json:"working"` // activations, logits, and what the driver and the program take
	Total   int64   `json:"total"`
}

// What the runtimes take besides. These are rules of thumb for one text at a time and a card of the last years, rounded up; they were not
// measured here.
const (
	contextBytes  = 600 << 20 // the driver's context, kernels and the libraries' workspace
	promptRows    = 512       // tokens of a prompt at once: lutq and llama.cpp
	vllmRows      = 2048      // and vLLM at least
	vllmSequences = 256       // whose logits vLLM tries at its start
	vllmGraphs    = 1 << 30   // its captured graphs
	vllmShare     = 0.9       // of the card, that it uses at most
	unpacked      = 4 << 22   // bytes of weights that transformers unpacks at a time, in float32; a few such exist
)

// MemoryFor returns what a runtime takes for a text of so many tokens, by
//
//	weights   as they are stored
//	cache     2 bytes · Σ over blocks of what each keeps: of an attention 2 · KV heads · head size · tokens, or of its window
//	working   600 MiB, and for r tokens of a prompt at once r · (4·hidden + 2·MLP + Q + 2·KV) · 2 bytes, and logits of 4 bytes:
//	          lutq           r = 512, logits of one token
//	          transformers   r = the whole text, logits of one token, 5 · 16 MiB to unpack weights, and the cache of a block twice more
//	          vllm           r = 2048, logits of 256 tokens and 1 GiB of graphs; all of it is 9/10 of the total
//	          llama.cpp      r = 512, logits of as many
//
// It counts attention without stored scores, and one text at a time.
func MemoryFor(r Runtime, d *arch.Decoder, weights int64, tokens int) Memory {
	m := Memory{Runtime: r, Context: tokens, Weights: weights}
	var q, kv, mlp, block int64
	for i := range d.Blocks {
		b := &d.Blocks[i]
		one := 2 * int64(b.Mixer.Kept(tokens))
		m.Cache += one
		block = max(block, one)
		if a := b.Attn(); a != nil {
			q, kv = max(q, int64(a.Q.N)), max(kv, int64(a.KVHeads*a.Dim))
		} else if stages := b.Mixer.Stages(); len(stages) > 0 {
			var wide int64
			for _, l := range stages[0] {
				wide += int64(l.N)
			}
			q = max(q, wide)
		}
		for _, x := range b.MLPs() {
			mlp = max(mlp, int64(x.Gate.N))
		}
	}
	rows, logits, more := int64(promptRows), int64(1), int64(0)
	switch r {
	case Transformers:
		rows, more = int64(tokens), 5*unpacked+2*block
	case VLLM:
		rows, logits, more = vllmRows, vllmSequences, vllmGraphs
	case LlamaCPP:
		logits = promptRows
	}
	rows = min(rows, int64(tokens))
	m.Working = contextBytes + 2*rows*(4*int64(d.Hidden)+2*mlp+q+2*kv) + 4*logits*int64(d.Vocab) + more
	m.Total = m.Weights + m.Cache + m.Working
	if r == VLLM {
		m.Total = int64(math.Ceil(float64(m.Total) / vllmShare))
	}
	return m
}

// WeightsFor returns what is left for weights of so many bytes of memory, which may be less than nothing.
func WeightsFor(r Runtime, d *arch.Decoder, total int64, tokens int) int64 {
	m := MemoryFor(r, d, 0, tokens)
	if r == VLLM {
		total = int64(float64(total) * vllmShare)
	}
	return total - m.Cache - m.Working
}

// maxFitContext is how many tokens a text has where nothing is said, at most.
const maxFitContext = 8192

// FitContext returns how many tokens are meant where nothing is said: as many as the model was made for, up to 8192.
func FitContext(d *arch.Decoder) int {
	if d.MaxPositions > 0 {
		return min(d.MaxPositions, maxFitContext)
	}
	return maxFitContext
}
