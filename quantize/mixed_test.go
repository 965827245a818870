package quantize

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/gptq"
	"github.com/lutq/lutq/quantize/rings"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/viterbi"
)

// drawn are statistics of inputs, drawn.
type drawn struct {
	k, tokens int
	hessian   []float32
}

func (m *drawn) K() int                      { return m.k }
func (m *drawn) Tokens() int                 { return m.tokens }
func (m *drawn) Drift() ([]float32, error)   { return nil, nil }
func (m *drawn) Hessian() ([]float32, error) { return m.hessian, nil }
func (m *drawn) Diagonal() ([]float32, error) {
	d := make([]float32, m.k)
	for i := range d {
		d[i] = m.hessian[i*m.k+i]
	}
	return d, nil
}

// drawInputs returns those of inputs that depend on each other.
func drawInputs(seed uint64, k, tokens int) *drawn {
	r := rand.New(rand.NewPCG(seed, 3))
	m := &drawn{k: k, tokens: tokens, hessian: make([]float32, k*k)}
	x := make([]float64, k)
	for range tokens {
		common := r.NormFloat64()
		for i := range x {
			x[i] = (r.NormFloat64() + 2*common) * (0.2 + float64(i%7))
		}
		for i, a := range x {
			for j, b := range x {
				m.hessian[i*k+j] += float32(a * b)
			}
		}
	}
	return m
}

// TestMixedFeedback: of a layer whose rows are mixed, with padding, errors of the outputs are smaller where errors of columns are fed into
// later ones, and as small as is told.
func TestMixedFeedback(t *testing.T) {
	const n, k = 40, 144
	w := random(5, n*k)
	m := drawInputs(1, k, 600)
	l := Layer{Spec: weight.Spec{Kind: trellis.Name, Bits: 3, Group: weight.RowGroup, Codebook: trellis.Mul1, ScaleType: weight.F16}, K: k}
	output := func(method Method, of rounding.Stats) float64 {
		s, err := method.Prepare(of, trellis.Name, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		q, err := s.Quantizer(l)
		if err != nil {
			t.Fatal(err)
		}
		parts, err := emptyParts(trellis.Kind{}, l.Spec, n, k)
		if err != nil {
			t.Fatal(err)
		}
		errs := make([]rounding.RowError, n)
		if err := q.Rows(parts, errs, w); err != nil {
			t.Fatal(err)
		}
		q.Shared(parts)
		mat, err := trellis.Kind{}.Open(l.Spec, n, k, parts)
		if err != nil {
			t.Fatal(err)
		}
		var all, told, squared float64
		row, off := make([]float32, k), make([]float64, k)
		for r := range n {
			mat.Row(row, r)
			for i, v := range row {
				off[i] = float64(w[r*k+i]) - float64(v)
				squared += off[i] * off[i]
			}
			for i, a := range off {
				for j, b := range off {
					all += a * b * float64(m.hessian[i*k+j])
				}
			}
			told += errs[r].Squared
		}
		if math.Abs(told-squared) > 1e-4*squared {
			t.Errorf("%s: told a squared error of %v: it is %v", method.Name(), told, squared)
		}
		return all
	}
	plain := output(nearest(methodRTN), nil)
	fed := output(feedback{MethodOptions{GPTQ: gptq.Options{Damp: 0.01}}}, rings.PaddedStats(m))
	if fed > 0.6*plain {
		t.Errorf("outputs err by %v, and by %v without feedback", fed, plain)
	}
}

// ringer is a device that rotates the columns of rows, and rounds rings without any feedback.
type ringer struct {
	*drawn
	factors []float32
}

func (d *ringer) Rotated(factors []float32) (rounding.Rotated, error) {
	return &ringer{d.drawn, factors}, nil
}

func (d *ringer) Feedback(rounding.FeedbackOptions) (rounding.Feedback, error) { return d, nil }

func (d *ringer) Retarget([]float32) error { return nil }
func (d *ringer) Close()                   {}

func (d *ringer) Round(_, _ rounding.Rounded, _, _, _ []float32, _, _ int) error { panic("no rings") }

func (d *ringer) Tables(rounding.Tables, []float32) (bool, error) { panic("no rings") }

func (d *ringer) Rings(r rounding.Rings, w []float32) error {
	n, l := len(r.Sums), r.Code.Layout()
	rotated := make([]float32, len(w))
	trellis.Rotate(rotated, w, d.factors)
	scales, err := r.Scales(make([]float32, n))
	if err != nil {
		return err
	}
	v, err := viterbi.New(r.Code)
	if err != nil {
		return err
	}
	worker, symbols := v.Worker(), make([]uint16, l.Steps())
	ring, back := make([]float32, l.Rows*l.Cols), make([]float32, l.Rows*l.Cols)
	for i := range len(r.Bytes) / l.Bytes() {
		first := i/(d.k/l.Cols)*l.Rows*d.k + i%(d.k/l.Cols)*l.Cols
		for j := range ring {
			ring[j] = rotated[first+j/l.Cols*d.k+j%l.Cols] / scales[first/d.k+j/l.Cols]
		}
		worker.Encode(symbols, back, ring)
		l.Pack(r.Bytes[i*l.Bytes():][:l.Bytes()], symbols)
	}
	return nil
}

// TestMixedDevice: a device gets rows that are mixed, and the errors of what it makes of them are those of the layer.
func TestMixedDevice(t *testing.T) {
	const n, k = 130, 256
	w := random(7, n*k)
	d := &ringer{drawn: drawInputs(1, k, 600)}
	l := Layer{
		Spec: weight.Spec{Kind: trellis.Name, Bits: 3, Group: weight.RowGroup, Codebook: trellis.Mul1, ScaleType: weight.F16}, K: k,
		Blocks: []float32{1.2, 0.7}, // which a device does not take
	}
	s, err := feedback{MethodOptions{GPTQ: gptq.Options{Damp: 0.01}}}.Prepare(d, trellis.Name, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	q, err := s.Quantizer(l)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := emptyParts(trellis.Kind{}, l.Spec, n, k)
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]rounding.RowError, n)
	if err := q.Rows(parts, errs, w); err != nil {
		t.Fatal(err)
	}
	q.Shared(parts)
	mat, err := trellis.Kind{}.Open(l.Spec, n, k, parts)
	if err != nil {
		t.Fatal(err)
	}
	var energy, squared float64
	back := weight.Dequantize(mat)
	for r, told := range errs {
		var e rounding.RowError
		for i, v := range back[r*k : (r+1)*k] {
			e.Add(w[r*k+i], v)
		}
		if math.Abs(e.Squared-told.Squared) > 1e-4*e.Squared || e.Energy != told.Energy {
			t.Fatalf("row %d errs by %v of %v: told %v of %v", r, e.Squared, e.Energy, told.Squared, told.Energy)
		}
		energy, squared = energy+e.Energy, squared+e.Squared
	}
	if part := squared / energy; part > 0.0195 || part < 0.01 {
		t.Errorf("squared error %v of the weights'", part)
	}
}
