package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// component is the part that all components of the file have.
type component struct {
	Type string `json:"type"`
}

// absent tells whether a field is missing or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// typeOf returns the type of a component; it is empty where the component is absent.
func typeOf(raw json.RawMessage) (string, error) {
	if absent(raw) {
		return "", nil
	}
	var c component
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", plainError(err)
	}
	if c.Type == "" {
		return "", errors.New("field type is missing")
	}
	return c.Type, nil
}

// strict decodes a JSON object into a struct and refuses fields that the struct lacks: they may change what the component does.
func strict(raw json.RawMessage, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	return plainError(d.Decode(v))
}

// fields is strict and also wants the required fields to be there.
func fields(raw json.RawMessage, v any, required ...string) error {
	var present map[string]json.RawMessage
	if err := json.Unmarshal(raw, &present); err != nil {
		return plainError(err)
	}
	kind, _ := typeOf(raw)
	if kind != "" {
		kind += ": "
	}
	if err := strict(raw, v); err != nil {
		return fmt.Errorf("%s%w", kind, err)
	}
	for _, name := range required {
		if absent(present[name]) {
			return fmt.Errorf("%sfield %s is missing", kind, name)
		}
	}
	return nil
}

// flatten parses the members of a Sequence.
func flatten[T any](raws []json.RawMessage, parse func(json.RawMessage) ([]T, error)) ([]T, error) {
	var all []T
	for i, raw := range raws {
		if absent(raw) {
			return nil, fmt.Errorf("entry %d of Sequence is null", i)
		}
		some, err := parse(raw)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// plainError rewords the errors of encoding/json, which speak of Go types.
func plainError(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		return fmt.Errorf("not valid JSON at byte %d: %w", syntax.Offset, err)
	case errors.As(err, &kind):
		field := kind.Field[strings.LastIndexByte(kind.Field, '.')+1:]
		if field == "" {
			return fmt.Errorf("a JSON %s stands where it must not", kind.Value)
		}
		return fmt.Errorf("field %s must not be a JSON %s", field, kind.Value)
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// quote makes a string from the file fit for a one-line message.
func quote(s string) string {
	const most = 200
	if len(s) > most {
		return strconv.Quote(strings.ToValidUTF8(s[:most], "")) + "…"
	}
	return strconv.Quote(s)
}

// vocab is the model's vocabulary in the order of the file, in which encoding/json's maps would hide duplicates.
type vocab []struct {
	token string
	id    int
}

func (v *vocab) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("vocab is not an object")
	}
	*v = vocab{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		value, err := d.Token()
		if err != nil {
			return err
		}
		number, _ := value.(json.Number)
		id, err := strconv.Atoi(string(number))
		if err != nil {
			return fmt.Errorf("vocab: the id of token %s is not an integer", quote(key.(string)))
		}
		*v = append(*v, struct {
			token string
			id    int
		}{key.(string), id})
	}
	return nil
}

// merges are the pairs of tokens that merge, by rank.
type merges [][2]string

func (m *merges) UnmarshalJSON(data []byte) error {
	var lines []string
	if json.Unmarshal(data, &lines) == nil && lines != nil {
		return m.fromLines(lines)
	}
	var pairs [][]string
	if json.Unmarshal(data, &pairs) != nil || pairs == nil {
		return errors.New("merges are not a list of strings or of pairs of strings")
	}
	*m = make(merges, len(pairs))
	for i, p := range pairs {
		if len(p) != 2 {
			return fmt.Errorf("merge %d has %d operands", i, len(p))
		}
		(*m)[i] = [2]string{p[0], p[1]}
	}
	return nil
}

// fromLines reads the older form of merges, "a b".
func (m *merges) fromLines(lines []string) error {
	*m = make(merges, 0, len(lines))
	for i, line := range lines {
		if strings.HasPrefix(line, "#version") { // a leftover from merges.txt, as the reference takes it
			continue
		}
		left, right, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(right, " ") {
			return fmt.Errorf("merge %d (%s) is not two tokens with a space between", i, quote(line))
		}
		*m = append(*m, [2]string{left, right})
	}
	return nil
}

// around is a token and its id as RobertaProcessing and BertProcessing spell them: ["</s>", 2].
type around struct {
	token string
	id    int
}

func (a *around) UnmarshalJSON(data []byte) error {
	var pair []json.RawMessage
	if json.Unmarshal(data, &pair) != nil || len(pair) != 2 ||
		json.Unmarshal(pair[0], &a.token) != nil || json.Unmarshal(pair[1], &a.id) != nil {
		return errors.New("cls or sep is not a token and its id")
	}
	return nil
}
