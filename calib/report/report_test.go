package report

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/quantize"
)

// synthetic returns a report of models of some blocks of seven layers on some windows. Every name and token is text.
func synthetic(models, blocks, windows int, text string) *Report {
	rng := rand.New(rand.NewPCG(1, 2))
	r := &Report{Title: text, Against: text, Command: "lutq report " + text}
	t := Text{Name: text}
	for i := range models {
		m := Model{
			Name: text, Format: text, Recipe: []Fact{{"fitted to", text}}, SHA256: text, Command: text, Sampled: 64,
			Experts: []quantize.Experts{{Block: text, Top: 2, Tokens: []int{0, 4, 9, 100}, Never: 0.25}, {Block: text, Top: 2, Tokens: []int{1, 5, 8, 90}}},
		}
		for b := range blocks {
			for _, kind := range []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", text} {
				l := Layer{
					Name: fmt.Sprintf("model.layers.%d.%s", b, kind), Shape: [2]int{4096, 4096}, Stored: text, Bytes: 8 << 20,
					Error: 0.1 + rng.Float64()/10, OutputError: 0.01 + rng.Float64()/10, Loss: 1 + rng.Float64(), NearestLoss: 3, Outlier: math.Exp(5 * rng.Float64()), Column: 17,
				}
				m.Layers = append(m.Layers, l)
				m.AddPart(l.Name, l.Stored, true, l.Bytes, 4096*4096)
			}
		}
		m.AddPart(text, text, false, 1<<20, 1<<19)
		m.Sum()
		m.Bytes += int64(i) << 20
		r.Models = append(r.Models, m)
		kl := 0.1 / float64(i+1)
		t.Results = append(t.Results, eval.Result{
			Protocol: corpus.Raw, BOS: corpus.BOSNone, Context: 2048, Windows: windows, TokensScored: windows * 2047, PPL: 9, PPLStderr: 0.1, Device: "cpu", DType: "f32", TokensPerSecond: 12345,
			Comparison: &eval.Comparison{ReferencePPL: 8, LnRatio: 0.1, LnRatioCI: &[2]float64{0.05, 0.15}, KLMean: kl, KLMeanCI: &[2]float64{kl * 0.9, kl * 1.1}, KLMedian: 0.05, KLP99: 0.7, Top1: 0.9, Top1CI: &[2]float64{0.8, 0.95}, Ruined: i == 0},
		})
		tokens := &Tokens{}
		for range windows {
			tokens.Windows = append(tokens.Windows, 0.1+rng.Float64())
		}
		for _, from := range positionEdges(2048) {
			tokens.Positions = append(tokens.Positions, Group{Name: places(from, from), From: float64(from), Tokens: 40, KL: 0.1 + rng.Float64(), KLErr: 0.01})
		}
		for _, c := range classes {
			tokens.Classes = append(tokens.Classes, Group{Name: c, Tokens: 100, KL: 0.01 + 0.08*rng.Float64(), Same: 0.9, NLL: 2, Ref: 1.9})
		}
		for _, from := range sizeEdges {
			tokens.Sizes = append(tokens.Sizes, Group{From: from, Tokens: 100, KL: from})
		}
		for w := range worstTokens {
			one := Worst{Window: w, Position: 5, Before: strings.Repeat(text+" ", 10), Token: text, KL: 3, P: 0.001, Reference: 0.7}
			for range topTokens {
				one.Own, one.Ref = append(one.Own, Chance{text, 0.4, 0.1}), append(one.Ref, Chance{text, 0.4, 0.1})
			}
			tokens.Worst = append(tokens.Worst, one)
		}
		t.Tokens = append(t.Tokens, tokens)
	}
	for a := 1; a < models; a++ {
		t.Pairs = append(t.Pairs, Pair{A: text, B: text, Difference: eval.Difference{LnRatio: 0.1, LnRatioCI: &[2]float64{0, 0.2}, Distance: &eval.Distance{KLMean: 0.1, Top1: -0.01}}})
	}
	r.Texts = []Text{t}
	return r
}

var svgElement = regexp.MustCompile(`(?s)<svg.*?</svg>`)

// check parses a page: elements must nest, nothing in it may run or be loaded, and every picture must be XML with shapes that
// lie in it. It returns how many there are.
func check(t *testing.T, page []byte) (pictures int) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta", "link", "br"}, xml.HTMLEntity
	var open []string
	ids := make(map[string]bool)
	for {
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			name := e.Name.Local
			if !slices.Contains([]string{
				"html", "head", "meta", "link", "title", "style", "body", "main", "h1", "h2", "h3", "p", "nav", "a", "div", "b", "figure", "figcaption", "svg", "path", "rect", "circle", "text",
				"table", "thead", "tbody", "tr", "th", "td", "span", "mark", "code", "pre",
			}, name) {
				t.Fatalf("the page has a %s", name)
			}
			if name != "meta" && name != "link" {
				open = append(open, name)
			}
			for _, a := range e.Attr {
				switch key := a.Name.Local; {
				case strings.HasPrefix(key, "on"), key == "src", key == "srcdoc", key == "style" && strings.Contains(a.Value, "url"):
					t.Fatalf("%s has %s=%q", name, key, a.Value)
				case key == "href" && !strings.HasPrefix(a.Value, "#") && a.Value != "data:,":
					t.Fatalf("%s leads to %q", name, a.Value)
				case key == "id":
					if ids[a.Value] {
						t.Fatalf("two have the id %q", a.Value)
					}
					ids[a.Value] = true
				}
			}
		case xml.EndElement:
			if len(open) == 0 || open[len(open)-1] != e.Name.Local {
				t.Fatalf("</%s> within %v", e.Name.Local, open)
			}
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		t.Fatalf("%v stay open", open)
	}
	for _, svg := range svgElement.FindAll(page, -1) {
		checkSVG(t, svg)
		pictures++
	}
	return pictures
}

// checkSVG parses a picture, whose numbers must be numbers.
func checkSVG(t *testing.T, svg []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	shapes, wide := 0, 0.
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		attr := make(map[string]string)
		for _, a := range e.Attr {
			attr[a.Name.Local] = a.Value
		}
		switch e.Name.Local {
		case "path", "rect", "circle":
			shapes++
		case "svg":
			if _, err := fmt.Sscanf(attr["viewBox"], "0 0 %f ", &wide); err != nil {
				t.Fatalf("%v: viewBox %q", err, attr["viewBox"])
			}
		case "text":
			text, err := d.Token()
			data, ok := text.(xml.CharData)
			if err != nil || !ok || attr["x"] == "" {
				continue // is empty, or stands upright
			}
			at, err := strconv.ParseFloat(attr["x"], 64)
			if err != nil {
				t.Fatal(err)
			}
			const letter = 7.5 // the mean of a wide font
			long := letter * float64(utf8.RuneCount(data))
			from := at - long*map[string]float64{"": 0, "middle": 0.5, "end": 1}[attr["text-anchor"]]
			if from < -2 || from+long > wide+2 {
				t.Errorf("%q lies outside of its picture: from %.0f to %.0f of %.0f", data, from, from+long, wide)
			}
		case "g", "title", "style":
		default:
			t.Fatalf("a picture has a %s", e.Name.Local)
		}
		for _, a := range e.Attr {
			if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
				t.Fatalf("%s has %s=%q", e.Name.Local, a.Name.Local, a.Value)
			}
		}
	}
	if shapes == 0 {
		t.Fatalf("an empty picture: %s", svg)
	}
}

func pageOf(t testing.TB, r *Report) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestPageSize: a model of 224 layers on 40 windows.
func TestPageSize(t *testing.T) {
	page := pageOf(t, synthetic(1, 32, 40, "an 8B model"))
	pictures := check(t, page)
	t.Logf("%d bytes, %d pictures", len(page), pictures)
	const most = 1_500_000
	if len(page) > most {
		t.Errorf("%d bytes, want %d at most", len(page), most)
	}
	if want := 10; pictures != want { // bytes, four of layers, experts, four of tokens
		t.Errorf("%d pictures, want %d", pictures, want)
	}
}

var hostile = []string{
	`</title></style></text></svg><script>alert(1)</script>`,
	`"><img src=x onerror=alert(1)>`,
	"' onmouseover='alert(1)",
	"{{.Title}} {{template \"page\" .}}",
	"]]><![CDATA[ <!-- --> &lt;&#x3c;script>",
	"a\x00b\x1b[31m\u202ec\ufffe\xff\xfe\n\r\t\u2028",
	"| a | b |\n---\n# h\n```\n[x](javascript:alert(1))",
	"../../etc/passwd",
	strings.Repeat("very-long-name", 300),
	"",
}

// TestHostile: names, tokens and paths that are code somewhere show as what they are.
func TestHostile(t *testing.T) {
	for _, text := range hostile {
		t.Run(fmt.Sprintf("%.20q", text), func(t *testing.T) {
			r := synthetic(2, 3, 5, text)
			page := pageOf(t, r)
			if n := check(t, page); n < 15 {
				t.Errorf("%d pictures", n)
			}
			if bytes.ContainsAny(page, "\x00\x1b\u202e\u2028") {
				t.Error("what has no shape is in the page")
			}
			if text != "" && text[0] == '<' && !bytes.Contains(page, []byte("&lt;script&gt;alert(1)")) {
				t.Error("the text does not show")
			}
			var md bytes.Buffer
			err := r.Markdown(&md, func(p *Picture) (string, error) {
				if !regexp.MustCompile(`^[a-z0-9-]+$`).MatchString(p.Name) {
					t.Errorf("a picture is called %q", p.Name)
				}
				var b bytes.Buffer
				err := p.Write(&b)
				checkSVG(t, b.Bytes())
				return p.Name + ".svg", err
			})
			if err != nil {
				t.Fatal(err)
			}
			checkMarkdown(t, md.String())
		})
	}
}

// checkMarkdown looks for tags and links outside of code.
func checkMarkdown(t *testing.T, md string) {
	t.Helper()
	fence := ""
	for line := range strings.Lines(strings.TrimPrefix(md, MarkdownMark)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case fence == "" && strings.HasPrefix(line, "```"):
			fence = line
		case line == fence:
			fence = ""
		case fence == "" && strings.Contains(line, "<"):
			t.Errorf("a tag: %q", line)
		case fence == "" && strings.Contains(line, "](") && !strings.HasPrefix(line, "!["):
			t.Errorf("a link: %q", line)
		}
	}
	if fence != "" {
		t.Errorf("the code behind %s does not end", fence)
	}
}

func FuzzPage(f *testing.F) {
	for _, text := range hostile {
		f.Add(text, 0.1, 3)
	}
	f.Fuzz(func(t *testing.T, text string, v float64, n int) {
		if len(text) > 200 {
			text = text[:200]
		}
		r := synthetic(2, 1+(n&1), 2, text)
		for i := range r.Models {
			for j := range r.Models[i].Layers {
				r.Models[i].Layers[j].Error *= v
				r.Models[i].Layers[j].Outlier *= v
			}
			tokens := r.Texts[0].Tokens[i]
			tokens.Worst = tokens.Worst[:1]
			tokens.Windows[0] *= v
			tokens.Positions[0].KL *= v
			tokens.Classes[0].KL *= v
			r.Texts[0].Results[i].KLMean *= v
		}
		check(t, pageOf(t, r))
	})
}

// TestPlace has layers of many models.
func TestPlace(t *testing.T) {
	for _, c := range []struct {
		layer string
		block int
		kind  string
	}{
		{"model.layers.12.self_attn.q_proj", 12, "self_attn.q_proj"},
		{"model.layers.3.mlp.experts.17.up_proj", 3, "mlp.experts.up_proj"},
		{"lm_head", -1, "lm_head"},
		{"model.embed_tokens.weight", -1, "model.embed_tokens.weight"},
		{"model.layers.99999999999999999999.x", -1, "model.layers.99999999999999999999.x"},
		{"model.layers.4000.x", -1, "model.layers.4000.x"},
	} {
		if block, kind := Place(c.layer); block != c.block || kind != c.kind {
			t.Errorf("%s: block %d, %s", c.layer, block, kind)
		}
	}
}

func TestClassOf(t *testing.T) {
	for text, want := range map[string]string{
		" the": "word, its beginning", "ing": "word, further on", " Жи": "other scripts", "中": "other scripts", " 12": "digits", ",": "punctuation", " (": "punctuation",
		"\n": "blanks and lines", "  ": "blanks and lines", "": "special or incomplete", "\ufffd": "special or incomplete", "é": "word, further on", "\x07": "special or incomplete",
	} {
		if got := classes[classOf(text)]; got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestTop(t *testing.T) {
	if got := top([]float32{1, 5, 3, 5, 2}, 3); !slices.Equal(got, []int{1, 3, 2}) {
		t.Errorf("%v", got)
	}
	if got := top([]float32{1}, 3); !slices.Equal(got, []int{0}) {
		t.Errorf("%v", got)
	}
}

func TestPositionEdges(t *testing.T) {
	if got := positionEdges(20); !slices.Equal(got, []int{1, 2, 3, 4, 6, 8, 12, 16}) {
		t.Errorf("%v", got)
	}
	edges := positionEdges(2048)
	for p := 1; p < 2048; p++ {
		i := under(edges, p)
		if edges[i] > p || i+1 < len(edges) && edges[i+1] <= p {
			t.Fatalf("position %d is in the group from %d", p, edges[i])
		}
	}
}

// TestBest: models that another beats in both are left out.
func TestBest(t *testing.T) {
	r := synthetic(4, 1, 2, "m")
	for i, c := range []struct {
		bytes int64
		kl    float64
	}{{100, 0.2}, {50, 0.5}, {120, 0.3}, {200, 0.1}} {
		r.Models[i].Bytes, r.Texts[0].Results[i].KLMean = c.bytes, c.kl
	}
	if got := r.Best(&r.Texts[0]); !slices.Equal(got, []int{1, 0, 3}) {
		t.Errorf("%v", got)
	}
}

func TestParseQuantized(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "x", "another": `{"bits": 3}`, "no layers": `{"sha256": "ab"}`,
		"negative": `{"sha256": "ab", "layers": [{"name": "a", "loss": -1}]}`, "tokens": `{"sha256": "ab", "layers": [{"name": "a"}], "experts": [{"tokens": [-3]}]}`,
	} {
		if _, err := ParseQuantized([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	q, err := ParseQuantized([]byte(`{"sha256": "ab", "layers": [{"name": "a", "loss": 1, "nearest_loss": 2, "output_error": 0.5}]}`))
	if err != nil {
		t.Fatal(err)
	}
	m := Model{Layers: []Layer{{Name: "b"}, {Name: "a"}}}
	m.Add(q)
	if l := m.Layers[1]; l.Loss != 1 || l.NearestLoss != 2 || l.OutputError != 0.5 || m.Layers[0].Loss != 0 {
		t.Errorf("%+v", m.Layers)
	}
}

func FuzzParseQuantized(f *testing.F) {
	f.Add([]byte(`{"sha256": "ab", "layers": [{"name": "a", "loss": 1, "nearest_loss": 2}], "experts": [{"block": "b", "tokens": [1, 0], "never": 0.5}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		q, err := ParseQuantized(data)
		if err != nil {
			return
		}
		r := synthetic(1, 1, 2, "m")
		for i := range q.Layers {
			if i < len(r.Models[0].Layers) {
				q.Layers[i].Name = r.Models[0].Layers[i].Name
			}
		}
		r.Models[0].Add(q)
		check(t, pageOf(t, r))
	})
}

// TestCSV: each line has as many fields as the first, with a reference and without.
func TestCSV(t *testing.T) {
	r := synthetic(3, 1, 2, "a, \"b\"\n=c")
	r.Texts[0].Results[1].KLMeanCI, r.Texts[0].Results[1].LnRatioCI = nil, nil
	for _, against := range []bool{true, false} {
		if !against {
			for i := range r.Texts[0].Results {
				r.Texts[0].Results[i].Comparison = nil
			}
		}
		var b bytes.Buffer
		if err := r.CSV(&b); err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(&b).ReadAll()
		if err != nil || len(rows) != 4 {
			t.Fatalf("%d lines, %v", len(rows), err)
		}
		if got, want := rows[1][10] != "", against; got != want || rows[1][1] != r.Models[0].Name {
			t.Errorf("%q", rows[1])
		}
	}
	check(t, pageOf(t, &Report{Title: "t", Models: r.Models, Texts: r.Texts}))
}

// TestParts: layers of a kind are one part, whatever tables they have.
func TestParts(t *testing.T) {
	var m Model
	m.AddPart("model.layers.0.mlp.up_proj", "4:64:js", true, 10, 20)
	m.AddPart("model.layers.1.mlp.up_proj", "4:64:nf", true, 30, 20)
	m.AddPart("model.layers.2.mlp.up_proj", "4:64:nf", true, 1, 20)
	m.AddPart("model.layers.3.mlp.up_proj", "BF16", false, 100, 20)
	m.Sum()
	if len(m.Parts) != 2 || m.Parts[0].Bytes != 100 || m.Parts[1].Bytes != 41 || m.Parts[1].Tensors != 3 || len(m.Parts[1].Stored) != 2 || m.BitsPerWeight != 8*141./80 {
		t.Errorf("%+v", m)
	}
}
