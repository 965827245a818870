package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"path/filepath"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// index is the content of a model.safetensors.index.json.
type index struct {
	weightMap map[string]string // tensor to shard
	shards    map[string]bool
}

// readIndex returns nil where there is no index.
func readIndex(file string) (*index, error) {
	text, err := input.ReadFile(file, input.Index)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	x, err := parseIndex(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return x, nil
}

func parseIndex(text []byte) (*index, error) {
	s, err := newScanner(text)
	if err != nil {
		return nil, err
	}
	x := &index{weightMap: make(map[string]string), shards: make(map[string]bool)}
	found := make(map[string]bool)
	err = s.object(func(key []byte) error {
		k := string(key)
		if found[k] {
			return fmt.Errorf("key %.40q appears twice", k)
		}
		found[k] = true
		var err error
		switch k {
		case "weight_map":
			err = x.readWeightMap(s)
		case "metadata":
			err = checkIndexMetadata(s.value())
		default:
			s.value()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !found["weight_map"] {
		return nil, errors.New(`no "weight_map"`)
	}
	if len(x.weightMap) == 0 {
		return nil, errors.New("weight_map is empty")
	}
	return x, nil
}

func (x *index) readWeightMap(s *scanner) error {
	return s.object(func(key []byte) error {
		name := string(key)
		if err := checkLength(name); err != nil {
			return err
		}
		if _, ok := x.weightMap[name]; ok {
			return fmt.Errorf("tensor %q appears twice", name)
		}
		raw, err := s.str()
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		shard := string(raw)
		if err := checkShardName(shard); err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		x.weightMap[name] = shard
		x.shards[shard] = true
		return nil
	})
}

// checkShardName refuses names that lead out of the folder, on any system.
func checkShardName(name string) error {
	if err := checkLength(name); err != nil {
		return err
	}
	if strings.ContainsAny(name, "\\:\x00") || !filepath.IsLocal(name) || path.Clean(name) != name {
		return fmt.Errorf("shard name %q: want a file of the folder, or of one in it", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") {
			return fmt.Errorf("shard name %q is hidden", name)
		}
	}
	if !strings.HasSuffix(name, suffix) {
		return fmt.Errorf("shard name %q does not end in %s", name, suffix)
	}
	return nil
}

// checkIndexMetadata checks total_size, which some tools write as a float. A
// null stands for no metadata.
func checkIndexMetadata(text []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(text, &m); err != nil {
		return errors.New("want a JSON object")
	}
	raw, ok := m["total_size"]
	if !ok {
		return nil
	}
	var total *float64
	if err := json.Unmarshal(raw, &total); err != nil || total == nil {
		return fmt.Errorf("total_size is %.40s: want a number", raw)
	}
	if *total < 0 || math.IsInf(*total, 0) {
		return fmt.Errorf("total_size is %.40s: want a natural number", raw)
	}
	return nil
}
