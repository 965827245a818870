package jinja

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// oracle is what transformers 5.23.0 with Jinja2 3.1.6 makes of templates; scripts/jinja_oracle.py records it.
type oracle struct {
	Transformers, Jinja2 string
	Now                  time.Time
	Contexts             []json.RawMessage
	Cases                []oracleCase
	contexts             []map[string]any
}

// oracleCase is a template, the number of its context and what is printed, or nil where Jinja fails.
type oracleCase struct {
	template string
	context  int
	want     *string
}

func (c *oracleCase) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&c.template, &c.context, &c.want})
}

// decode reads a JSON value with mappings in their order.
func decode(d *json.Decoder) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		if i, err := t.Int64(); err == nil {
			return int(i), nil
		}
		return t.Float64()
	case json.Delim:
		items := []any{}
		for d.More() {
			item, err := decode(d)
			if err != nil {
				return nil, err
			}
			items = append(items, item)
		}
		if _, err := d.Token(); err != nil {
			return nil, err
		}
		if t == '[' {
			return items, nil
		}
		return NewDict(items...)
	}
	return t, nil
}

func readOracle(tb testing.TB, file string) *oracle {
	tb.Helper()
	f, err := os.Open(file)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	o := &oracle{}
	if err := json.NewDecoder(z).Decode(o); err != nil {
		tb.Fatal(err)
	}
	for _, raw := range o.Contexts {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		v, err := decode(d)
		if err != nil {
			tb.Fatal(err)
		}
		vars := map[string]any{}
		for i, key := range v.(*Dict).keys {
			vars[key.(string)] = v.(*Dict).values[i]
		}
		o.contexts = append(o.contexts, vars)
	}
	return o
}

func (o *oracle) render(template string, context_ int) (string, error) {
	t, err := Parse(template)
	if err != nil {
		return "", err
	}
	return t.Render(context.Background(), o.contexts[context_], Options{Now: o.Now})
}

// refusal reports whether an error is that of something that is not supported.
func refusal(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Unsupported
}

// outcome is how a rendering compares with what Jinja does.
func outcome(want *string, got string, err error) string {
	switch {
	case err != nil && strings.Contains(err.Error(), "\n"):
		return "an error of several lines"
	case err == nil && want != nil && got == *want:
		return "equal"
	case err != nil && want == nil:
		return "both fail"
	case err == nil:
		return "silently different"
	case refusal(err):
		return "refused"
	}
	return "fails alone"
}

// TestOracle renders templates whose result transformers 5.23.0 with Jinja2 3.1.6 has recorded: constructs of all kinds,
// most of them generated. With LUTQ_JINJA_VECTORS it takes another file of scripts/jinja_oracle.py.
func TestOracle(t *testing.T) {
	file := cmp.Or(os.Getenv("LUTQ_JINJA_VECTORS"), "testdata/oracle.json.gz")
	o := readOracle(t, file)
	count, shown := map[string]int{}, 0
	for _, c := range o.Cases {
		got, err := o.render(c.template, c.context)
		out := outcome(c.want, got, err)
		count[out]++
		if out != "equal" && out != "both fail" && out != "refused" && shown < 20 {
			shown++
			want := "an error"
			if c.want != nil {
				want = fmt.Sprintf("%q", *c.want)
			}
			t.Errorf("%s: %q in context %d:\ngot  %q, %v\nwant %s", out, c.template, c.context, got, err, want)
		}
	}
	for _, out := range slices.Sorted(maps.Keys(count)) {
		t.Logf("%s: %d of %d", out, count[out], len(o.Cases))
	}
	if len(o.Cases) == 0 || count["refused"] > len(o.Cases)/200 {
		t.Errorf("%d cases, of which %d are refused", len(o.Cases), count["refused"])
	}
}

// mutate writes a template in another way that means the same: with other white space within tags, brackets around what is
// printed and other names for variables of its own. It reports whether the template has tokens at all.
func mutate(source string, r *rand.Rand) (mutated string, err error) {
	defer recovered(&err)
	tokens := lex(source, false)
	source = unixLines(source, false)
	names := map[string]string{}
	for _, name := range []string{"x", "y", "ns"} {
		if r.IntN(2) == 0 {
			names[name] = name + "_2"
		}
	}
	var b strings.Builder
	last, inTag, brackets := 0, false, false
	for i, t := range tokens {
		b.WriteString(source[last:t.at])
		last = t.at
		if t.kind == tVariableEnd && brackets {
			b.WriteByte(')')
		}
		number := t.kind == tInt && tokens[i-1].is(".") // which behind a blank could be the beginning of a float
		if inTag && !number && r.IntN(3) == 0 {
			b.WriteString([]string{" ", "  ", "\n", "\t", " \n "}[r.IntN(5)])
		}
		if inTag && tokens[i-1].kind == tVariable {
			if brackets = t.kind != tVariableEnd && r.IntN(2) == 0; brackets {
				b.WriteByte('(')
			}
		}
		switch t.kind {
		case tBlock, tVariable:
			inTag, brackets = true, false
		case tBlockEnd, tVariableEnd:
			inTag = false
		case tName:
			if other, ok := names[t.text]; ok && !tokens[i-1].is(".") {
				b.WriteString(other)
				last += len(t.text)
			}
		}
	}
	return b.String() + source[last:] + "\n", nil
}

// FuzzOracle writes templates of the oracle in other ways: they must go on to print the same.
func FuzzOracle(f *testing.F) {
	o := readOracle(f, "testdata/oracle.json.gz")
	for i := range 64 {
		f.Add(uint(i*len(o.Cases)/64), uint64(i))
	}
	f.Fuzz(func(t *testing.T, at uint, seed uint64) {
		c := o.Cases[at%uint(len(o.Cases))]
		source, err := mutate(c.template, rand.New(rand.NewPCG(seed, 1)))
		if err != nil {
			return // it is no template at all
		}
		got, err := o.render(source, c.context)
		if out := outcome(c.want, got, err); out != "equal" && out != "both fail" && out != "refused" {
			t.Errorf("%s: %q, made of %q: got %q, %v", out, source, c.template, got, err)
		}
	})
}
