package card

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// carriedOver returns the YAML that a card takes over from another.
func carriedOver(o Origin) string {
	var w writer
	for _, b := range o.front {
		for _, line := range b.lines {
			w.line("%s", line)
		}
	}
	return w.String()
}

func TestRead(t *testing.T) {
	for _, tc := range []struct{ name, card, want string }{
		{"no front matter", "# A model\n\nlicense: mit\n", ""},
		{"none that ends", "---\nlicense: mit\n", ""},
		{"a licence", "---\nlicense: apache-2.0\ntags:\n- a\nmetrics: x\n---\n", "license: apache-2.0\n"},
		{"line ends of Windows", "\ufeff---\r\nlicense: mit\r\nlanguage:\r\n- en\r\n---\r\n", "license: mit\nlanguage:\n- en\n"},
		{"in our order", "---\npipeline_tag: text-generation\nlicense_link: https://a.b/c?d=e\nlicense: other\nlicense_name: 'own'\n---\n", "license: other\nlicense_name: 'own'\nlicense_link: https://a.b/c?d=e\npipeline_tag: text-generation\n"},
		{"lists", "---\nlanguage: [en, 'de']\nlicense:\n  - mit\n  - bsd\n---\n", "license:\n  - mit\n  - bsd\nlanguage: [en, 'de']\n"},
		{"after the end", "---\nlicense: mit\n---\nlanguage: en\n---\n", "license: mit\n"},
		{"twice", "---\nlicense: mit\nlicense: gpl\n---\n", "license: mit\n"},
		{"another's original", "---\nbase_model: org/parent\nlicense: mit\n---\n", "license: mit\n"},
		{"a quantized model's original", "---\nbase_model_relation: quantized\nbase_model:\n- org/parent\n---\n", "base_model:\n- org/parent\nbase_model_relation: quantized\n"},
		{"more lines than one", "---\nlicense: |\n  mit\nlanguage: >-\n  en\n---\n", ""},
		{"an anchor", "---\nlicense: &x mit\nlanguage: *x\n---\n", ""},
		{"an open quote", "---\nlicense: \"mit\nlanguage: 'en\n---\n", ""},
		{"an open list", "---\nlanguage: [en,\n  de]\nlicense: mit\n---\n", "license: mit\n"},
		{"a comment", "---\nlicense: mit # which\n---\n", ""},
		{"keys in a list", "---\nlanguage:\n- a: b\nlicense: mit\n---\n", "license: mit\n"},
		{"escapes", "---\nlicense: m\x1b[31mit\n---\n", ""},
		{"no text", "---\nlicense: m\xff\n---\n", ""},
		{"nothing", "---\nlicense:\n---\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, ours := Read([]byte(tc.card))
			if ours {
				t.Error("it is lutq's")
			}
			if diff := cmp.Diff(tc.want, carriedOver(o)); diff != "" {
				t.Errorf("taken over (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAgain: what a card says of its model is read back.
func TestAgain(t *testing.T) {
	front := []block{{"license", []string{"license:", "- mit"}}}
	commit := strings.Repeat("0a", 20)
	for _, o := range []Origin{
		{Name: "tiny"},
		{Name: "a --> b", front: front},
		{Name: "tiny", Repo: "org/tiny", Commit: commit, front: front},
		{Name: "tiny-4bit", Repo: "org/tiny-4bit", front: []block{{baseKey, []string{"base_model: org/tiny"}}, {relationKey, []string{"base_model_relation: quantized"}}}},
	} {
		text, err := OfExport(o, Export{Target: "gguf", Commands: []string{"lutq quantize MODEL OUT", "lutq export OUT OTHER --to gguf"}, Original: true})
		if err != nil {
			t.Fatal(err)
		}
		got, ours := Read(text)
		if diff := cmp.Diff(o, got, cmp.AllowUnexported(Origin{}, block{})); diff != "" || !ours {
			t.Errorf("lutq's: %t; origin (-want +got):\n%s", ours, diff)
		}
		again, err := OfExport(got, Export{Target: "gguf", Commands: []string{"lutq quantize MODEL OUT", "lutq export OUT OTHER --to gguf"}, Original: true})
		if err != nil || string(again) != string(text) {
			t.Errorf("another card (%v):\n%s\nthan\n%s", err, again, text)
		}
	}
	for _, mark := range []string{`{"name": ""}`, `{}`, `[]`, `{"name": "a"`} {
		if _, ours := Read([]byte("# a\n" + markBegin + mark + markEnd + "\n")); ours {
			t.Errorf("%s is lutq's", mark)
		}
	}
	o, ours := Read([]byte("# a\n" + markBegin + `{"name": "a\nb", "repo": "x/y\nlicense: mit", "commit": "main"}` + markEnd))
	if want := (Origin{Name: `a\nb`}); !ours || !cmp.Equal(o, want, cmp.AllowUnexported(Origin{}, block{})) {
		t.Errorf("names with line breaks become %+v", o)
	}
}

// FuzzRead: whatever a card has, what is taken over is YAML that says the same, and a card of it is read back.
func FuzzRead(f *testing.F) {
	f.Add("---\nlicense: mit\nlanguage: [en, \"de\"]\n---\n# a\n")
	f.Add("---\nlanguage:\n- en\n # b\n- 'no'\nlicense: a: b\n---\n<!-- lutq {\"name\":\"x\",\"repo\":\"a/b\"} -->\n")
	f.Add("---\nbase_model: a/b\nbase_model_relation: quantized\nlicense_name: a\n  b\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		o, _ := Read([]byte(text))
		o.Name = "x"
		var taken map[string]any
		if err := yaml.Unmarshal([]byte(carriedOver(o)), &taken); err != nil {
			t.Fatalf("%v:\n%s", err, carriedOver(o))
		}
		for key := range taken {
			if !slices.Contains(append(carried(), baseKey, relationKey), key) {
				t.Errorf("key %q is taken over", key)
			}
		}
		written, err := OfExport(o, Export{Target: "ct"})
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(written), "---\n")
		front, _, ok := strings.Cut(rest, "\n---\n")
		var all map[string]any
		if err := yaml.Unmarshal([]byte(front), &all); err != nil || !ok {
			t.Fatalf("%v:\n%s", err, written)
		}
		for key, value := range taken {
			if fmt.Sprint(all[key]) != fmt.Sprint(value) {
				t.Errorf("%s is %v in the card, and %v in the original's", key, all[key], value)
			}
		}
		again, ours := Read(written)
		if !ours || carriedOver(again) != carriedOver(o) {
			t.Errorf("read back it has\n%s\nand not\n%s", carriedOver(again), carriedOver(o))
		}
	})
}
