package parquet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// asJSON returns a value as encoding/json reads it.
func asJSON(v any) any {
	switch v := v.(type) {
	case Group:
		m := make(map[string]any)
		for _, f := range v {
			m[f.Name] = asJSON(f.Value)
		}
		return m
	case []any:
		list := []any{}
		for _, x := range v {
			list = append(list, asJSON(x))
		}
		return list
	case int:
		return json.Number(fmt.Sprint(v))
	case float64:
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return json.Number(text)
	}
	return v
}

// numbers makes numbers of JSON comparable: 1.0 of Python is 1 of Go.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			v[k] = numbers(x)
		}
	case []any:
		for i, x := range v {
			v[i] = numbers(x)
		}
	case json.Number:
		return json.Number(strings.TrimSuffix(v.String(), ".0"))
	}
	return v
}

// TestFiles: files of pyarrow are read as pyarrow reads them: scripts/parquet_check.py wrote both.
func TestFiles(t *testing.T) {
	names, err := filepath.Glob("testdata/*.json")
	if err != nil || len(names) < 10 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			dec := json.NewDecoder(bytes.NewReader(data))
			dec.UseNumber()
			var want []any
			if err := dec.Decode(&want); err != nil {
				t.Fatal(err)
			}
			rows, err := Read(strings.TrimSuffix(name, "json") + "parquet")
			if err != nil {
				t.Fatal(err)
			}
			got := []any{}
			for _, row := range rows {
				got = append(got, asJSON(row))
			}
			if d := cmp.Diff(numbers(want), any(got)); d != "" {
				t.Errorf("(-pyarrow +here):\n%.3000s", d)
			}
		})
	}
}

// TestOrder: fields are in the order of the file, and bytes that are no text stay bytes.
func TestOrder(t *testing.T) {
	rows, err := Read("testdata/nested.parquet")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range rows[0] {
		names = append(names, f.Name)
	}
	if want := []string{"question", "choices", "endings", "lists", "pairs", "answer"}; !slices.Equal(names, want) {
		t.Errorf("columns are %v, want %v", names, want)
	}
	if v, ok := rows[1].Get("answer"); !ok || v != 1 {
		t.Errorf("the answer is %v, %v", v, ok)
	}
	if _, ok := rows[1].Get("other"); ok {
		t.Error("there is another column")
	}
	raw, err := Read("testdata/bytes.parquet")
	if d := cmp.Diff([]Group{{{"raw", []byte{0xff, 0}}}, {{"raw", nil}}, {{"raw", []byte{}}}}, raw); d != "" || err != nil {
		t.Error(d, err)
	}
}

// TestErrors: what is not read is named in a line.
func TestErrors(t *testing.T) {
	whole, err := os.ReadFile("testdata/flat.parquet")
	if err != nil {
		t.Fatal(err)
	}
	changed := func(change func(b []byte) []byte) string {
		path := filepath.Join(t.TempDir(), "x.parquet")
		if err := os.WriteFile(path, change(bytes.Clone(whole)), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct{ name, path, want string }{
		{"brotli", "testdata/brotli.parquet", "testdata/brotli.parquet: row group 1: column question: pages packed by BROTLI are not read"},
		{"delta", "testdata/delta.parquet", "column n: values in encoding DELTA_BINARY_PACKED are not read"},
		{"decimal", "testdata/decimal.parquet", "column n: decimal numbers are not read"},
		{"not there", "testdata/none.parquet", "no such file"},
		{"empty", changed(func([]byte) []byte { return nil }), "too short"},
		{"other", changed(func([]byte) []byte { return []byte(`{"question": "Why?", "answer": 1}`) }), "it is no Parquet file"},
		{"cut", changed(func(b []byte) []byte { return b[:len(b)-20] }), "cut short"},
		{"encrypted", changed(func(b []byte) []byte { return append(b[:len(b)-4], "PARE"...) }), "encrypted"},
		{"long footer", changed(func(b []byte) []byte { b[len(b)-5] = 0x7f; return b }), "does not fit into it"},
		{"no footer", changed(func(b []byte) []byte { copy(b[len(b)-8:], "\x00\x00\x00\x00"); return b }), "cut short, or damaged"},
		{"no pages", changed(func(b []byte) []byte { clear(b[4 : len(b)/4]); return b }), "column small"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := Read(tc.path); err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v: want %q", err, tc.want)
			}
		})
	}
}

// TestRuns: the examples of the specification of the encoding: 0 to 7 in 3 bits, and a run.
func TestRuns(t *testing.T) {
	for _, tc := range []struct {
		data     []byte
		n, width int
		want     []uint32
	}{
		{[]byte{3, 0x88, 0xc6, 0xfa}, 8, 3, []uint32{0, 1, 2, 3, 4, 5, 6, 7}},
		{[]byte{3, 0x88, 0xc6, 0xfa}, 5, 3, []uint32{0, 1, 2, 3, 4}},
		{[]byte{10, 0x34, 0x02, 2, 1, 0}, 6, 10, []uint32{564, 564, 564, 564, 564, 1}},
		{[]byte{6}, 3, 0, []uint32{0, 0, 0}},
		{[]byte{10, 1}, 6, 1, nil}, // ends
		{[]byte{0, 1}, 6, 1, nil},  // goes nowhere
		{[]byte{10, 1}, 5, 33, nil},
	} {
		got, err := readRuns(tc.data, tc.n, tc.width)
		if (err == nil) != (tc.want != nil) || err == nil && !slices.Equal(got, tc.want) {
			t.Errorf("% x: %v, %v: want %v", tc.data, got, err, tc.want)
		}
	}
}

// FuzzRead: damaged files are errors, and what is read has the promised number of rows with all columns.
func FuzzRead(f *testing.F) {
	names, err := filepath.Glob("testdata/*.parquet")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := read(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		for _, row := range rows {
			if len(row) != len(rows[0]) || len(row) == 0 {
				t.Fatalf("rows of %d and %d columns", len(row), len(rows[0]))
			}
		}
	})
}

// FuzzRuns: runs are of so many numbers of a width.
func FuzzRuns(f *testing.F) {
	f.Add([]byte{3, 0x88, 0xc6, 0xfa}, 8, 3)
	f.Add([]byte{10, 1}, 5, 1)
	f.Fuzz(func(t *testing.T, data []byte, n, width int) {
		if n < 0 || n > 1<<16 || width < 0 {
			return
		}
		all, err := readRuns(data, n, width)
		if err != nil {
			return
		}
		if len(all) != n {
			t.Fatalf("%d numbers, want %d", len(all), n)
		}
		for _, v := range all {
			if width < 32 && v>>width != 0 {
				t.Fatalf("%d is wider than %d bits", v, width)
			}
		}
	})
}
