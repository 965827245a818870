package fit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/corpus/bundled"
	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/source"
)

// ParseSelf returns the temperature of a text that the model writes itself, which is [Self] or, at another temperature than 1, as
// self:0.7. It returns false for what is none.
func ParseSelf(text string) (temperature float64, ok bool, err error) {
	value, given := strings.CutPrefix(text, Self+":")
	switch {
	case text == Self:
		return 1, true, nil
	case !given:
		return 0, false, nil
	}
	temperature, err = strconv.ParseFloat(value, 64)
	if err != nil || !(temperature > 0 && temperature <= 100) {
		return 0, true, fmt.Errorf("%s: a temperature is a number above 0, to 100", text)
	}
	return temperature, true, nil
}

// selfText makes windows that the model writes itself, and keeps them for other runs.
type selfText struct {
	o           *Options
	m           *source.Model
	tok         *tokenizer.Tokenizer
	bos         *int // of the model's configuration
	temperature float64
}

// SelfDir returns the folder that texts which models wrote are kept in where nothing else is said.
func SelfDir() string { return filepath.Join(input.CacheDir(), "self") }

// Rows side by side. On the host more take turns, and a GPU has work enough.
const (
	selfRows    = decode.Bucket
	selfRowsGPU = 64
)

// windows returns the windows, and their SHA-256.
func (s *selfText) windows(ctx context.Context, size, most int, bos corpus.BOS) ([][]int, string, error) {
	if s.o.Unwritten {
		all := make([][]int, most)
		for i := range all {
			all[i] = make([]int, size)
		}
		return all, "", nil
	}
	p, err := s.prompts(bos)
	if err != nil {
		return nil, "", err
	}
	key, err := s.key(p, size, most)
	if err != nil {
		return nil, "", err
	}
	kept := &keptWindows{path: filepath.Join(cmp.Or(s.o.Keep, SelfDir()), key+".tokens"), size: size, vocab: p.vocab}
	all := kept.read(most)
	if len(all) < most {
		if all, err = s.write(ctx, p, all, size, most, kept); err != nil {
			return nil, "", err
		}
	}
	sum := sha256.Sum256(encodeWindows(all))
	return all, hex.EncodeToString(sum[:]), nil
}

// prompts are what texts begin with.
type prompts struct {
	seed   uint64
	bos    []int // none where the model has no such token
	hidden int   // of these, that are no part of a window
	chats  [][]int
	vocab  int
	ends   []int
}

// prompts finds what texts begin with: with a chat template, the bundled chats up to what a user says; else BOS, or any token where there is
// none.
func (s *selfText) prompts(bos corpus.BOS) (*prompts, error) {
	d, err := s.m.Decoder()
	if err != nil {
		return nil, err
	}
	p := &prompts{seed: s.o.Seed, vocab: min(d.Vocab, s.tok.VocabSize())}
	if p.ends, err = s.m.Ends(); err != nil {
		return nil, err
	}
	b := bundledText{m: s.m, tok: s.tok, bos: s.bos, warn: s.o.Warn}
	if first, err := b.first(); err == nil {
		p.bos = []int{*first}
		if bos != corpus.BOSWindow {
			p.hidden = 1
		}
	}
	template := b.template()
	if template == nil {
		return p, nil
	}
	docs, err := bundled.Documents(0)
	if err != nil {
		return nil, err
	}
	for i := range docs {
		for at, m := range docs[i].Messages {
			if m.Role != "user" {
				continue
			}
			ids, ok, err := b.render(template, docs[i].Messages[:at+1], true)
			if err != nil {
				return nil, err
			}
			if ok && len(ids) > 0 {
				p.chats = append(p.chats, ids)
			}
		}
	}
	return p, nil
}

// prompt returns the tokens that the n-th text of a window begins with, and how many of them are no part of it.
func (p *prompts) prompt(window, n int) (tokens []int, hidden int) {
	draw := rand.New(rand.NewPCG(p.seed, uint64(window)<<32|uint64(n)|1<<63))
	switch {
	case len(p.chats) > 0:
		tokens = p.chats[draw.IntN(len(p.chats))]
		if n == 0 && len(p.bos) > p.hidden && tokens[0] != p.bos[0] { // as all windows begin with it
			tokens = append(p.bos[:1:1], tokens...)
		}
		return tokens, 0
	case len(p.bos) > 0:
		return p.bos, p.hidden
	}
	return []int{draw.IntN(p.vocab)}, 0
}

// key names all that the windows depend on. Models are told apart by their files, as far as that goes without reading them. On a
// device windows depend on those beside them.
func (s *selfText) key(p *prompts, size, most int) (string, error) {
	h := sha256.New()
	weights, err := s.m.Weights()
	if err != nil {
		return "", err
	}
	dir, err := filepath.Abs(s.m.Path())
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "lutq self 1\n%s\n%s\n", dir, s.o.Device)
	for _, shard := range weights.Shards() {
		version, err := weights.Version(shard)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %s\n", shard, version)
	}
	sum, err := s.m.TokenizerSum()
	if err != nil {
		return "", err
	}
	if s.o.Device == "cpu" {
		most = 0
	}
	fmt.Fprintf(h, "%x\n%v %d %d %d %v\n%v\n", sum, s.temperature, p.seed, size, most, p.ends, [][]int{p.bos[:len(p.bos)-p.hidden], p.bos})
	for _, c := range p.chats {
		fmt.Fprintln(h, c)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// write goes on with windows until there are as many as asked for.
func (s *selfText) write(ctx context.Context, p *prompts, all [][]int, size, most int, kept *keptWindows) (_ [][]int, err error) {
	if s.o.Begin != nil {
		defer s.o.Begin("writing a text")()
	}
	devices, done, err := s.o.Open(0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	m, err := model.Open(s.m, devices[0], model.OpenOptions{})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	slots, room := selfRows, size
	if s.o.Device != "cpu" {
		slots = selfRowsGPU
	}
	if longest := decode.Longest(m.Decoder()); longest > 0 {
		room = min(room, longest)
	}
	session, err := decode.NewSession(m, decode.Options{Slots: min(slots, most), Context: room})
	if err != nil {
		return nil, err
	}
	defer session.Close()
	for len(all) < most {
		had := len(all)
		rows, err := decode.Fill(ctx, session, decode.FillOptions{
			Sampling: decode.Sampling{Temperature: s.temperature, Seed: p.seed},
			First:    had, Rows: min(slots, most-had), Length: size, EOS: p.ends, Prompt: p.prompt,
			Progress: func(tokens int) {
				if s.o.Written != nil {
					s.o.Written(had*size+tokens, most*size)
				}
			},
		})
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
		kept.write(all)
	}
	return all, nil
}

// keptWindows is a file of windows that were written, which is for speed alone: one that cannot be read or written is as if it
// were not there.
type keptWindows struct {
	path        string
	size, vocab int
}

// keptMagic begins the file. The SHA-256 of what follows comes next.
const keptMagic = "lutq text 1\n"

// read returns the windows that are kept, most at most.
func (k *keptWindows) read(most int) [][]int {
	if input.Private(filepath.Dir(k.path)) != nil {
		return nil
	}
	data, err := input.ReadFile(k.path, input.Written)
	if err != nil {
		return nil
	}
	return decodeWindows(data, k.size, k.vocab, most)
}

// decodeWindows returns the windows of a file, none where it is not whole.
func decodeWindows(data []byte, size, vocab, most int) (all [][]int) {
	sum, ok := bytes.CutPrefix(data, []byte(keptMagic))
	if !ok || len(sum) < sha256.Size {
		return nil
	}
	tokens := sum[sha256.Size:]
	if sha256.Sum256(tokens) != [sha256.Size]byte(sum[:sha256.Size]) {
		return nil
	}
	for len(tokens) >= 4*size && len(all) < most {
		w := make([]int, size)
		for i := range w {
			w[i] = int(binary.LittleEndian.Uint32(tokens[4*i:]))
			if w[i] >= vocab {
				return nil
			}
		}
		all, tokens = append(all, w), tokens[4*size:]
	}
	return all
}

// write keeps windows. The file appears whole.
func (k *keptWindows) write(all [][]int) {
	dir := filepath.Dir(k.path)
	if os.MkdirAll(dir, 0o700) != nil || input.Private(dir) != nil {
		return
	}
	f, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return
	}
	defer os.Remove(f.Name())
	tokens := encodeWindows(all)
	sum := sha256.Sum256(tokens)
	_, err = f.Write(append(append([]byte(keptMagic), sum[:]...), tokens...))
	if errors.Join(err, f.Close()) == nil {
		_ = os.Rename(f.Name(), k.path) // without which nothing is kept
	}
}

// encodeWindows returns the tokens of windows, of 4 bytes each.
func encodeWindows(all [][]int) []byte {
	var data []byte
	for _, w := range all {
		for _, id := range w {
			data = binary.LittleEndian.AppendUint32(data, uint32(id))
		}
	}
	return data
}
