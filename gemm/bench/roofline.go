package bench

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// Roofs are what bounds products on a device, as it was measured there: what it reads, and what it multiplies with dense
// weights. Kernels in fewer bits than those multiply may come out above.
type Roofs struct {
	Device     string  `json:"device"`            // that products ran on, in words
	BytesPerS  float64 `json:"bytes_per_s"`       // read from memory
	FLOPPerS   float64 `json:"flop_per_s"`        // 0 where there is nothing to multiply by
	Reads      string  `json:"read_by,omitempty"` // how the first was measured
	Multiplies string  `json:"multiplied_by,omitempty"`
}

// At returns the most floating-point operations a second at an intensity, in operations a byte.
func (r *Roofs) At(intensity float64) float64 {
	read := intensity * r.BytesPerS
	if r.FLOPPerS == 0 {
		return read
	}
	return min(read, r.FLOPPerS)
}

// RoofsCPU measures the roofs of the processors: memory is read as [ReadRate] does,
// and many rows of X are multiplied in float32 by a matrix that the caches hold.
func RoofsCPU(ctx context.Context, o Options) (*Roofs, error) {
	rate, err := ReadRate(ctx, o)
	if err != nil {
		return nil, err
	}
	e, err := cpu.New(cpu.Options{Threads: o.Threads})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	const rows, n = 384, 768
	r := rand.New(rand.NewPCG(1, 1))
	x, weights, y := make([]float32, rows*n), make([]float32, n*n), make([]float32, rows*n)
	for _, v := range [][]float32{x, weights} {
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
	}
	data := make([]byte, 4*len(weights))
	num.EncodeF32(data, weights)
	w, err := cpu.NewDense(n, n, "F32", data)
	if err != nil {
		return nil, err
	}
	product := &series{call: func(int) { e.MatMul(y, x, rows, w) }}
	for range Repetitions {
		if err := product.turn(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return &Roofs{
		Device:    fmt.Sprintf("cpu, %s, threads: %d", e.ISA(), e.Threads()),
		BytesPerS: rate, Reads: "reading more than the caches hold",
		FLOPPerS: 2 * rows * n * n / product.best() * 1e6, Multiplies: "the float32 kernel at its best",
	}, nil
}

// RoofsCUDA measures the roofs of the first GPU: packed weights are read as [ReadRateCUDA] does, and cuBLAS, where it is
// there, multiplies many rows of X by a large matrix of a type, f16 or bf16.
func RoofsCUDA(ctx context.Context, dtype string) (*Roofs, error) {
	t, err := halfType(cmp.Or(dtype, driver.F16.String()))
	if err != nil {
		return nil, err
	}
	c, err := driver.OpenGPU()
	if err != nil {
		return nil, err
	}
	r := &Roofs{Reads: "the fastest kernel that only reads packed weights"}
	err = onGPU(c, func(g *gpu) (err error) {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := cudaBench{gpu: g, dtype: t}
		r.Device = g.dev.Info.Name
		if r.BytesPerS, err = b.readRate(readShape(), 4*g.dev.Info.L2); err != nil {
			return err
		}
		r.FLOPPerS, err = b.productRate(Shape{8192, 8192}, 4096)
		var missing *driver.MissingError
		if errors.As(err, &missing) {
			return nil
		}
		r.Multiplies = fmt.Sprintf("cuBLAS in %v at 8192×8192, M = 4096", t)
		return err
	})
	return r, err
}

// productRate returns how many operations a second cuBLAS takes to multiply m rows by a matrix of a shape.
func (b *cudaBench) productRate(s Shape, m int) (_ float64, err error) {
	blas, err := b.dev.NewBLAS(b.stream)
	if err != nil {
		return 0, err
	}
	mem := memory{dev: b.dev}
	defer func() { err = errors.Join(err, mem.free(), blas.Close()) }()
	// Power, and with it the clock, hangs on the numbers: normal ones, some over and over.
	some := conform.RandomHalves(rand.New(rand.NewPCG(1, 1)), 1<<18, b.dtype)
	filled := func(n int) driver.Ptr {
		p := mem.alloc(2 * n)
		for at := 0; at < n && mem.err == nil; at += len(some) {
			mem.err = b.dev.Write(p+driver.Ptr(2*at), driver.Bytes(some[:min(len(some), n-at)]))
		}
		return p
	}
	x, w, y := filled(m*s.K), filled(s.N*s.K), mem.alloc(2*m*s.N)
	if mem.err != nil {
		return 0, mem.err
	}
	product := &cuda.Arm{Ring: 1, Call: func(int) error { return blas.MatMul(y, x, w, m, s.N, s.K, b.dtype, b.dtype) }}
	const replays = 5
	if err := cuda.TimeArms(b.dev, b.stream, []*cuda.Arm{product}, replays); err != nil {
		return 0, err
	}
	return 2 * float64(m) * float64(s.N) * float64(s.K) / product.Median() * 1e6, nil
}

// Point is a product in a roofline: what it reached beside what the roofs allow at its intensity.
type Point struct {
	Series string `json:"series"` // of one width and way to multiply
	Row    Row    `json:"-"`

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

// NewRoofline places rows, all of one device, and the products by dense weights that were timed beside them: of a shape
// and M the first. Where reading or dense products beside a row were faster than the roofs, these are raised to that.
func NewRoofline(roofs Roofs, rows []Row) *Roofline {
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
		l.Points = append(l.Points, roofs.point(r, r.series(), r.Bytes, r.Us))
		size, name := r.denseSize()
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
func (r *Row) denseSize() (size int, name string) {
	if r.Device == "cpu" {
		return 4, "dense, float32"
	}
	return 2, "dense, 16 bits"
}

// series names what a row belongs to: products of its width in its way.
func (r *Row) series() string {
	name := fmt.Sprintf("%d bits", r.Bits)
	if r.Kind != "" {
		name = r.Kind + " " + name
	}
	if way := r.way(); way != "" {
		name += ", " + way
	}
	return name
}

// point places a product by weights of some bytes that takes us.
func (r *Roofs) point(row Row, series string, weights int64, us float64) Point {
	size, _ := row.denseSize()
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
			size, _ := r.denseSize()
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
