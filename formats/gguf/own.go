package gguf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/lutq/lutq/formats/added"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
)

// Pairs of our own, which llama.cpp does not look at. Each is there only where a model has what the other pairs do not tell,
// so that a file is read back as what it was made of.
const (
	ownConfig     = "lutq.config"                 // config.json, a string
	ownEnds       = "lutq.eos_token_ids"          // the tokens that end a text, integers
	ownNormalizer = "lutq.tokenizer.normalizer"   // that of tokenizer.json, a string
	ownAdded      = "lutq.tokenizer.added_tokens" // of those of tokenizer.json that take spaces along or want a whole word, a string
)

// The ends of texts beside eos, as pairs name them.
const (
	endOfTurn    = "eot"
	endOfMessage = "eom"
)

// keepConfig adds the config.json to the pairs, if they make another model of what the file will have.
func (f *format) keepConfig() error {
	read, err := f.preview()
	if err != nil {
		return err
	}
	if config, err := read.ConfigJSON(); err == nil {
		if d, err := arch.Describe(config, read.stores); err == nil && alike(d, f.model.Decoder) {
			return nil
		}
	}
	config, err := foreign.Edit(f.model.Config, foreign.Member{Key: "torch_dtype"}, foreign.Member{Key: "dtype"})
	if err != nil {
		return err
	}
	f.kvs = append(f.kvs, KV{ownConfig, string(config)})
	return nil
}

// preview is the file as far as it is known before there are weights: its pairs, its tensors' names, and what follows from
// config.json.
func (f *format) preview() (*File, error) {
	read := &File{Meta: make(Metadata), byName: make(map[string]*Raw)}
	for _, kv := range f.kvs {
		read.Meta[kv.Key] = kv.Value
	}
	buffers := &sync.Pool{New: func() any { return new([chunk]byte) }}
	for i := range f.tensors {
		t := &f.tensors[i]
		raw := &Raw{Name: t.Name, Type: F32, Shape: t.Shape, buffers: buffers}
		if t.Values != nil {
			data := make([]byte, 4*len(t.Values))
			if err := F32.encode(data, t.Values); err != nil {
				return nil, err
			}
			raw.elements, raw.size, raw.file = int64(len(t.Values)), int64(len(data)), bytes.NewReader(data)
		}
		read.Tensors = append(read.Tensors, raw)
		read.byName[raw.Name] = raw
	}
	return read, nil
}

// numbers lists what a description computes with besides weights, in an order of its own.
func numbers(d *arch.Decoder) []any {
	all := []any{d.Hidden, d.Vocab, d.MaxPositions, d.Tied, d.Reread, d.EmbedScale, d.Residual, d.LogitScale, d.LogitCap, d.Norm.Eps, d.Norm.Offset}
	if t := d.Tokens; t != nil {
		all = append(all, t.Width, t.Embed.N, t.Norm.Eps)
	}
	turns := make(map[*arch.Rope][]any)
	for i := range d.Blocks {
		b := &d.Blocks[i]
		all = append(all, b.AttnNorm.Eps, b.MLPNorm.Eps, b.Told != nil, b.Scale != "", b.MoE != nil && b.MoE.Apart != nil)
		all = append(all, mixing(b.Mixer)...)
		for _, r := range b.Mixer.Ropes() {
			if r == nil {
				all = append(all, "none")
				continue
			}
			if turns[r] == nil {
				turns[r] = []any{r.Amplitude, r.Growth, r.Adjacent}
				for _, tokens := range []int{1, r.Original, r.Original + 1, d.MaxPositions, 2*d.MaxPositions + 1} {
					for _, f := range r.Frequencies(tokens) {
						turns[r] = append(turns[r], f)
					}
				}
			}
			all = append(all, turns[r]...)
		}
		for _, m := range b.MLPs() {
			all = append(all, string(m.Act.Act), m.Act.Alpha, m.Act.Limit)
		}
		if b.MoE != nil {
			r := &b.MoE.Routing
			all = append(all, b.MoE.Top, b.MoE.Normalize, b.MoE.Shared != nil, r.Sigmoid, r.Correction != "", r.Groups, r.TopGroups, r.Factor(), r.OnInput)
		}
	}
	return all
}

// mixing lists what a mixer computes with besides weights and rotary embeddings.
func mixing(m arch.Mixer) []any {
	switch m := m.(type) {
	case *arch.Attention:
		return []any{
			m.Heads, m.KVHeads, m.Dim, m.Window, m.Chunk, m.Scale, m.ScoreCap, m.Sinks != "", m.Gated, m.QNorm != nil, m.NormWhole, m.NormLast, m.ValueEps,
			m.From != nil, m.V == nil,
		}
	case *arch.Latent:
		rank := 0
		if m.QDown != nil {
			rank = m.QDown.N
		}
		return []any{m.Heads, m.KeyDim, m.RopeDim, m.ValueDim, m.Rank, rank, m.Scale, m.KVNorm.Eps}
	case *arch.ShortConv:
		return []any{m.Channels, m.Width, m.ConvBias != ""}
	case *arch.Mamba2:
		return []any{m.Heads, m.Dim, m.Groups, m.State, m.Width, m.ConvBias != "", m.Norm.Eps}
	case *arch.DeltaNet:
		return []any{m.KHeads, m.VHeads, m.KDim, m.VDim, m.Width, m.Grouped, m.Norm.Eps}
	}
	return []any{fmt.Sprintf("%T", m)}
}

// alike compares descriptions, but for digits that a float32 has not.
func alike(a, b *arch.Decoder) bool {
	return slices.EqualFunc(numbers(a), numbers(b), func(x, y any) bool {
		f, ok := x.(float64)
		g, also := y.(float64)
		return x == y || ok && also && near(f, g)
	})
}

// config returns the config.json that lutq wrote, nil where it wrote none.
func (f *File) config(dtype string) ([]byte, error) {
	text, ok := f.Meta.Text(ownConfig)
	if !ok {
		return nil, nil
	}
	config, err := foreign.Edit([]byte(text), foreign.Member{Key: "dtype", Value: strconv.AppendQuote(nil, dtype)})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ownConfig, err)
	}
	return config, nil
}

// added reads the added tokens that lutq tells of, by id.
func (f *File) added() (map[int]added.Token, error) {
	text, ok := f.Meta.Text(ownAdded)
	if !ok {
		return nil, nil
	}
	var list []added.Token
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("%s: %w", ownAdded, err)
	}
	all := make(map[int]added.Token, len(list))
	for _, t := range list {
		all[t.ID] = t
	}
	return all, nil
}

// normalizer reads the file's, nil where there is none.
func (f *File) normalizer() (any, error) {
	text, ok := f.Meta.Text(ownNormalizer)
	if !ok {
		return nil, nil
	}
	var s object
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("%s: %w", ownNormalizer, err)
	}
	return s, nil
}

// lack is what llama.cpp has not, and what comes of that.
type lack struct{ what, then string }

// swigluLimit is the one that llama.cpp has for gpt-oss.
const swigluLimit = 7

// lacks lists what llama.cpp computes otherwise than a model.
func (f family) lacks(d *arch.Decoder) (all []lack) {
	if w, ok := slidingWindow(d).(uint32); ok && f.window == 0 && !f.pattern && w > 0 && int(w) < d.MaxPositions {
		all = append(all, lack{"no windows in models of the architecture " + f.arch, fmt.Sprintf("beyond %d tokens it computes otherwise", w)})
	}
	for _, m := range d.Blocks[0].MLPs()[:1] {
		if m.Act.Act == arch.SwiGLUOAI && m.Act.Limit != swigluLimit {
			all = append(all, lack{"no swiglu_limit but 7", "it computes otherwise"})
		}
	}
	if a := latentOf(d); a != nil && a.KVNorm.Eps != d.Norm.Eps {
		all = append(all, lack{"no other epsilon for norms within attention", "it computes a little otherwise"})
	}
	switch r := ropesOf(d).global; {
	case r == nil:
	case r.Type == "dynamic":
		all = append(all, lack{"no rope type dynamic", fmt.Sprintf("beyond %d tokens it computes otherwise", r.Original)})
	case r.Type == "yarn" && !r.Truncate:
		all = append(all, lack{"no rope type yarn that does not round the ends of its ramp", "it computes a little otherwise"})
	case r.Type == "longrope":
		all = append(all, lack{
			"no rope type longrope that goes by the length of a text",
			fmt.Sprintf("run with a context of more than %d tokens, it computes shorter texts otherwise", r.Original),
		})
	}
	return all
}
