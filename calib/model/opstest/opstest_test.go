package opstest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/weight"
)

// TestReferenceAgainstItself shows that the suite asks for nothing that exact
// arithmetic does not give.
func TestReferenceAgainstItself(t *testing.T) {
	Run(t, Reference{}, Options{Floats: 1e-6})
}

// gradient is an operation as a function of some arrays, with its gradient.
type gradient struct {
	name string
	in   []Array                   // what is differentiated by
	out  int                       // elements of the result
	f    func(y Array, in []Array) // the operation
	back func(d []Array, dy Array) // writes the gradients
}

func random(r *rand.Rand, n int, sigma float64) Array {
	a := make(Array, n)
	for i := range a {
		a[i] = r.NormFloat64() * sigma
	}
	return a
}

func gradients(r *rand.Rand) []gradient {
	var ref Reference
	var list []gradient
	{
		const rows, n = 3, 13
		w := random(r, n, 1)
		in := []Array{random(r, rows*n, 0.5)}
		list = append(list, gradient{
			name: "RMSNorm", in: in, out: rows * n,
			f:    func(y Array, in []Array) { ref.RMSNorm(y, in[0], w, rows, 1e-2) },
			back: func(d []Array, dy Array) { ref.RMSNormBack(d[0], dy, in[0], w, rows, 1e-2, false) },
		})
	}
	{
		const rows, n, k = 3, 7, 5
		w := &matrix{n: n, k: k, values: random(r, n*k, 1)}
		in := []Array{random(r, rows*k, 1)}
		list = append(list, gradient{
			name: "Linear", in: in, out: rows * n,
			f:    func(y Array, in []Array) { ref.Linear(in[0], rows, model.Product{Y: y, W: w}) },
			back: func(d []Array, dy Array) { ref.LinearBack(d[0], dy, rows, w, false) },
		})
	}
	for _, adjacent := range []bool{false, true} {
		const rows, heads, half, dim = 4, 3, 5, 12
		shape := model.RopeShape{Rows: rows, Heads: heads, Dim: dim, Half: half, Adjacent: adjacent}
		cos, sin := make(Array, rows*half), make(Array, rows*half)
		for i := range cos {
			sin[i], cos[i] = math.Sincos(float64(i))
		}
		list = append(list, gradient{
			name: "Rope", in: []Array{random(r, rows*heads*dim, 1)}, out: rows * heads * dim,
			f: func(y Array, in []Array) {
				copy(y, in[0])
				ref.Rope(y, shape, cos, sin, false)
			},
			back: func(d []Array, dy Array) {
				copy(d[0], dy)
				ref.Rope(d[0], shape, cos, sin, true)
			},
		})
	}
	for _, s := range []model.AttentionShape{
		{T: 1, Heads: 2, KVHeads: 1, Dim: 4},
		{T: 9, Heads: 4, KVHeads: 2, Dim: 6},
		{T: 9, Heads: 3, KVHeads: 3, Dim: 4, Window: 4},
		{T: 9, Heads: 4, KVHeads: 2, Dim: 6, Cap: 0.7},
		{T: 9, Heads: 4, KVHeads: 2, Dim: 6, Cap: 2, Sinks: Array{-1, 0.5, 1, 3}},
	} {
		s.Scale = 0.4
		wide, narrow := s.T*s.Heads*s.Dim, s.T*s.KVHeads*s.Dim
		in := []Array{random(r, wide, 1), random(r, narrow, 1), random(r, narrow, 1)}
		list = append(list, gradient{
			name: "Attention", in: in, out: wide,
			f: func(y Array, in []Array) { ref.Attention(y, nil, in[0], in[1], in[2], s) },
			back: func(d []Array, dy Array) {
				o, lse := make(Array, wide), make(Array, s.Heads*s.T)
				ref.Attention(o, lse, in[0], in[1], in[2], s)
				ref.AttentionBack(d[0], d[1], d[2], dy, o, lse, in[0], in[1], in[2], s)
			},
		})
	}
	for _, act := range []arch.Gating{
		{Act: arch.SiLU}, {Act: arch.GELU}, {Act: arch.GELUTanh}, {Act: arch.ReLU}, {Act: arch.Sigmoid}, {Act: arch.SwiGLUOAI, Alpha: 1.702, Limit: 7},
	} {
		in := []Array{random(r, 50, 3), random(r, 50, 4)}
		list = append(list, gradient{
			name: "GLU " + string(act.Act), in: in, out: 50,
			f:    func(y Array, in []Array) { ref.GLU(y, in[0], in[1], act) },
			back: func(d []Array, dy Array) { ref.GLUBack(d[0], d[1], dy, in[0], in[1], act) },
		})
	}
	{
		in := []Array{random(r, 50, 40)}
		cap := func(x Array) Array {
			y := append(Array(nil), x...)
			ref.SoftCap(y, 30)
			return y
		}
		list = append(list, gradient{
			name: "SoftCap", in: in, out: 50,
			f: func(y Array, in []Array) { copy(y, cap(in[0])) },
			back: func(d []Array, dy Array) {
				copy(d[0], dy)
				ref.SoftCapBack(d[0], cap(in[0]), 30)
			},
		})
	}
	{
		const rows, vocab, scale = 3, 11, 0.75
		targets := []int{0, 10, 4}
		in, teacher := []Array{random(r, rows*vocab, 1)}, random(r, rows*vocab, 1)
		// Losses have a gradient of their own, to which dy plays no part.
		ones := func(loss Array, scale float64, y Array) {
			for i, v := range loss {
				y[i] = v * scale
			}
		}
		list = append(list, gradient{
			name: "CrossEntropy", in: in, out: rows,
			f: func(y Array, in []Array) {
				loss := make(Array, rows)
				ref.CrossEntropy(loss, nil, in[0], targets, vocab, 1)
				ones(loss, scale, y)
			},
			back: func(d []Array, _ Array) { ref.CrossEntropy(make(Array, rows), d[0], in[0], targets, vocab, scale) },
		}, gradient{
			name: "Divergence", in: in, out: rows,
			f: func(y Array, in []Array) {
				loss := make(Array, rows)
				ref.Divergence(loss, nil, in[0], teacher, rows, vocab, 1)
				ones(loss, scale, y)
			},
			back: func(d []Array, _ Array) {
				ref.Divergence(make(Array, rows), d[0], in[0], teacher, rows, vocab, scale)
			},
		})
	}
	for _, table := range []bool{true, false} {
		const rows, n, k, group = 6, 3, 14, 4
		groups := weight.GroupsIn(k, group)
		x := random(r, rows*k, 1)
		m := &matrix{n: n, k: k, group: group, scaleType: weight.F32, scales: random(r, n*groups, 1)}
		in := []Array{append(Array(nil), m.scales...)}
		name := "ScaleGrad of originals"
		if table {
			name = "ScaleGrad"
			m.table, m.codes = []float64{-1, -0.3, 0.4, 1}, make([]uint8, n*k)
			for i := range m.codes {
				m.codes[i] = uint8(r.IntN(4))
			}
			in = append(in, append(Array(nil), m.table...))
		} else {
			m.original = &matrix{n: n, k: k, values: random(r, n*k, 1)}
		}
		list = append(list, gradient{
			name: name, in: in, out: rows * n,
			f: func(y Array, in []Array) {
				ref.SetScales(m, in[0])
				if table {
					ref.SetTable(m, in[1])
				}
				ref.Linear(x, rows, model.Product{Y: y, W: m})
			},
			back: func(d []Array, dy Array) {
				ref.SetScales(m, in[0])
				var dtable model.Array
				if table {
					ref.SetTable(m, in[1])
					dtable = d[1]
				}
				ref.ScaleGrad(d[0], dtable, dy, x, rows, m, false)
			},
		})
	}
	{
		theta, base := random(r, 20, 1), random(r, 20, 1)
		list = append(list, gradient{
			name: "ExpScale", in: []Array{theta}, out: 20,
			f: func(y Array, in []Array) { ref.ExpScale(y, base, in[0]) },
			back: func(d []Array, dy Array) {
				s := make(Array, 20)
				ref.ExpScale(s, base, theta)
				copy(d[0], dy)
				ref.ExpScaleBack(d[0], s)
			},
		})
	}
	return list
}

// TestFiniteDifferences compares the gradient of Σ c·y with differences of the
// fourth order.
func TestFiniteDifferences(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, g := range gradients(r) {
		t.Run(g.name, func(t *testing.T) {
			dy := random(r, g.out, 1)
			if g.name == "CrossEntropy" || g.name == "Divergence" {
				for i := range dy {
					dy[i] = 1
				}
			}
			loss := func() float64 {
				y := make(Array, g.out)
				in := make([]Array, len(g.in))
				for i, a := range g.in {
					in[i] = append(Array(nil), a...)
				}
				g.f(y, in)
				return product(y, dy)
			}
			got := make([]Array, len(g.in))
			for i, a := range g.in {
				got[i] = make(Array, len(a))
			}
			g.back(got, append(Array(nil), dy...))
			for i, a := range g.in {
				var diff, norm float64
				for j, at := range a {
					const h = 1e-3
					step := func(by float64) float64 {
						a[j] = at + by*h
						defer func() { a[j] = at }()
						return loss()
					}
					want := (8*(step(1)-step(-1)) - (step(2) - step(-2))) / (12 * h)
					diff += (got[i][j] - want) * (got[i][j] - want)
					norm += want * want
				}
				if e := math.Sqrt(diff / max(norm, 1e-6)); e > 1e-8 {
					t.Errorf("input %d: gradient is %.2g from differences, relative", i, e)
				}
			}
		})
	}
}

// complaints takes what a check finds.
type complaints struct {
	testing.TB
	said []string
}

func (c *complaints) Helper() {}

func (c *complaints) Errorf(format string, args ...any) {
	c.said = append(c.said, fmt.Sprintf(format, args...))
}

// TestCompare lets a check find mistakes in one call.
func TestCompare(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(in, out Array)
		want string
	}{
		{"right", func(in, out Array) { copy(out, in) }, ""},
		{"wrong", func(in, out Array) { copy(out, in); out[3]++ }, "y: relative distance"},
		{"unwritten", func(in, out Array) { copy(out, in[:30]) }, "y: element 30 is NaN"},
		{"input", func(in, out Array) { copy(out, in); in[7]++ }, "x: input element 7 was changed"},
		{"behind", func(in, out Array) { copy(out[:cap(out)], in); out[:cap(out)][len(in)] = 0 }, "y: elements beside it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			said := &complaints{TB: t}
			c := Options{}.check(said, Reference{}, 1)
			x, y := c.acts("x", c.normal(50, 1)), c.actsOut("y", 50)
			c.both(func(s side) {
				if s.reference {
					s.Copy(s.a(y), s.a(x))
					return
				}
				test.do(s.a(x).(Array), y.whole.(Array)[guard:guard+50]) // its capacity takes in the guard
			})
			c.compare(1e-5)
			switch {
			case test.want == "" && len(said.said) > 0:
				t.Errorf("found %q where nothing is wrong", said.said)
			case test.want != "" && (len(said.said) != 1 || !strings.HasPrefix(said.said[0], test.want)):
				t.Errorf("found %q: want %q", said.said, test.want)
			}
		})
	}
}

// TestCodesAgree takes the codes of quotients that are near a boundary, and no others.
func TestCodesAgree(t *testing.T) {
	for _, test := range []struct {
		name    string
		q       float64
		bf      bool
		recoded bool
		ok      bool
	}{
		{"near", 0.5 * (1 - 0x1p-22), false, true, true},
		{"not near", 0.5 * (1 - 0x1p-20), false, true, false},
		{"held", 0.5 * (1 - 0x1p-22), false, false, false},
		{"near in bfloat16", (0.5 + 0x1p-9) * (1 - 0x1p-22), true, true, true}, // 0.5 or 0.50390625
		{"not near in bfloat16", 0.5 + 0x1p-9 - 0x1p-12, true, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			said := &complaints{TB: t}
			m := &matrix{
				n: 1, k: 1, group: 1, codes: []uint8{1}, table: []float64{0, 1}, scales: []float64{1},
				original: &matrix{n: 1, k: 1, values: []float64{test.q}},
			}
			var ref Reference
			dev := *m
			dev.codes = []uint8{1}
			if test.recoded {
				ref.Recode(m, test.bf)
			} else {
				m.codes[0] = 0
			}
			layer{w: weights{&dev, m}, n: 1, k: 1}.codesAgree(said, ref, Options{}, test.recoded, test.bf)
			if (len(said.said) == 0) != test.ok {
				t.Errorf("found %q: want ok %v", said.said, test.ok)
			}
			if m.codes[0] != 1 {
				t.Error("the reference has not taken the code")
			}
		})
	}
}

func TestDistance(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		name  string
		got   []float32
		want  []float64
		floor float64
		ok    bool
	}{
		{"equal", []float32{1, 2}, []float64{1, 2}, 0, true},
		{"near", []float32{1, 2.002}, []float64{1, 2}, 0, true},
		{"far", []float32{1, 2.02}, []float64{1, 2}, 0, false},
		{"NaN", []float32{1, float32(nan)}, []float64{1, 2}, 0, false},
		{"both NaN", []float32{1, float32(nan)}, []float64{1, nan}, 0, true},
		{"number for NaN", []float32{1, 2}, []float64{1, nan}, 0, false},
		{"no zero", []float32{1e-9}, []float64{0}, 0, false},
		{"zero within the floor", []float32{1e-9}, []float64{0}, 1e-3, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := distance(test.got, test.want, test.floor, 1e-3); (got == "") != test.ok {
				t.Errorf("distance says %q: want ok %v", got, test.ok)
			}
		})
	}
}
