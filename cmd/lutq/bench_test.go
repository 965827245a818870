package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/gemm/bench"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// gpuRows are as of a GPU: a row of several layers, and one without cuBLAS.
func gpuRows() []bench.Row {
	return []bench.Row{
		{
			Name: "a.0.q", Layers: []string{"a.0.q", "a.0.o", "a.1.q", "a.1.o"},
			Device: "cuda", GPU: "NVIDIA X", N: 64, K: 32, M: 1, Bits: 4, Group: 32, DType: "f16", Kernel: "a2 d2",
			Us: 17.25, ReadOnlyUs: 15.5, ReadOnlyRatio: 0.8986, DenseUs: 54, DenseRatio: 3.13, GBPerS: 3500,
			RelErr: 2e-4, TableRelErr: 1.5e-4, MaxErr: 1e-3, JoulesPerCall: 0.00812, DenseJoulesPerCall: 0.0273, Watts: 470, DenseWatts: 505,
		},
		{Device: "cuda", GPU: "NVIDIA X", N: 64, K: 32, M: 8, Bits: 4, Group: 32, DType: "f16", Kernel: "a2 d2", Us: 18},
	}
}

func TestPrintGPURows(t *testing.T) {
	for format, wants := range map[string][]string{
		"table": {"layer   n   k  m", "table err", "a.*.q (2), a.*.o (2)  64  32  1     4     32   a2 d2  17.25       0.899         3.13", "–"},
		"md":    {"| layer | n |", "| a.*.q (2), a.*.o (2) | 64 |", "| 1.0e-03 | 1.5e-04 | f16 |"},
		"csv":   {",mJ,dense mJ,noisy\n", ",8.12,27.3,false\n", ",–,–,false\n", "layer,n,k", `"a.*.q (2), a.*.o (2)",64,32,1,4,32,a2 d2,17.25,0.899,3.13`},
	} {
		var out bytes.Buffer
		if err := (&ui{stdout: &out}).printRows(gpuRows(), format); err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s has no %q:\n%s", format, want, out.String())
			}
		}
	}
	var out bytes.Buffer
	if err := (&ui{stdout: &out}).printRows(gpuRows(), "json"); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	rows, _ := got["rows"].([]any)
	if r := rows[0].(map[string]any); r["joules_per_call"] != 0.00812 || r["dense_joules_per_call"] != 0.0273 || r["watts"] != 470.0 || r["dense_watts"] != 505.0 {
		t.Errorf("energy: got %v", r)
	}
	if got["gpu"] != "NVIDIA X" || got["isa"] != nil || len(rows) != 2 {
		t.Errorf("got %v", got)
	}
}

func TestOnGPU(t *testing.T) {
	_, noGPU := driver.FirstGPU()
	for _, test := range []struct {
		device, dtype string
		want          bool
	}{
		{"cpu", "", false},
		{"auto", "f32", false},
		{"auto", "", noGPU == nil},
		{"auto", "bf16", true},
		{"cuda", "", true},
	} {
		got, err := (&benchOptions{deviceFlags: deviceFlags{device: test.device, dtype: test.dtype}}).onGPU()
		if noGPU != nil && test.want {
			if err == nil {
				t.Errorf("%s, type %q: got error %v without a GPU", test.device, test.dtype, err)
			}
			continue
		}
		if got != test.want || err != nil {
			t.Errorf("%s, type %q: got %v, %v", test.device, test.dtype, got, err)
		}
	}
}

func TestPrintNoisyRows(t *testing.T) {
	rows := []bench.Row{
		{Device: "cpu", N: 64, K: 32, M: 1, Us: 17.25, Spread: 0.02},
		{Device: "cpu", N: 64, K: 32, M: 2, Us: 18.25, Spread: 0.231, OtherCPUs: 1.26, Noisy: true},
		{Device: "cpu", N: 64, K: 32, M: 4, Us: 19.25, Spread: 0.04, OtherCPUs: 0.5, Noisy: true},
	}
	const note = "* noisy: repeated timings differ by up to 23 %, and other work kept up to 1.3 processors busy\n"
	for format, want := range map[string]struct{ row, end string }{
		"table": {" 18.25* ", note},
		"md":    {"| 18.25* |", "\n\\" + note},
		"csv":   {",18.25,", ",true\n"},
		"json":  {`"us": 18.25,`, "\n}\n"},
	} {
		var out bytes.Buffer
		if err := (&ui{stdout: &out}).printRows(rows, format); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); !strings.Contains(got, want.row) || !strings.HasSuffix(got, want.end) || strings.Contains(got, "17.25*") {
			t.Errorf("%s: want %q, and %q at the end:\n%s", format, want.row, want.end, got)
		}
		out.Reset()
		if err := (&ui{stdout: &out}).printRows(rows[:1], format); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); strings.Contains(got, "*") {
			t.Errorf("%s of a quiet machine:\n%s", format, got)
		}
	}
}

// TestLayerShapes: where layers are joined, what comes of it is timed too.
func TestLayerShapes(t *testing.T) {
	d, err := arch.Read("../../calib/testdata/lutq-tiny", nil)
	if err != nil {
		t.Fatal(err)
	}
	alone := []bench.Shape{{N: 128, K: 128}, {N: 64, K: 128}, {N: 384, K: 128}, {N: 128, K: 384}}
	if got := layerShapes(d, false); !slices.Equal(got, alone) {
		t.Errorf("layers have %v: want %v", got, alone)
	}
	if got, want := layerShapes(d, true), append(alone, bench.Shape{N: 256, K: 128}, bench.Shape{N: 768, K: 128}); !slices.Equal(got, want) {
		t.Errorf("with those joined they have %v: want %v", got, want)
	}
}
