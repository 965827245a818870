package roofline

import (
	"context"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/lutq/lutq/gemm/bench"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// rooflineRows are as of either device: 1 and 512 rows by a matrix of 4 bits, by kernels that bench names, and dense beside.
func rooflineRows(device string) []bench.Row {
	rows := []bench.Row{
		{N: 1000, K: 2000, M: 1, Bits: 4, Group: 128, Kernel: "lut-avx2", Bytes: 1_031_250, Us: 1000, DenseUs: 4000},
		{N: 1000, K: 2000, M: 1, Bits: 4, Group: 128, Kernel: "fixed-avx2", Bytes: 1_031_250, Us: 500, DenseUs: 4000},
		{N: 1000, K: 2000, M: 512, Bits: 4, Group: 128, Kernel: "lut-avx2", Bytes: 1_031_250, Us: 40_000, DenseUs: 50_000},
		{N: 1000, K: 2000, M: 1, Bits: 3, Group: 128, Kernel: "lut-avx2", Bytes: 781_250, Us: 800},
	}
	for i := range rows {
		rows[i].Device, rows[i].DType = device, "f32"
		if device == "cuda" {
			rows[i].DType, rows[i].Kernel = "f16", []string{"a2 d2", "wgmma fp8 c128 g2", "wgmma c128 g2", "a2 d4"}[i]
		}
	}
	return rows
}

func TestRoofline(t *testing.T) {
	for _, test := range []struct {
		device string
		series []string
		bytes  []int64 // of points
	}{
		{"cpu", []string{"4 bits", "4 bits, fixed-avx2", "3 bits", "dense, float32"}, []int64{1_043_250, 1_043_250, 1_031_250 + 6_144_000, 793_250, 8_012_000, 8e6 + 6_144_000}},
		{"cuda", []string{"4 bits", "4 bits, fp8", "3 bits", "dense, 16 bits"}, []int64{1_037_250, 1_037_250, 1_031_250 + 3_072_000, 787_250, 4_006_000, 4e6 + 3_072_000}},
	} {
		l := New(Roofs{Device: "a <device> & more", BytesPerS: 2e9, FLOPPerS: 60e9, Reads: "reading", Multiplies: "multiplying"}, rooflineRows(test.device))
		if got := strings.Join(l.allSeries(), "; "); got != strings.Join(test.series, "; ") {
			t.Errorf("%s: series %s", test.device, got)
		}
		if len(l.Points) != len(test.bytes) {
			t.Fatalf("%s: %d points, want %d", test.device, len(l.Points), len(test.bytes))
		}
		for i, p := range l.Points {
			flops := 4e6 * float64(p.Row.M)
			intensity := flops / float64(test.bytes[i])
			roof := min(60e9, 2e9*intensity)
			us := []float64{1000, 500, 40_000, 800, 4000, 50_000}[i]
			for what, v := range map[string][2]float64{
				"intensity": {p.Intensity, intensity}, "rate": {p.FLOPPerS, flops / us * 1e6}, "roof": {p.Roof, roof}, "part": {p.OfRoof, flops / us * 1e6 / roof},
			} {
				if math.Abs(v[0]/v[1]-1) > 1e-12 {
					t.Errorf("%s, point %d: %s %g, want %g", test.device, i, what, v[0], v[1])
				}
			}
			if p.Bytes != test.bytes[i] || p.Dense != (i > 3) {
				t.Errorf("%s, point %d: %d bytes, dense %v, want %d", test.device, i, p.Bytes, p.Dense, test.bytes[i])
			}
		}

		var b strings.Builder
		if err := l.CSV(&b); err != nil {
			t.Fatal(err)
		}
		lines, err := csv.NewReader(strings.NewReader(b.String())).ReadAll()
		if err != nil || len(lines) != 1+len(l.Points) {
			t.Fatalf("%s: %d lines, %v", test.device, len(lines), err)
		}
		column := func(name string) int {
			for i, h := range lines[0] {
				if h == name {
					return i
				}
			}
			t.Fatalf("no column %s", name)
			return 0
		}
		for i, p := range l.Points {
			for name, want := range map[string]float64{"flop/byte": p.Intensity, "gflop/s": p.FLOPPerS / 1e9, "roof gflop/s": p.Roof / 1e9, "of roof": p.OfRoof, "m": float64(p.Row.M), "read gb/s": 2, "most gflop/s": 60} {
				if got, err := strconv.ParseFloat(lines[1+i][column(name)], 64); err != nil || math.Abs(got/want-1) > 1e-5 {
					t.Errorf("%s, line %d: %s is %g, %v; want %g", test.device, i, name, got, err, want)
				}
			}
		}

		b.Reset()
		if err := l.Plot(&b); err != nil {
			t.Fatal(err)
		}
		for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if n := strings.Count(b.String(), "<circle "); n != len(l.Points)+len(test.series)+1 { // and the legend's
			t.Errorf("%s: %d marks for %d points", test.device, n, len(l.Points))
		}
		for _, want := range append([]string{"a &lt;device&gt; &amp; more", ">M 1<", ">M 512<", "1000×2000", "2 GB/s by reading", "60 GFLOP/s by multiplying"}, test.series...) {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: the picture does not say %q", test.device, want)
			}
		}
	}
}

// TestRooflineRaised: no roof is below what was measured beside a row; without dense products there is one roof.
func TestRooflineRaised(t *testing.T) {
	rows := rooflineRows("cpu")[:1]
	rows[0].ReadGBPerS, rows[0].DenseGFLOPS = 5, 70
	if l := New(Roofs{BytesPerS: 2e9, FLOPPerS: 60e9}, rows); l.BytesPerS != 5e9 || l.FLOPPerS != 70e9 {
		t.Errorf("roofs %+v", l.Roofs)
	}
	rows[0].DenseUs = 0
	l := New(Roofs{BytesPerS: 2e9}, rows)
	if len(l.Points) != 1 || l.FLOPPerS != 0 || l.Points[0].Roof != 5e9*l.Points[0].Intensity {
		t.Errorf("without dense products: %+v", l)
	}
	if err := l.Plot(io.Discard); err != nil {
		t.Error(err)
	}
}

func TestRoofsCPU(t *testing.T) {
	r, err := OnCPU(context.Background(), bench.Options{Threads: 1, LastCache: 1 << 20})
	if err != nil || r.BytesPerS < 1e7 || r.BytesPerS > 1e13 || r.FLOPPerS < 1e8 || r.FLOPPerS > 1e13 || !strings.Contains(r.Device, "threads: 1") {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := OnCUDA(context.Background(), "f32"); err == nil || errors.Is(err, driver.ErrNoGPU) {
		t.Errorf("roofs of cuda in f32: got error %v", err)
	}
}
