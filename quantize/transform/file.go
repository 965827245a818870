package transform

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/num"
)

// fileVersion is that of the form in which factors are stored.
const fileVersion = 1

// file is the JSON of a file of factors.
type file struct {
	Version int `json:"version"`
	// States are float32 numbers, little-endian, in base64, by the states' names.
	States map[string]string `json:"states"`
}

// Encode returns the factors as a container holds them beside its weights, in the file [lutq.FactorsName].
func (f Factors) Encode() ([]byte, error) {
	out := file{Version: fileVersion, States: make(map[string]string, len(f))}
	for name, of := range f {
		raw := make([]byte, 4*len(of))
		num.EncodeF32(raw, of)
		out.States[name] = base64.StdEncoding.EncodeToString(raw)
	}
	data, err := json.MarshalIndent(out, "", " ")
	return append(data, '\n'), err
}

// Parse reads what [Factors.Encode] returns.
func Parse(data []byte) (Factors, error) {
	var in file
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("factors: %w", err)
	}
	if in.Version != fileVersion {
		return nil, fmt.Errorf("factors of version %d: want %d", in.Version, fileVersion)
	}
	f := make(Factors, len(in.States))
	for _, name := range slices.Sorted(maps.Keys(in.States)) {
		raw, err := base64.StdEncoding.Strict().DecodeString(in.States[name])
		if err == nil && len(raw)%4 != 0 {
			err = errors.New("not of whole numbers")
		}
		if err != nil {
			return nil, fmt.Errorf("factors of %s: %w", name, err)
		}
		of := make([]float32, len(raw)/4)
		num.DecodeF32(of, raw)
		for i, v := range of {
			if !(v > 0) || math.IsInf(float64(v), 0) {
				return nil, fmt.Errorf("factors of %s: number %d is %v", name, i, v)
			}
		}
		f[name] = of
	}
	return f, nil
}
