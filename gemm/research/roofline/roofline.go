// Package roofline asks how near products come to what their device allows. It measures how many bytes a second the device reads
// and how many operations it takes at most, the roofs, and draws products that were timed below them, over their intensity: the
// operations for each byte of codes, scales, X and Y. Kernels are chosen without it.
package roofline

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/lutq/lutq/gemm/bench"
)

// Point is a product in a roofline: what it reached beside what the roofs allow at its intensity.
type Point struct {
	Series string    `json:"series"` // of one width and way to multiply
	Row    bench.Row `json:"-"`

	Us        float64 `json:"us"`
	Bytes     int64   `json:"bytes"`           // of codes, scales and table, X and Y, each once
	Intensity float64 `json:"flop_per_byte"`   // operations for each of them
	FLOPPerS  float64 `json:"flop_per_s"`      // that were reached
	Roof      float64 `json:"roof_per_s"`      // that the roofs allow
	OfRoof    float64 `json:"part_of_roof"`    // FLOPPerS/Roof
	Dense     bool    `json:"dense,omitempty"` // whether it is a product by dense weights
}

// Roofline has products beside the roofs of their device.
type Roofline struct {
	Roofs
	Points []Point
}

// New places rows, all of one device, and the products by dense weights that were timed beside them: of a shape
// and M the first. Where reading or dense products beside a row were faster than the roofs, these are raised to that.
func New(roofs Roofs, rows []bench.Row) *Roofline {
	for _, r := range rows {
		roofs.BytesPerS = max(roofs.BytesPerS, 1e9*r.ReadGBPerS)
		if roofs.FLOPPerS > 0 {
			roofs.FLOPPerS = max(roofs.FLOPPerS, 1e9*r.DenseGFLOPS)
		}
	}
	l := &Roofline{Roofs: roofs}
	type product struct{ n, k, m int }
	seen := make(map[product]bool)
	var dense []Point
	for _, r := range rows {
		l.Points = append(l.Points, roofs.point(r, seriesOf(r), r.Bytes, r.Us))
		size, name := denseSize(r)
		p := product{r.N, r.K, r.M}
		if r.DenseUs > 0 && !seen[p] {
			seen[p] = true
			at := roofs.point(r, name, int64(size)*int64(r.N)*int64(r.K), r.DenseUs)
			at.Dense = true
			dense = append(dense, at)
		}
	}
	l.Points = append(l.Points, dense...)
	return l
}

// denseSize returns the bytes of a weight, and of an activation, of the dense product beside a row, and what to call it.
func denseSize(r bench.Row) (size int, name string) {
	if r.Device == "cpu" {
		return 4, "dense, float32"
	}
	return 2, "dense, 16 bits"
}

// seriesOf names what a row belongs to: products of its width in its way.
func seriesOf(r bench.Row) string {
	name := fmt.Sprintf("%d bits", r.Bits)
	if r.Kind != "" {
		name = r.Kind + " " + name
	}
	if way := r.Way(); way != "" {
		name += ", " + way
	}
	return name
}

// point places a product by weights of some bytes that takes us.
func (r *Roofs) point(row bench.Row, series string, weights int64, us float64) Point {
	size, _ := denseSize(row)
	flops := 2 * float64(row.M) * float64(row.N) * float64(row.K)
	p := Point{Series: series, Row: row, Us: us, Bytes: weights + int64(size)*int64(row.M)*int64(row.N+row.K)}
	p.Intensity, p.FLOPPerS = flops/float64(p.Bytes), flops/us*1e6
	p.Roof = r.At(p.Intensity)
	p.OfRoof = p.FLOPPerS / p.Roof
	return p
}

// CSV writes a line for each point, with the roofs in each.
func (l *Roofline) CSV(to io.Writer) error {
	w := csv.NewWriter(to)
	lines := [][]string{{
		"series", "layer", "n", "k", "m", "bits", "group", "dtype", "kernel", "us", "bytes", "flop/byte", "gflop/s", "roof gflop/s", "of roof",
		"device", "read gb/s", "read by", "most gflop/s", "multiplied by",
	}}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
	for _, p := range l.Points {
		r, bits, group, kernel := p.Row, strconv.Itoa(p.Row.Bits), strconv.Itoa(p.Row.Group), p.Row.Kernel
		if p.Dense {
			size, _ := denseSize(r)
			bits, group, kernel = strconv.Itoa(8*size), "", "dense"
		}
		lines = append(lines, []string{
			p.Series, r.Name, strconv.Itoa(r.N), strconv.Itoa(r.K), strconv.Itoa(r.M), bits, group, r.DType, kernel,
			number(p.Us), strconv.FormatInt(p.Bytes, 10), number(p.Intensity), number(p.FLOPPerS / 1e9), number(p.Roof / 1e9), number(p.OfRoof),
			l.Device, number(l.BytesPerS / 1e9), l.Reads, number(l.FLOPPerS / 1e9), l.Multiplies,
		})
	}
	return w.WriteAll(lines)
}

// allSeries returns the names of the series, those of dense weights last.
func (l *Roofline) allSeries() []string {
	var all []string
	for _, p := range l.Points {
		if !slices.Contains(all, p.Series) {
			all = append(all, p.Series)
		}
	}
	return all
}
