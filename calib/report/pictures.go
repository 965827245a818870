package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/formats/svg"
)

// width is that of all pictures: letters can be read where a page is narrow, and pages scale it.
const width = 560

// A Picture is a picture of a report, with a name that is one of a file and the words under it.
type Picture struct {
	Name, Caption string
	*svg.Picture
}

// fold shortens a name to n letters, in its middle.
func fold(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n/2]) + "…" + string(r[len(r)-(n-n/2-1):])
}

// bytesName prints a size with three digits.
func bytesName(n int64) string {
	number, unit := svg.Thousands(float64(n))
	return number + " " + unit + "B"
}

// partsPicture shows bytes by part, as bars.
func partsPicture(m *Model) *Picture {
	const row, left = 24, 230
	const most = 14
	shown := m.Parts
	if len(shown) > most {
		rest := Part{Name: fmt.Sprintf("%d others", len(shown)-most+1)}
		for _, p := range shown[most-1:] {
			rest.Tensors, rest.Bytes, rest.Weights = rest.Tensors+p.Tensors, rest.Bytes+p.Bytes, rest.Weights+p.Weights
		}
		shown = append(slices.Clone(shown[:most-1]), rest)
	}
	p := svg.New(width, float64(row*len(shown)+12), "Bytes by part")
	largest := int64(1)
	for _, part := range shown {
		largest = max(largest, part.Bytes)
	}
	for i, part := range shown {
		y := float64(row*i + 6)
		long := max(float64(part.Bytes)/float64(largest)*(width-left-144), 1)
		p.Text(left-8, y+16, svg.End, "", fold(part.Name, 28))
		class := svg.Series(0)
		if !part.Quantized {
			class = svg.Series(6)
		}
		p.Box(left, y+3, long, row-7, class, fmt.Sprintf("%s: %d tensors, %s", part.Name, part.Tensors, strings.Join(part.Stored, ", ")))
		p.Text(left+long+6, y+16, svg.Start, svg.Label, fmt.Sprintf("%s, %.1f %%", bytesName(part.Bytes), 100*float64(part.Bytes)/float64(max(m.Bytes, 1))))
	}
	return &Picture{"parts", "Bytes by part. Grey is what is stored as it was.", p}
}

// cell is the mean of some layers of a kind in a block.
type cell struct {
	squares float64
	n       int
}

// heat shows a value of layers by block, across, and kind, down. Values are root mean squares over experts. It is nil
// where no layer has one. format prints a value.
func heat(m *Model, name, caption string, value func(l *Layer) float64, log bool, format func(v float64) string) *Picture {
	blocks, kinds := 0, []string(nil)
	cells := make(map[string]map[int]*cell)
	outside := false
	for i := range m.Layers {
		l := &m.Layers[i]
		v := value(l)
		if !(v > 1e-30 && v < 1e30) {
			continue
		}
		block, kind := Place(l.Name)
		outside = outside || block < 0
		if cells[kind] == nil {
			cells[kind] = make(map[int]*cell)
			kinds = append(kinds, kind)
		}
		if cells[kind][block] == nil {
			cells[kind][block] = new(cell)
		}
		c := cells[kind][block]
		c.squares, c.n = c.squares+v*v, c.n+1
		blocks = max(blocks, block+1)
	}
	if len(kinds) == 0 {
		return nil
	}
	least, most := math.Inf(1), 0.
	for _, of := range cells {
		for _, c := range of {
			v := math.Sqrt(c.squares / float64(c.n))
			least, most = min(least, v), max(most, v)
		}
	}
	const left, top, row = 170, 6, 22
	right := float64(width - 12)
	columns := blocks
	if outside {
		columns++ // on its right
	}
	across := (right - left) / float64(columns)
	p := svg.New(width, float64(top+row*len(kinds)+78), caption)
	scale := svg.Linear(least, most, 0, 1)
	if log {
		scale = svg.Log(least, most, 0, 1)
	}
	gap := min(1, across/8)
	for k, kind := range kinds {
		y := float64(top + row*k)
		p.Text(left-8, y+15, svg.End, "", fold(strings.TrimSuffix(kind, ".weight"), 21))
		for at := range columns {
			block := at
			if at == blocks {
				block = -1
			}
			c := cells[kind][block]
			if c == nil {
				continue
			}
			v := math.Sqrt(c.squares / float64(c.n))
			where := fmt.Sprintf("%d: %s", block, format(v))
			if block < 0 {
				where = format(v)
			}
			p.Box(left+across*float64(at), y, across-gap, row-2, svg.Heat(scale.Place(v)), where)
		}
	}
	bottom := float64(top + row*len(kinds))
	for _, at := range svg.Linear(0, float64(max(blocks-1, 1)), 0, 1).Ticks(8) {
		if at == math.Trunc(at) && int(at) < blocks {
			p.Text(left+across*(at+0.5), bottom+16, svg.Middle, svg.Label, fmt.Sprint(at))
		}
	}
	p.Text(left-8, bottom+16, svg.End, svg.Label, "block")
	const boxes, boxWidth = svg.HeatSteps, 20
	from := (left + right - boxes*boxWidth) / 2
	p.Text(from-8, bottom+50, svg.End, svg.Label, format(least))
	for i := range boxes {
		p.Box(from+float64(boxWidth*i), bottom+36, boxWidth, 18, svg.Heat((float64(i)+0.5)/boxes), "")
	}
	p.Text(from+boxes*boxWidth+8, bottom+50, svg.Start, svg.Label, format(most))
	return &Picture{name, caption, p}
}

func percent(v float64) string { return svg.Short(100*v) + " %" }

func times(v float64) string { return svg.Short(v) + "×" }

// layerPictures show where the error of a model lies.
func layerPictures(m *Model) (all []*Picture) {
	sampled := ""
	if m.Sampled > 0 {
		sampled = fmt.Sprintf(", of up to %d rows of a layer", m.Sampled)
	}
	for _, p := range []*Picture{
		heat(m, "error", "Relative error of weights, ‖W−Ŵ‖/‖W‖"+sampledError(m)+".", func(l *Layer) float64 { return l.Error }, false, percent),
		heat(m, "output", "Relative error of what layers put out, on the text that they were fitted to.", func(l *Layer) float64 { return l.OutputError }, true, percent),
		heat(m, "loss", "Loss of fitted weights, as a share of what weights rounded to nearest lose.", func(l *Layer) float64 {
			if l.NearestLoss == 0 {
				return 0
			}
			return l.Loss / l.NearestLoss
		}, false, percent),
		heat(m, "outliers", "Outlier columns of the original: the largest mean square of a column, in medians of all"+sampled+".",
			func(l *Layer) float64 { return l.Outlier }, true, times),
	} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

func sampledError(m *Model) string {
	if m.Format == "lutq" || m.Sampled == 0 {
		return ""
	}
	return fmt.Sprintf(", of up to %d rows of a layer", m.Sampled)
}

// bounds returns the least and the largest positive value, widened a little, of those that a picture has room for.
func bounds(values []float64) (least, most float64, ok bool) {
	least, most = math.Inf(1), 0
	for _, v := range values {
		if v > 1e-30 && v < 1e30 {
			least, most = min(least, v), max(most, v)
		}
	}
	return least / 1.15, most * 1.15, most > 0
}

// Where the pictures of curves have their axes.
const (
	chartHeight                               = 300
	chartLeft, chartRight, chartTop, chartLow = 72, width - 16, 36, chartHeight - 52
)

// positionsPicture shows the divergence by place in the window.
func positionsPicture(t *Tokens, context int) *Picture {
	var values []float64
	for _, g := range t.Positions {
		values = append(values, g.KL, g.KL+1.96*g.KLErr)
	}
	least, most, ok := bounds(values)
	if !ok || context < 2 {
		return nil
	}
	p := svg.New(width, chartHeight, "KL divergence by position in the window")
	x, y := svg.Log(1, float64(context), chartLeft, chartRight), svg.Log(least, most, chartLow, chartTop)
	p.Text(16, 20, svg.Start, svg.Label, "mean KL divergence, nats")
	p.Down(y, chartLeft, chartRight, 6)
	p.Across(x, chartTop, chartLow, 8, "position in the window")
	var line [][2]float64
	for _, g := range t.Positions {
		if g.KL <= 0 {
			continue
		}
		at := [2]float64{x.Place(g.From), y.Place(g.KL)}
		line = append(line, at)
		if low, high := g.KL-1.96*g.KLErr, g.KL+1.96*g.KLErr; g.KLErr > 0 {
			p.Line(at[0], y.Place(max(low, least)), at[0], y.Place(high), "th "+svg.Series(0))
		}
	}
	p.Path(svg.Series(0), line)
	for i, g := range t.Positions {
		if g.KL > 0 {
			p.Mark(0, x.Place(g.From), y.Place(g.KL), svg.Series(0), fmt.Sprintf("%s: %.4g nats, %d tokens", t.Positions[i].Name, g.KL, g.Tokens))
		}
	}
	return &Picture{"positions", "Mean KL divergence by position in the window, with intervals of 95 % by window.", p}
}

// classesPicture shows the divergence by class of token, as bars.
func classesPicture(t *Tokens) *Picture {
	const row, left = 26, 216
	var values []float64
	for _, g := range t.Classes {
		values = append(values, g.KL)
	}
	_, most, ok := bounds(values)
	if !ok {
		return nil
	}
	x := svg.Linear(0, most, 0, width-left-184)
	p := svg.New(width, float64(row*len(t.Classes)+12), "KL divergence by class of token")
	for i, g := range t.Classes {
		y := float64(row*i + 6)
		long := max(x.Place(g.KL), 1)
		p.Text(left-8, y+16, svg.End, "", g.Name)
		p.Box(left, y+3, long, row-8, svg.Series(0), fmt.Sprintf("%d tokens", g.Tokens))
		p.Text(left+long+6, y+16, svg.Start, svg.Label, fmt.Sprintf("%.4g, top-1 %.1f %%", g.KL, 100*g.Same))
	}
	return &Picture{"classes", "Mean KL divergence in nats, and the share of tokens for which both models find the same one most likely, by class of token.", p}
}

// windowsPicture shows the divergence of each window.
func windowsPicture(t *Tokens) *Picture {
	_, most, ok := bounds(t.Windows)
	if !ok || len(t.Windows) < 2 {
		return nil
	}
	p := svg.New(width, chartHeight, "KL divergence by window of the text")
	y := svg.Linear(0, most, chartLow, chartTop)
	p.Text(16, 20, svg.Start, svg.Label, "mean KL divergence, nats")
	p.Down(y, chartLeft, chartRight, 6)
	across := float64(chartRight-chartLeft) / float64(len(t.Windows))
	for i, v := range t.Windows {
		at := y.Place(v)
		p.Box(chartLeft+across*float64(i)+across/8, at, across*3/4, chartLow-at, svg.Series(0), fmt.Sprintf("window %d: %.4g nats", i+1, v))
	}
	p.Text((chartLeft+chartRight)/2, chartLow+24, svg.Middle, svg.Label, fmt.Sprintf("windows 1 to %d of the text", len(t.Windows)))
	return &Picture{"windows", "Mean KL divergence of each window, from the beginning of the text to its end.", p}
}

// sizesPicture shows which share of the divergence comes from how large a one.
func sizesPicture(t *Tokens) *Picture {
	tokens, total := 0, 0.
	for _, g := range t.Sizes {
		tokens, total = tokens+g.Tokens, total+g.KL*float64(g.Tokens)
	}
	if total == 0 {
		return nil
	}
	p := svg.New(width, chartHeight, "How large the divergence of tokens is")
	y := svg.Linear(0, 100, chartLow, chartTop)
	p.Text(16, 20, svg.Start, svg.Label, "% of tokens")
	p.Box(150, 10, 12, 12, svg.Series(0), "")
	p.Text(250, 20, svg.Start, svg.Label, "% of the divergence")
	p.Box(400, 10, 12, 12, svg.Series(1), "")
	p.Down(y, chartLeft, chartRight, 5)
	across := float64(chartRight-chartLeft) / float64(len(t.Sizes))
	for i, g := range t.Sizes {
		x := chartLeft + across*float64(i)
		for j, share := range []float64{float64(g.Tokens) / float64(tokens), g.KL * float64(g.Tokens) / total} {
			at := y.Place(100 * share)
			p.Box(x+across*(0.1+0.4*float64(j)), at, across*0.38, chartLow-at, svg.Series(j), fmt.Sprintf("%.3g %%", 100*share))
		}
		p.Text(x+across/2, chartLow+18, svg.Middle, svg.Label, sizeName(g.From))
	}
	p.Text((chartLeft+chartRight)/2, chartLow+40, svg.Middle, svg.Label, "KL divergence of a token from, nats")
	return &Picture{"sizes", "Tokens by how large their divergence is, and what they add to the mean.", p}
}

func sizeName(v float64) string {
	if v > 0 && v < 0.01 {
		return fmt.Sprintf("1e%.0f", math.Log10(v))
	}
	return svg.Short(v)
}

// Frontier shows divergences of all models on a text by their bytes; nil where there are fewer than two. Models that no other
// beats in both are on the line.
func (r *Report) Frontier(t *Text) *Picture {
	if len(r.Models) < 2 || r.Against == "" {
		return nil
	}
	var sizes, kls []float64
	for i := range r.Models {
		sizes = append(sizes, float64(r.Models[i].Bytes))
		kls = append(kls, t.Results[i].KLMean)
	}
	left, right, ok := bounds(sizes)
	least, most, measured := bounds(kls)
	if !ok || !measured {
		return nil
	}
	const line, mostNames = 22, 40
	named := min(len(r.Models), mostNames)
	p := svg.New(width, float64(chartHeight+12+line*named), "KL divergence by bytes")
	x, y := svg.Log(left, right, chartLeft, chartRight), svg.Log(least, most, chartLow, chartTop)
	p.Text(16, 20, svg.Start, svg.Label, "mean KL divergence, nats (less is better)")
	p.Down(y, chartLeft, chartRight, 6)
	p.Across(x, chartTop, chartLow, 6, "bytes stored")
	var best [][2]float64
	for _, i := range r.Best(t) {
		if kls[i] > 0 {
			best = append(best, [2]float64{x.Place(sizes[i]), y.Place(kls[i])})
		}
	}
	p.Path(svg.Series(6)+" da", best)
	for i := range r.Models {
		if kls[i] <= 0 {
			continue
		}
		at := x.Place(sizes[i])
		if ci := t.Results[i].KLMeanCI; ci != nil {
			p.Line(at, y.Place(max(ci[0], least)), at, y.Place(max(ci[1], least)), "th "+svg.Series(i))
		}
		p.Mark(i, at, y.Place(kls[i]), svg.Series(i), fmt.Sprintf("%s: %s, %.4g nats", r.Models[i].Name, bytesName(r.Models[i].Bytes), kls[i]))
		if i < named {
			down := float64(chartHeight + 24 + line*i)
			p.Mark(i, chartLeft, down-5, svg.Series(i), "")
			p.Text(chartLeft+14, down, svg.Start, "", fmt.Sprintf("%s: %s, %.4g", fold(r.Models[i].Name, 36), bytesName(r.Models[i].Bytes), kls[i]))
		}
	}
	return &Picture{"frontier", "Mean KL divergence from the original by bytes stored, with intervals of 95 %. The line joins models that no other beats in both.", p}
}

// Best returns the models that no other beats in bytes and divergence, the smallest first.
func (r *Report) Best(t *Text) (best []int) {
	order := make([]int, len(r.Models))
	for i := range order {
		order[i] = i
	}
	kl := func(i int) float64 {
		if c := t.Results[i].Comparison; c != nil {
			return c.KLMean
		}
		return math.Inf(1)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(r.Models[a].Bytes, r.Models[b].Bytes), cmp.Compare(kl(a), kl(b)))
	})
	least := math.Inf(1)
	for _, i := range order {
		if kl(i) < least {
			best, least = append(best, i), kl(i)
		}
	}
	return best
}

// expertsPicture shows how many tokens experts were fitted to.
func expertsPicture(m *Model) *Picture {
	if len(m.Experts) == 0 {
		return nil
	}
	p := svg.New(width, chartHeight, "Tokens of experts")
	var all []float64
	for _, x := range m.Experts {
		for _, n := range x.Tokens {
			all = append(all, float64(n))
		}
	}
	_, most, ok := bounds(all)
	if !ok {
		return nil
	}
	x, y := svg.Linear(0, float64(max(len(m.Experts)-1, 1)), chartLeft+8, chartRight-8), svg.Log(0.5, most, chartLow, chartTop)
	p.Text(16, 20, svg.Start, svg.Label, "tokens of an expert: least, quarter, median, quarter, most")
	p.Down(y, chartLeft, chartRight, 6)
	for i, e := range m.Experts {
		n := slices.Clone(e.Tokens)
		if len(n) == 0 {
			continue
		}
		slices.Sort(n)
		at := x.Place(float64(i))
		place := func(share float64) float64 {
			return y.Place(max(float64(n[int(share*float64(len(n)-1))]), 0.5))
		}
		p.Line(at, place(0), at, place(1), "th "+svg.Series(6))
		p.Line(at, place(0.25), at, place(0.75), svg.Series(0))
		p.Mark(0, at, place(0.5), svg.Series(0), fmt.Sprintf("%s: %d at least, %d at the median, %d never chosen of %d", e.Block, n[0], n[len(n)/2], int(math.Round(e.Never*float64(len(n)))), len(n)))
	}
	p.Text((chartLeft+chartRight)/2, chartLow+24, svg.Middle, svg.Label, "blocks with experts, the first to the last")
	return &Picture{"experts", "Tokens of the text that experts were fitted to, by block. An expert without any stands at the foot.", p}
}

// tokenPictures show what a model does with tokens of a text.
func tokenPictures(t *Tokens, r *eval.Result) (all []*Picture) {
	for _, p := range []*Picture{positionsPicture(t, r.Context), classesPicture(t), sizesPicture(t), windowsPicture(t)} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}
