package tasks

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/lutq/lutq/formats/input"
)

// function is the name of a function of Python that a task file names.
type function string

// Bounds of task files: how deep values and files lie in each other, and how many values there are.
const (
	deepestValue   = 32
	deepestInclude = 8
	mostValues     = 100_000
)

// readYAML reads a task file and what it includes, whose keys it replaces.
func readYAML(path string, depth int) (map[string]any, error) {
	data, err := input.ReadFile(path, input.Recipe)
	if err != nil {
		return nil, err
	}
	config, err := parseYAML(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	include, ok := config["include"]
	if !ok {
		return config, nil
	}
	name, ok := include.(string)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s: include: want the name of a file", path)
	case depth == deepestInclude:
		return nil, fmt.Errorf("%s: more than %d files include each other", path, deepestInclude)
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(path), name)
	}
	all, err := readYAML(name, depth+1)
	if err != nil {
		return nil, err
	}
	delete(config, "include")
	for key, v := range config {
		all[key] = v
	}
	return all, nil
}

// parseYAML reads a mapping. Its values are nil, bool, int, float64, string, []any, map[string]any and [function].
func parseYAML(data []byte) (map[string]any, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, err
	}
	if root.Kind != yaml.DocumentNode || len(root.Content) != 1 {
		return nil, errors.New("it is empty")
	}
	values := 0
	v, err := fromNode(root.Content[0], 0, &values)
	if err != nil {
		return nil, err
	}
	config, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("it is no mapping of names to values")
	}
	return config, nil
}

func fromNode(n *yaml.Node, depth int, values *int) (any, error) {
	*values++
	if depth > deepestValue || *values > mostValues {
		return nil, fmt.Errorf("line %d: values lie too deep, or are too many", n.Line)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return fromNode(n.Alias, depth+1, values)
	case yaml.SequenceNode:
		list := []any{}
		for _, c := range n.Content {
			v, err := fromNode(c, depth+1, values)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case yaml.MappingNode:
		m := make(map[string]any)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			v, err := fromNode(n.Content[i+1], depth+1, values)
			if err != nil {
				return nil, err
			}
			if key.Kind != yaml.ScalarNode {
				return nil, fmt.Errorf("line %d: a key is no name", key.Line)
			}
			if base, ok := v.(map[string]any); ok && key.ShortTag() == "!!merge" { // whose keys give way to those beside it
				maps.Copy(base, m)
				m = base
				continue
			}
			m[key.Value] = v
		}
		return m, nil
	}
	switch n.ShortTag() {
	case "!function":
		return function(n.Value), nil
	case "!!null":
		return nil, nil
	case "!!bool":
		var b bool
		err := n.Decode(&b)
		return b, err
	case "!!int":
		if i, err := strconv.ParseInt(n.Value, 0, 64); err == nil {
			return int(i), nil
		}
	case "!!float":
		var f float64
		if err := n.Decode(&f); err == nil && !math.IsNaN(f) {
			return f, nil
		}
	}
	return n.Value, nil
}
