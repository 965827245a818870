package cuda

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/gptq"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/rtn"
)

// hostStats are statistics on the host.
type hostStats struct {
	k, tokens int
	h, d      []float32
}

func (s hostStats) K() int      { return s.k }
func (s hostStats) Tokens() int { return s.tokens }
func (s hostStats) Diagonal() ([]float32, error) {
	d := make([]float32, s.k)
	for i := range d {
		d[i] = s.h[i*(s.k+1)]
	}
	return d, nil
}
func (s hostStats) Hessian() ([]float32, error) { return s.h, nil }
func (s hostStats) Drift() ([]float32, error)   { return s.d, nil }

// deviceStats are the same on a device.
type deviceStats struct {
	hostStats
	o    *Ops
	h, d model.Array
}

func (s deviceStats) Diagonal() ([]float32, error) {
	v, d := make([]float32, s.k), s.o.Floats(s.k)
	defer s.o.Free(d)
	s.o.Diagonal(d, s.h, s.k)
	s.o.Read(v, d)
	return v, s.o.Err()
}

func (s deviceStats) Feedback(o rounding.FeedbackOptions) (rounding.Feedback, error) {
	f := s.o.Feedback(s.h, s.d, nil, o)
	return f, s.o.Err()
}

// TestGPUColumns compares what columns are rounded to with the host's.
func TestGPUColumns(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i == 0 {
			testColumns(t, o)
		}
	})
}

func testColumns(t *testing.T, o *Ops) {
	// One that is not finite beside its diagonal is found, and ends nothing.
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		const k = 130
		host := hostStats{k, 2 * k, make([]float32, k*k), make([]float32, k*k)}
		for i := range k {
			host.h[i*k+i] = 1
		}
		host.h[5*k+7], host.h[7*k+5] = float32(bad), float32(bad)
		device := deviceStats{host, o, o.Floats(k * k), o.Floats(k * k)}
		o.Write(device.h, host.h)
		o.Write(device.d, host.d)
		s, err := gptq.NewState(device, gptq.Options{Damp: .1, Retarget: .5})
		if err != nil || s.Report().Nearest != "the Hessian is not finite" {
			t.Errorf("%v in the Hessian: prepared as %+v, %v", bad, s.Report(), err)
		}
		s.Close()
		o.Free(device.h, device.d)
	}
	for _, c := range []struct {
		name       string
		n, k, bits int
		group      int
		singular   bool
		options    gptq.Options
	}{
		{"blocks", 150, 200, 3, 64, false, gptq.Options{Damp: .01}},
		{"retargeted", 70, 130, 4, 32, false, gptq.Options{Damp: .1, Retarget: .5}},
		{"few retargeted", 20, 130, 4, 32, false, gptq.Options{Damp: .1, Retarget: .5, Rows: 20}},
		{"one block", 3, 33, 2, 33, false, gptq.Options{Damp: .01, Retarget: 1}},
		{"singular", 5, 40, 5, 32, true, gptq.Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, 1))
			host := hostStats{c.k, 2 * c.k, make([]float32, c.k*c.k), make([]float32, c.k*c.k)}
			for range host.tokens {
				common := r.NormFloat64()
				x, drift := make([]float64, c.k), make([]float64, c.k)
				for i := range x {
					x[i] = (1 + float64(i%7)) * (r.NormFloat64() + common)
					drift[i] = .1 * (x[i] + r.NormFloat64())
				}
				if c.singular {
					x[c.k-1], x[7] = x[0], 0
				}
				for i := range x {
					for j := range x {
						host.h[i*c.k+j] += float32(x[i] * x[j])
						host.d[i*c.k+j] += float32(drift[i] * x[j])
					}
				}
			}
			device := deviceStats{host, o, o.Floats(c.k * c.k), o.Floats(c.k * c.k)}
			o.Write(device.h, host.h)
			o.Write(device.d, host.d)
			w := make([]float32, c.n*c.k)
			for i := range w {
				w[i] = float32(r.NormFloat64())
			}
			clear(w[:min(c.group, c.k)]) // a group of zeros
			book, err := lut.NewCodebook("nf", c.bits, c.group)
			if err != nil {
				t.Fatal(err)
			}

			quantize := func(stats rounding.Stats, ready func(), searched bool) (parts [][]byte, errs []rounding.RowError, codes []uint8, loss, nearest float64, out rounding.RowError, report gptq.Report) {
				t.Helper()
				s, err := gptq.NewState(stats, c.options)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				ready()
				q, err := s.QuantizerBy(func() (gptq.Rounder, error) {
					q, err := rtn.NewQuantizer(lut.Format{Codebook: book, Group: c.group, Scale: weight.MSE, ScaleType: weight.F16})
					if searched {
						return q, err
					}
					return struct{ gptq.Leveled }{q}, err
				})
				if err != nil {
					t.Fatal(err)
				}
				rowBytes := lut.RowBytes(c.k, c.bits)
				parts = [][]byte{
					lut.ScalesPart: make([]byte, 2*c.n*weight.GroupsIn(c.k, c.group)),
					lut.CodesPart:  make([]byte, c.n*rowBytes),
				}
				errs = make([]rounding.RowError, c.n)
				if err := q.Rows(parts, errs, w); err != nil {
					t.Fatal(err)
				}
				codes = make([]uint8, c.n*c.k)
				for n, e := range errs {
					if !(e.Loss <= e.NearestLoss && e.Squared < e.Energy) && n > 0 {
						t.Errorf("row %d: %+v", n, e)
					}
					loss += e.Loss
					nearest += e.NearestLoss
					out.Output += e.Output
					out.OutputSquared += e.OutputSquared
					lut.UnpackCodes(codes[n*c.k:(n+1)*c.k], parts[lut.CodesPart][n*rowBytes:(n+1)*rowBytes], c.bits)
				}
				return parts, errs, codes, loss, nearest, out, s.Report()
			}
			_, _, want, wantLoss, wantNearest, wantOut, wantReport := quantize(host, func() {}, true)
			inParts, inErrs, _, _, _, _, _ := quantize(device, func() {}, false)
			parts, errs, got, loss, nearest, out, report := quantize(device, func() {
				if c.options.Rows == 0 {
					o.Free(device.h, device.d)
				}
			}, true)
			if c.options.Rows > 0 {
				o.Free(device.h, device.d)
			}
			for i := range parts { // by the scales that the host finds
				if !bytes.Equal(parts[i], inParts[i]) {
					t.Errorf("part %d is another where the device searches scales", i)
				}
			}
			if !slices.Equal(errs, inErrs) {
				t.Errorf("errors are %+v where the device searches scales: want %+v", errs, inErrs)
			}
			if !(math.Abs(loss/wantLoss-1) < .01) || !(math.Abs(nearest/wantNearest-1) < 1e-3) {
				t.Errorf("loss %v, to nearest %v: want %v, %v", loss, nearest, wantLoss, wantNearest)
			}
			if !(math.Abs(out.Output/wantOut.Output-1) < 1e-3) || !(math.Abs(out.OutputSquared/wantOut.OutputSquared-1) < .02) {
				t.Errorf("outputs %v are off by %v, want %v and %v", out.Output, out.OutputSquared, wantOut.Output, wantOut.OutputSquared)
			}
			if !(loss < .95*nearest) {
				t.Errorf("loss %v, to nearest %v: want less", loss, nearest)
			}
			if report != wantReport && !(c.singular && report.Raised > 0 && report.Dead == wantReport.Dead) {
				t.Errorf("prepared as %+v, want %+v", report, wantReport)
			}
			differ := 0
			for i := range got {
				if got[i] != want[i] {
					differ++
				}
			}
			if differ > len(got)/50 {
				t.Errorf("%d of %d codes differ", differ, len(got))
			}
			for i, code := range got[:min(c.group, c.k)] {
				if code != want[i] {
					t.Errorf("weight %d of a group of zeros has code %d, want %d", i, code, want[i])
				}
			}
		})
	}
}
