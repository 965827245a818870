package gptq

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/rtn"
)

// plainDevice is a device that rounds to nearest, and its feedback.
type plainDevice struct{ k int }

func (d plainDevice) K() int                      { return d.k }
func (d plainDevice) Tokens() int                 { return 2 * d.k }
func (d plainDevice) Hessian() ([]float32, error) { return nil, errors.New("it stays there") }
func (d plainDevice) Drift() ([]float32, error)   { return nil, nil }

func (d plainDevice) Diagonal() ([]float32, error) { return slices.Repeat([]float32{1}, d.k), nil }

func (d plainDevice) Feedback(rounding.FeedbackOptions) (rounding.Feedback, error) { return d, nil }

func (d plainDevice) Close() {}

func (d plainDevice) Retarget([]float32) error { return nil }

func (d plainDevice) Tables(rounding.Tables, []float32) (bool, error) { return false, nil }

func (d plainDevice) Rings(rounding.Rings, []float32) error { return errors.New("no rings") }

func (d plainDevice) Round(fed, nearest rounding.Rounded, outputs, w, levels []float32, group, count int) error {
	for r := range outputs {
		var loss float32
		for c, v := range w[r*d.k : (r+1)*d.k] {
			of := levels[(r*weight.GroupsIn(d.k, group)+c/group)*count:][:count]
			best := 0
			for i, l := range of {
				if math.Abs(float64(v-l)) < math.Abs(float64(v-of[best])) {
					best = i
				}
			}
			fed.Codes[r*d.k+c], nearest.Codes[r*d.k+c] = uint8(best), uint8(best)
			loss += (v - of[best]) * (v - of[best])
		}
		fed.Loss[r], nearest.Loss[r], outputs[r] = loss, loss, 1+float32(r%7)
	}
	return nil
}

// TestPieces: rows that the host shares out to processors in pieces become what they become one by one, and the row of an error is
// counted from the first.
func TestPieces(t *testing.T) {
	const n, k, group, bits = 2*pieceWeights/64 + 100, 64, 32, 4
	table, err := lut.NewCodebook("nf", bits, group)
	if err != nil {
		t.Fatal(err)
	}
	quantizer := func() rounding.Quantizer {
		s, err := NewState(plainDevice{k}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		q, err := s.QuantizerBy(func() (Rounder, error) {
			return rtn.NewQuantizer(lut.Format{Codebook: table, Group: group, Scale: weight.Absmax, ScaleType: weight.F16})
		})
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	rng := rand.New(rand.NewPCG(1, 2))
	w := make([]float32, n*k)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
	}
	codes, scales := lut.RowBytes(k, bits), 2*k/group
	parts := func(rows int) [][]byte {
		p := make([][]byte, 3)
		p[lut.CodesPart], p[lut.ScalesPart], p[lut.CodebookPart] = make([]byte, rows*codes), make([]byte, rows*scales), make([]byte, 4<<bits)
		return p
	}
	whole, errs := parts(n), make([]rounding.RowError, n)
	q := quantizer()
	if err := q.Rows(whole, errs, w); err != nil {
		t.Fatal(err)
	}
	q.Shared(whole)
	single := quantizer()
	for from := 0; from < n; from += 700 {
		rows := min(700, n-from)
		p, e := parts(rows), make([]rounding.RowError, rows)
		if err := single.Rows(p, e, w[from*k:(from+rows)*k]); err != nil {
			t.Fatal(err)
		}
		for i := range e { // what the device says of a row is by its place
			e[i].Output = errs[from+i].Output
		}
		if !bytes.Equal(p[lut.CodesPart], whole[lut.CodesPart][from*codes:(from+rows)*codes]) ||
			!bytes.Equal(p[lut.ScalesPart], whole[lut.ScalesPart][from*scales:(from+rows)*scales]) || !slices.Equal(e, errs[from:from+rows]) {
			t.Fatalf("rows from %d are something else in pieces", from)
		}
	}
	for _, row := range []int{n - 1, n / 2} { // the first of them is told
		w[row*k+5] = float32(math.NaN())
	}
	var bad *rounding.NotFiniteError
	if err := q.Rows(whole, errs, w); !errors.As(err, &bad) || bad.Row != n/2 || bad.Col != 5 {
		t.Errorf("not a number in row %d, column 5: %v", n/2, err)
	}
}

// blindDevice is a plainDevice that searches scales, and finds no weight finite.
type blindDevice struct {
	plainDevice
	asked *int
}

func (d blindDevice) Feedback(rounding.FeedbackOptions) (rounding.Feedback, error) { return d, nil }

func (d blindDevice) Tables(t rounding.Tables, _ []float32) (bool, error) {
	*d.asked++
	for i := range t.Tops {
		t.Tops[i] = math.Float32bits(float32(math.Inf(1)))
	}
	return true, nil
}

// TestNotFound: what a device does not find the host does again, so that errors are the host's.
func TestNotFound(t *testing.T) {
	const n, k, group, bits = 10, 64, 32, 4
	table, err := lut.NewCodebook("nf", bits, group)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	w := make([]float32, n*k)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
	}
	rows := func(stats rounding.Stats) ([][]byte, []rounding.RowError, error) {
		s, err := NewState(stats, Options{})
		if err != nil {
			t.Fatal(err)
		}
		q, err := s.QuantizerBy(func() (Rounder, error) {
			return rtn.NewQuantizer(lut.Format{Codebook: table, Group: group, Scale: weight.MSE, ScaleType: weight.F16})
		})
		if err != nil {
			t.Fatal(err)
		}
		parts, errs := make([][]byte, 3), make([]rounding.RowError, n)
		parts[lut.CodesPart], parts[lut.ScalesPart] = make([]byte, n*lut.RowBytes(k, bits)), make([]byte, n*2*k/group)
		return parts, errs, q.Rows(parts, errs, w)
	}
	want, wantErrs, err := rows(plainDevice{k})
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	got, errs, err := rows(blindDevice{plainDevice{k}, &asked})
	if err != nil || asked != 1 {
		t.Fatalf("asked %d times: %v", asked, err)
	}
	if !slices.EqualFunc(got, want, bytes.Equal) || !slices.Equal(errs, wantErrs) {
		t.Error("rows are something else")
	}
	w[3*k+7] = float32(math.NaN())
	var bad *rounding.NotFiniteError
	if _, _, err := rows(blindDevice{plainDevice{k}, &asked}); !errors.As(err, &bad) || bad.Row != 3 || bad.Col != 7 {
		t.Errorf("not a number in row 3, column 7: %v", err)
	}
}
