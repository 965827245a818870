package tasks

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const plain = `{"context": "The sky is", "choices": ["blue", "green"], "answer": 0}
{"query": "Grass is", "choices": ["blue", "green"], "gold": "green"}

{"context": "The sun is", "choices": ["cold", "hot", "hot"], "answer": [1, 2]}
`

func TestPlain(t *testing.T) {
	task, err := Load(t.Context(), Source{Spec: write(t, "facts.jsonl", "\ufeff"+plain)}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := &Task{Name: "facts", Items: []Item{
		{Requests: []Request{{"The sky is", " blue", 4}, {"The sky is", " green", 5}}, Right: []int{0}},
		{Requests: []Request{{"Grass is", " blue", 4}, {"Grass is", " green", 5}}, Right: []int{1}},
		{Requests: []Request{{"The sun is", " cold", 4}, {"The sun is", " hot", 3}, {"The sun is", " hot", 3}}, Right: []int{1, 2}},
	}}
	if d := cmp.Diff(want, task); d != "" {
		t.Error(d)
	}
}

// TestNames: the forms of known tasks, on an item each as the data sets on the hub have them.
func TestNames(t *testing.T) {
	for name, c := range map[string]struct {
		item string
		want []Request
		gold int
	}{
		"arc_easy": {
			`{"question": "Why?", "choices": {"text": ["a", "bé"], "label": ["1", "2"]}, "answerKey": "2"}`,
			[]Request{{"Question: Why?\nAnswer:", " a", 1}, {"Question: Why?\nAnswer:", " bé", 2}},
			1,
		},
		"hellaswag": {
			`{"activity_label": "Baking", "ctx_a": "[header] A  cake [title] Flour", "ctx_b": "THEN eggs", "endings": [" mix [step] it", "x [title] y"], "label": "1"}`,
			[]Request{{"Baking: A cake. Flour Then eggs", " mix it", 6}, {"Baking: A cake. Flour Then eggs", " x. y", 4}},
			1,
		},
		"winogrande": {
			`{"sentence": "It was _ that 7.", "option1": "he", "option2": "she", "answer": "2"}`,
			[]Request{{"It was he", " that 7.", 9}, {"It was she", " that 7.", 10}},
			1,
		},
		"piqa": {
			`{"goal": "Go", "sol1": "it's", "sol2": "\"b\"\n", "label": 0}`,
			[]Request{{"Question: Go\nAnswer:", " it's", 4}, {"Question: Go\nAnswer:", " \"b\"\n", 4}},
			0,
		},
		"boolq": {
			`{"passage": "P.", "question": "is it", "label": true}`,
			[]Request{{"P.\nQuestion: is it?\nAnswer:", " no", 2}, {"P.\nQuestion: is it?\nAnswer:", " yes", 3}},
			1,
		},
		"openbookqa": {
			`{"question_stem": "Stem", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": " A"}`,
			[]Request{{"Stem", " a", 1}, {"Stem", " b", 1}},
			0,
		},
		"lambada_openai": {
			`{"text": "the last word"}`,
			[]Request{{"the last", " word", 5}},
			-1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			task, err := Load(t.Context(), Source{Spec: name, Data: write(t, "x.jsonl", c.item)}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			want := Item{Requests: c.want}
			if c.gold >= 0 {
				want.Right = []int{c.gold}
			}
			if d := cmp.Diff([]Item{want}, task.Items); d != "" {
				t.Error(d)
			}
		})
	}
	mmlu, err := Load(t.Context(), Source{
		Spec: "mmlu", Data: write(t, "x.jsonl", `{"question": " Q ", "subject": "high_school_law", "choices": ["a", "b", "c", "d"], "answer": 3}`),
		Shots: write(t, "y.jsonl", `{"question": "R", "subject": "high_school_law", "choices": ["e", "f", "g", "h"], "answer": 1}`),
	}, Options{Shots: new(1)})
	if err != nil {
		t.Fatal(err)
	}
	want := "The following are multiple choice questions (with answers) about high school law.\n\nR\nA. e\nB. f\nC. g\nD. h\nAnswer: B\n\nQ\nA. a\nB. b\nC. c\nD. d\nAnswer:"
	if got := mmlu.Items[0].Requests[3]; got.Context != want || got.Continuation != " D" {
		t.Errorf("got %q, %q: want %q", got.Context, got.Continuation, want)
	}
}

// TestRefused: what is wrong with files is told in a line that names them and the item.
func TestRefused(t *testing.T) {
	const head = "output_type: multiple_choice\ntest_split: test\ndoc_to_text: q\ndoc_to_choice: c\ndoc_to_target: a\n"
	for _, c := range []struct{ name, file, text, want string }{
		{"no items", "x.jsonl", "\n\n", "x.jsonl: no items"},
		{"no JSON", "x.jsonl", plain + "{\n", "x.jsonl: line 5: not a JSON object: unexpected EOF"},
		{"a list", "x.jsonl", "[1]", "x.jsonl: line 1: not a JSON object"},
		{"two", "x.jsonl", "{} {}", "x.jsonl: line 1: not a JSON object: more follows the object"},
		{"no UTF-8", "x.jsonl", "{\"a\": \"\xff\"}", "x.jsonl: line 1: it is not UTF-8"},
		{"too deep", "x.jsonl", `{"a": ` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "}", "values lie more than 32 deep"},
		{"no context", "x.jsonl", `{"choices": ["a"], "answer": 0}`, "x.jsonl: item 1: it has no context"},
		{"no choices", "x.jsonl", `{"context": "b", "answer": 0}`, "x.jsonl: item 1: it has no choices"},
		{"no answer", "x.jsonl", `{"context": "b", "choices": ["a"]}`, "x.jsonl: item 1: it has no answer"},
		{"answer too large", "x.jsonl", `{"context": "b", "choices": ["a"], "answer": 1}`, "x.jsonl: item 1: the answer 1 is none of 1 choices, which count from 0"},
		{"answer below", "x.jsonl", `{"context": "b", "choices": ["a"], "answer": -1}`, "the answer -1 is none of 1 choices"},
		{"other answer", "x.jsonl", `{"context": "b", "choices": ["a"], "answer": "c"}`, `the answer "c" is none of the choices`},
		{"empty choice", "x.jsonl", `{"context": "b", "choices": ["a", ""], "answer": 0}`, "doc_to_choice: choice 2 is no text"},
		{"no such task", "nosuch", "", "it is no file, and none of arc_challenge, arc_easy"},
		{"empty", "x.yaml", "", "x.yaml: it is empty"},
		{"no mapping", "x.yaml", "- a", "x.yaml: it is no mapping"},
		{"no YAML", "x.yaml", "a: [", "x.yaml: yaml: line 1"},
		{"generates", "x.yaml", "output_type: generate_until", `x.yaml: output_type "generate_until": want multiple_choice or loglikelihood`},
		{"Python", "x.yaml", "output_type: multiple_choice\ndoc_to_text: !function utils.f", "x.yaml: doc_to_text: the function utils.f is Python"},
		{"process", "x.yaml", head + "process_docs: !function utils.f", "process_docs: the function utils.f is Python"},
		{"unknown", "x.yaml", head + "doc_to_txt: q", "x.yaml: doc_to_txt is not supported"},
		{"pictures", "x.yaml", head + "doc_to_image: q", "x.yaml: doc_to_image is not supported"},
		{"template", "x.yaml", "output_type: multiple_choice\ndoc_to_text: '{{ q'", "x.yaml: doc_to_text: line 1 of the template:"},
		{"no text", "x.yaml", "output_type: multiple_choice", "x.yaml: doc_to_text and doc_to_target are missing"},
		{"no data", "x.yaml", head, "x.yaml: no file with the split test: give the items as"},
		{"missing data", "x.yaml", head + "dataset_kwargs: {data_files: {test: nosuch.jsonl}}", "nosuch.jsonl: no such file"},
		{"sampler", "x.yaml", head + "fewshot_config: {sampler: balanced}", `fewshot_config: sampler "balanced": want default or first_n`},
		{"include", "x.yaml", "include: x.yaml", "more than 8 files include each other"},
		{"deep", "x.yaml", "a: " + strings.Repeat("[", 50) + strings.Repeat("]", 50), "line 1: values lie too deep"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := c.file
			if c.text != "" || c.name == "empty" {
				spec = write(t, c.file, c.text)
			}
			_, err := Load(t.Context(), Source{Spec: spec}, Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v: want one line with %q", err, c.want)
			}
		})
	}
	items := write(t, "x.jsonl", plain)
	if _, err := Load(t.Context(), Source{Spec: items}, Options{Shots: new(3)}); err == nil || !strings.Contains(err.Error(), "3 examples before it: there are 3 to draw from") {
		t.Errorf("too many shots: %v", err)
	}
}

// TestShots: examples are never the item itself, and the same seed draws the same.
func TestShots(t *testing.T) {
	path := write(t, "x.jsonl", plain)
	load := func(seed uint64) *Task {
		task, err := Load(t.Context(), Source{Spec: path}, Options{Shots: new(2), Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		return task
	}
	task := load(1)
	for i, answer := range []string{"The sky is blue\n\n", "Grass is green\n\n", "The sun is hot\n\n"} {
		c := task.Items[i].Requests[0].Context
		if strings.Count(c, "\n\n") != 2 || strings.Contains(c, answer) {
			t.Errorf("item %d: %q", i+1, c)
		}
	}
	if d := cmp.Diff(task, load(1)); d != "" {
		t.Error(d)
	}
}

// TestRandom: what random.Random(seed).sample(range(n), k) of CPython 3.11 draws, one after the other.
func TestRandom(t *testing.T) {
	for seed, want := range map[uint64][][]int{
		1234:          {{7, 1, 0}, {92, 932, 965, 961, 826}, {4, 0, 2, 3, 1}, {46482, 31039, 2284, 4038, 2076, 45362, 84976, 81694}, {30, 29, 9, 5, 11, 7}},
		0:             {{6, 9, 0}, {265, 988, 523, 497, 414}, {2, 3, 1, 0, 4}, {36941, 18316, 99064, 12429, 81050, 32834, 69804, 92428}, {38, 9, 19, 6, 4, 21}},
		1099511627783: {{9, 7, 4}, {970, 630, 129, 529, 384}, {4, 2, 1, 3, 0}, {48803, 29545, 58286, 98429, 77905, 23568, 17989, 96618}, {33, 36, 10, 2, 16, 4}},
	} {
		r := newRandom(seed)
		var got [][]int
		for _, c := range [][2]int{{10, 3}, {1000, 5}, {5, 5}, {100000, 8}, {40, 6}} {
			got = append(got, r.sample(c[0], c[1]))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("seed %d:\n%s", seed, d)
		}
	}
}

func TestParseList(t *testing.T) {
	for _, c := range []struct {
		text string
		want []any // nil: refused
	}{
		{`['a', "it's", 'é\x41\u00e9\n\'"\\']`, []any{"a", "it's", "éAé\n'\"\\"}},
		{"[0, -2,]", []any{0, -2}},
		{" [ ] ", []any{}},
		{"['\\xe9']", []any{"é"}},
		{"['a'", nil},
		{"['a' 'b']", nil},
		{"['a'] x", nil},
		{"[a]", nil},
		{"['\\']", nil},
		{"", nil},
		{"[-]", nil},
	} {
		got, err := parseList(c.text)
		if (err != nil) != (c.want == nil) || c.want != nil && !cmp.Equal(c.want, got) {
			t.Errorf("%s: %v, %v: want %v", c.text, got, err, c.want)
		}
	}
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestIntervals: Wilson's interval and McNemar's test are SciPy's (proportion_ci, binomtest); the paired interval is that of
// the example in Newcombe's article.
func TestIntervals(t *testing.T) {
	low, high := Wilson(48./50, 50)
	near(t, "low", low, 0.8653990931249297, 1e-9)
	near(t, "high", high, 0.9889611156723802, 1e-9)
	p := paired{both: 36, first: 12, second: 2}
	d, interval := p.difference()
	near(t, "difference", d, .2, 1e-12)
	near(t, "low", interval[0], .0569, 5e-5)
	near(t, "high", interval[1], .3404, 5e-5)
	near(t, "McNemar", p.mcnemar(), 0.012939453125, 1e-12)
	near(t, "McNemar", paired{first: 3, second: 7}.mcnemar(), 0.34375, 1e-12)
	near(t, "McNemar of none", paired{both: 3}.mcnemar(), 1, 0)
}

func TestJudge(t *testing.T) {
	task := &Task{Items: []Item{
		{Requests: []Request{{"", "a", 1}, {"", "bbbb", 4}}, Right: []int{1}},
		{Requests: []Request{{"", "a", 1}, {"", "b", 1}}, Right: []int{0}},
	}}
	judge := func(lls ...[]float64) *Result {
		a := &Answers{}
		for _, ll := range lls {
			var said []Likelihood
			for _, x := range ll {
				said = append(said, Likelihood{Sum: x})
			}
			a.Likelihoods = append(a.Likelihoods, said)
		}
		return task.Judge(a)
	}
	x := judge([]float64{-2, -4}, []float64{-1, -1})
	if x.Accuracy != .5 || *x.AccuracyNorm != 1 || x.Perplexity != nil {
		t.Errorf("got %+v", x)
	}
	near(t, "stderr", x.AccuracyStderr, .5, 1e-12)
	y := judge([]float64{-5, -4}, []float64{-1, -2})
	d, err := Compare(y, x)
	if err != nil || d.Difference != .5 || *d.DifferenceNorm != 0 || d.SameAnswer != .5 || d.P != 1 {
		t.Errorf("got %+v, %v", d, err)
	}
	mean, interval, err := CompareMean([]*Result{y, x}, []*Result{x, x})
	if err != nil || mean != .25 || interval[0] >= mean || interval[1] <= mean {
		t.Errorf("mean %v %v, %v", mean, interval, err)
	}
}

func TestAgree(t *testing.T) {
	got := Agree([][]int{{1, 2, 3}, {1, 2, ended}}, [][]int{{1, 2, 4}, {1, 2, ended}}, 2, 3, 9)
	for i, want := range []float64{1, .5, .5} {
		if got[i].Share != want {
			t.Errorf("after %d tokens %v: want %v", got[i].Tokens, got[i].Share, want)
		}
	}
	prompts, err := Prompts([]int{1, 2, 3, 4, 5, 6, 7}, []int{0}, 2, 3)
	if d := cmp.Diff([][]int{{0, 1, 2, 3}, {0, 4, 5, 6}}, prompts); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	if _, err := Prompts([]int{1, 2, 3, 4, 5}, nil, 2, 3); err == nil {
		t.Error("a text that is too short is taken")
	}
}

func FuzzRecords(f *testing.F) {
	f.Add(plain)
	f.Add(`{"a": {"b": [1, 2.5e3, null, true]}, "a": "\ud800"}`)
	f.Fuzz(func(t *testing.T, text string) {
		records, err := parseRecords(strings.NewReader(text))
		if (err == nil) != (len(records) > 0) {
			t.Errorf("%d records, %v", len(records), err)
		}
	})
}

func FuzzForm(f *testing.F) {
	f.Add(string(formsFile), `{"q": "a"}`)
	f.Add("output_type: loglikelihood\ndoc_to_text: '{{q}}'\ndoc_to_target: q\nfewshot_config: {samples: [{q: a}]}", `{"q": "a"}`)
	f.Add("output_type: multiple_choice\ndoc_to_text: q\ndoc_to_target: 0\ndoc_to_choice: ['a', \"b\"]", `{"q": "['a']"}`)
	f.Add("a: &a [*a]", "")
	f.Fuzz(func(t *testing.T, config, item string) {
		values, err := parseYAML([]byte(config))
		if err != nil {
			return
		}
		form, err := newForm(values)
		if err != nil {
			return
		}
		x, err := parseRecord([]byte(item))
		if err != nil {
			return
		}
		b := &builder{form: form, random: newRandom(1), pool: []record{x, x}}
		if got, err := b.item(t.Context(), x, true, 0); err == nil && len(got.Requests) == 0 {
			t.Error("an item without requests")
		}
		_, _ = b.example(t.Context(), x)
	})
}
