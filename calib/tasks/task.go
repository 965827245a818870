package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// Task is items that models are asked.
type Task struct {
	Name  string
	Shots int    // examples before each item
	Items []Item // in the order of the file
	One   bool   // each has one continuation, and none to choose from

	// Uncounted are metrics that the task file asks for and that are not computed.
	Uncounted []string
	// Origins are the splits of a hub that items and examples are of.
	Origins []Origin
}

// Item is a question: continuations, each behind its context, and which are right.
type Item struct {
	Requests []Request
	Right    []int // of Requests
}

// Request is a continuation behind a context.
type Request struct {
	Context, Continuation string
	Characters            int // of what ll is divided by for acc_norm
}

// Source says where a task comes from.
type Source struct {
	Spec  string // the name of a known task, a task file that ends in .yaml or .yml, or a JSONL file
	Data  string // a JSONL or Parquet file with the items; "": as the task file says, or from the hub
	Shots string // a JSONL or Parquet file with the examples; "": as the task file says, from the hub, or the items
}

// Options adjust [Load].
type Options struct {
	Shots *int   // examples before each item; nil: as the task says, or none
	Limit int    // the first so many items, of each subject of mmlu; 0: all
	Seed  uint64 // that examples are drawn by
	// Fetch brings data that is not here, unless nil.
	Fetch Fetcher
}

// Load reads a task. Its errors are one line that names the file.
func Load(ctx context.Context, from Source, o Options) (*Task, error) {
	f, where, err := from.form(o.Fetch != nil)
	if err != nil {
		return nil, err
	}
	b := &builder{form: f, where: where, from: from, fetcher: o.Fetch}
	t, err := b.build(ctx, o)
	if err != nil {
		return nil, err
	}
	t.Uncounted, t.Origins = f.uncounted, b.origins
	return t, nil
}

// form returns the form of a task, and the file that it is in. hub says that data may come from there.
func (s *Source) form(hub bool) (*form, string, error) {
	known, err := formOf(s.Spec)
	switch ext := strings.ToLower(filepath.Ext(s.Spec)); {
	case err != nil:
		return nil, "", err
	case known != nil:
		if s.Data == "" && !hub {
			return nil, "", fmt.Errorf("task %s: this program has its form and not its data: give it as %s=FILE.jsonl", s.Spec, s.Spec)
		}
		known.task = s.Spec
		return known, cmp.Or(s.Data, known.dataset.Repo), nil
	case ext == ".yaml" || ext == ".yml":
		config, err := readYAML(s.Spec, 0)
		if err != nil {
			return nil, "", err
		}
		f, err := newForm(config)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", s.Spec, err)
		}
		if f.task == "" {
			f.task = strings.TrimSuffix(filepath.Base(s.Spec), filepath.Ext(s.Spec))
		}
		return f, s.Spec, nil
	}
	name := s.Spec
	if s.Data == "" {
		s.Data = s.Spec
		name = strings.TrimSuffix(filepath.Base(s.Spec), filepath.Ext(s.Spec))
		if _, err := os.Stat(s.Spec); errors.Is(err, fs.ErrNotExist) && filepath.Ext(s.Spec) == "" {
			return nil, "", fmt.Errorf("task %s: it is no file, and none of %s", s.Spec, strings.Join(Names(), ", "))
		}
	}
	return plainForm(name, s.Shots != ""), s.Data, nil
}

// plainForm is that of items with a context, choices and the answer. Their examples are other items, or those of a file.
func plainForm(name string, apart bool) *form {
	f := &form{task: name, split: "test"}
	f.turn = turn{text: mustField("context"), choice: mustField("choices"), target: mustField("answer"), delimiter: " ", end: "\n\n"}
	f.splits.test, f.shot = "test", f.turn
	if apart {
		f.split = "train"
	}
	f.process = func(_ context.Context, raw record) (record, error) {
		x := maps.Clone(raw)
		for _, names := range [][2]string{{"context", "query"}, {"answer", "gold"}} {
			if v, ok := x[names[1]]; ok && x[names[0]] == nil {
				x[names[0]] = v
			}
			if x[names[0]] == nil {
				return nil, fmt.Errorf("it has no %s", names[0])
			}
		}
		if x["choices"] == nil {
			return nil, errors.New("it has no choices")
		}
		return x, nil
	}
	return f
}

// builder makes requests of items.
type builder struct {
	*form
	where   string // for messages
	from    Source
	fetcher Fetcher
	origins []Origin // of what was fetched

	several bool     // the choices are contexts of one continuation
	pool    []record // of examples
	apart   bool     // the examples are never the item itself
	random  *random
}

func (b *builder) build(ctx context.Context, o Options) (*Task, error) {
	items, where, err := b.items(ctx)
	if err != nil {
		return nil, err
	}
	b.where = where
	t := &Task{Name: b.task, One: b.one}
	if b.shots != nil {
		t.Shots = *b.shots
	}
	if o.Shots != nil && (b.shots == nil || *b.shots != 0) { // a task that has none keeps to that
		t.Shots = *o.Shots
	}
	if t.Shots > 0 {
		if err := b.examples(ctx, items); err != nil {
			return nil, err
		}
	}
	parts, err := b.parts(items)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		b.random, b.pool = newRandom(o.Seed), p.pool
		if o.Limit > 0 {
			p.items = p.items[:min(o.Limit, len(p.items))]
		}
		for i, x := range p.items {
			item, err := b.item(ctx, x, i == 0, t.Shots)
			if err != nil {
				return nil, fmt.Errorf("%s: item %d: %w", b.where, i+1, err)
			}
			t.Items = append(t.Items, item)
		}
	}
	return t, nil
}

// items reads those of the task, and returns the file that they are in.
func (b *builder) items(ctx context.Context) ([]record, string, error) {
	if b.from.Data != "" {
		items, err := readItems(b.from.Data)
		return items, b.from.Data, err
	}
	for _, split := range []string{b.splits.test, b.splits.validation} {
		if split == "" {
			continue
		}
		items, err := b.read(ctx, split)
		if err == nil && items == nil {
			err = fmt.Errorf("%s: no file with the split %s: give the items as %s=FILE.jsonl", b.where, split, b.from.Spec)
		}
		return items, b.where, err
	}
	return nil, "", fmt.Errorf("%s: neither test_split nor validation_split is given", b.where)
}

// read reads a split where the task file says that it is, nil where it says nothing. Names are relative to the task file, or
// else to the current folder, as in the datasets library.
func (b *builder) read(ctx context.Context, split string) ([]record, error) {
	if b.dataset.Repo != "" && b.fetcher != nil && b.from.Data == "" {
		return b.fetch(ctx, split)
	}
	var all []record
	for _, name := range b.data[split] {
		if beside := filepath.Join(filepath.Dir(b.from.Spec), name); !filepath.IsAbs(name) {
			if _, err := os.Stat(beside); err == nil {
				name = beside
			}
		}
		some, err := readItems(name)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// examples reads those that come before an item: of the split for them, of the list in the task file, or of the first split
// that there is.
func (b *builder) examples(ctx context.Context, items []record) error {
	b.apart = b.split != b.splits.test
	split := b.split
	if split == "" {
		for _, s := range []string{b.splits.training, b.splits.validation, b.splits.test} {
			if split == "" {
				split = s
			}
		}
	}
	var err error
	switch {
	case b.from.Shots != "":
		b.pool, err = readItems(b.from.Shots)
	case b.split == "" && b.samples != nil:
		for i, v := range b.samples {
			m, ok := v.(map[string]any)
			if !ok {
				return fmt.Errorf("%s: fewshot_config: sample %d is no mapping", b.where, i+1)
			}
			b.pool = append(b.pool, record(m))
		}
	default:
		if b.pool, err = b.read(ctx, split); err == nil && b.pool == nil {
			if split != b.splits.test && !(b.splits.test == "" && split == b.splits.validation) {
				return fmt.Errorf("task %s: no file with the split %s, which examples are of: --shots-from names one", b.task, split)
			}
			b.pool = items
		}
	}
	if err != nil || b.indices == nil {
		return err
	}
	var some []record
	for _, i := range b.indices {
		if i >= len(b.pool) {
			return fmt.Errorf("%s: fewshot_config: there is no example %d", b.where, i)
		}
		some = append(some, b.pool[i])
	}
	b.pool = some
	return nil
}

// sample returns the examples before an item.
func (b *builder) sample(n int, item record) ([]record, error) {
	few := fmt.Errorf("%d examples before it: there are %d to draw from", n, len(b.pool))
	others := b.pool
	without := func(from []record) (others []record) {
		for _, x := range from {
			if !reflect.DeepEqual(x, item) {
				others = append(others, x)
			}
		}
		return others
	}
	if b.firstN {
		if !b.apart {
			others = without(others)
		}
		if n > len(others) {
			return nil, few
		}
		return others[:n], nil
	}
	draw := func(from []record, n int) (drawn []record) {
		for _, i := range b.random.sample(len(from), n) {
			drawn = append(drawn, from[i])
		}
		return drawn
	}
	if b.apart {
		if n > len(others) {
			return nil, few
		}
		return draw(others, n), nil
	}
	// One more is drawn, as the item may be among them.
	if n+1 > len(others) {
		return nil, few
	}
	drawn := without(draw(others, n+1))
	if len(drawn) < n {
		if others = without(others); n > len(others) {
			return nil, few
		}
		drawn = draw(others, n)
	}
	return drawn[:n], nil
}

// item makes the requests of an item.
func (b *builder) item(ctx context.Context, raw record, first bool, shots int) (Item, error) {
	x, err := b.processed(ctx, raw)
	if err != nil {
		return Item{}, err
	}
	text, err := b.text.text(ctx, x, b.choice != nil)
	if err != nil {
		return Item{}, fmt.Errorf("doc_to_text: %w", err)
	}
	target, err := b.target.target(ctx, x, b.choice != nil)
	if err != nil {
		return Item{}, fmt.Errorf("doc_to_target: %w", err)
	}
	var choices []string
	if b.choice != nil {
		if choices, err = b.choice.choices(ctx, x); err != nil {
			return Item{}, fmt.Errorf("doc_to_choice: %w", err)
		}
	}
	if first {
		_, b.several = text.(int)
	}
	before, err := b.before(ctx, raw, x, shots)
	if err != nil {
		return Item{}, err
	}
	prefix, err := textOf(ctx, b.prefix, x)
	if err != nil {
		return Item{}, fmt.Errorf("gen_prefix: %w", err)
	}
	var item Item
	add := func(question, continuation, counted string, delimiter string) {
		item.Requests = append(item.Requests, Request{
			Context: before + asked(question, prefix, delimiter), Continuation: continuation, Characters: len([]rune(counted)),
		})
	}
	gold := target
	switch question, isText := text.(string); {
	case b.several:
		rest, ok := target.(string)
		if !ok || isText || b.one {
			return Item{}, errors.New("doc_to_text is a number, so that doc_to_target must be a text")
		}
		for _, c := range choices {
			add(c, b.delimiter+rest, c, "")
		}
		gold = text
	case !isText:
		return Item{}, errors.New("doc_to_text: want a text")
	case b.one:
		continuation, ok := target.(string)
		if !ok || continuation == "" {
			return Item{}, errors.New("doc_to_target: want a text")
		}
		add(question, continuation, continuation, b.delimiter)
		return item, nil
	default:
		for _, c := range choices {
			add(question, b.delimiter+c, c, b.delimiter)
		}
	}
	item.Right, err = right(gold, choices)
	return item, err
}

func (b *builder) processed(ctx context.Context, x record) (record, error) {
	if b.process == nil {
		return x, nil
	}
	return b.process(ctx, x)
}

// textOf is a field that is a text, "" where there is none.
func textOf(ctx context.Context, f *field, x record) (string, error) {
	if f == nil {
		return "", nil
	}
	v, err := f.text(ctx, x, false)
	if err != nil {
		return "", err
	}
	text, ok := v.(string)
	if !ok {
		return "", errors.New("want a text")
	}
	return text, nil
}

// before returns what stands before the question: the description and the examples.
func (b *builder) before(ctx context.Context, raw, x record, shots int) (string, error) {
	text, err := textOf(ctx, b.description, x)
	if err != nil {
		return "", fmt.Errorf("description: %w", err)
	}
	if shots == 0 {
		return text, nil
	}
	examples, err := b.sample(shots, raw)
	if err != nil {
		return "", err
	}
	for _, e := range examples {
		turn, err := b.example(ctx, e)
		if err != nil {
			return "", fmt.Errorf("an example before it: %w", err)
		}
		text += turn
	}
	return text, nil
}

// example is an item with its answer.
func (b *builder) example(ctx context.Context, raw record) (string, error) {
	x, err := b.processed(ctx, raw)
	if err != nil {
		return "", err
	}
	t := &b.shot
	text, err := t.text.text(ctx, x, b.choice != nil)
	if err != nil {
		return "", fmt.Errorf("doc_to_text: %w", err)
	}
	target, err := t.target.target(ctx, x, b.choice != nil)
	if err != nil {
		return "", fmt.Errorf("doc_to_target: %w", err)
	}
	prefix, err := textOf(ctx, t.prefix, x)
	if err != nil {
		return "", fmt.Errorf("gen_prefix: %w", err)
	}
	var choices []string
	if t.choice != nil {
		if choices, err = t.choice.choices(ctx, x); err != nil {
			return "", fmt.Errorf("doc_to_choice: %w", err)
		}
	}
	if i, ok := text.(int); ok && b.several {
		if i < 0 || i >= len(choices) {
			return "", fmt.Errorf("the answer %d is none of %d choices", i, len(choices))
		}
		text, choices = choices[i], nil
	}
	question, ok := text.(string)
	if !ok {
		return "", errors.New("doc_to_text: want a text")
	}
	if list, ok := target.([]any); ok && len(list) > 0 {
		target = list[0]
	}
	answer, ok := target.(string)
	if i, number := target.(int); number && choices != nil {
		if i < 0 || i >= len(choices) {
			return "", fmt.Errorf("the answer %d is none of %d choices", i, len(choices))
		}
		answer, ok = choices[i], true
	}
	if !ok {
		return "", errors.New("doc_to_target: want a text, or the number of a choice")
	}
	switch {
	case answer == "":
		return asked(question, prefix, t.delimiter), nil
	case prefix == "":
		return question + t.delimiter + answer + t.end, nil
	}
	return question + gap(question, prefix, t.delimiter) + joined(prefix, answer) + t.end, nil
}

// asked is a question, and behind it what the answer is to begin with.
func asked(question, prefix, delimiter string) string {
	if prefix == "" {
		return question
	}
	return question + gap(question, prefix, delimiter) + prefix
}

// gap returns the delimiter between two texts that need one.
func gap(before, after, delimiter string) string {
	if before == "" || endsInSpace(before) || beginsWithSpace(after) {
		return ""
	}
	return delimiter
}

// joined joins two texts by a space where they need one.
func joined(before, after string) string { return before + gap(before, after, " ") + after }

func endsInSpace(s string) bool { return strings.TrimRightFunc(s, isSpace) != s }

func beginsWithSpace(s string) bool { return strings.TrimLeftFunc(s, isSpace) != s }

// isSpace is isspace of Python.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// right returns which choices are right.
func right(gold any, choices []string) ([]int, error) {
	list, ok := gold.([]any)
	if !ok {
		list = []any{gold}
	}
	var all []int
	for _, g := range list {
		i, ok := g.(int)
		if text, isText := g.(string); isText {
			if i = slices.Index(choices, text); i < 0 {
				return nil, fmt.Errorf("the answer %s is none of the choices", quote(text))
			}
			ok = true
		}
		if !ok {
			return nil, errors.New("the answer is neither a number nor a text")
		}
		if i < 0 || i >= len(choices) {
			return nil, fmt.Errorf("the answer %d is none of %d choices, which count from 0", i, len(choices))
		}
		all = append(all, i)
	}
	if len(all) == 0 {
		return nil, errors.New("there is no answer")
	}
	return all, nil
}
