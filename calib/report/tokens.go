package report

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/formats/svg"
)

// Tokens is what a model does with tokens of a text, beside its reference.
type Tokens struct {
	Windows   []float64 `json:"windows"`   // the mean divergence of each
	Positions []Group   `json:"positions"` // by place in the window
	Classes   []Group   `json:"classes"`   // by what the tokens are
	Sizes     []Group   `json:"sizes"`     // by the divergence itself
	Worst     []Worst   `json:"worst"`     // the most divergence first
}

// Group is some of the scored tokens.
type Group struct {
	Name   string  `json:"name"`
	From   float64 `json:"from,omitempty"` // the least place or divergence in it
	Tokens int     `json:"tokens"`
	KL     float64 `json:"kl"`            // mean
	KLErr  float64 `json:"kl_stderr"`     // of it, by window; 0 where too few windows have some
	Same   float64 `json:"same"`          // the share for which both models find the same token most likely
	NLL    float64 `json:"nll"`           // mean
	Ref    float64 `json:"reference_nll"` // of the reference
}

// Worst is a token for which a model differs much from its reference.
type Worst struct {
	Window    int      `json:"window"`   // from 0
	Position  int      `json:"position"` // in the window
	Before    string   `json:"before"`   // the text that both models had read, its end
	Token     string   `json:"token"`    // what came
	KL        float64  `json:"kl"`
	P         float64  `json:"p"` // of what came
	Reference float64  `json:"reference_p"`
	Own       []Chance `json:"own"` // what the model finds most likely
	Ref       []Chance `json:"reference"`
}

// Chance is a token and how likely a model finds it, and the other of the two.
type Chance struct {
	Token string  `json:"token"`
	P     float64 `json:"p"`
	Other float64 `json:"other"`
}

// Spelling turns ids into text.
type Spelling interface {
	Decode(ids []int) (string, error)
}

const (
	worstTokens  = 20
	topTokens    = 5  // of each distribution
	contextIDs   = 40 // before one of the worst
	contextRunes = 160
)

// The classes of tokens, in the order of a report.
var classes = []string{"word, its beginning", "word, further on", "other scripts", "digits", "punctuation", "blanks and lines", "special or incomplete"}

// Watch gathers what a report tells of tokens during an evaluation. It implements [eval.Watcher].
type Watch struct {
	set    *corpus.Set
	spell  Spelling
	class  map[int]int // of ids
	models []*gathering
}

// gathering is what is known of one model so far.
type gathering struct {
	positions, classes, sizes []groupSum
	window                    sum
	windows                   []float64
	at                        int // the window
	worst                     []Worst
}

// NewWatch returns a watch of an evaluation of some models on a set, whose ids a tokenizer spells.
func NewWatch(set *corpus.Set, spell Spelling, models int) *Watch {
	w := &Watch{set: set, spell: spell, class: make(map[int]int)}
	for range models {
		w.models = append(w.models, &gathering{
			positions: make([]groupSum, len(positionEdges(set.Context))), classes: make([]groupSum, len(classes)), sizes: make([]groupSum, len(sizeEdges)),
		})
	}
	return w
}

// sum is a running sum.
type sum struct {
	n int
	x float64
}

func (s *sum) mean() float64 { return s.x / float64(max(s.n, 1)) }

// groupSum sums up a group. Windows whose sums are finished are in squares.
type groupSum struct {
	kl             sum
	same, nll, ref float64
	window         sum // the one at hand
	windows        int // that had tokens
	means, squares float64
}

func (g *groupSum) add(s eval.Score) {
	g.kl.n++
	g.kl.x += s.KL
	g.window.n++
	g.window.x += s.KL
	g.nll += s.NLL
	g.ref += s.ReferenceNLL
	if s.Same {
		g.same++
	}
}

// end ends a window.
func (g *groupSum) end() {
	if g.window.n > 0 {
		m := g.window.mean()
		g.windows++
		g.means += m
		g.squares += m * m
	}
	g.window = sum{}
}

func (g *groupSum) group(name string, from float64) Group {
	n := float64(max(g.kl.n, 1))
	out := Group{Name: name, From: from, Tokens: g.kl.n, KL: g.kl.mean(), Same: g.same / n, NLL: g.nll / n, Ref: g.ref / n}
	if w := float64(g.windows); w > 1 {
		out.KLErr = math.Sqrt(max(g.squares/w-(g.means/w)*(g.means/w), 0) / (w - 1))
	}
	return out
}

// positionEdges are the places in a window at which groups of them begin: twice as far, and half way there.
func positionEdges(context int) []int {
	edges := []int{1}
	for p := 2; p < context; p *= 2 {
		edges = append(edges, p)
		if mid := p * 3 / 2; p > 1 && mid < context && mid > p {
			edges = append(edges, mid)
		}
	}
	return edges
}

// sizeEdges are the divergences at which groups of them begin, in nats.
var sizeEdges = []float64{0, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1, 3, 10}

// under returns the last of ascending edges that is no more than a value.
func under[T int | float64](edges []T, v T) int {
	i, found := slices.BinarySearch(edges, v)
	if found {
		return i
	}
	return max(i-1, 0)
}

// Tokens implements [eval.Watcher].
func (w *Watch) Tokens(c *eval.Chunk) error {
	g := w.models[c.Model]
	if c.Window != g.at {
		g.end()
		g.at = c.Window
	}
	edges := positionEdges(w.set.Context)
	var worse []int // tokens that may be among the worst
	for i, s := range c.Scores {
		g.positions[under(edges, c.From+i)].add(s)
		g.classes[w.classOf(w.set.Windows[c.Window].Tokens[c.From+i-1], c.Targets[i])].add(s)
		g.sizes[under(sizeEdges, s.KL)].add(s)
		g.window.n++
		g.window.x += s.KL
		if s.KL > 0 && (len(g.worst) < worstTokens || s.KL > g.worst[len(g.worst)-1].KL) {
			worse = append(worse, i)
		}
	}
	slices.SortStableFunc(worse, func(a, b int) int { return cmp.Compare(c.Scores[b].KL, c.Scores[a].KL) })
	for _, i := range worse[:min(len(worse), worstTokens)] {
		if len(g.worst) == worstTokens && c.Scores[i].KL <= g.worst[worstTokens-1].KL {
			break
		}
		one, err := w.worst(c, i)
		if err != nil {
			return err
		}
		at, _ := slices.BinarySearchFunc(g.worst, one, func(a, b Worst) int {
			if a.KL >= b.KL {
				return -1
			}
			return 1
		})
		g.worst = slices.Insert(g.worst, at, one)[:min(len(g.worst)+1, worstTokens)]
	}
	return nil
}

// end ends a window.
func (g *gathering) end() {
	if g.window.n > 0 {
		g.windows = append(g.windows, g.window.mean())
	}
	g.window = sum{}
	for _, all := range [][]groupSum{g.positions, g.classes, g.sizes} {
		for i := range all {
			all[i].end()
		}
	}
}

// worst describes target i of a chunk.
func (w *Watch) worst(c *eval.Chunk, i int) (Worst, error) {
	own, ref, err := c.Logits(i)
	if err != nil {
		return Worst{}, err
	}
	s, id := c.Scores[i], c.Targets[i]
	place := c.From + i
	tokens := w.set.Windows[c.Window].Tokens
	out := Worst{
		Window: c.Window, Position: place, KL: s.KL, P: math.Exp(-s.NLL), Reference: math.Exp(-s.ReferenceNLL),
		Before: lastRunes(w.text(tokens[max(place-contextIDs, 0):place]), contextRunes),
	}
	spell := func(id int) string { return w.behind(tokens[place-1], id) }
	out.Token = spell(id)
	// The probability of any token follows from that of the one that came.
	chance := func(logits []float32, nll float64, v int) float64 {
		return min(math.Exp(float64(logits[v])-float64(logits[id])-nll), 1)
	}
	for _, v := range top(own, topTokens) {
		out.Own = append(out.Own, Chance{spell(v), chance(own, s.NLL, v), chance(ref, s.ReferenceNLL, v)})
	}
	for _, v := range top(ref, topTokens) {
		out.Ref = append(out.Ref, Chance{spell(v), chance(ref, s.ReferenceNLL, v), chance(own, s.NLL, v)})
	}
	return out, nil
}

// top returns the places of the n largest, the first of equals before the others.
func top(v []float32, n int) (places []int) {
	for i, x := range v {
		if len(places) == n && !(x > v[places[n-1]]) {
			continue
		}
		at := len(places)
		for at > 0 && x > v[places[at-1]] {
			at--
		}
		places = slices.Insert(places, at, i)[:min(len(places)+1, n)]
	}
	return places
}

// text spells ids; those without a text are "".
func (w *Watch) text(ids []int) string {
	s, err := w.spell.Decode(ids)
	if err != nil {
		return ""
	}
	return s
}

// behind spells an id that stands behind another: at the beginning of a text some tokenizers leave a blank out.
func (w *Watch) behind(before, id int) string {
	if s, ok := strings.CutPrefix(w.text([]int{before, id}), w.text([]int{before})); ok && s != "" {
		return s
	}
	return w.text([]int{id})
}

func lastRunes(s string, n int) string {
	runes := []rune(s)
	return string(runes[max(len(runes)-n, 0):])
}

// classOf returns the class of an id, by its text where it is first seen.
func (w *Watch) classOf(before, id int) int {
	if c, ok := w.class[id]; ok {
		return c
	}
	c := classOf(w.behind(before, id))
	w.class[id] = c
	return c
}

// classOf returns the class of a token, by its text.
func classOf(s string) int {
	const (
		begins = iota
		further
		scripts
		digits
		punctuation
		blank
		other
	)
	first, size := utf8.DecodeRuneInString(s)
	blankBefore := unicode.IsSpace(first)
	if blankBefore {
		for s != "" && unicode.IsSpace(first) {
			s = s[size:]
			first, size = utf8.DecodeRuneInString(s)
		}
		if s == "" {
			return blank
		}
	}
	switch {
	case s == "" || first == utf8.RuneError:
		return other
	case unicode.IsDigit(first):
		return digits
	case unicode.IsLetter(first) && !unicode.Is(unicode.Latin, first):
		return scripts
	case unicode.IsLetter(first) && blankBefore:
		return begins
	case unicode.IsLetter(first):
		return further
	case unicode.IsPrint(first):
		return punctuation
	}
	return other
}

// Results returns what was gathered, by model, when the evaluation is done.
func (w *Watch) Results() []*Tokens {
	out := make([]*Tokens, len(w.models))
	for i, g := range w.models {
		g.end()
		t := &Tokens{Windows: g.windows, Worst: g.worst}
		edges := positionEdges(w.set.Context)
		for j := range g.positions {
			last := w.set.Context - 1
			if j+1 < len(edges) {
				last = edges[j+1] - 1
			}
			t.Positions = appendGroup(t.Positions, &g.positions[j], places(edges[j], last), float64(edges[j]))
		}
		for j := range g.classes {
			t.Classes = appendGroup(t.Classes, &g.classes[j], classes[j], 0)
		}
		for j := range g.sizes {
			t.Sizes = append(t.Sizes, g.sizes[j].group(svg.Short(sizeEdges[j])+" and more", sizeEdges[j]))
		}
		out[i] = t
	}
	return out
}

// places names a range of places.
func places(from, to int) string {
	if from == to {
		return strconv.Itoa(from)
	}
	return strconv.Itoa(from) + " to " + strconv.Itoa(to)
}

// appendGroup adds a group unless no token is in it.
func appendGroup(all []Group, g *groupSum, name string, from float64) []Group {
	if g.kl.n == 0 {
		return all
	}
	return append(all, g.group(name, from))
}
