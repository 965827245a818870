package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/lutq/lutq/formats/weight"
)

// Member is a key of a JSON object and its value, nil for one that is to go.
type Member struct {
	Key   string
	Value json.RawMessage
}

// Edit returns a JSON object with some of its members replaced, removed, or added behind the
// last. All others stay byte for byte.
func Edit(object []byte, edits ...Member) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	open := int(dec.InputOffset())
	end, out := open, slices.Clone(object[:open]) // end is that of the last member
	members, kept := 0, 0
	done := make(map[string]bool)
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		after := int(dec.InputOffset())
		before := object[end : after-len(value)] // comma, key and colon
		end = after
		members++
		if i := slices.IndexFunc(edits, func(m Member) bool { return m.Key == key }); i >= 0 {
			done[edits[i].Key] = true
			if value = edits[i].Value; value == nil {
				continue
			}
		}
		if kept++; kept == 1 && members > 1 {
			before = before[bytes.IndexByte(before, ',')+1:]
		}
		out = append(append(out, before...), value...)
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	for _, m := range edits {
		if m.Value == nil || done[m.Key] {
			continue
		}
		if kept++; kept > 1 {
			out = append(out, ',')
		}
		out = fmt.Appendf(out, "\n  %q: %s", m.Key, m.Value)
	}
	if len(edits) > 0 && end == open {
		end = bytes.LastIndexByte(object, '}')
		out = append(out, '\n')
	}
	return append(out, object[end:]...), nil
}

// Indented returns a value as config.json has it under a key.
func Indented(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("  ", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// SetDType returns the edits after which a config.json says that the model computes with a type.
func SetDType(config []byte, t weight.ScaleType) ([]Member, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(config, &keys); err != nil {
		return nil, err
	}
	var edits []Member
	name := json.RawMessage(strconv.Quote(TorchName(t)))
	for _, key := range []string{"dtype", "torch_dtype"} {
		if keys[key] != nil {
			edits = append(edits, Member{key, name})
		}
	}
	if text := keys["text_config"]; bytes.HasPrefix(text, []byte("{")) {
		inner, err := SetDType(text, t)
		if err != nil {
			return nil, err
		}
		if text, err = Edit(text, inner...); err != nil {
			return nil, err
		}
		return append(edits, Member{"text_config", text}), nil
	}
	if len(edits) == 0 {
		edits = append(edits, Member{"dtype", name})
	}
	return edits, nil
}
