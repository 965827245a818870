package report

import (
	"bytes"
	"cmp"
	_ "embed" // the page and its style
	"fmt"
	"html/template"
	"io"
	"math"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/formats/svg"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string

	pageTemplate = template.Must(template.New("").Parse(pageHTML))
)

// page is a report as it is written: everything is text, but for pictures.
type page struct {
	Title, Against, Command string

	Nav    []link
	Key    []Fact
	Ruined []string
	Texts  []textPage
	Models []modelPage
}

type link struct{ ID, Name string }

type textPage struct {
	ID, Name, Protocol string
	Table, Pairs       *table
	Frontier           *Picture
}

type modelPage struct {
	ID, Name                string
	Facts, Layers, Outliers *table
	Pictures                []*Picture
	Tokens                  []tokenPage
	SHA256, Command         string
}

type tokenPage struct {
	Text     string
	Pictures []*Picture
	Classes  *table
	Worst    []worstToken
}

// worstToken is a [Worst] as text.
type worstToken struct {
	Window, Position int // from 1 and 0
	KL, P, Reference string
	Before, Token    string
	Own, Ref         []struct{ Token, P string }
}

// table is text in rows. Columns of numbers have their text on the right.
type table struct {
	Head []field
	Rows [][]field
}

type field struct {
	Text  string
	Right bool
}

// newTable returns a table with columns of some names: those of numbers begin with ">".
func newTable(names ...string) *table {
	t := new(table)
	for _, n := range names {
		name, right := strings.CutPrefix(n, ">")
		t.Head = append(t.Head, field{name, right})
	}
	return t
}

func (t *table) add(texts ...string) {
	row := make([]field, len(texts))
	for i, text := range texts {
		row[i] = field{visible(text), t.Head[i].Right}
	}
	t.Rows = append(t.Rows, row)
}

// visible makes everything in a text of a model show: what has no shape stands as an escape. Lines show as ⏎.
func visible(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n':
			b.WriteRune('⏎')
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}

// spelled is visible for a single token, of which blanks show as well.
func spelled(s string) string {
	if s == "" {
		return "∅"
	}
	return strings.ReplaceAll(visible(s), " ", "␣")
}

func newPage(r *Report) *page {
	p := &page{Title: visible(r.Title), Against: visible(r.Against), Command: visible(r.Command)}
	if len(r.Models) == 1 && len(r.Texts) > 0 {
		p.Key = keyFacts(r)
	}
	for i := range r.Texts {
		t := &r.Texts[i]
		id := fmt.Sprintf("text%d", i+1)
		p.Nav = append(p.Nav, link{id, visible(t.Name)})
		p.Texts = append(p.Texts, textPage{id, visible(t.Name), protocolOf(t), resultsTable(r, t), pairsTable(t), r.Frontier(t)})
		for j, res := range t.Results {
			if name := visible(r.Models[j].Name); res.Comparison != nil && res.Ruined && !slices.Contains(p.Ruined, name) {
				p.Ruined = append(p.Ruined, name)
			}
		}
	}
	for i := range r.Models {
		m := &r.Models[i]
		id := fmt.Sprintf("model%d", i+1)
		p.Nav = append(p.Nav, link{id, visible(m.Name)})
		one := modelPage{
			ID: id, Name: visible(m.Name), Facts: factsTable(m), Layers: layersTable(m), Outliers: outliersTable(m),
			Pictures: append([]*Picture{partsPicture(m)}, layerPictures(m)...), SHA256: visible(m.SHA256), Command: visible(m.Command),
		}
		if x := expertsPicture(m); x != nil {
			one.Pictures = append(one.Pictures, x)
		}
		for j := range r.Texts {
			t := &r.Texts[j]
			if t.Tokens == nil || t.Results[i].Comparison == nil {
				continue
			}
			one.Tokens = append(one.Tokens, newTokenPage(t.Name, t.Tokens[i], &t.Results[i]))
		}
		for _, pic := range one.Pictures {
			pic.Name = fmt.Sprintf("%s-%d", pic.Name, i+1)
		}
		for j, tokens := range one.Tokens {
			for _, pic := range tokens.Pictures {
				pic.Name = fmt.Sprintf("%s-%d-%d", pic.Name, i+1, j+1)
			}
		}
		p.Models = append(p.Models, one)
	}
	for i := range p.Texts {
		if f := p.Texts[i].Frontier; f != nil {
			f.Name = fmt.Sprintf("%s-%d", f.Name, i+1)
		}
	}
	p.Nav = append(p.Nav, link{"command", "How it was made"})
	return p
}

// keyFacts are what matters most of a model, on the first text.
func keyFacts(r *Report) []Fact {
	m, res := &r.Models[0], &r.Texts[0].Results[0]
	facts := []Fact{
		{"Bytes", bytesName(m.Bytes)},
		{"Bits for each weight", fmt.Sprintf("%.3f", m.BitsPerWeight)},
		{"Perplexity", fmt.Sprintf("%.4g", res.PPL)},
	}
	if c := res.Comparison; c != nil {
		facts[2].Is += fmt.Sprintf(", original %.4g", c.ReferencePPL)
		facts = append(facts, Fact{"KL divergence, nats", fmt.Sprintf("%.4g", c.KLMean)}, Fact{"Same top token", fmt.Sprintf("%.2f %%", 100*c.Top1)})
	}
	return facts
}

func protocolOf(t *Text) string {
	if len(t.Results) == 0 {
		return ""
	}
	r := &t.Results[0]
	bos := "no BOS"
	if r.BOS != corpus.BOSNone {
		bos = "BOS at every " + string(r.BOS)
	}
	return visible(fmt.Sprintf("Protocol %s (%s), %d windows of %d tokens, %d tokens scored, on %s in %s.", r.Protocol, bos, r.Windows, r.Context, r.TokensScored, r.Device, r.DType))
}

func interval(format string, x float64, ci *[2]float64) string {
	if ci == nil {
		return fmt.Sprintf(format, x)
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", x, ci[0], ci[1])
}

func resultsTable(r *Report, t *Text) *table {
	if r.Against == "" {
		out := newTable("model", ">bytes", ">perplexity")
		for i, res := range t.Results {
			out.add(r.Models[i].Name, bytesName(r.Models[i].Bytes), fmt.Sprintf("%.4f ± %.4f", res.PPL, res.PPLStderr))
		}
		return out
	}
	out := newTable("model", ">bytes", ">bits", ">perplexity", ">ln ratio", ">KL mean", ">median", ">99 %", ">same top token, %")
	if len(t.Results) > 0 && t.Results[0].Comparison != nil {
		out.add(r.Against, "", "", fmt.Sprintf("%.4f", t.Results[0].ReferencePPL), "", "", "", "", "")
	}
	for i, res := range t.Results {
		c := res.Comparison
		if c == nil {
			continue
		}
		var top *[2]float64
		if c.Top1CI != nil {
			top = &[2]float64{100 * c.Top1CI[0], 100 * c.Top1CI[1]}
		}
		out.add(r.Models[i].Name, bytesName(r.Models[i].Bytes), fmt.Sprintf("%.3f", r.Models[i].BitsPerWeight), fmt.Sprintf("%.4f ± %.4f", res.PPL, res.PPLStderr),
			interval("%+.4f", c.LnRatio, c.LnRatioCI), interval("%.4f", c.KLMean, c.KLMeanCI), fmt.Sprintf("%.4f", c.KLMedian), fmt.Sprintf("%.3f", c.KLP99),
			interval("%.2f", 100*c.Top1, top))
	}
	return out
}

func pairsTable(t *Text) *table {
	if len(t.Pairs) == 0 {
		return nil
	}
	out := newTable("model", "against", ">ln ratio", ">KL mean", ">same top token, %")
	for _, p := range t.Pairs {
		kl, same := "", ""
		if p.Distance != nil {
			kl, same = interval("%+.4f", p.KLMean, p.KLMeanCI), fmt.Sprintf("%+.2f", 100*p.Top1)
		}
		out.add(p.A, p.B, interval("%+.4f", p.LnRatio, p.LnRatioCI), kl, same)
	}
	return out
}

func factsTable(m *Model) *table {
	t := newTable("", "")
	for _, f := range m.Recipe {
		t.add(f.What, f.Is)
	}
	t.add("size", fmt.Sprintf("%s, %.3f bits for each of %d weights", bytesName(m.Bytes), m.BitsPerWeight, m.Parameters))
	t.Head = nil
	return t
}

// shownLayers is how many layers a table lists at most.
const shownLayers = 15

// largest returns the layers with the largest values, the largest first.
func largest(m *Model, n int, value func(l *Layer) float64) []*Layer {
	var all []*Layer
	for i := range m.Layers {
		if v := value(&m.Layers[i]); v > 0 && !math.IsInf(v, 0) {
			all = append(all, &m.Layers[i])
		}
	}
	slices.SortStableFunc(all, func(a, b *Layer) int { return cmp.Compare(value(b), value(a)) })
	return all[:min(len(all), n)]
}

// orNothing leaves out what is not known.
func orNothing(v float64, format func(float64) string) string {
	if v == 0 {
		return ""
	}
	return format(v)
}

func layersTable(m *Model) *table {
	all := largest(m, shownLayers, func(l *Layer) float64 { return l.Error })
	if len(all) == 0 {
		return nil
	}
	t := newTable("layer", ">shape", "stored as", ">bytes", ">error of weights")
	fitted := slices.ContainsFunc(all, func(l *Layer) bool { return l.OutputError > 0 || l.NearestLoss > 0 })
	if fitted {
		t.Head = append(t.Head, newTable(">error of output", ">loss, rounded", ">loss, fitted").Head...)
	}
	for _, l := range all {
		row := []string{l.Name, fmt.Sprintf("%d×%d", l.Shape[0], l.Shape[1]), l.Stored, bytesName(l.Bytes), percent(l.Error)}
		if fitted {
			row = append(row, orNothing(l.OutputError, percent), orNothing(l.NearestLoss, svg.Short), orNothing(l.Loss, svg.Short))
		}
		t.add(row...)
	}
	return t
}

func outliersTable(m *Model) *table {
	all := largest(m, shownLayers, func(l *Layer) float64 { return l.Outlier })
	if len(all) == 0 {
		return nil
	}
	t := newTable("layer", ">column", ">mean square, in medians", ">error of weights")
	for _, l := range all {
		t.add(l.Name, fmt.Sprint(l.Column), times(l.Outlier), orNothing(l.Error, percent))
	}
	return t
}

func newTokenPage(name string, tokens *Tokens, r *eval.Result) tokenPage {
	out := tokenPage{Text: visible(name), Pictures: tokenPictures(tokens, r)}
	out.Classes = newTable("tokens", ">number", ">KL mean", ">±", ">same top token, %", ">perplexity", ">of the original")
	for _, g := range tokens.Classes {
		out.Classes.add(g.Name, fmt.Sprint(g.Tokens), fmt.Sprintf("%.4g", g.KL), orNothing(1.96*g.KLErr, svg.Short), fmt.Sprintf("%.2f", 100*g.Same),
			svg.Short(math.Exp(g.NLL)), svg.Short(math.Exp(g.Ref)))
	}
	for _, w := range tokens.Worst {
		one := worstToken{
			Window: w.Window + 1, Position: w.Position, KL: svg.Short(w.KL), P: percent(w.P), Reference: percent(w.Reference),
			Before: visible(w.Before), Token: spelled(w.Token),
		}
		for _, c := range w.Own {
			one.Own = append(one.Own, struct{ Token, P string }{spelled(c.Token), percent(c.P)})
		}
		for _, c := range w.Ref {
			one.Ref = append(one.Ref, struct{ Token, P string }{spelled(c.Token), percent(c.P)})
		}
		out.Worst = append(out.Worst, one)
	}
	return out
}

// Style is the page's stylesheet.
func (p *page) Style() template.CSS { return template.CSS(svg.Style + pageCSS) } // both are part of the program

// SVG is the picture as an element: package svg escapes what it writes.
func (p *Picture) SVG() (template.HTML, error) {
	var b bytes.Buffer
	err := p.Inline(&b)
	return template.HTML(b.String()), err
}

// HTML writes the report as one page.
func (r *Report) HTML(w io.Writer) error {
	var b bytes.Buffer
	if err := pageTemplate.ExecuteTemplate(&b, "page", newPage(r)); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// PageMark stands near the beginning of every page.
const PageMark = `<meta name="generator" content="lutq report">`

// Address returns a file's name as an address in Markdown.
func Address(name string) string { return (&url.URL{Path: name}).EscapedPath() }
