package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// A Scheme is one way to store weights as something else, from which they are decoded
// when they are read.
type Scheme interface {
	// Decode returns the tensors that a folder stores in others. ok is false for a
	// folder that is not stored in this way. It reads no more of a tensor than it needs
	// to know what is stored.
	Decode(s *Stored) (found []Encoded, ok bool, err error)
}

// Stored is a folder as its files have it, for a [Scheme] to look at.
type Stored struct {
	Dir     string
	Tensors []*Tensor // in the order of the files

	// Key is the key under which config.json says how weights are stored, and Quantization
	// its value; both are empty where it says nothing. Method is the quant_method in
	// there, in lower case.
	Key, Method  string
	Quantization json.RawMessage

	byName map[string]*Tensor
}

// Tensor returns a tensor of the files, nil where there is none of that name.
func (s *Stored) Tensor(name string) *Tensor { return s.byName[name] }

// Layers returns the weights of the layers that have a tensor with a suffix, by which layer makes each of its name.
func (s *Stored) Layers(suffix string, layer func(s *Stored, name string, t *Tensor) (Encoded, error)) ([]Encoded, error) {
	var found []Encoded
	for _, t := range s.Tensors {
		name, is := strings.CutSuffix(t.Name, suffix)
		if !is {
			continue
		}
		e, err := layer(s, name, t)
		if err != nil {
			return nil, err
		}
		found = append(found, e)
	}
	return found, nil
}

// Encoded is a tensor that a folder stores in others.
type Encoded struct {
	Name  string
	DType DType // that its values are read in: F32 or BF16
	Shape []int
	*Encoding
}

// Encoding says how the values of a tensor are stored where that is in codes,
// each of which with a scale gives a value.
type Encoding struct {
	Type string // what the codes are, such as F8_E4M3 or "GPTQ, 4 bits"

	// Rows and Cols are the block of a matrix that shares a scale, cut off at the
	// matrix's end; 0 where there are no scales.
	Rows, Cols int
	N, K       int // of a matrix, of which a tensor of three dimensions has several

	// Turned says that a tensor of three dimensions has for rows what the same model
	// in 16 bits has for columns.
	Turned bool

	// Parts are the tensors that it is stored in, together with those that a value does
	// not depend on, such as scales of activations. Messages name the first.
	Parts []*Tensor
	Codec Codec
}

// A Codec decodes values. Several goroutines may use one.
type Codec interface {
	// ReadFloat32 decodes the elements [start, start+len(dst)), which exist, in row-major
	// order. It holds no more of them in memory than dst has, but for a part that
	// does not depend on the tensor's size.
	ReadFloat32(dst []float32, start int64) error
}

// String names the encoding, as in "F8_E4M3, a scale per 128×128".
func (e *Encoding) String() string {
	switch {
	case e.Type == "MXFP4" || e.Rows == 0:
		return e.Type // whose block is a part of the name, or which has no scales
	case e.Rows >= e.N && e.Cols >= e.K:
		return e.Type + ", one scale"
	case e.Rows == 1 && e.Cols >= e.K:
		return e.Type + ", a scale per row"
	case e.Rows == 1:
		return fmt.Sprintf("%s, a scale per %d", e.Type, e.Cols)
	}
	return fmt.Sprintf("%s, a scale per %d×%d", e.Type, e.Rows, e.Cols)
}

// bytes returns what the parts take in the files.
func (e *Encoding) bytes() int64 {
	sum := int64(0)
	for _, t := range e.Parts {
		sum += t.size
	}
	return sum
}

// quantizationKeys are the keys of a config.json that say how weights are stored.
func quantizationKeys() []string {
	return []string{"quantization_config", "compression_config", mlxKey}
}

const mlxKey = "quantization"

// sideFilesOfCodes are the files that say how weights were quantized.
func sideFilesOfCodes() []string {
	return []string{"quantize_config.json", "quant_config.json", "hf_quant_config.json", "quantization_config.json"}
}

// stored returns the folder for schemes to look at.
func (c *Checkpoint) asStored(config object) *Stored {
	s := &Stored{Dir: c.dir, Tensors: c.tensors, byName: c.stored}
	for _, part := range config.parts() {
		for _, key := range quantizationKeys() {
			if !part.has(key) {
				continue
			}
			var is struct {
				Method string `json:"quant_method"`
			}
			_ = json.Unmarshal(part[key], &is) // what is no object is refused by CheckPlain
			if is.Method == "" && part.has(mlxKey) {
				key = mlxKey // which mlx-lm goes by, whatever it wrote under the others
			}
			s.Key, s.Method, s.Quantization = key, strings.ToLower(is.Method), part[key]
			return s
		}
	}
	return s
}

// decode makes the checkpoint's tensors those that the files' encode, where one of
// the schemes knows how. A config.json that is no object is left to others.
func (c *Checkpoint) decode(schemes []Scheme) error {
	c.byName = c.stored
	if len(schemes) == 0 {
		return nil
	}
	path := filepath.Join(c.dir, configName)
	text, err := input.ReadFile(path, input.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	var config object
	if json.Unmarshal(text, &config) != nil {
		return nil
	}
	stored := c.asStored(config)
	for _, scheme := range schemes {
		found, ok, err := scheme.Decode(stored)
		if err == nil && ok {
			err = c.replace(found)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.dir, err)
		}
		if ok {
			return nil
		}
	}
	return nil
}

// replace puts encoded tensors in the place of their first parts, and leaves out the others.
func (c *Checkpoint) replace(found []Encoded) error {
	place, part := make(map[*Tensor]*Tensor), make(map[*Tensor]string)
	for _, e := range found {
		t, err := newEncoded(e)
		if err != nil {
			return e.Parts[0].wrap(err)
		}
		for _, p := range e.Parts {
			if of, ok := part[p]; ok {
				return p.wrap(fmt.Errorf("is a part of %q and of %q", of, e.Name))
			}
			part[p] = e.Name
		}
		place[e.Parts[0]] = t
	}
	all := make(map[string]*Tensor, len(c.tensors))
	kept := make([]*Tensor, 0, len(c.tensors))
	for _, t := range c.tensors {
		if of := place[t]; of != nil {
			t = of
		} else if _, ok := part[t]; ok {
			continue
		}
		if all[t.Name] != nil {
			return t.wrap(fmt.Errorf("stores %q, which is there as well", t.Name))
		}
		kept = append(kept, t)
		all[t.Name] = t
	}
	c.decodes, c.tensors, c.byName = true, kept, all
	c.side = slices.DeleteFunc(c.side, func(name string) bool { return slices.Contains(sideFilesOfCodes(), name) })
	return nil
}

// newEncoded returns the tensor that an encoding stores.
func newEncoded(e Encoded) (*Tensor, error) {
	first := e.Parts[0]
	t := &Tensor{Name: e.Name, DType: e.DType, Shape: e.Shape, Shard: first.Shard, file: first.file, buffers: first.buffers, encoding: e.Encoding, codec: e.Codec}
	var err error
	t.elements, t.size, err = sizeOf(t.DType, t.Shape)
	return t, err
}

// Errorf returns an error that names the tensor and its file.
func (t *Tensor) Errorf(format string, args ...any) error { return t.wrap(fmt.Errorf(format, args...)) }
