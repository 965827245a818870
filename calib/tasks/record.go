package tasks

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lutq/lutq/calib/chat/jinja"
	"github.com/lutq/lutq/formats/input"
)

// record is a line of a data file: its fields, as templates take them.
type record map[string]any

// deepest is how deep the values of a record may lie in each other.
const deepest = 32

// readItems reads a file of items, JSONL or Parquet by its name.
func readItems(path string) ([]record, error) {
	if strings.EqualFold(filepath.Ext(path), ".parquet") {
		records, err := readTable(path, nil)
		if err == nil && len(records) == 0 {
			err = fmt.Errorf("%s: no items", path)
		}
		return records, err
	}
	return readRecords(path)
}

// readRecords reads a JSONL file, one object a line. Empty lines are skipped.
func readRecords(path string) ([]record, error) {
	f, err := input.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := input.CheckSize(f, input.Text); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	records, err := parseRecords(input.Limited(f, input.Text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return records, nil
}

func parseRecords(from io.Reader) ([]record, error) {
	var records []record
	r := bufio.NewReader(from)
	for line := 1; ; line++ {
		text, err := r.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return nil, err
		}
		end := err == io.EOF
		if line == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff"))
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			x, err := parseRecord(text)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			records = append(records, x)
		}
		if end {
			break
		}
	}
	if len(records) == 0 {
		return nil, errors.New("no items")
	}
	return records, nil
}

func parseRecord(text []byte) (record, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("it is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	v, err := decodeValue(dec, 0)
	if err == nil {
		if _, after := dec.Token(); after != io.EOF {
			err = errors.New("more follows the object")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	x, ok := v.(record)
	if !ok {
		return nil, errors.New("not a JSON object")
	}
	return x, nil
}

// decodeValue reads a value: nil, bool, int, float64, string, []any, or a mapping, which at the top is a record.
func decodeValue(dec *json.Decoder, depth int) (any, error) {
	if depth > deepest {
		return nil, fmt.Errorf("values lie more than %d deep", deepest)
	}
	token, err := nextToken(dec)
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Number:
		if n, err := strconv.Atoi(t.String()); err == nil {
			return n, nil
		}
		return t.Float64()
	case json.Delim:
		if t == '[' {
			list := []any{}
			for dec.More() {
				v, err := decodeValue(dec, depth+1)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := nextToken(dec)
			return list, err
		}
		fields, pairs := record{}, []any{}
		for dec.More() {
			key, err := nextToken(dec)
			if err != nil {
				return nil, err
			}
			v, err := decodeValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			if depth == 0 {
				fields[key.(string)] = v
			} else {
				pairs = append(pairs, key, v)
			}
		}
		if _, err := nextToken(dec); err != nil {
			return nil, err
		}
		if depth == 0 {
			return fields, nil
		}
		return jinja.NewDict(pairs...)
	}
	return token, nil
}

// nextToken returns the next token of a value that has not ended.
func nextToken(dec *json.Decoder) (json.Token, error) {
	token, err := dec.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return token, err
}
