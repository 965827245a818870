// Package source opens any model: a Hugging Face folder, a GGUF file, a container of lutq, or a folder that another
// program quantized. It finds out which, and hands out its tensors under the names of the Hugging Face folder, decoded
// to numbers.
package source

import (
	"bytes"
	"errors"
	"io/fs"

	"github.com/lutq/lutq/formats/awq"
	"github.com/lutq/lutq/formats/bnb"
	"github.com/lutq/lutq/formats/ct"
	"github.com/lutq/lutq/formats/gguf"
	"github.com/lutq/lutq/formats/gptq"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/kernels"
	"github.com/lutq/lutq/formats/mlx"
	"github.com/lutq/lutq/formats/modelopt"
	"github.com/lutq/lutq/formats/mxfp4"
)

// Schemes lists the ways to store weights that are decoded.
func Schemes() []hf.Scheme {
	var schemes []hf.Scheme
	for _, l := range kernels.All() { // before GPTQ, which MARLIN calls itself
		schemes = append(schemes, l)
	}
	return append(schemes,
		hf.FP8Scheme{},
		mxfp4.Scheme{},
		ct.Scheme{},
		gptq.Scheme{},
		awq.Scheme{},
		bnb.Scheme{},
		mlx.Scheme{},
		modelopt.Scheme{},
	)
}

// Open opens a model folder as [hf.Open] does, with all schemes, or a GGUF file as [gguf.OpenModel]
// does, see [GGUF]. What its config.json and its tensors say of a model that is known is one then, see [Agree]: the
// checkpoint has the config.json that does.
func Open(model string) (*hf.Checkpoint, error) { return settled(OpenStored(model)) }

// OpenAs opens a model folder as [Open] does, with one scheme.
func OpenAs(dir string, scheme hf.Scheme) (*hf.Checkpoint, error) {
	return settled(hf.Open(dir, scheme))
}

// settled makes one of what config.json and tensors say of a model that was opened.
func settled(c *hf.Checkpoint, err error) (*hf.Checkpoint, error) {
	if err != nil {
		return nil, err
	}
	config, err := c.File(configName, input.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil // what needs one says so
	}
	agreed := config
	if err == nil {
		agreed, err = Agree(c.Dir(), config, c)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if !bytes.Equal(agreed, config) {
		c.SetConfig(agreed, "the output head that is stored is used: it is not the embedding, as "+configName+" has it (tie_word_embeddings)")
	}
	return c, nil
}

// OpenStored opens a model as [Open] does, to look at what is stored, whether or not a model can be made of it.
func OpenStored(model string) (*hf.Checkpoint, error) {
	path, err := GGUF(model)
	if err != nil {
		return nil, err
	}
	if path != "" {
		return gguf.OpenModel(path)
	}
	return hf.Open(model, Schemes()...)
}
