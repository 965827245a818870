package cuda

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/gptq"
	"github.com/lutq/lutq/quantize/rings"
	"github.com/lutq/lutq/quantize/rounding"
)

// TestGPURings holds rings that errors are fed into against float64.
func TestGPURings(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i == 0 {
			testRotate(t, o)
			for _, c := range ringCases() {
				testRings(t, o, c)
			}
			testRingsByState(t, o, 64, 200, 6)
		}
	})
}

// ringCase is a layer.
type ringCase struct {
	name     string
	rate     int
	rows, k  int
	retarget float32
	turned   bool
}

func ringCases() []ringCase {
	return []ringCase{
		{"few columns", 8, 12, 56, .5, true},
		{"as they are", 6, 17, 48, 0, false},
		{"groups", 6, 70, 296, .5, true},
		{"columns of one block", 4, 9, 7, 1, true},
		{"half bits", 5, 8, 144, 0, true},
	}
}

// turnedBy returns x·D·B in float64, with normed matrices.
func turnedBy(x []float64, factors []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * float64(factors[i])
	}
	trellis.Blocks(len(y), func(from, to int) {
		trellis.Hadamard(y[from:to])
		for i := from; i < to; i++ {
			y[i] /= math.Sqrt(float64(to - from))
		}
	})
	return y
}

// turnedBoth returns B·D·h·D·B.
func turnedBoth(h []float32, factors []float32) *mat.Dense {
	k := len(factors)
	m := mat.NewDense(k, k, nil)
	for i := range k {
		row := make([]float64, k)
		for j := range row {
			row[j] = float64(h[i*k+j])
		}
		m.SetRow(i, turnedBy(row, factors))
	}
	for j := range k {
		m.SetCol(j, turnedBy(mat.Col(nil, j, m), factors))
	}
	return m
}

func signs(k int) []float32 {
	s := make([]float32, k)
	for i := range s {
		s[i] = trellis.Sign(i)
	}
	return s
}

// testRotate compares turned matrices with those of float64.
func testRotate(t *testing.T, o *Ops) {
	for _, k := range []int{1, 24, 127, 128, 300} {
		r := rand.New(rand.NewPCG(uint64(k), 2))
		h, factors := make([]float32, k*k), signs(k)
		for i := range h {
			h[i] = float32(r.NormFloat64())
		}
		for i := range factors {
			factors[i] *= 1 + float32(i%3)/4
		}
		from, to := o.Floats(k*k), o.Floats(k*k)
		o.Write(from, h)
		o.Rotate(to, from, factors)
		got, want := make([]float32, k*k), turnedBoth(h, factors)
		o.Read(got, to)
		for i, v := range got {
			if w := want.At(i/k, i%k); !(math.Abs(float64(v)-w) <= 1e-5) {
				t.Fatalf("%d columns: element %d is %v, want %v", k, i, v, w)
			}
		}
		o.Free(from, to)
	}
}

// testRings makes rings of a layer. It follows them block by block in float64: what each was rounded from is known from the rings
// before it, and must have been rounded to nearest.
func testRings(t *testing.T, o *Ops, c ringCase) {
	t.Run(c.name, func(t *testing.T) {
		const add = 2
		k, rows, tokens := c.k, c.rows, 2*c.k
		r := rand.New(rand.NewPCG(3, uint64(k)))
		h, d, w := make([]float32, k*k), make([]float32, k*k), make([]float32, rows*k)
		for range tokens {
			common := r.NormFloat64()
			x, drift := make([]float64, k), make([]float64, k)
			for i := range x {
				x[i] = (1 + float64(i%7)) * (r.NormFloat64() + common)
				drift[i] = .1 * (x[i] + r.NormFloat64())
			}
			for i := range x {
				for j := range x {
					h[i*k+j] += float32(x[i] * x[j])
					d[i*k+j] += float32(drift[i] * x[j])
				}
			}
		}
		for i := range w {
			w[i] = float32(r.NormFloat64())
		}
		clear(w[k : 2*k]) // a row of zeros
		code, err := trellis.NewCode(trellis.Pairs, c.rate)
		if err != nil {
			t.Fatal(err)
		}
		l := code.Layout()
		order := make([]int, 0, k) // of blocks, the last of which may be none
		for b := k/l.Cols - 1; b >= 0; b-- {
			for i := range l.Cols {
				order = append(order, b*l.Cols+i)
			}
		}
		for i := len(order); i < k; i++ {
			order = append(order, i)
		}

		// On the device.
		factors := signs(k)
		var by []float32
		stats := []model.Array{o.Floats(k * k), o.Floats(k * k)}
		for i, v := range [][]float32{h, d} {
			o.Write(stats[i], v)
			if c.turned {
				to := o.Floats(k * k)
				o.Rotate(to, stats[i], factors)
				o.Free(stats[i])
				stats[i], by = to, factors
			}
		}
		f := o.Feedback(stats[0], stats[1], by, rounding.FeedbackOptions{Order: order, Add: add, Tokens: tokens, Retarget: c.retarget, Block: l.Cols})
		o.Free(stats...)
		if f == nil {
			t.Fatal("not positive definite")
		}
		defer f.Close()
		down, across := ceil(rows, l.Rows), ceil(k, l.Cols)
		var scales []float32
		rings := rounding.Rings{
			Code: code, Bytes: make([]byte, down*across*l.Bytes()), Sums: make([]rounding.RingSums, rows),
			Scales: func(means []float32) ([]float32, error) {
				for _, v := range means {
					scales = append(scales, float32(math.Sqrt(float64(v))))
				}
				return scales, nil
			},
		}
		if err := f.Rings(rings, w); err != nil {
			t.Fatal(err)
		}

		// In float64, all in the order of columns.
		turn := func(row []float64) []float64 {
			if c.turned {
				return turnedBy(row, factors)
			}
			return row
		}
		plain := func(v []float32) *mat.Dense {
			m := mat.NewDense(k, k, nil)
			for i, x := range v {
				m.Set(i/k, i%k, float64(x))
			}
			return m
		}
		full, drift := plain(h), plain(d)
		if c.turned {
			full, drift = turnedBoth(h, factors), turnedBoth(d, factors)
		}
		for i := range k {
			full.Set(i, i, full.At(i, i)+add)
		}
		var shift mat.Dense
		var inverse mat.Dense
		if err := inverse.Inverse(full); err != nil {
			t.Fatal(err)
		}
		shift.Mul(drift, &inverse)
		own, goal := mat.NewDense(rows, k, nil), mat.NewDense(rows, k, nil)
		for n := range rows {
			row := make([]float64, k)
			for i := range row {
				row[i] = float64(w[n*k+i])
			}
			row = turn(row)
			var moved mat.VecDense
			moved.MulVec(shift.T(), mat.NewVecDense(k, row))
			for i, at := range order {
				own.Set(n, i, row[at])
				goal.Set(n, i, row[at]+float64(c.retarget)*moved.AtVec(at))
			}
		}
		ordered := mat.NewDense(k, k, nil)
		for i, a := range order {
			for j, b := range order {
				ordered.Set(i, j, full.At(a, b))
			}
		}
		// What a block is rounded from is the goal, and the best linear guess of what makes up for the errors before: their
		// products with H, of columns from the block on, solved by H of these.
		values := code.Values()
		stored := mat.NewDense(rows, k, nil)
		want, got := make([]rounding.RingSums, rows), rings.Sums
		var cost, least float64
		for from := 0; from < k; from += l.Cols {
			to := min(from+l.Cols, k)
			value := mat.DenseCopyOf(goal.Slice(0, rows, from, to))
			if from > 0 {
				var errors, fed, solved mat.Dense
				errors.Sub(goal.Slice(0, rows, 0, from), stored.Slice(0, rows, 0, from))
				fed.Mul(&errors, ordered.Slice(0, from, from, k))
				if err := solved.Solve(ordered.Slice(from, k, from, k), fed.T()); err != nil {
					t.Fatal(err)
				}
				value.Add(value, solved.Slice(0, to-from, 0, rows).T())
			}
			for ring := range down {
				bytes := rings.Bytes[(ring*across+order[from]/l.Cols)*l.Bytes():][:l.Bytes()]
				weights := make([]float32, l.Rows*l.Cols)
				for step := range l.Steps() {
					row, col := l.At(step)
					row += ring * l.Rows
					x := l.Window(bytes, step)
					for j := range l.Together {
						at := (l.Steps()-1-step)*l.Together + j // in the order of the trellis
						if row < rows && from+col+j < k && scales[row] != 0 {
							weights[at] = float32(value.At(row, col+j) / float64(scales[row]))
							stored.Set(row, from+col+j, float64(values[j][x])*float64(scales[row]))
							v := value.At(row, col+j) - stored.At(row, from+col+j)
							want[row].ByChance += v * v * ordered.At(from+col+j, from+col+j) / float64(tokens)
						}
						e := float64(weights[at]) - float64(values[j][x])
						cost += e * e
					}
				}
				if rows <= 20 { // which takes long
					least += leastCost(code, weights)
				}
			}
		}
		if rows <= 20 {
			if ratio := cost / least; !(math.Abs(ratio-1) <= .005) {
				t.Errorf("cost %v, want %v", cost, least)
			}
		}
		for n := range rows {
			s := &want[n]
			g, e, q := mat.NewVecDense(k, nil), mat.NewVecDense(k, nil), stored.RowView(n)
			for i := range k {
				a, b, x := own.At(n, i), goal.At(n, i), q.AtVec(i)
				g.SetVec(i, b)
				e.SetVec(i, b-x)
				s.Squared += a * a
				s.Off += (a - x) * (a - x)
				s.OffStored += (a - x) * x
				s.Stored += x * x
				s.Goal += b * b
				s.Missed += (b - x) * (b - x)
				s.MissedStored += (b - x) * x
			}
			s.Output = mat.Inner(g, ordered, g) / float64(tokens)
			s.OutputMissed = mat.Inner(g, ordered, e) / float64(tokens)
			s.Loss = mat.Inner(e, ordered, e) / float64(tokens)
			for i, pair := range [][3]float64{
				{s.Squared, got[n].Squared, s.Squared},
				{s.Off, got[n].Off, s.Off},
				{s.OffStored, got[n].OffStored, s.Stored},
				{s.Stored, got[n].Stored, s.Stored},
				{s.Goal, got[n].Goal, s.Goal},
				{s.Missed, got[n].Missed, s.Missed},
				{s.MissedStored, got[n].MissedStored, s.Stored},
				{s.ByChance, got[n].ByChance, s.ByChance},
				{s.Output, got[n].Output, s.Output},
				{s.OutputMissed, got[n].OutputMissed, s.Output},
				{s.Loss, got[n].Loss, s.Loss},
			} {
				if !(math.Abs(pair[0]-pair[1]) <= 2e-3*pair[2]) {
					t.Errorf("row %d: sum %d is %v, want %v", n, i, pair[1], pair[0])
				}
			}
		}
		again := rings
		again.Bytes, again.Sums, scales = make([]byte, len(rings.Bytes)), make([]rounding.RingSums, rows), nil
		if err := f.Rings(again, w); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(again.Bytes, rings.Bytes) || !slices.Equal(again.Sums, rings.Sums) {
			t.Error("other rings the second time")
		}
	})
}

// rotatedStats are statistics on a device, as package calib/model turns them.
type rotatedStats struct {
	deviceStats
	factors []float32
}

func (s rotatedStats) Feedback(o rounding.FeedbackOptions) (rounding.Feedback, error) {
	f := s.o.Feedback(s.h, s.d, s.factors, o)
	return f, s.o.Err()
}

// testRingsByState compares what a layer loses by package gptq on a device with what it loses on the host.
func testRingsByState(t *testing.T, o *Ops, n, k, rate int) {
	r := rand.New(rand.NewPCG(8, 1))
	host := hostStats{k, 3 * k, make([]float32, k*k), make([]float32, k*k)}
	for range host.tokens {
		common := r.NormFloat64()
		x, drift := make([]float64, k), make([]float64, k)
		for i := range x {
			x[i] = (1 + float64(i%5)) * (r.NormFloat64() + common)
			drift[i] = .1 * (x[i] + r.NormFloat64())
		}
		for i := range x {
			for j := range x {
				host.h[i*k+j] += float32(x[i] * x[j])
				host.d[i*k+j] += float32(drift[i] * x[j])
			}
		}
	}
	w := make([]float32, n*k)
	for i := range w {
		w[i] = float32(r.NormFloat64()) * (1 + float32(i/k%3))
	}
	rotation := rings.NewRotation(k)
	spec := weight.Spec{Kind: trellis.Name, Bits: rate / 2, Half: rate%2 != 0, Codebook: trellis.Pairs, ScaleType: weight.F16}
	parts, err := trellis.Kind{}.Parts(spec, n, k)
	if err != nil {
		t.Fatal(err)
	}
	code, err := trellis.NewCode(trellis.Pairs, rate)
	if err != nil {
		t.Fatal(err)
	}
	quantize := func(stats rounding.Stats) (errs []rounding.RowError) {
		s, err := gptq.NewState(stats, gptq.Options{Damp: .1, Retarget: .5, Block: trellis.RingCols})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		inner, err := rings.NewQuantizer(rings.Options{Code: code, ScaleType: weight.F16})
		if err != nil {
			t.Fatal(err)
		}
		q, err := s.Blocks(inner)
		if err != nil {
			t.Fatal(err)
		}
		data := make([][]byte, len(parts))
		for i, p := range parts {
			if p.Rows {
				size := 1
				for _, d := range p.Shape {
					size *= d
				}
				data[i] = make([]byte, size*map[string]int{"U8": 1, "F16": 2}[p.DType])
			}
		}
		errs = make([]rounding.RowError, n)
		if err := q.Rows(data, errs, w); err != nil {
			t.Fatal(err)
		}
		m, err := trellis.Kind{}.Open(spec, n, k, data)
		if err != nil {
			t.Fatal(err)
		}
		stored := make([]float32, n*k)
		weight.RowsTo(stored, m, 0, n)
		for row, e := range errs {
			var squared float64
			for i := row * k; i < (row+1)*k; i++ {
				squared += (float64(w[i]) - float64(stored[i])) * (float64(w[i]) - float64(stored[i]))
			}
			if !(math.Abs(squared/e.Squared-1) <= 1e-3) {
				t.Errorf("row %d is off by %v: want what is stored, %v", row, e.Squared, squared)
			}
		}
		return errs
	}
	device := deviceStats{host, o, o.Floats(k * k), o.Floats(k * k)}
	raw := o.Floats(k * k)
	for to, v := range map[model.Array][]float32{device.h: host.h, device.d: host.d} {
		o.Write(raw, v)
		o.Rotate(to, raw, rotation.Factors())
	}
	defer o.Free(raw, device.h, device.d)
	got, want := quantize(rotatedStats{device, rotation.Factors()}), quantize(rotation.Stats(host))
	var sums [2]rounding.RowError
	for i, errs := range [][]rounding.RowError{got, want} {
		for _, e := range errs {
			s := &sums[i]
			s.Energy += e.Energy
			s.Squared += e.Squared
			s.Loss += e.Loss
			s.NearestLoss += e.NearestLoss
			s.Output += e.Output
			s.OutputSquared += e.OutputSquared
		}
	}
	// Of a few rings errors differ by chance: what is chosen for one changes all that come after it.
	chance := .5 / math.Sqrt(float64(ceil(n, trellis.RingRows)*ceil(k, trellis.RingCols)))
	for _, c := range []struct {
		name              string
		got, want, within float64
	}{
		{"energy", sums[0].Energy, sums[1].Energy, 1e-5},
		{"squared error", sums[0].Squared, sums[1].Squared, chance},
		{"loss", sums[0].Loss, sums[1].Loss, chance},
		{"loss to nearest", sums[0].NearestLoss, sums[1].NearestLoss, chance},
		{"output", sums[0].Output, sums[1].Output, 1e-3},
		{"error of outputs", sums[0].OutputSquared, sums[1].OutputSquared, chance},
	} {
		if !(math.Abs(c.got/c.want-1) <= c.within) {
			t.Errorf("%s %v, want %v", c.name, c.got, c.want)
		}
	}
	if !(sums[0].Loss < .8*sums[0].NearestLoss) {
		t.Errorf("loss %v, by chance %v: want less", sums[0].Loss, sums[0].NearestLoss)
	}
}
