// Command klbytes draws quantize/kl-by-bytes.svg, how far quantized models are from their original by the size of
// their weights, from the measured numbers beside it.
//
//	go run ./scripts/klbytes <quantize/kl-by-bytes.tsv >quantize/kl-by-bytes.svg
//
// A line of the table is a series, the bits that it stores for a weight, and the mean KL divergence in nats, with tabs
// between them; lines that begin with # say what was measured. The picture follows the theme of whoever looks at it.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// series is how points of one name in the table are drawn. Its label stands dx, dy from the point with the number at.
type series struct {
	name, label, class string
	line               bool
	at                 int
	dx, dy             float64
	anchor             string
}

// all are drawn in this order, the last on top.
var all = []series{
	{"gptqmodel", "GPTQModel", "other", true, 0, 10, -2, "start"},
	{"autoround", "auto-round", "other", true, 0, 10, -4, "start"},
	{"bnb", "bitsandbytes", "other", false, 0, -8, -12, "start"},
	{"llamacpp", "llama.cpp", "other", true, 7, 4, -10, "middle"},
	{"rounded", "lutq, rounded", "plain", true, 0, 10, 2, "start"},
	{"fitted", "lutq, tables", "own", true, 5, 2, 20, "start"},
	{"exl3", "EXL3", "rival", true, 0, 12, 2, "start"},
	{"rings", "lutq, trellis", "own", true, 2, -8, 16, "end"},
}

// The picture is small, so that its letters can be read where a page is narrow; pages scale it.
const (
	width, height            = 560, 420
	left, right, top, bottom = 64, 528, 52, 356
	fewest, most             = 1.8, 5.0 // bits
	least, largest           = 0.01, 1  // nats
)

const style = `<style>
text { font-family: system-ui, sans-serif; font-size: 15px; fill: #24292f; stroke: #ffffff; stroke-width: 4px; paint-order: stroke }
rect { fill: #ffffff }
path { fill: none; stroke-width: 2.5 }
path.other { stroke-width: 1.5 }
path.plain { stroke-dasharray: 5 4 }
text.own, text.rival { font-weight: bold }
.grid { stroke: #d8dee4 }
path.own, path.plain { stroke: #0550ae }
path.rival { stroke: #bc4c00 }
path.other { stroke: #6e7781 }
.own, .plain { fill: #0550ae }
.rival { fill: #bc4c00 }
.other { fill: #57606a }
path.own, path.plain, path.rival, path.other { fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; stroke: #0d1117 }
rect { fill: #0d1117 }
.grid { stroke: #30363d }
path.own, path.plain { stroke: #58a6ff }
path.rival { stroke: #f0883e }
path.other { stroke: #9198a1 }
.own, .plain { fill: #58a6ff }
.rival { fill: #f0883e }
.other { fill: #9198a1 }
}
</style>
`

type point struct{ bits, kl float64 }

// across and down are where a point lies, in pixels.
func (p point) across() float64 { return left + (p.bits-fewest)/(most-fewest)*(right-left) }

func (p point) down() float64 {
	return bottom - math.Log(p.kl/least)/math.Log(largest/least)*(bottom-top)
}

func run(r io.Reader, w io.Writer) error {
	points, err := read(r)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="640" height="480" role="img">`+"\n", width, height)
	b.WriteString("<title>Mean KL divergence from the original model, by bits for each weight</title>\n" + style)
	b.WriteString(`<rect width="100%" height="100%" rx="6"/>` + "\n")
	axes(&b)
	for _, s := range all {
		if err := s.draw(&b, points[s.name]); err != nil {
			return err
		}
		delete(points, s.name)
	}
	for name := range points {
		return fmt.Errorf("no series is called %q", name)
	}
	b.WriteString("</svg>\n")
	_, err = w.Write(b.Bytes())
	return err
}

// read returns the points of the table by series.
func read(r io.Reader) (map[string][]point, error) {
	points := make(map[string][]point)
	for lines := bufio.NewScanner(r); ; {
		if !lines.Scan() {
			return points, lines.Err()
		}
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "\t")
		if len(fields) != 3 {
			return nil, fmt.Errorf("%q: want a series, bits and a divergence", line)
		}
		bits, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		kl, err := strconv.ParseFloat(fields[2], 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		if bits < fewest || bits > most || kl < least || kl > largest {
			return nil, fmt.Errorf("%q lies outside of the picture", line)
		}
		points[fields[0]] = append(points[fields[0]], point{bits, kl})
	}
}

// axes draws the grid with its numbers, and says what they are of.
func axes(b *bytes.Buffer) {
	text(b, 16, 26, "start", "", "KL divergence from the original, mean, in nats (less is better)")
	for _, kl := range []float64{0.01, 0.03, 0.1, 0.3, 1} {
		y := point{fewest, kl}.down()
		fmt.Fprintf(b, `<line class="grid" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>`+"\n", left, y, right, y)
		text(b, left-8, y+5, "end", "", strconv.FormatFloat(kl, 'g', -1, 64))
	}
	for bits := 2.0; bits <= most; bits++ {
		x := point{bits, 1}.across()
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`+"\n", x, top, x, bottom)
		text(b, x, bottom+22, "middle", "", strconv.FormatFloat(bits, 'g', -1, 64))
	}
	text(b, (left+right)/2, height-14, "middle", "", "bits stored for a weight of the linear layers, with scales")
}

func (s series) draw(b *bytes.Buffer, points []point) error {
	if s.at >= len(points) {
		return fmt.Errorf("%s: %d points", s.name, len(points))
	}
	if s.line {
		fmt.Fprintf(b, `<path class="%s" d="`, s.class)
		for i, p := range points {
			fmt.Fprintf(b, "%s%.1f %.1f", [...]string{"M", " L"}[min(i, 1)], p.across(), p.down())
		}
		b.WriteString(`"/>` + "\n")
	}
	for _, p := range points {
		fmt.Fprintf(b, `<circle class="%s" cx="%.1f" cy="%.1f" r="4.5"/>`+"\n", s.class, p.across(), p.down())
	}
	p := points[s.at]
	text(b, p.across()+s.dx, p.down()+s.dy, s.anchor, s.class, s.label)
	return nil
}

func text(b *bytes.Buffer, x, y float64, anchor, class, line string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`+"\n", x, y, anchor, class, html.EscapeString(line))
}
