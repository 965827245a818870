package tasks

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

//go:embed forms.yaml
var formsFile []byte

// Names returns the names of the tasks whose form this package knows.
func Names() []string {
	forms, err := parseYAML(formsFile)
	if err != nil {
		panic(err) // it is part of the program
	}
	return slices.Sorted(maps.Keys(forms))
}

// formOf returns the form of a known task, nil where it is none.
func formOf(name string) (*form, error) {
	forms, err := parseYAML(formsFile)
	if err != nil {
		return nil, err
	}
	config, ok := forms[name].(map[string]any)
	if subject, of := strings.CutPrefix(name, mmlu+"_"); !ok && of { // a subject by itself
		if config, ok = forms[mmlu].(map[string]any); ok {
			config["dataset_name"], config["divided_by"] = subject, nil
		}
	}
	if !ok {
		return nil, nil
	}
	return newForm(config)
}

// mmlu is the task whose subjects are tasks too, called mmlu_SUBJECT.
const mmlu = "mmlu"

// form says what is asked of a model about an item.
type form struct {
	task        string
	one         bool // one continuation, and none to choose from
	description *field
	turn              // of the item
	shot        turn  // of the examples before it
	shots       *int  // how many there are, nil where the form does not say
	firstN      bool  // the examples are the first, not drawn
	indices     []int // of the examples to draw from; nil: all
	samples     []any // the examples
	split       string
	splits      struct{ training, validation, test string }
	process     func(context.Context, record) (record, error)
	data        map[string][]string // files of splits
	dataset     Split               // of a hub, without its name; "": none is known
	columns     []string            // that it has
	divided     string              // the field by which items of a hub are divided
	uncounted   []string            // metrics that are not computed
}

// turn is how an item and its answer are written.
type turn struct {
	text, target, choice, prefix *field
	delimiter, end               string
}

// settings are the values of a task file, and what is wrong with them.
type settings struct {
	config map[string]any
	used   map[string]bool
	err    error
}

func (s *settings) take(name string) any {
	s.used[name] = true
	return s.config[name]
}

func (s *settings) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

func (s *settings) text(name, otherwise string) string {
	switch v := s.take(name).(type) {
	case nil:
		return otherwise
	case string:
		return v
	}
	s.fail("%s: want a text", name)
	return ""
}

func (s *settings) field(name string, otherwise *field) *field {
	v := s.take(name)
	switch x := v.(type) {
	case nil:
		return otherwise
	case function:
		f := knownField(x)
		if f == nil {
			s.fail("%s: the function %s is Python, which is not run: write it as a template", name, x)
		}
		return f
	case map[string]any:
		s.fail("%s: want a text or a list", name)
		return nil
	}
	f, err := newField(name, v)
	if err != nil && s.err == nil {
		s.err = err
	}
	return f
}

// unused fails for what is left, of which others may be skipped: it would change what is asked.
func (s *settings) unused(skipped ...string) {
	for _, name := range slices.Sorted(maps.Keys(s.config)) {
		if !s.used[name] && !slices.Contains(skipped, name) && s.config[name] != nil {
			s.fail("%s is not supported", name)
		}
	}
}

// newForm reads the values of a task file.
func newForm(config map[string]any) (*form, error) {
	s := &settings{config: config, used: make(map[string]bool)}
	f := &form{task: s.text("task", "")}
	switch kind := s.text("output_type", "generate_until"); kind {
	case "multiple_choice":
	case "loglikelihood":
		f.one = true
	default:
		s.fail("output_type %s: want multiple_choice or loglikelihood", quote(kind))
	}
	f.turn = turn{
		text: s.field("doc_to_text", nil), target: s.field("doc_to_target", nil), choice: s.field("doc_to_choice", nil),
		prefix: s.field("gen_prefix", nil), delimiter: s.text("target_delimiter", " "), end: s.text("fewshot_delimiter", "\n\n"),
	}
	f.description = s.field("description", nil)
	f.splits.training, f.splits.validation, f.splits.test = s.text("training_split", ""), s.text("validation_split", ""), s.text("test_split", "")
	f.split = s.text("fewshot_split", "")
	switch n := s.take("num_fewshot").(type) {
	case nil:
	case int:
		f.shots = &n
	default:
		s.fail("num_fewshot: want a whole number")
	}
	f.fewshot(s)
	switch p := s.take("process_docs").(type) {
	case nil:
	case function:
		if p == "utils.process_docs" && s.config["dataset_path"] == "Rowan/hellaswag" {
			f.process = hellaswag
			break
		}
		s.fail("process_docs: the function %s is Python, which is not run", p)
	default:
		s.fail("process_docs: want a function")
	}
	f.files(s)
	f.hub(s)
	f.metrics(s)
	s.unused("tag", "group", "task_alias", "should_decontaminate", "doc_to_decontamination_query",
		"metadata", "generation_kwargs", "filter_list", "repeats", "unsafe_code")
	switch {
	case s.err != nil:
	case f.text == nil || f.target == nil:
		s.fail("doc_to_text and doc_to_target are missing")
	case f.choice == nil && !f.one:
		s.fail("doc_to_choice is missing")
	}
	if s.err != nil {
		return nil, s.err
	}
	return f, nil
}

// fewshot reads what is said of the examples.
func (f *form) fewshot(s *settings) {
	f.shot = f.turn
	config, ok := s.take("fewshot_config").(map[string]any)
	if !ok {
		if s.config["fewshot_config"] != nil {
			s.fail("fewshot_config: want a mapping")
		}
		return
	}
	t := &settings{config: config, used: make(map[string]bool)}
	f.shot = turn{
		text: t.field("doc_to_text", f.text), target: t.field("doc_to_target", f.target), choice: t.field("doc_to_choice", f.choice),
		prefix: t.field("gen_prefix", f.prefix), delimiter: t.text("target_delimiter", f.delimiter), end: t.text("fewshot_delimiter", f.end),
	}
	f.split = t.text("split", f.split)
	switch sampler := t.text("sampler", "default"); sampler {
	case "default":
	case "first_n":
		f.firstN = true
	default:
		t.fail("sampler %s: want default or first_n", quote(sampler))
	}
	switch list := t.take("samples").(type) {
	case nil:
	case []any:
		f.samples = list
	default:
		t.fail("samples: want a list")
	}
	if list, ok := t.take("fewshot_indices").([]any); ok {
		for _, v := range list {
			i, ok := v.(int)
			if !ok || i < 0 {
				t.fail("fewshot_indices: want whole numbers")
			}
			f.indices = append(f.indices, i)
		}
	}
	t.unused()
	if t.err != nil {
		s.fail("fewshot_config: %w", t.err)
	}
}

// files reads where the data of splits lies, as the datasets library takes it.
func (f *form) files(s *settings) {
	kwargs, _ := s.take("dataset_kwargs").(map[string]any)
	names := func(v any) []string {
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		var all []string
		for _, x := range list {
			name, ok := x.(string)
			if !ok || name == "" {
				s.fail("dataset_kwargs: data_files: want names of files")
			}
			all = append(all, name)
		}
		return all
	}
	switch files := kwargs["data_files"].(type) {
	case nil:
	case map[string]any:
		f.data = make(map[string][]string)
		for split, v := range files {
			f.data[split] = names(v)
		}
	default:
		f.data = map[string][]string{"train": names(files)}
	}
}

// hub reads which data set of a hub has the splits.
func (f *form) hub(s *settings) {
	f.dataset = Split{Repo: s.text("dataset_path", ""), Config: s.text("dataset_name", "")}
	if f.data != nil || !strings.Contains(f.dataset.Repo, "/") { // as json, which is how files are read
		f.dataset = Split{}
	}
	f.divided = s.text("divided_by", "")
	columns, _ := s.take("columns").([]any)
	for _, c := range columns {
		name, ok := c.(string)
		if !ok {
			s.fail("columns: want names")
		}
		f.columns = append(f.columns, name)
	}
}

// metrics notes which of a list are not computed.
func (f *form) metrics(s *settings) {
	known := []string{"acc", "acc_norm", "perplexity"}
	list, ok := s.take("metric_list").([]any)
	if !ok && s.config["metric_list"] != nil {
		s.fail("metric_list: want a list")
	}
	for _, v := range list {
		m, _ := v.(map[string]any)
		name, ok := m["metric"].(string)
		if !ok {
			s.fail("metric_list: want a name for each metric")
			return
		}
		if !slices.Contains(known, name) {
			f.uncounted = append(f.uncounted, name)
		}
	}
}

// knownField is what functions of lm-evaluation-harness's own tasks do, nil for others.
func knownField(name function) *field {
	template, ok := map[function]string{
		"preprocess_winogrande.doc_to_text":   "{{ {'1': 0, '2': 1}[answer] }}",
		"preprocess_winogrande.doc_to_target": "{{ sentence.split('_', 1)[1].strip() }}",
		"preprocess_winogrande.doc_to_choice": "{{ [sentence.split('_', 1)[0] + option1, sentence.split('_', 1)[0] + option2] }}",
	}[name]
	if !ok {
		return nil
	}
	f, err := newField(string(name), template)
	if err != nil {
		panic(err) // it is part of the program
	}
	f.verbatim = true
	return f
}

var (
	hellaswagQuery = mustField("{{ activity_label + ': ' + ctx_a + ' ' + ctx_b.capitalize() }}")
	brackets       = regexp.MustCompile(`\[.*?\]`)
)

func mustField(template string) *field {
	f, err := newField("", template)
	if err != nil {
		panic(err)
	}
	return f
}

// hellaswag makes of an item of that data set what is asked: marks of its source, WikiHow, are taken away.
func hellaswag(ctx context.Context, x record) (record, error) {
	clean := func(text string) string {
		text = strings.ReplaceAll(strings.TrimFunc(text, isSpace), " [title]", ". ")
		return strings.ReplaceAll(brackets.ReplaceAllString(text, ""), "  ", " ")
	}
	query, err := hellaswagQuery.render(ctx, x)
	if err != nil {
		return nil, err
	}
	text, _ := query.(rendered)
	endings, ok := x["endings"].([]any)
	if !ok {
		return nil, fmt.Errorf("endings: want a list")
	}
	choices := make([]any, len(endings))
	for i, e := range endings {
		ending, ok := e.(string)
		if !ok {
			return nil, fmt.Errorf("endings: want texts")
		}
		choices[i] = clean(ending)
	}
	y := maps.Clone(x)
	y["query"], y["choices"] = clean(string(text)), choices
	return y, nil
}
