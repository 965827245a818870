package svg

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPicture: what is drawn is well-formed, whatever texts hold, and marks that differ are drawn otherwise.
func TestPicture(t *testing.T) {
	const hostile = "<a href=\"x\">&\x00\x1b]]>"
	p := New(100, 50, hostile)
	p.Below(10, func() { p.Text(1, 2, End, Label, hostile) })
	p.Upwards(3, 4, "", hostile)
	p.Line(0, 0, 5, 5, Ink)
	p.Box(1, 2, 3, 4, Heat(2), hostile)
	p.Path(Series(9), [][2]float64{{1, 2}, {3, 4.25}})
	for shape := range 6 {
		p.Mark(shape, 9, 9, Series(shape), "")
	}
	for name, write := range map[string]func(io.Writer) error{"alone": p.Write, "in a page": p.Inline} {
		var b strings.Builder
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		texts, marks := 0, make(map[string]int)
		for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(name, err)
			}
			switch token := token.(type) {
			case xml.CharData:
				texts += strings.Count(string(token), "<a href=\"x\">&\ufffd\ufffd]]>")
			case xml.StartElement:
				for _, a := range token.Attr {
					if a.Name.Local == "d" && strings.HasSuffix(a.Value, "Z") {
						marks[a.Value]++
					}
				}
				if token.Name.Local == "circle" {
					marks["circle"]++
				}
			}
		}
		if want := map[string]int{"alone": 4, "in a page": 3}[name]; texts != want { // the title is an attribute there
			t.Errorf("%s: the text is %d times there, want %d", name, texts, want)
		}
		if len(marks) != 5 || marks["circle"] != 2 {
			t.Errorf("%s: marks %v: want five, the first again", name, marks)
		}
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		name  string
		scale Scale
		n     int
		want  string
	}{
		{"linear", Linear(0, 1, 0, 1), 5, "[0 0.2 0.4 0.6 0.8 1]"},
		{"linear, off 0", Linear(-3, 12, 0, 1), 4, "[0 5 10]"},
		{"no range", Linear(2, 2, 0, 1), 2, "[2 2.5 3]"},
		{"decades", Log(1, 1000, 0, 1), 5, "[1 10 100 1000]"},
		{"a decade", Log(0.1, 1, 0, 1), 6, "[0.1 0.2 0.3 0.5 0.7 1]"},
		{"within a step", Log(1.27e6, 1.37e6, 0, 1), 4, "[1.3e+06 1.35e+06]"},
	} {
		got := c.scale.Ticks(c.n)
		for i := range got {
			got[i] = math.Round(got[i]*1e6) / 1e6
		}
		if s := fmt.Sprint(got); s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
	}
}

// TestFewTicks: where steps are lost in rounding there are few all the same.
func TestFewTicks(t *testing.T) {
	for _, s := range []Scale{Linear(0, 5e-324, 0, 1), Linear(1e17, 1e17+32, 0, 1), Linear(-math.MaxFloat64, math.MaxFloat64, 0, 1), Log(1e-300, 1e300, 0, 1)} {
		if n := len(s.Ticks(5)); n > 700 {
			t.Errorf("%+v: %d ticks", s, n)
		}
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.12345: "0.123", 12.34: "12.3", 1234.4: "1234", 9999.4: "9999", 12345: "12.3 k", 1.5e6: "1.5 M", 2.5e12: "2.5 T", -3e9: "-3 G"} {
		if got := Short(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}

func TestPlace(t *testing.T) {
	s := Log(1, 100, 0, 200)
	for v, want := range map[float64]float64{1: 0, 10: 100, 100: 200, 1000: 200, 0: 0, -1: 0, math.Inf(1): 200} {
		if got := s.Place(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v lies at %v, want %v", v, got, want)
		}
	}
}

// linear returns a color's linear RGB.
func linear(t *testing.T, hex string) (c [3]float64) {
	t.Helper()
	for i := range c {
		v, err := strconv.ParseUint(hex[1+2*i:3+2*i], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		if s := float64(v) / 255; s <= 0.04045 {
			c[i] = s / 12.92
		} else {
			c[i] = math.Pow((s+0.055)/1.055, 2.4)
		}
	}
	return c
}

func luminance(c [3]float64) float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] }

// lab returns a color in CIE L*a*b* under D65.
func lab(c [3]float64) [3]float64 {
	f := func(v float64) float64 {
		if v > 216./24389 {
			return math.Cbrt(v)
		}
		return (24389./27*v + 16) / 116
	}
	x := f((0.4124*c[0] + 0.3576*c[1] + 0.1805*c[2]) / 0.9505)
	y := f(luminance(c))
	z := f((0.0193*c[0] + 0.1192*c[1] + 0.9505*c[2]) / 1.089)
	return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
}

// seen are what people see of linear RGB, as Machado, Oliveira and Fernandes (2009) have it for each deficiency at its full severity.
var seen = map[string][3][3]float64{
	"all":          {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanopia":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritanopia":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

// TestColors: in each theme the series that are told apart by color are at least far enough from each other for all, and from the paper.
func TestColors(t *testing.T) {
	themes := regexp.MustCompile(`(?s)\.lutq \{[^}]*\}`).FindAllString(Style, -1)
	if len(themes) != 3 {
		t.Fatalf("%d themes", len(themes))
	}
	for i, theme := range themes {
		name := []string{"light", "dark", "print"}[i]
		colors := make(map[string][3]float64)
		for _, m := range regexp.MustCompile(`--(\w+): (#[0-9a-f]{6})`).FindAllStringSubmatch(theme, -1) {
			colors[m[1]] = linear(t, m[2])
		}
		paper := luminance(colors["paper"])
		for j := range SeriesCount {
			c := colors[fmt.Sprint("c", j)]
			l := luminance(c)
			if ratio := (max(l, paper) + 0.05) / (min(l, paper) + 0.05); ratio < 3 {
				t.Errorf("%s: series %d has a contrast of %.2f", name, j, ratio)
			}
			for k := range j {
				for who, m := range seen {
					var distance float64
					a, b := lab(apply(m, c)), lab(apply(m, colors[fmt.Sprint("c", k)]))
					for n := range a {
						distance += (a[n] - b[n]) * (a[n] - b[n])
					}
					if d := math.Sqrt(distance); d < 10 {
						t.Errorf("%s: series %d and %d are %.1f apart for %s", name, k, j, d, who)
					}
				}
			}
		}
	}
}

func apply(m [3][3]float64, c [3]float64) (out [3]float64) {
	for i, row := range m {
		for j, v := range row {
			out[i] += v * c[j]
		}
		out[i] = min(max(out[i], 0), 1)
	}
	return out
}

// TestHeat: each color of heat is darker than the one before, so that they are told apart without color too.
func TestHeat(t *testing.T) {
	all := regexp.MustCompile(`\.h(\d) \{ fill: (#[0-9a-f]{6})`).FindAllStringSubmatch(Style, -1)
	if len(all) != HeatSteps {
		t.Fatalf("%d colors", len(all))
	}
	slices.SortFunc(all, func(a, b []string) int { return strings.Compare(a[1], b[1]) })
	before := 101.
	for i, m := range all {
		l := lab(linear(t, m[2]))[0]
		if l > before-3 {
			t.Errorf("color %d has a lightness of %.1f behind %.1f", i, l, before)
		}
		before = l
	}
	for v, want := range map[float64]string{-1: "h0", 0: "h0", 0.55: "h5", 1: "h9", 7: "h9"} {
		if got := Heat(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}
