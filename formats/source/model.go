// Package source opens any model: a Hugging Face folder, a GGUF file, a container of lutq, or a folder that another
// program quantized. It finds out which, and hands out its tensors under the names of the Hugging Face folder, decoded
// to numbers.
package source

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/gguf"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
)

// Options say how a model is opened.
type Options struct {
	// Unchecked leaves the digests of a container alone.
	Unchecked bool
	// As, unless nil, is the one way in which another program may have stored the weights. Otherwise all that are known are.
	As hf.Scheme
	// Shards, unless nil, are the files of a folder's tensors, which do not lie in it.
	Shards []hf.Shard
	// Note, unless nil, is told what is odd about the model but has one reading, a line each, and each once.
	Note func(line string)
}

// Model is an open model: a folder as Hugging Face's hub has them, in any format that is read, a container of lutq's, or a GGUF
// file. It says what the model is, and is handed to all that work with it: nothing else opens its path.
//
// What takes time is opened, read or decided when it is first asked for, and once. The methods may be called from several
// goroutines, but for Close.
type Model struct {
	path string // as it was given
	file string // the GGUF file that the model is in; "" for a folder
	o    Options

	alone bool // the path is of another file

	pairs     func() (*gguf.File, error)     // the GGUF file
	config    func() ([]byte, error)         // config.json as it stands
	folder    func() (*hf.Checkpoint, error) // the tensors, of which nothing was told
	stored    func() (*hf.Checkpoint, error)
	weights   func() (*hf.Checkpoint, error)
	container func() (*lutq.Model, error)
	decoder   func() (*arch.Decoder, error)

	// What Close closes.
	openFile    *gguf.File
	openWeights *hf.Checkpoint
}

// Open finds the model of a path: a folder, or a GGUF file, which may be the only one in a folder without safetensors. A path
// that does not exist, a folder of several GGUF files and one of the Hugging Face cache are errors with a hint. What else may
// be wrong is known when it is read.
func Open(path string, o Options) (*Model, error) {
	m := &Model{path: path, o: o}
	if o.As == nil && o.Shards == nil {
		var err error
		if m.file, err = ggufIn(path); err != nil {
			return nil, err
		}
	}
	if info, err := os.Stat(path); err == nil {
		m.alone = m.file == "" && !info.IsDir()
	}
	m.pairs = sync.OnceValues(m.openGGUF)
	m.config = sync.OnceValues(func() ([]byte, error) { return m.Text(configName) })
	m.folder = sync.OnceValues(m.openFolder)
	m.stored = sync.OnceValues(m.tellFolder)
	m.weights = sync.OnceValues(m.settle)
	m.container = sync.OnceValues(m.openContainer)
	m.decoder = sync.OnceValues(m.describe)
	return m, nil
}

// Close closes all that was opened of the model, whose tensors cannot be read any more.
func (m *Model) Close() error {
	var errs []error
	if m.openWeights != nil {
		errs = append(errs, m.openWeights.Close())
	}
	if m.openFile != nil {
		errs = append(errs, m.openFile.Close())
	}
	return errors.Join(errs...)
}

// Path returns the path as it was given to [Open].
func (m *Model) Path() string { return m.path }

// Dir is what messages call the model: its folder, or its GGUF file.
func (m *Model) Dir() string {
	if m.file != "" {
		return m.file
	}
	return m.path
}

// Alone reports whether the path is of a file by itself that is no GGUF file: a config.json, or a tokenizer.json.
func (m *Model) Alone() bool { return m.alone }

// IsContainer reports whether the model is one that lutq has quantized, as its config.json says. One without such a file is
// none.
func (m *Model) IsContainer() (bool, error) {
	if m.file != "" {
		return false, nil
	}
	config, err := m.config()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return lutq.IsContainer(lutq.QuantizationConfig(config)), err
}

// HasWeights reports whether there are weights, or parts of them, and not a config.json alone.
func (m *Model) HasWeights() (bool, error) {
	if m.file != "" {
		return true, nil
	}
	files, err := filepath.Glob(filepath.Join(m.path, "*.safetensors*"))
	return len(files) > 0, err
}

// Stored returns the tensors as they are stored, decoded where another program has quantized them, whether or not a model can
// be made of them.
func (m *Model) Stored() (*hf.Checkpoint, error) { return m.stored() }

// Weights returns the tensors of a model that a decoder can be made of: what its config.json and they say of it is one, see
// [Agree], and the config.json that they have says so. A container's are those that it was written with.
func (m *Model) Weights() (*hf.Checkpoint, error) { return m.weights() }

// Container returns the model as the container that it is, of whose files nothing is told: digests say whether they are what
// was written. Any other model is an error.
func (m *Model) Container() (*lutq.Model, error) { return m.container() }

// Decoder returns the description of the model by its config.json and its tensors.
func (m *Model) Decoder() (*arch.Decoder, error) { return m.decoder() }

// Outline returns the description of a model by its config.json alone, which may be all that there is, or be the path itself.
// What may be stored in several ways is taken to be stored as the family mostly is.
func (m *Model) Outline() (*arch.Decoder, error) {
	if m.file == "" {
		return arch.Read(m.path, nil)
	}
	c, err := m.Weights()
	if err != nil {
		return nil, err
	}
	return arch.ReadFrom(c, nil)
}

// AgreedConfig returns the config.json of a container on which [Agree] has decided.
func (m *Model) AgreedConfig() ([]byte, error) {
	c, err := m.Container()
	if err != nil {
		return nil, err
	}
	config, err := m.config()
	if err != nil {
		return nil, err
	}
	return Agree(m.path, config, originalTensors{c})
}

// With returns the model with other weights, which are made of its own and named as they are: all else is as it was. The
// model stays open as long as both are used, and is closed alone.
func (m *Model) With(weights *hf.Checkpoint) *Model {
	n := *m
	n.openFile, n.openWeights = nil, nil
	n.weights = func() (*hf.Checkpoint, error) { return weights, nil }
	n.stored = n.weights
	return &n
}

// tell tells what is odd.
func (m *Model) tell(lines []string) {
	if m.o.Note == nil {
		return
	}
	for _, line := range lines {
		m.o.Note(line)
	}
}

func (m *Model) openGGUF() (*gguf.File, error) {
	f, err := gguf.Open(m.file)
	if err != nil {
		return nil, err
	}
	m.openFile = f
	m.tell(f.Notes())
	return f, nil
}

func (m *Model) openFolder() (c *hf.Checkpoint, err error) {
	if m.file != "" {
		f, err := m.pairs()
		if err != nil {
			return nil, err
		}
		m.openWeights, err = f.Checkpoint()
		return m.openWeights, err
	}
	as := schemes()
	if container, _ := m.IsContainer(); container { // what is wrong with its config.json is told by what opens
		as = nil
	} else if m.o.As != nil {
		as = []hf.Scheme{m.o.As}
	}
	m.openWeights, err = hf.OpenShards(m.path, m.o.Shards, as...)
	return m.openWeights, err
}

// tellFolder tells what is odd about a folder, as opening it does of a GGUF file.
func (m *Model) tellFolder() (*hf.Checkpoint, error) {
	c, err := m.folder()
	if err == nil && m.file == "" {
		m.tell(c.Notes())
	}
	return c, err
}

// settle makes one of what config.json and tensors say.
func (m *Model) settle() (*hf.Checkpoint, error) {
	c, err := m.stored()
	if err != nil {
		return nil, err
	}
	if container, err := m.IsContainer(); container || err != nil {
		return c, err
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
		return nil, err
	}
	if !bytes.Equal(agreed, config) {
		before := len(c.Notes())
		c.SetConfig(agreed, "the output head that is stored is used: it is not the embedding, as "+configName+" has it (tie_word_embeddings)")
		m.tell(c.Notes()[before:])
	}
	return c, nil
}

func (m *Model) openContainer() (*lutq.Model, error) {
	if m.file != "" {
		if m.file == m.path {
			return nil, &hf.NotFoundError{Model: m.path, File: true}
		}
		return nil, &hf.UnreadableError{Dir: m.path, File: filepath.Base(m.file)}
	}
	c, err := m.folder()
	if err != nil {
		return nil, err
	}
	return lutq.Of(c, !m.o.Unchecked)
}

func (m *Model) describe() (*arch.Decoder, error) {
	if container, err := m.IsContainer(); err != nil {
		return nil, err
	} else if container {
		config, err := m.AgreedConfig()
		if err != nil {
			return nil, err
		}
		c, err := m.Container()
		if err != nil {
			return nil, err
		}
		d, err := arch.Describe(config, c.Has)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(m.path, configName), err)
		}
		return d, nil
	}
	c, err := m.Weights()
	if err != nil {
		return nil, err
	}
	return arch.ReadFrom(c, c.Has)
}
