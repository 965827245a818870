package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// maxSize bounds sizes so that the product of two fits an int64.
const maxSize = math.MaxInt32

// fields is a JSON object of which the first wrong value is remembered, so
// that reading many fields takes one check.
type fields struct {
	values map[string]json.RawMessage
	err    error
}

// readFields refuses keys that appear twice: which of the two counts would
// depend on the reader.
func readFields(text []byte) (*fields, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("invalid UTF-8")
	}
	if bytes.HasPrefix(text, []byte("\ufeff")) {
		return nil, errors.New("invalid JSON: begins with a byte order mark")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	open, err := dec.Token()
	if err != nil {
		return nil, jsonError(err)
	}
	if open != json.Delim('{') {
		return nil, errors.New("want a JSON object")
	}
	f := &fields{values: make(map[string]json.RawMessage)}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, jsonError(err)
		}
		name, _ := key.(string) // a key of an object is one
		if _, ok := f.values[name]; ok {
			return nil, fmt.Errorf("key %.40q appears twice", name)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, jsonError(err)
		}
		f.values[name] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, jsonError(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more follows the JSON object")
	}
	return f, nil
}

func jsonError(err error) error {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("invalid JSON at byte %d: %w", syntax.Offset, err)
	}
	return fmt.Errorf("invalid JSON: %w", err)
}

func (f *fields) fail(key string, err error) {
	if f.err == nil {
		f.err = fmt.Errorf("%s: %w", key, err)
	}
}

// isNull reports whether the key is there without a value.
func (f *fields) isNull(key string) bool { return string(f.values[key]) == "null" }

// has reports whether the key is there with a value.
func (f *fields) has(key string) bool { return f.values[key] != nil && !f.isNull(key) }

func (f *fields) require(keys ...string) {
	for _, key := range keys {
		if !f.has(key) {
			f.fail(key, errors.New("missing"))
		}
	}
}

// required is what a size without a default has in its place.
const required = -1

// size reads a positive integer. Without the key it returns missing.
func (f *fields) size(key string, missing int) int {
	if !f.has(key) {
		if missing == required {
			f.require(key)
			return 1
		}
		return missing
	}
	return f.integer(key, 1)
}

func (f *fields) natural(key string, missing int) int {
	if !f.has(key) {
		return missing
	}
	return f.integer(key, 0)
}

func (f *fields) integer(key string, least int) int {
	n, err := integer(f.values[key], least)
	if err != nil {
		f.fail(key, err)
		return max(least, 1)
	}
	return n
}

// integer takes 4096 and 4096.0, which Python writes after a division.
func integer(raw json.RawMessage, least int) (int, error) {
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v != math.Trunc(v) {
		return 0, fmt.Errorf("%.40q is not an integer", raw)
	}
	if v < float64(least) || v > maxSize {
		return 0, fmt.Errorf("%.40s is outside %d to %d", raw, least, maxSize)
	}
	return int(v), nil
}

func (f *fields) positiveFloat(key string, missing float64) float64 {
	if !f.has(key) {
		return missing
	}
	v, err := strconv.ParseFloat(string(f.values[key]), 64)
	if err != nil || !(v > 0) {
		f.fail(key, fmt.Errorf("%.40q is not a positive number", f.values[key]))
		return missing
	}
	return v
}

// positiveUnlessZero is positiveFloat where 0 stands for no value, as it does where Python asks whether there is one.
func (f *fields) positiveUnlessZero(key string, missing float64) float64 {
	if v, err := strconv.ParseFloat(string(f.values[key]), 64); err == nil && v == 0 {
		return missing
	}
	return f.positiveFloat(key, missing)
}

// positives reads a list of n positive numbers.
func (f *fields) positives(key string, n int) []float64 {
	var list []float64
	if err := json.Unmarshal(f.values[key], &list); err != nil {
		f.fail(key, errors.New("want a list of numbers"))
		return nil
	}
	if len(list) != n {
		f.fail(key, fmt.Errorf("%d numbers: want %d", len(list), n))
	}
	if slices.ContainsFunc(list, func(v float64) bool { return !(v > 0) }) {
		f.fail(key, errors.New("want positive numbers"))
	}
	return list
}

// naturals reads a list of integers.
func (f *fields) naturals(key string) []int {
	if !f.has(key) {
		return nil
	}
	var list []int
	if err := json.Unmarshal(f.values[key], &list); err != nil {
		f.fail(key, errors.New("want a list of integers"))
	}
	return list
}

// texts reads a list of strings.
func (f *fields) texts(key string) []string {
	if !f.has(key) {
		return nil
	}
	var list []string
	if err := json.Unmarshal(f.values[key], &list); err != nil {
		f.fail(key, errors.New("want a list of strings"))
	}
	return list
}

func (f *fields) boolean(key string, missing bool) bool {
	if !f.has(key) {
		return missing
	}
	switch string(f.values[key]) {
	case "true":
		return true
	case "false":
		return false
	}
	f.fail(key, fmt.Errorf("%.40q is not true or false", f.values[key]))
	return missing
}

func (f *fields) text(key, missing string) string {
	if !f.has(key) {
		return missing
	}
	var s string
	if err := json.Unmarshal(f.values[key], &s); err != nil {
		f.fail(key, errors.New("want a string"))
		return missing
	}
	return s
}

// object returns an object as it stands, nil where there is none.
func (f *fields) object(key string) json.RawMessage {
	if !f.has(key) {
		return nil
	}
	raw := bytes.Clone(f.values[key])
	if raw[0] != '{' {
		f.fail(key, errors.New("want a JSON object"))
	}
	return raw
}

// architecture returns the first of "architectures".
func (f *fields) architecture() string {
	if names := f.texts("architectures"); len(names) > 0 {
		return names[0]
	}
	return ""
}
