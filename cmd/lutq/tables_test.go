package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/calib/probe"
	"github.com/lutq/lutq/calib/report"
	"github.com/lutq/lutq/calib/tasks"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/bench"
	"github.com/lutq/lutq/gemm/cuda/timing"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/mix"
)

var update = flag.Bool("update", false, "write testdata/tables.txt anew")

// TestTables prints a table of every kind, filled as wide as it may be, in terminals of 60, 80 and 120 columns and in one that is
// as narrow as none is, and elsewhere. None has a longer line than its terminal. What is shown in 60, 80 and 120 is in
// testdata/tables.txt: go test ./cmd/lutq -run TestTables -update writes it, for somebody to look at.
func TestTables(t *testing.T) {
	four := weight.Spec{Kind: "lut", Bits: 4, Group: 64, Codebook: "js", Scale: weight.MSE, ScaleType: weight.F16}
	two := weight.Spec{Kind: "trellis", Bits: 2, Half: true}
	ci := &[2]float64{-0.0123, 0.0456}
	models := []string{"models/Meta-Llama-3.1-8B-Instruct-js-4bit-fitted", "models/Meta-Llama-3.1-8B-Instruct-trellis-2bit"}
	measured := &evalReport{models: models, against: "meta-llama/Meta-Llama-3.1-8B-Instruct"}
	for range models {
		r := eval.Result{PPL: 6.2414, PPLStderr: 0.0312, TokensPerSecond: 12345, Comparison: &eval.Comparison{
			ReferencePPL: 6.1, LnRatio: 0.0229, LnRatioCI: ci, KLMean: 0.0312, KLMedian: 0.0101, KLP99: 0.412, Top1: 0.9312,
		}}
		measured.results = append(measured.results, r)
	}
	alone := &evalReport{models: models, results: measured.results}
	row := func(device string) bench.Row {
		return bench.Row{
			Name: "model.layers.0.mlp.gate_proj", Layers: []string{"model.layers.0.mlp.gate_proj", "model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"},
			Device: device, N: 28672, K: 8192, M: 1024, Bits: 4, Group: 128, DType: "bf16", Kernel: "wgmma c64g4 a2 d2 s3 split4", Lookup: "int8:16",
			Us: 1725.25, ReadOnlyRatio: 0.8986, DenseUs: 5400, DenseRatio: 3.13, GBPerS: 3512.12, RelErr: 2e-4, MaxErr: 1e-3, TableRelErr: 2e-3, PrepareUs: 212, JoulesPerCall: 0.9123, DenseJoulesPerCall: 3.2123, BLASUs: 3, BLASRatio: 1.21,
			Noisy: true, Spread: 0.2, OtherCPUs: 1.3, Repetitions: bench.Repetitions, Seconds: []timing.Second{{Us: 1725.25, MHz: 1980}, {Us: 1825.5, MHz: 1830}},
		}
	}
	decoded := &decodeReport{Model: "m", GPU: "NVIDIA H200 141GB HBM3e", DType: "f16", Repeat: 3, ReadGBPerS: 4312, PeakRSS: 123456789, Rows: []decodeRow{{
		Device: "cuda", Test: "tg128", Batch: 128, Depth: 16384, Context: 16512, Bits: 4, Group: 128, DenseTokensPerSecond: 12345,
		decodeTiming: decodeTiming{TokensPerSecond: 23456, BytesPerToken: 4.21e9, ReadRatio: 0.812, HeadBits: 16, Spread: .2, GPUBytes: 123e9, JoulesPerToken: 0.01123},
		Dense:        &decodeTiming{TokensPerSecond: 12345, GPUBytes: 128e9, JoulesPerToken: 0.0323},
	}}}
	sums := bench.Summary{Bits: 4, Group: 128, M: 1024, Shapes: 12, Least: 0.98, Median: 3.21, Worst: row("cuda"), Below: []bench.Row{row("cuda")}}
	part := func(spec weight.Spec, bytes int64, kl float64, layers ...string) probe.Part {
		return probe.Part{
			Set: quantize.Set{Layers: layers}, Sensitivity: probe.Sensitivity{KL: 10 * kl},
			Choices: []probe.Choice{{Spec: spec, Choice: mix.Choice{Bytes: bytes, Loss: kl}}},
		}
	}
	mixed := &mixture{Allocation: &probe.Allocation{Parts: []probe.Part{
		part(four, 12345678, 0.000123, "model.layers.12.self_attn.q_proj", "model.layers.12.self_attn.k_proj", "model.layers.12.self_attn.v_proj"),
		part(two, 1234567, 0.0123, "model.layers.12.mlp.experts.127.down_proj"),
	}}}
	in := &inspection{Layers: []layerJSON{
		{Name: "model.language_model.embed_tokens.weight", Shape: []int{128256, 4096}, DType: "BF16", BytesOut: 1050673152},
		{Name: "model.language_model.layers.0.mlp.experts.0.down_proj.weight", Shape: []int{4096, 14336}, BytesOut: 31195136, Error: 0.08123, Spec: four},
		{Name: "model.language_model.layers.1.mlp.experts.0.down_proj.weight", Shape: []int{4096, 14336}, BytesOut: 21195136, Error: 0.28123, Spec: two},
		{Name: "model.language_model.layers.0.input_layernorm.weight", Shape: []int{4096}, DType: "BF16", BytesOut: 8192},
	}}
	in.sum()
	swept := &report.Report{
		Models: []report.Model{{Name: models[0], Bytes: 4567890123, BitsPerWeight: 4.25}, {Name: models[1], Bytes: 2567890123, BitsPerWeight: 2.5}},
		Texts:  []report.Text{{Name: "wiki.test.raw", Results: measured.results}},
	}
	norm, stderr := 0.7123, 0.0123
	asked := &tasksReport{
		models: models,
		Results: []taskResult{
			{models[0], "arc_challenge", &tasks.Result{Items: 1172, Shots: 25, Accuracy: 0.5412, AccuracyStderr: stderr, AccuracyNorm: &norm, AccuracyNormStderr: &stderr, TokensPerSecond: 12345}},
			{models[1], "lambada_openai", &tasks.Result{Items: 5153, Accuracy: 0.5412, AccuracyStderr: stderr, Perplexity: &norm, PerplexityStderr: &stderr, TokensPerSecond: 12345}},
		},
		Pairs: []taskPair{{[2]string{models[1], models[0]}, "arc_challenge", tasks.Difference{
			Difference: -0.0123, Interval: *ci, P: 0.012, DifferenceNorm: &norm, IntervalNorm: ci, LnRatio: &norm, LnRatioCI: ci, SameAnswer: 0.9123,
		}}},
		Agree: []agreed{{Models: [2]string{models[1], models[0]}, Prompts: 128, Agreement: tasks.Agreement{Tokens: 256, Share: 0.2123, Interval: [2]float64{0.18, 0.25}}}},
	}
	cells := func(shape tableShape, of func() ([]string, [][]string)) func(u *ui) error {
		return func(u *ui) error {
			header, rows := of()
			return u.printCells("table", shape, header, rows)
		}
	}
	kinds := []struct {
		name  string
		print func(u *ui) error
	}{
		{"inspect", func(u *ui) error { return u.printLayers(in) }},
		{"inspect --summary", func(u *ui) error { return u.printSummary(in) }},
		{"eval-ppl", cells(evalShape(), alone.cells)},
		{"eval-ppl --against", cells(evalShape(), measured.cells)},
		{"eval-ppl, pairs", cells(pairShape(), func() ([]string, [][]string) {
			return []string{"model", "against", "ln ratio", "KL mean", "same top token"},
				[][]string{{models[1], models[0], interval(0.1234, ci), interval(0.0312, ci), "-1.23 %"}}
		})},
		{"eval-tasks", func(u *ui) error { return u.printTasks(asked, "table") }},
		{"sweep", func(u *ui) error { return u.printSweep(swept, "models/sweep") }},
		{"quantize, mixed widths", func(u *ui) error { return u.printSets(mixed) }},
		{"bench, cpu", func(u *ui) error { return u.printRows([]bench.Row{row("cpu")}, "table") }},
		{"bench, cuda", func(u *ui) error { return u.printRows([]bench.Row{row("cuda")}, "table") }},
		{"bench --summary", func(u *ui) error { return u.printSummaries([]bench.Summary{sums}, "table") }},
		{"bench --decode", func(u *ui) error { return u.printDecode(decoded, "table") }},
		{"dse", func(u *ui) error {
			return u.dse(dseOptions{bits: []string{"2"}, products: 512, entry: 8, top: 1, format: "table"})
		}},
		{"lmma", func(u *ui) error {
			return u.lmma("lmma.m2n64k4.f16.i2.f32.f16", lmmaOptions{shape: "8x128x16", format: "table"})
		}},
	}
	var golden bytes.Buffer
	for _, k := range kinds {
		print := func(columns int) string {
			t.Helper()
			var out bytes.Buffer
			if err := k.print(&ui{stdout: &out, stderr: io.Discard, columns: columns}); err != nil {
				t.Fatalf("%s: %v", k.name, err)
			}
			if strings.Contains(out.String(), "\x1b") {
				t.Errorf("%s has colours", k.name)
			}
			return out.String()
		}
		full := print(0)
		if strings.Contains(full, "…") && !strings.Contains(k.name, "bench") || strings.Contains(full, "left out") {
			t.Errorf("%s is not whole where no terminal is:\n%s", k.name, full)
		}
		if wide := print(1000); wide != full {
			t.Errorf("%s is\n%s in a wide terminal, and elsewhere\n%s", k.name, wide, full)
		}
		for _, columns := range []int{40, 60, 80, 120} {
			got := print(columns)
			if w := widest(got); w > columns {
				t.Errorf("%s has %d columns in %d:\n%s", k.name, w, columns, got)
			}
			if columns >= 60 {
				fmt.Fprintf(&golden, "-- %s, %d columns --\n%s", k.name, columns, got)
			}
		}
	}
	path := filepath.Join("testdata", "tables.txt")
	if *update {
		if err := os.WriteFile(path, golden.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := golden.String(); got != string(want) {
		a, b := strings.Split(got, "\n"), strings.Split(string(want), "\n")
		i := 0
		for i < len(a) && i < len(b) && a[i] == b[i] {
			i++
		}
		t.Errorf("tables are other than in %s from line %d on:\n%s\nwant\n%s", path, i+1, strings.Join(a[i:min(i+3, len(a))], "\n"), strings.Join(b[i:min(i+3, len(b))], "\n"))
	}
}

// TestBlocks: a table that is too wide with all left out that may be becomes a block of lines for each row.
func TestBlocks(t *testing.T) {
	header := []string{"model", "what there is to say", "note"}
	rows := [][]string{{"one", "more than fits a line of thirty columns", "kept"}, {"two", "", "a\x1b[31mb"}}
	for columns, want := range map[int]string{
		40: "model                 one\n" +
			"what there is to say  more than fits a\n" +
			"                      line of thirty\n" +
			"                      columns\n" +
			"note                  kept\n\n" +
			"model  two\n" +
			"note   a\\x1b[31mb\n",
		20: "model:\n  one\n" +
			"what there is to\nsay:\n  more than fits a\n  line of thirty\n  columns\n" +
			"note:\n  kept\n\n" +
			"model:\n  two\n" +
			"note:\n  a\\x1b[31mb\n",
	} {
		var out bytes.Buffer
		u := &ui{stdout: &out, columns: columns}
		if err := u.printCells("table", tableShape{names: []string{"model"}, drop: []string{"note"}}, header, rows); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != want {
			t.Errorf("%d columns:\n%s\nwant\n%s", columns, got, want)
		}
	}
}

// TestColumns: COLUMNS says how wide a terminal is, and nothing of what is none.
func TestColumns(t *testing.T) {
	t.Setenv("COLUMNS", "33")
	var out bytes.Buffer
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, w := range []io.Writer{&out, file} {
		if got := terminalColumns(w); got != 0 {
			t.Errorf("%T has %d columns", w, got)
		}
	}
}
