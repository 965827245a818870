package plot

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

// TestPicture: what is drawn is well-formed, whatever texts hold, and marks that differ are drawn otherwise.
func TestPicture(t *testing.T) {
	p := New(100, 50)
	p.Below(10, func() { p.Text(1, 2, End, "%s", `<a href="x">&`) })
	p.Upwards(3, 4, "%d > %d", 2, 1)
	p.Line(0, 0, 5, 5, "#000")
	for shape := range 6 {
		p.Mark(shape, 9, 9, "#111")
	}
	var b strings.Builder
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	texts, marks := "", make(map[string]int)
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.CharData:
			texts += strings.TrimSpace(string(token))
		case xml.StartElement:
			if token.Name.Local == "path" {
				marks[token.Attr[0].Value]++
			} else if token.Name.Local == "circle" {
				marks["circle"]++
			}
		}
	}
	if texts != `<a href="x">&2 > 1` {
		t.Errorf("texts %q", texts)
	}
	if len(marks) != 5 || marks["circle"] != 2 {
		t.Errorf("marks %v: want five, the first again", marks)
	}
}

func TestAxis(t *testing.T) {
	a := Axis{From: -1, To: 3, At: 100, End: 20}
	for log, want := range map[float64]float64{-1: 100, 3: 20, 1: 60} {
		if got := a.Place(log); got != want {
			t.Errorf("%g lies at %g, want %g", log, got, want)
		}
	}
}
