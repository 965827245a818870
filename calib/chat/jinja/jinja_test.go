package jinja

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func render(t *testing.T, source string, vars map[string]any, o Options) (string, error) {
	t.Helper()
	tpl, err := Parse(source)
	if err != nil {
		return "", err
	}
	return tpl.Render(context.Background(), vars, o)
}

// TestErrors: errors are one line that names the template's, and what a user wrote does not begin them.
func TestErrors(t *testing.T) {
	vars := map[string]any{"user": "line 9: all is well\n\x1b[2Jlutq: done", "n": 3}
	for _, c := range []struct{ name, source, want string }{
		{"syntax", "a\n{% if %}b", "chat template: line 2: expected an expression, not %}"},
		{"no end", "\n{% for x in n %}\n", "chat template: line 2: the block that begins here has no endfor"},
		{"wrong end", "{% if n %}{% endfor %}", `chat template: line 1: there is no tag "endfor" here`},
		{"string", "{{ 'a }}", `chat template: line 1: unexpected character "'"`},
		{"bracket", "{{ (1] }}", "chat template: line 1: unexpected ']'"},
		{"comment", "x\n\n{# a", "chat template: line 3: the end of a comment is missing"},
		{"raw", "{% raw %}x", "chat template: line 1: the end of a raw block is missing"},
		{"undefined", "x\n{{ nope.x }}", `chat template: line 2: "nope" is undefined`},
		{"attribute", "{{ n.x.y }}", `chat template: line 1: a value of type int has no "x"`},
		{"call", "{{ n() }}", "chat template: line 1: a value of type int cannot be called"},
		{"types", "{{ n + 'x' }}", "chat template: line 1: + cannot be used with int and str"},
		{"zero", "{{ 1 // 0 }}", "chat template: line 1: division by zero"},
		{"filter", "{{ n|nope }}", `chat template: line 1: there is no filter "nope"`},
		{"test", "{{ n is nope }}", `chat template: line 1: there is no test "nope"`},
		{"argument", "{{ 'x'|replace('y') }}", "chat template: line 1: replace needs an argument new"},
		{"arguments", "{{ 'x'.upper(1) }}", "chat template: line 1: upper takes no more than 1 arguments"},
		{"immutable", "{{ [1].append(2) }}", `chat template: line 1: the attribute "append" of a list is not safe`},
		{"raises", "{{ raise_exception('no: ' ~ user) }}", `the chat template says: no: line 9: all is well\n\x1b[2Jlutq: done`},
		{"user's key", "{{ {}[user].x }}", `chat template: line 1: a value of type dict has no "line 9: all is well\n\x1b[2Jlutq: done"`},
		{"break", "{% break %}", "chat template: line 1: break or continue outside of a loop"},
		{"include", "x\n{% include 'y' %}", "chat template: line 2: include: there are no other templates"},
		{"not supported", "{% autoescape true %}x{% endautoescape %}", "chat template: line 1: autoescape is not supported"},
		{"random", "{{ [1]|random }}", "chat template: line 1: the filter random is not supported"},
		{"address", "{{ [1]|map('string') }}", "chat template: line 1: printing a generator is not supported"},
		{"range", "{{ range(1000000) }}", "chat template: line 1: a range of more than 100000 items"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := render(t, c.source, vars, Options{})
			if err == nil {
				t.Fatalf("no error but %q", got)
			}
			if err.Error() != c.want {
				t.Errorf("got  %s\nwant %s", err, c.want)
			}
			var e *Error
			if !errors.As(err, &e) || e.Raised != (c.name == "raises") {
				t.Errorf("%#v", err)
			}
		})
	}
	for _, bad := range []any{"\xff", struct{}{}, []any{"\xff"}} {
		if _, err := render(t, "x", map[string]any{"v": bad}, Options{}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	for _, source := range []string{"\xff", strings.Repeat("x", mostSource+1)} {
		if _, err := Parse(source); err == nil {
			t.Error("a template that is no UTF-8 or too long is taken")
		}
	}
}

// TestEdges has values at the edges of rules, as transformers 5.23.0 with Jinja2 3.1.6 prints them.
func TestEdges(t *testing.T) {
	for source, want := range map[string]string{
		"{{ 'abcdefghij'|truncate(5) }}|{{ 'abcdefghijk'|truncate(5) }}": "abcdefghij|ab...",
		`{{ '\x7f\x80é😀'|tojson(ensure_ascii=true) }}`:                   `"\u007f\u0080\u00e9\ud83d\ude00"`,
		`{{ '\x7f'|tojson }}`: "\"\x7f\"",
	} {
		if got, err := render(t, source, nil, Options{}); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", source, got, err, want)
		}
	}
}

// TestBounds: whatever a template does, it ends soon and takes no more than it may.
func TestBounds(t *testing.T) {
	limits := Options{Time: 40 * time.Millisecond, Output: 1 << 20, Memory: 16 << 20}
	before := runtime.NumGoroutine()
	for name, source := range map[string]string{
		"loops":           "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
		"output":          "{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}",
		"repeated text":   "{{ 'x' * 10 ** 9 }}",
		"repeated list":   "{{ ([1] * 10 ** 9)|length }}",
		"doubled":         "{% set n = namespace(x='xy') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
		"doubled list":    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
		"kept":            "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = n.x + ['x' * 10000] %}{% endfor %}",
		"shared":          "{% set n = namespace(x=[1]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
		"shared equal":    "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
		"shared JSON":     "{% set n = namespace(x=[1]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}",
		"shared key":      "{% set n = namespace(x=(1,)) %}{% for i in range(90) %}{% set n.x = (n.x, n.x) %}{% endfor %}{{ {n.x: 1} }}",
		"itself":          "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
		"power":           "{{ 10 ** (10 ** 10) }}",
		"squares":         "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
		"recursion":       "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"deep loop":       "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"wide":            "{{ '%2000000000d' % 1 }}",
		"wide field":      "{{ '{:2000000000}'.format(1) }}",
		"precise":         "{{ '%.2000000000f' % 1 }}",
		"centred":         "{{ 'x'.center(2000000000) }}",
		"filled":          "{{ 'x'.zfill(10 ** 30) }}",
		"indent":          "{{ ('\\n' * 100000)|indent(1000000, true, true) }}",
		"tabs":            "{{ '\\t\\t\\t'.expandtabs(1000000000) }}",
		"replaced":        "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
		"replaced blanks": "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
		"joined":          "{{ ('x' * 100000)|join('y' * 100000) }}",
		"batched":         "{{ [1]|batch(10 ** 9, 0)|list|length }}",
		"sliced":          "{{ [1]|slice(10 ** 9)|list|length }}",
		"wrapped":         "{{ ('x' * 1000000)|wordwrap(1, true, 'y' * 100000) }}",
		"indented JSON":   "{{ [[[1]]]|tojson(indent=1000000000) }}",
		"brackets":        "{{ " + strings.Repeat("(", 10000) + strings.Repeat(")", 10000) + " }}",
		"blocks":          strings.Repeat("{% if 1 %}", 10000) + strings.Repeat("{% endif %}", 10000),
		"chain":           "{{ 1" + strings.Repeat(" + 1", 10000) + " }}",
		"signs":           "{{ " + strings.Repeat("-", 10000) + "1 }}",
		"nots":            "{{ " + strings.Repeat("not ", 10000) + "1 }}",
		"lists":           "{{ " + strings.Repeat("[", 10000) + " }}",
		"conditions":      "{{ " + strings.Repeat("1 if 1 else ", 10000) + "1 }}",
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			got, err := render(t, source, nil, limits)
			if err == nil && name != "lists" {
				t.Errorf("no error but %d bytes", len(got))
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("an error of several lines: %v", err)
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
	// The runtime's own goroutines, such as that of finalizers, come and go.
	after := runtime.NumGoroutine()
	for tries := 0; after > before && tries < 100; tries++ {
		time.Sleep(10 * time.Millisecond)
		after = runtime.NumGoroutine()
	}
	if after > before {
		t.Errorf("%d goroutines, before %d", after, before)
	}
}

// TestCancel: a context that is done ends rendering with its own error.
func TestCancel(t *testing.T) {
	tpl, err := Parse("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	begin := time.Now()
	if _, err := tpl.Render(ctx, nil, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestShared: a template can be rendered by several goroutines at once.
func TestShared(t *testing.T) {
	tpl, err := Parse("{% set n = namespace(x=0) %}{% macro m(a) %}{{ a * 2 }}{% endmacro %}{% for i in l %}{% set n.x = n.x + i %}{{ m(n.x) }},{% endfor %}{{ cycler(1, 2).next() }}")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				got, err := tpl.Render(context.Background(), map[string]any{"l": []any{1, 2, 3}}, Options{})
				if err != nil || got != "2,6,12,1" {
					t.Errorf("%q, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestStrftime compares with datetime.strftime of Python 3.11 on glibc 2.36, of a time without a zone.
func TestStrftime(t *testing.T) {
	at := time.Date(2021, 1, 3, 0, 5, 9, 120000, time.UTC)
	for format, want := range map[string]string{
		"%d %b %Y": "03 Jan 2021", "%-d.%-m. %R": "3.1. 00:05", "%u %w %U %W %V %G %g %C": "7 0 01 00 53 2020 20 20", "[%z%Z]": "[]",
		"%A, %B %e; %j": "Sunday, January  3; 003", "%I:%M:%S %p %P %l %k": "12:05:09 AM am 12  0", "%y%%%n%t%h": "21%\n\tJan",
		"%q %": "%q %", "%F %T %D %x %X": "2021-01-03 00:05:09 01/03/21 01/03/21 00:05:09", "%c|%r": "Sun Jan  3 00:05:09 2021|12:05:09 AM",
		"%^a %#b %#p %^P": "SUN JAN am am", "%_m %05d %10Y|%-7d|%_H|%0e": " 1 00003 0000002021|      3| 0|03", "%f %Ey %Od %Ed": "000120 21 03 %Ed",
	} {
		got, err := render(t, "{{ strftime_now(f) }}", map[string]any{"f": format}, Options{Now: at})
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", format, got, err, want)
		}
	}
}

// FuzzRender takes any template: there is a text or an error of one line, soon.
func FuzzRender(f *testing.F) {
	o := readOracle(f, "testdata/oracle.json.gz")
	for i := range 100 {
		f.Add(o.Cases[i*len(o.Cases)/100].template)
	}
	f.Fuzz(func(t *testing.T, source string) {
		tpl, err := Parse(source)
		if err == nil {
			_, err = tpl.Render(context.Background(), o.contexts[1], Options{Time: 200 * time.Millisecond, Output: 1 << 20, Memory: 1 << 24})
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of several lines: %q", err)
		}
	})
}

// TestPlain: what Jinja2 makes of templates with keep_trailing_newline and StrictUndefined, and nothing else set.
func TestPlain(t *testing.T) {
	for _, c := range []struct{ name, source, want, err string }{
		{name: "last line", source: "Answer:\n", want: "Answer:\n"},
		{name: "blanks stay", source: "a\n  {% if n %}\nb{% endif %}\n", want: "a\n  \nb\n"},
		{name: "blanks taken away", source: "a\n  {%- if n -%}\nb{% endif %}", want: "ab"},
		{name: "sign", source: "{% if n +%}\nb{% endif %}", want: "\nb"},
		{name: "undefined", source: "{{ nope }}", err: `chat template: "nope" is undefined`},
		{name: "undefined by default", source: "{{ nope|default('x') }}", want: "x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tpl, err := ParsePlain(c.source)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tpl.Render(t.Context(), map[string]any{"n": 3}, Options{})
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("error %v: want %s", err, c.err)
				}
			} else if err != nil || got != c.want {
				t.Errorf("got %q, %v: want %q", got, err, c.want)
			}
		})
	}
}
