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
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/svg"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// series is how points of one name in the table are drawn. Its label stands dx, dy from the point with the number at.
type series struct {
	name, label string
	color       int
	strokes     string // of its line
	line        bool
	at          int
	dx, dy      float64
	anchor      string
}

// all are drawn in this order, the last on top.
var all = []series{
	{"gptqmodel", "GPTQModel", 6, "th ", true, 0, 10, -2, "start"},
	{"autoround", "auto-round", 6, "th ", true, 0, 10, -4, "start"},
	{"bnb", "bitsandbytes", 6, "th ", false, 0, -8, -12, "start"},
	{"llamacpp", "llama.cpp", 6, "th ", true, 7, 4, -10, "middle"},
	{"rounded", "lutq, rounded", 0, "da ", true, 0, 10, 2, "start"},
	{"fitted", "lutq, tables", 0, "", true, 5, 2, 20, "start"},
	{"exl3", "EXL3", 1, "", true, 0, 12, 2, "start"},
	{"rings", "lutq, trellis", 0, "", true, 2, -8, 16, "end"},
}

// The picture is small, so that its letters can be read where a page is narrow; pages scale it.
const (
	width, height            = 560, 420
	left, right, top, bottom = 64, 528, 52, 356
	fewest, most             = 1.8, 5.0 // bits
	least, largest           = 0.01, 1  // nats
)

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
	pic := svg.New(width, height, "Mean KL divergence from the original model, by bits for each weight")
	axes(pic)
	for _, s := range all {
		if err := s.draw(pic, points[s.name]); err != nil {
			return err
		}
		delete(points, s.name)
	}
	for name := range points {
		return fmt.Errorf("no series is called %q", name)
	}
	return pic.Write(w)
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
func axes(pic *svg.Picture) {
	pic.Text(16, 26, svg.Start, "", "KL divergence from the original, mean, in nats (less is better)")
	for _, kl := range []float64{0.01, 0.03, 0.1, 0.3, 1} {
		y := point{fewest, kl}.down()
		pic.Line(left, y, right, y, svg.Grid)
		pic.Text(left-8, y+5, svg.End, "", strconv.FormatFloat(kl, 'g', -1, 64))
	}
	for bits := 2.0; bits <= most; bits++ {
		x := point{bits, 1}.across()
		pic.Line(x, top, x, bottom, svg.Grid)
		pic.Text(x, bottom+22, svg.Middle, "", strconv.FormatFloat(bits, 'g', -1, 64))
	}
	pic.Text((left+right)/2, height-14, svg.Middle, "", "bits stored for a weight of the linear layers, with scales")
}

func (s series) draw(pic *svg.Picture, points []point) error {
	if s.at >= len(points) {
		return fmt.Errorf("%s: %d points", s.name, len(points))
	}
	var line [][2]float64
	for _, p := range points {
		line = append(line, [2]float64{p.across(), p.down()})
	}
	class := svg.Series(s.color)
	if s.line {
		pic.Path(s.strokes+class, line)
	}
	for _, at := range line {
		pic.Mark(0, at[0], at[1], class, "")
	}
	if s.strokes == "" {
		class += " " + svg.Strong
	}
	pic.Text(line[s.at][0]+s.dx, line[s.at][1]+s.dy, s.anchor, class, s.label)
	return nil
}
