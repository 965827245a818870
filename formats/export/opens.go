package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/card"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
)

// OpensIn says what opens a container, by how its layers are stored.
func OpensIn(m *lutq.Model) (o card.Opens, err error) {
	config, err := m.Checkpoint().ConfigJSON()
	if err != nil {
		return o, err
	}
	_, err = arch.Describe(config, m.Has)
	o.Family = err == nil
	o.OwnCode = lutq.OwnCode(config)
	if o.Chat, err = hasChatTemplate(m.Checkpoint()); err != nil {
		return o, err
	}
	o.VLLM = o.Family && !o.OwnCode && vllm(config)
	o.Exports = holders(m, config)
	return o, nil
}

// hasChatTemplate reports whether a model says how a conversation is written.
func hasChatTemplate(c *hf.Checkpoint) (bool, error) {
	side := c.SideFiles()
	if slices.Contains(side, "chat_template.jinja") || slices.Contains(side, "chat_template.json") {
		return true, nil
	}
	config, err := c.File("tokenizer_config.json", input.Tokenizer)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return bytes.Contains(config, []byte(`"chat_template"`)), nil
}

// holders lists the targets whose presets all layers are of.
func holders(m *lutq.Model, config []byte) []string {
	var kept []*hf.Tensor
	for _, t := range m.Checkpoint().Tensors() {
		if m.LayerOf(t.Name) == "" {
			kept = append(kept, t)
		}
	}
	dtype := foreign.DTypeOf(config, kept)
	var names []string
	for _, p := range Presets() {
		fits := func(layer string) bool { return p.Check(m.Spec(layer), dtype) == nil }
		if !slices.ContainsFunc(m.Linears(), func(layer string) bool { return !fits(layer) }) {
			names = append(names, p.Target)
		}
	}
	return names
}

// vllm reports whether vLLM has a model for a config.json's architecture. It has one for each of lutq's families but those that are
// named. lutq_vllm.py opens layers of every kind.
func vllm(config []byte) bool {
	var c struct {
		Architectures []string `json:"architectures"`
	}
	if json.Unmarshal(config, &c) != nil || len(c.Architectures) == 0 {
		return false
	}
	switch c.Architectures[0] {
	case "Kimi_K25ForConditionalGeneration", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM":
		return false
	}
	return true
}

// writeCard writes the card of what was exported of a container in the place of the container's.
func (p *Plan) writeCard(dir string, o Options) error {
	if p.input == nil {
		return nil
	}
	text, err := p.ckpt.File(card.FileName, input.Text)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	origin, ours := card.Read(text)
	if !ours {
		return nil // which was copied where the format copies files
	}
	e := card.Export{Target: p.Target.Name(), Programs: openedBy(p.Target.Name()), Library: library(p.Target.Name())}
	if c := p.input.Config().Command; c != "" {
		then := "lutq export OUT OTHER --to " + p.Target.Name()
		if o.Requantize && len(p.Unfit()) > 0 {
			then += " --requantize"
		}
		e.Commands = []string{c, then}
	}
	if _, err := os.Stat(filepath.Join(dir, card.OriginalName)); err == nil {
		e.Original = true
	}
	data, err := card.OfExport(origin, e)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, card.FileName), data, 0o666)
}

// openedBy names the programs that open a target.
func openedBy(target string) (names []string) {
	for _, p := range programs() {
		if slices.Contains(p.opens, target) {
			name := p.shown
			if name == "" {
				name = p.names[0]
			}
			names = append(names, name)
		}
	}
	return names
}

// library is what the hub calls what opens a target, "" where it knows by the files.
func library(target string) string {
	switch target {
	case "gguf":
		return ""
	case "mlx":
		return "mlx"
	case "exl3":
		return "exllamav3"
	}
	return "transformers"
}
