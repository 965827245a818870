package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// decodeRows is a report of a GPU: two tests of two widths, one of which was timed with dense weights too.
func decodeRows() *decodeReport {
	timing := func(perSecond, spread float64) decodeTiming {
		return decodeTiming{TokensPerSecond: perSecond, BytesPerToken: 4e9, HeadBits: 16, Spread: spread, WeightBytes: 5e9, GPUBytes: 6e9}
	}
	row := func(depth, bits int, t decodeTiming) decodeRow {
		return decodeRow{Device: "cuda", Test: "tg128", Batch: 1, Depth: depth, Context: 129 + depth, Bits: bits, Group: 64, decodeTiming: t}
	}
	r := &decodeReport{Model: "config.json", GPU: "NVIDIA X", DType: "f16", Repeat: 3}
	r.Rows = []decodeRow{row(0, 4, timing(600, .01)), row(4096, 4, timing(500, .02)), row(0, 3, timing(700, .125)), row(4096, 3, timing(550, 0))}
	r.addDense(&decodeRow{Device: "cuda", Test: "tg128", Batch: 1, Depth: 4096, decodeTiming: timing(200, .5)})
	r.addDense(&decodeRow{Device: "cuda", Test: "tg128", Batch: 4, decodeTiming: timing(1, 0)})
	r.Rows[1].JoulesPerToken, r.Rows[1].Watts, r.Rows[1].Dense.JoulesPerToken = 0.8123, 406, 2.5
	r.finish(4e12)
	return r
}

func TestPrintDecode(t *testing.T) {
	for format, wants := range map[string][]string{
		"table": {
			"tg128      1     4     64         16      129     600.0      4000       0.600               –            –    6.00         –        –              –",
			"tg128@d4096      1     4     64         16     4225     500.0      4000       0.500          200.0*         2.50    6.00      6.00    0.812           2.50",
			" 700.0* ", "\n\nOn NVIDIA X, activations f16, greedy, the median of 3; read rate 4000 GB/s; host memory at most ",
			"\n* noisy: repetitions differ by up to 50 %\n",
		},
		"md":  {"| tg128@d4096 | 1 | 3 | 64 | 16 | 4225 | 550.0 | 4000 | 0.550 | 200.0* | 2.75 | 6.00 | 6.00 | – | 2.50 |\n", "\n\\* noisy"},
		"csv": {",GPU GB,dense GB,J/token,dense J/token,noisy\n", "tg128,1,3,64,16,129,700.0,4000,0.700,–,–,6.00,–,–,–,true\n", "tg128,1,4,64,16,129,600.0,4000,0.600,–,–,6.00,–,–,–,false\n"},
	} {
		var out bytes.Buffer
		if err := (&ui{stdout: &out}).printDecode(decodeRows(), format); err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s has no %q:\n%s", format, want, out.String())
			}
		}
	}
}

// TestDecodeKeys: what scripts read of a row is there, timed or not.
func TestDecodeKeys(t *testing.T) {
	var out bytes.Buffer
	if err := (&ui{stdout: &out}).printDecode(decodeRows(), "json"); err != nil {
		t.Fatal(err)
	}
	var got struct {
		GPU  string
		Rows []map[string]any
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.GPU != "NVIDIA X" || len(got.Rows) != 4 {
		t.Fatalf("got %+v, %v", got, err)
	}
	for i, row := range got.Rows {
		for _, key := range strings.Fields("device test batch depth tokens_per_second bytes_per_token read_ratio dense_tokens_per_second head_bits") {
			if _, ok := row[key]; !ok {
				t.Errorf("row %d has no %s", i, key)
			}
		}
		want := 0.0
		if row["depth"] == 4096.0 {
			want = 200
		}
		if row["dense_tokens_per_second"] != want {
			t.Errorf("row %d: %v dense tokens a second, want %v", i, row["dense_tokens_per_second"], want)
		}
	}
	if got := got.Rows[1]["dense"].(map[string]any)["read_ratio"]; got != 0.2 {
		t.Errorf("dense weights are read at %v of the rate", got)
	}
}
