package svg

import (
	_ "embed" // the stylesheet
	"math"
	"slices"
	"strconv"
)

// Style is the stylesheet of all pictures. It concerns what lies in an element of class lutq alone, and colors of heat.
//
//go:embed style.css
var Style string

// Scale places values between two pixels: From at pixel At, and To at pixel End. Those of a logarithmic scale are decimal logarithms.
type Scale struct {
	From, To, At, End float64
	log               bool
}

// Linear places from at pixel at, and to at pixel end.
func Linear(from, to, at, end float64) Scale {
	if !(to > from) {
		to = from + 1
	}
	return Scale{from, to, at, end, false}
}

// Log is Linear by logarithms of values above 0.
func Log(from, to, at, end float64) Scale {
	from, to = math.Log10(from), math.Log10(to)
	if !(to > from) {
		from, to = from-0.5, to+0.5
	}
	return Scale{from, to, at, end, true}
}

// Place returns the pixel of a value, which is within the scale.
func (s Scale) Place(v float64) float64 {
	if s.log {
		v = math.Log10(v)
	}
	if !(v >= s.From) { // or no number
		v = s.From
	}
	v = min(v, s.To)
	return s.At + (v-s.From)/(s.To-s.From)*(s.End-s.At)
}

// Ticks returns round values within the scale, at most about n.
func (s Scale) Ticks(n int) (ticks []float64) {
	if !s.log {
		step := math.Pow(10, math.Floor(math.Log10((s.To-s.From)/float64(n))))
		for _, by := range []float64{1, 2, 5, 10} {
			if (s.To-s.From)/(step*by) <= float64(n) {
				step *= by
				break
			}
		}
		first := math.Ceil(s.From/step - 1e-9)
		for i := range 2*n + 1 { // bounded also where a step is too small to tell from none
			v := (first+float64(i))*step + 0 // not -0
			if !(v <= s.To+1e-9*step) {
				break
			}
			ticks = append(ticks, v)
		}
		return slices.Compact(ticks)
	}
	for _, within := range [][]float64{{1, 2, 3, 5, 7}, {1, 2, 5}, {1, 3}, {1}} {
		ticks = nil
		for d := math.Floor(s.From); d <= s.To; d++ {
			for _, m := range within {
				if l := d + math.Log10(m); l >= s.From-1e-9 && l <= s.To+1e-9 {
					ticks = append(ticks, m*math.Pow(10, d))
				}
			}
		}
		if len(ticks) <= n {
			break
		}
	}
	if len(ticks) < 2 { // a narrow scale
		return Linear(math.Pow(10, s.From), math.Pow(10, s.To), 0, 1).Ticks(n)
	}
	return ticks
}

// Short prints a value in few letters: three digits, and a unit of thousands where it is large.
func Short(v float64) string {
	if math.Abs(v) < 9999.5 {
		if math.Abs(v) >= 999.5 {
			return strconv.FormatFloat(v, 'f', 0, 64)
		}
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	number, unit := Thousands(v)
	return number + " " + unit
}

// Thousands prints a value with three digits and what it is to be followed by: nothing, or k, M, G or T.
func Thousands(v float64) (number, unit string) {
	const units = "kMGT"
	at := -1
	for math.Abs(v) >= 999.5 && at < len(units)-1 {
		v /= 1000
		at++
	}
	if at >= 0 {
		unit = units[at : at+1]
	}
	return strconv.FormatFloat(v, 'g', 3, 64), unit
}

// Across draws a horizontal axis: lines of the grid down to pixel bottom from top, their values and what they are of.
func (p *Picture) Across(s Scale, top, bottom float64, n int, of string) {
	for _, v := range s.Ticks(n) {
		x := s.Place(v)
		p.Line(x, top, x, bottom, Grid)
		p.Text(x, bottom+18, Middle, Label, Short(v))
	}
	p.Text((s.At+s.End)/2, bottom+38, Middle, Label, of)
}

// Down draws a vertical axis: lines of the grid from pixel left to right, and their values.
func (p *Picture) Down(s Scale, left, right float64, n int) {
	for _, v := range s.Ticks(n) {
		y := s.Place(v)
		p.Line(left, y, right, y, Grid)
		p.Text(left-8, y+5, End, Label, Short(v))
	}
}
