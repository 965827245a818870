package card

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// Measured is how close a model is to its original on a text.
type Measured struct {
	Text, Protocol    string
	Windows, Context  int // and its tokens
	PPL, ReferencePPL float64
	KL, Top1          float64     // means over tokens; KL in nats
	KLCI, Top1CI      *[2]float64 // intervals of 95 %; nil: not known
}

// Opens is what opens a container.
type Opens struct {
	Family  bool     // lutq runs it
	Chat    bool     // it has a chat template
	OwnCode bool     // of the model, so that transformers finds lutq's only where a program imports it
	VLLM    bool     // with lutq's plugin
	Exports []string // formats of other programs that hold its layers as they are
}

// Prompt returns the flags with which lutq generate writes a first text.
func (o Opens) Prompt() string {
	if o.Chat {
		return "--chat --prompt 'What is a lookup table?'"
	}
	return "--prompt 'Once upon a time'"
}

// writer builds a card.
type writer struct{ strings.Builder }

func (w *writer) line(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

// paragraph writes a line that is not joined with what follows.
func (w *writer) paragraph(format string, args ...any) { w.line(format+"\n", args...) }

// code writes a block of code.
func (w *writer) code(first string, others ...string) {
	for _, line := range append([]string{first}, others...) {
		w.line("    %s", input.Printable(line))
	}
	w.line("")
}

// front writes the front matter.
func (w *writer) front(o Origin, library string, tags ...string) {
	w.line("---")
	switch {
	case o.named(baseKey): // in the blocks
	case o.Repo != "":
		w.line("%s: %s", baseKey, o.Repo)
		w.line("%s: %s", relationKey, quantized)
	default:
		w.line("# To be published it should name its original:")
		w.line("# %s: OWNER/NAME", baseKey)
		w.line("# %s: %s", relationKey, quantized)
	}
	if library != "" {
		w.line("library_name: %s", library)
	}
	for _, b := range o.front {
		for _, line := range b.lines {
			w.line("%s", line)
		}
	}
	w.line("tags:")
	for _, tag := range slices.Compact(append([]string{"lutq", quantized}, tags...)) {
		w.line("- %s", tag)
	}
	w.line("---\n")
}

// end writes what a card ends with.
func (w *writer) end(o Origin, original bool) ([]byte, error) {
	if original {
		w.paragraph("The card of the original: [%s](%s).", OriginalName, OriginalName)
	}
	mark, err := json.Marshal(o) // in which > is escaped
	w.line("%s%s%s", markBegin, mark, markEnd)
	return []byte(w.String()), err
}

// link names the original.
func (o Origin) link() string {
	if o.Repo == "" {
		return quote(o.Name)
	}
	return fmt.Sprintf("[%s](https://huggingface.co/%s)", o.Repo, o.Repo)
}

// command is a command with the original's name, where that is known.
func (o Origin) command(c string) string {
	if o.Repo == "" {
		return c
	}
	name := o.Repo
	if o.Commit != "" {
		name += "@" + o.Commit
	}
	return strings.Replace(c, " MODEL ", " "+name+" ", 1)
}

// Of returns the card of a container. Measured may be nil.
func Of(m *lutq.Model, o Origin, opens Opens, measured *Measured) ([]byte, error) {
	o = o.sound()
	all, err := partsOf(m)
	if err != nil {
		return nil, err
	}
	var weights, size, layers, layerBytes int64
	var rates []int
	for _, p := range all {
		weights, size = weights+p.weights, size+p.bytes
		if p.rate > 0 {
			rates = append(rates, p.rate)
		}
		if p.name == linear {
			layers, layerBytes = layers+p.weights, layerBytes+p.bytes
		}
	}
	var tags []string
	in := "the types below" // of what was imported as numbers, and of nothing else
	if len(rates) > 0 {
		least, most := width(slices.Min(rates)), width(slices.Max(rates))
		in = least + " bits"
		switch {
		case least != most:
			in = least + " to " + most + " bits"
		case !strings.Contains(least, "."):
			tags = append(tags, least+"-bit")
		}
	}
	mean := ""
	if layers > 0 {
		mean = fmt.Sprintf(", %.3f over the linear layers", bits(layerBytes, layers))
	}
	var w writer
	w.front(o, "transformers", tags...)
	w.paragraph("# %s, quantized by lutq", o.Name)
	w.paragraph("%s with weights of %s, made by [lutq](https://github.com/lutq/lutq): %s, %.3f bits a weight over all %d parameters%s.",
		o.link(), in, formatBytes(size), bits(size, weights), weights, mean)
	if measured != nil {
		w.measured(*measured)
	}

	w.paragraph("## What is in it")
	w.line("| part | weights | stored in | bits a weight | size |")
	w.line("|---|--:|---|--:|--:|")
	for _, p := range all {
		w.line("| %s | %d | %s | %.3f | %s |", p.label(), p.weights, p.description(), bits(p.bytes, p.weights), formatBytes(p.bytes))
	}
	w.line("| all | %d | | %.3f | %s |\n", weights, bits(size, weights), formatBytes(size))

	w.opens(opens)
	w.made(m.Config(), o)
	return w.end(o, slices.Contains(m.Checkpoint().SideFiles(), OriginalName))
}

// measured writes how close the model is.
func (w *writer) measured(m Measured) {
	w.paragraph("## How close it is to the original")
	w.paragraph("On %s, %d windows of %d tokens (protocol %s). KL is the divergence of predictions from the original's, in nats; intervals are of 95 %%.",
		quote(m.Text), m.Windows, m.Context, m.Protocol)
	w.line("| | original | this model |")
	w.line("|---|--:|--:|")
	w.line("| perplexity | %s | %s |", digits(m.ReferencePPL, 4), digits(m.PPL, 4))
	w.line("| KL, mean over tokens | | %s |", digits(m.KL, 3)+interval(m.KLCI, func(x float64) string { return digits(x, 3) }))
	percent := func(x float64) string { return fmt.Sprintf("%.1f", 100*x) }
	w.line("| same most likely token | | %s %%%s |\n", percent(m.Top1), interval(m.Top1CI, percent))
}

func interval(ci *[2]float64, spell func(x float64) string) string {
	if ci == nil {
		return ""
	}
	return fmt.Sprintf(" (%s to %s)", spell(ci[0]), spell(ci[1]))
}

// opens writes what opens a container.
func (w *writer) opens(o Opens) {
	w.paragraph("## How to open it")
	if o.Family {
		w.paragraph("[lutq](https://github.com/lutq/lutq):")
		w.code("lutq generate FOLDER " + o.Prompt())
	}
	w.paragraph("transformers 5 or newer, with the code that lies in the folder; layers stay packed:")
	imports := "from transformers import AutoModelForCausalLM, AutoTokenizer"
	if o.OwnCode { // which config.json names in the place of lutq's
		imports = "import sys; sys.path.append(\"FOLDER\"); import lutq_hf; " + imports
	}
	w.code(imports, `model = AutoModelForCausalLM.from_pretrained("FOLDER", trust_remote_code=True)`, `tokenizer = AutoTokenizer.from_pretrained("FOLDER")`)
	if o.VLLM {
		w.paragraph("vLLM, with the plugin from a clone of lutq:")
		w.code("pip install ./formats/lutq", "vllm serve FOLDER")
	}
	if len(o.Exports) > 0 {
		w.paragraph("Other programs, in a format that holds these layers without loss (%s):", strings.Join(o.Exports, ", "))
		w.code("lutq export FOLDER OTHER --to " + o.Exports[0])
	}
}

// made writes how a container was made.
func (w *writer) made(c *lutq.Config, o Origin) {
	w.paragraph("## How it was made")
	if c.Command != "" {
		w.code(o.command(c.Command))
	}
	if t := c.Transform; t != nil && t.Calib != nil {
		w.paragraph("Before that %d states were divided by factors (%s), which %s told, without a change of what the model computes.", t.States, input.Name(t.Name), texts(t.Calib.Texts))
	}
	if f := c.Calib; f != nil {
		w.paragraph("Codes were fitted to %d windows of %d tokens of %s.", f.Windows, f.Context, texts(f.Texts))
	}
	if l := c.Learn; l != nil {
		w.paragraph("Scales were learned in %d steps on %d windows of %d tokens of %s (%s).", l.Steps, l.Windows, l.Context, texts(l.Texts), l.Objective)
	}
	w.paragraph("The same command makes the same bytes of the same model. `lutq verify FOLDER` checks every tensor and file but this one. The SHA-256 of what was quantized is `%s`.", c.SHA256)
}

// texts names calibration texts.
func texts(all []lutq.CalibText) string {
	var names []string
	for _, t := range all {
		name := quote(t.Name)
		switch t.Name {
		case "bundled":
			name = "the text that lutq brings along"
		case "self":
			name = "text of the original's own"
		}
		names = append(names, fmt.Sprintf("%s (SHA-256 `%.16s…`)", name, t.SHA256))
	}
	return strings.Join(names, " and ")
}

// part is some tensors of a container that are stored alike, but for the columns that share a scale.
type part struct {
	name, stored, method string
	rate                 int // of codes, see [weight.Spec.Rate]; 0: there are none

	groups         []int // columns that share a scale, sorted, where they are not of the kind
	weights, bytes int64
	tensors        int
}

// linear is the name of the part that quantizing is about.
const linear = "linear layers"

// label names a part, with the number of its tensors where that tells something.
func (p *part) label() string {
	switch {
	case p.name != linear:
		return p.name
	case p.tensors == 1:
		return "1 linear layer"
	}
	return fmt.Sprintf("%d %s", p.tensors, p.name)
}

// description says how a part is stored.
func (p *part) description() string {
	what := p.stored
	if len(p.groups) > 0 {
		var names []string
		for _, g := range p.groups {
			if g == weight.RowGroup {
				names = append(names, "a row")
			} else {
				names = append(names, strconv.Itoa(g))
			}
		}
		what += ", groups of " + strings.Join(names, " or ")
	}
	if p.method != "" {
		what += ", " + input.Name(p.method)
	}
	return what
}

// width spells bits of a code.
func width(rate int) string { return strconv.FormatFloat(float64(rate)/2, 'g', -1, 64) }

// partsOf groups the tensors of a container: quantized ones by how they are stored, the others by what they are.
func partsOf(m *lutq.Model) ([]part, error) {
	config, err := m.Checkpoint().ConfigJSON()
	if err != nil {
		return nil, err
	}
	d, err := arch.Describe(config, m.Has)
	if err != nil {
		d = nil // of no known family
	}
	role := func(tensor string) string {
		if d != nil {
			switch d.Role(tensor) {
			case arch.EmbeddingWeight:
				return "embedding"
			case arch.HeadWeight:
				return "output head"
			}
		}
		return ""
	}
	var all []part
	add := func(name string, s weight.Spec, stored string, weights, bytes int64) {
		fresh := part{name: name, stored: stored, method: s.Method, rate: s.Rate()}
		at := slices.IndexFunc(all, func(p part) bool {
			return p.name == name && p.stored == stored && p.method == fresh.method && p.rate == fresh.rate
		})
		if at < 0 {
			at = len(all)
			all = append(all, fresh)
		}
		p := &all[at]
		if s.Group != 0 && s.Kind != trellis.Name && !slices.Contains(p.groups, s.Group) {
			p.groups = append(p.groups, s.Group)
			slices.Sort(p.groups)
		}
		p.tensors++
		p.weights += weights
		p.bytes += bytes
	}
	for _, layer := range m.Linears() {
		tc, s := m.Config().Tensors[layer], m.Spec(layer)
		var size int64
		for _, t := range m.Parts(layer) {
			if t != nil {
				size += t.Bytes()
			}
		}
		tensor, _ := tc.Original(layer)
		add(cmp.Or(role(tensor), linear), s, storedIn(s), int64(tc.Shape[0])*int64(tc.Shape[1]), size)
	}
	for _, t := range m.Checkpoint().Tensors() {
		if m.LayerOf(t.Name) == "" {
			add(cmp.Or(role(t.Name), "the rest"), weight.Spec{}, string(t.DType), t.Elements(), t.Bytes())
		}
	}
	slices.SortFunc(all, func(a, b part) int {
		codes := func(p part) int { return min(p.rate, 1) } // which come first
		return cmp.Or(codes(b)-codes(a), cmp.Compare(b.bytes, a.bytes), strings.Compare(a.name+a.stored, b.name+b.stored))
	})
	return all, nil
}

// storedIn says what the codes of a quantized layer are.
func storedIn(s weight.Spec) string {
	switch s.Kind {
	case trellis.Name:
		if s.Codebook != trellis.Pairs {
			return s.Width() + " bits, trellis codes " + s.Codebook
		}
		return s.Width() + " bits, trellis codes"
	case bcq.Name:
		return s.Width() + " binary codes"
	}
	what := s.Width() + " bits, table " + strings.ReplaceAll(quote(s.Codebook), "|", `\|`)
	if s.Kind == lut24.Name {
		what += ", 2 of 4 weights"
	}
	return what
}

// Export is what a folder in another program's format was made from, and by.
type Export struct {
	Target   string   // as lutq export names it
	Programs []string // that open it; none: those that open the original
	Commands []string // that made the container, and this of it; none: not known
	Original bool     // the original's card lies beside
	Library  string   // that the hub names; "": none
}

// OfExport returns the card of a container in another program's format.
func OfExport(o Origin, e Export) ([]byte, error) {
	o = o.sound()
	var w writer
	w.front(o, e.Library, e.Target)
	w.paragraph("# %s, quantized by lutq, as %s", o.Name, e.Target)
	w.paragraph("%s with weights of a few bits, made by [lutq](https://github.com/lutq/lutq) and written in the format %s.", o.link(), e.Target)
	if len(e.Programs) > 0 {
		w.paragraph("It opens in %s.", strings.Join(e.Programs, ", "))
	}
	if len(e.Commands) > 0 {
		w.paragraph("## How it was made")
		w.code(o.command(e.Commands[0]), e.Commands[1:]...)
	}
	return w.end(o, e.Original)
}

// quote returns a name as code in a line.
func quote(name string) string {
	return "`" + strings.ReplaceAll(input.Name(name), "`", "'") + "`"
}

// bits returns the bits of a weight.
func bits(bytes, weights int64) float64 {
	if weights == 0 {
		return 0
	}
	return 8 * float64(bytes) / float64(weights)
}

// formatBytes prints a size in powers of 1000.
func formatBytes(n int64) string {
	v, unit := float64(n), "B"
	for _, next := range []string{"kB", "MB", "GB", "TB"} {
		if v < 999.5 {
			break
		}
		v, unit = v/1000, next
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return digits(v, 3) + " " + unit
}

// digits prints a number with n significant digits, without an exponent.
func digits(x float64, n int) string {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'f', max(0, n-1-int(math.Floor(math.Log10(math.Abs(x))))), 64)
}
