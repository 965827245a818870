package lutq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// Method is the value of quant_method.
const Method = "lutq"

// The versions of the container that this package reads. Version 2 adds kinds of
// layers, and version 3 the kind trellis. [Config.AddTo] writes the first that knows all that there is.
const (
	Version1 = 1
	Version2 = 2
	Version3 = 3
)

// spec completes the spec of a tensor: by the defaults and its kind.
func (c *Config) spec(own weight.Spec) weight.Spec {
	s := own.Or(c.Spec)
	kind, err := KindOf(s.Kind)
	if err != nil {
		return s // which check refuses
	}
	s.Kind = kind.Name()
	return kind.Fit(s)
}

// check reports the first field of a complete spec that no container has.
func check(s weight.Spec) error {
	kind, err := KindOf(s.Kind)
	if err != nil {
		return err
	}
	if err := s.Check(kind); err != nil || s.Kind != trellis.Name {
		return err
	}
	_, err = kind.Parts(s, 1, 1) // which not every codebook has at all widths
	return err
}

// TensorConfig describes one quantized layer.
type TensorConfig struct {
	Shape [2]int `json:"shape"` // N, K
	// Experts, if not 0, is how many matrices of N/Experts rows each the original has in one tensor P,
	// [Experts, N/Experts, K], or with Transposed [Experts, K, N/Experts].
	Experts    int     `json:"experts,omitempty"`
	Transposed bool    `json:"transposed,omitempty"`
	Error      float64 `json:"error"` // ‖W-Ŵ‖/‖W‖
	weight.Spec
}

// Original returns the name and the shape of the tensor that a layer was made from.
func (t TensorConfig) Original(layer string) (tensor string, shape []int) {
	if t.Experts == 0 {
		return layer + WeightSuffix, t.Shape[:]
	}
	n, k := t.Shape[0]/t.Experts, t.Shape[1]
	if t.Transposed {
		n, k = k, n
	}
	return layer, []int{t.Experts, n, k}
}

// Config is the quantization_config of a container.
type Config struct {
	QuantMethod string `json:"quant_method"`
	Version     int    `json:"version"`
	weight.Spec
	Command string `json:"command,omitempty"` // that makes the same bytes again from the same model
	// Transform says what was done to the model before it was quantized; nil: nothing.
	Transform *Transform              `json:"transform,omitempty"`
	Calib     *Calibration            `json:"calib,omitempty"`  // nil: no text took part in quantizing
	Learn     *Learning               `json:"learn,omitempty"`  // nil: nothing was learned
	Tables    Tables                  `json:"tables,omitempty"` // of trellis layers that store none
	SHA256    string                  `json:"sha256"`
	Tensors   map[string]TensorConfig `json:"tensors"`
	Digests   *Digests                `json:"digests,omitempty"` // nil: written before there were any
	Seal      string                  `json:"config_sha256,omitempty"`
}

// Calibration says on what text layers were quantized.
type Calibration struct {
	Texts    []CalibText `json:"texts"`   // mixed in equal parts
	Windows  int         `json:"windows"` // that statistics are of
	Context  int         `json:"context"` // tokens of a window
	BOS      string      `json:"bos"`     // where it went: none, window or half
	Tokens   int         `json:"tokens"`
	Damp     float64     `json:"damp"`     // of the mean of the Hessian's diagonal
	Retarget float64     `json:"retarget"` // part of the way to the original model's outputs
	Seed     uint64      `json:"seed"`
	Device   string      `json:"device"`
	// Stream is "float" where layers were fitted to what the original model makes of the text, "" where it was quantized as far as
	// the layers before.
	Stream string `json:"stream,omitempty"`
}

// Transform says how weights were changed before they were quantized, so that the model computes the same: states that layers
// read are divided by factors, which the file [FactorsName] beside the weights has.
type Transform struct {
	Name   string       `json:"name"`   // awq
	States int          `json:"states"` // that are divided
	Calib  *Calibration `json:"calib"`  // the text that says by what
}

// FactorsName is the name of the file of a container that has the factors of its [Transform].
const FactorsName = "lutq_factors.json"

// Learning says how the scales of a container were learned.
type Learning struct {
	Mode      string      `json:"mode"`      // lutq or flute
	Objective string      `json:"objective"` // kl or nll
	Texts     []CalibText `json:"texts"`     // mixed in equal parts
	Windows   int         `json:"windows"`   // that steps were taken on
	Context   int         `json:"context"`   // tokens of a window
	BOS       string      `json:"bos"`       // where it went: none, window or half
	Tokens    int         `json:"tokens"`    // of all steps
	Steps     int         `json:"steps"`
	Rate      float64     `json:"rate"`
	Seed      uint64      `json:"seed"`
	Device    string      `json:"device"`
	// The loss on windows that no step was taken on, before and after; 0 where there are none.
	ValidWindows int     `json:"valid_windows,omitempty"`
	InitialLoss  float64 `json:"initial_loss,omitempty"`
	Loss         float64 `json:"loss,omitempty"`
	BestStep     int     `json:"best_step"` // whose state was kept
}

// CalibText is a text that scales were learned on.
type CalibText struct {
	Name   string `json:"name"` // of the file, without its folder; or bundled, or self, of which the sum is that of the windows
	SHA256 string `json:"sha256"`
}

// IsContainer reports whether a quantization_config is one of this package's.
func IsContainer(quantization json.RawMessage) bool {
	var c struct {
		QuantMethod string `json:"quant_method"`
	}
	return json.Unmarshal(quantization, &c) == nil && c.QuantMethod == Method
}

// QuantizationConfig returns the quantization_config of a config.json, nil
// where there is none.
func QuantizationConfig(configJSON []byte) json.RawMessage {
	var keys struct {
		Quantization json.RawMessage `json:"quantization_config"`
	}
	if json.Unmarshal(configJSON, &keys) != nil {
		return nil
	}
	return keys.Quantization
}

// ParseConfig reads a quantization_config and checks every field that does not
// need the tensors.
func ParseConfig(quantization json.RawMessage) (*Config, error) {
	if len(quantization) == 0 {
		return nil, errors.New("config.json has no quantization_config: not a lutq container")
	}
	if !IsContainer(quantization) {
		return nil, errors.New("quantization_config is not of quant_method lutq")
	}
	var c Config
	if err := json.Unmarshal(quantization, &c); err != nil {
		return nil, fmt.Errorf("quantization_config: %w", err)
	}
	if c.Version < Version1 || c.Version > Version3 {
		return nil, fmt.Errorf("container version %d: this lutq reads versions %d to %d", c.Version, Version1, Version3)
	}
	switch needs := c.needs(); {
	case c.Version >= needs:
	case c.Version == Version1:
		return nil, fmt.Errorf("quantization_config: version %d knows no kinds of layers", Version1)
	default:
		return nil, fmt.Errorf("quantization_config: version %d knows no layers of kind %s", c.Version, trellis.Name)
	}
	if err := check(c.spec(weight.Spec{})); err != nil {
		return nil, fmt.Errorf("quantization_config: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Tensors)) {
		t := c.Tensors[name]
		if t.Shape[0] < 1 || t.Shape[1] < 1 {
			return nil, fmt.Errorf("quantization_config: %s has shape %v", name, t.Shape)
		}
		if t.Experts < 0 || t.Experts > 0 && t.Shape[0]%t.Experts != 0 || t.Transposed && t.Experts == 0 {
			return nil, fmt.Errorf("quantization_config: %s has %d rows of %d experts", name, t.Shape[0], t.Experts)
		}
		if err := check(c.spec(t.Spec)); err != nil {
			return nil, fmt.Errorf("quantization_config: %s: %w", name, err)
		}
	}
	if err := c.checkTables(); err != nil {
		return nil, fmt.Errorf("quantization_config: %w", err)
	}
	return &c, nil
}

// needs returns the first version that knows all kinds that are named.
func (c *Config) needs() int {
	version := Version1
	name := func(kind string) {
		switch kind {
		case "":
		case trellis.Name:
			version = Version3
		default:
			version = max(version, Version2)
		}
	}
	name(c.Kind)
	for _, t := range c.Tensors {
		name(t.Kind)
	}
	return version
}

// AddTo returns config.json with an auto_map that names [Code] and the quantization_config added as its last
// keys, and everything else as it stands, an auto_map too. It sets the version and the tables, and leaves the first kind unnamed
// where it is the default. Where c has digests, it adds the one of
// the result itself.
func (c *Config) AddTo(configJSON []byte) ([]byte, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(configJSON, &keys); err != nil || keys == nil {
		return nil, errors.New("config.json is not a JSON object")
	}
	if _, ok := keys["quantization_config"]; ok {
		return nil, errors.New("config.json has a quantization_config already: the model is quantized")
	}
	sealing := *c
	if sealing.Kind == Kinds()[0].Name() {
		sealing.Kind = ""
	}
	sealing.Version = sealing.needs()
	tables, err := c.tables()
	if err != nil {
		return nil, err
	}
	sealing.Tables = tables
	if c.Digests != nil {
		sealing.Seal = unsealed
	}
	value, err := json.MarshalIndent(sealing, "  ", "  ")
	if err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(configJSON, '}')
	out := bytes.TrimRight(configJSON[:end], " \t\r\n")
	out = slices.Clone(out)
	if len(keys) > 0 {
		out = append(out, ',')
	}
	if m := autoMap(keys); m != nil {
		out = fmt.Appendf(out, "\n  %q: %s,", autoMapKey, m)
	}
	out = append(out, "\n  \"quantization_config\": "...)
	out = append(out, value...)
	out = append(out, "\n}\n"...)
	if c.Digests != nil {
		seal(out)
	}
	return out, nil
}
