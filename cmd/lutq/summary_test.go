package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// TestKinds: blocks and experts are one kind, vectors of all names too, and what is beyond the most kinds is summed up.
func TestKinds(t *testing.T) {
	four := weight.Spec{Kind: lut.Name, Bits: 4, Group: 64, Codebook: "nf"}
	three := four
	three.Bits = 3
	in := &inspection{Layers: []layerJSON{
		{Name: "model.embed_tokens.weight", Shape: []int{100, 8}, DType: "BF16", BytesOut: 1600},
		{Name: "model.layers.0.input_layernorm.weight", Shape: []int{8}, DType: "F32", BytesOut: 32},
		{Name: "model.layers.0.self_attn.q_proj.bias", Shape: []int{8}, DType: "BF16", BytesOut: 16},
	}}
	for block := range 2 {
		for expert := range 3 {
			l := layerJSON{Name: fmt.Sprintf("model.layers.%d.mlp.experts.%d.up_proj.weight", block, expert), Shape: []int{64, 64}, BytesOut: 2000, Error: 0.1, Spec: four}
			if block == 1 {
				l.Spec, l.BytesOut, l.Error = three, 1500, 0.2
			}
			in.Layers = append(in.Layers, l)
		}
		in.Layers = append(in.Layers, layerJSON{Name: fmt.Sprintf("model.layers.%d.self_attn.q_proj.weight", block), Shape: []int{8, 8}, BytesOut: 50, Error: 0.1, Spec: four})
	}
	in.sum()

	all, sum := in.kinds(0)
	if got, want := kindNames(all), "model.layers.*.mlp.experts.*.up_proj model.embed_tokens model.layers.*.self_attn.q_proj vectors"; got != want {
		t.Fatalf("kinds %s, want %s", got, want)
	}
	experts := all[0]
	if experts.Tensors != 6 || experts.Bytes != 10500 || experts.Parameters != 6*64*64 || math.Abs(experts.Error-0.15) > 1e-12 || len(experts.StoredAs) != 2 || !strings.HasPrefix(experts.StoredAs[0], "4") {
		t.Errorf("experts are summed up as %+v", experts)
	}
	if got, want := experts.BitsPerWeight, 8*10500/float64(6*64*64); got != want {
		t.Errorf("experts have %v bits, want %v", got, want)
	}
	if sum.Bytes != in.Bytes || sum.Tensors != in.Tensors || sum.Parameters != 100*8+8+8+6*64*64+2*64 {
		t.Errorf("all are summed up as %+v, the inspection has %+v", sum, in)
	}

	few, again := in.kinds(2)
	if got, want := kindNames(few), "model.layers.*.mlp.experts.*.up_proj others"; got != want {
		t.Errorf("kinds %s, want %s", got, want)
	}
	if again.Bytes != sum.Bytes || few[0].Bytes+few[1].Bytes != sum.Bytes || few[1].Tensors != 5 {
		t.Errorf("two kinds are summed up as %+v and %+v", few[0], few[1])
	}

	var out bytes.Buffer
	if err := (&ui{stdout: &out}).printSummary(in); err != nil {
		t.Fatal(err)
	}
	want := `kind                  tensors  weights  stored as        bytes    share    bits    error
mlp.experts.*.up_proj  6        24.6 k   4:64:nf +1  10.5 kB  85.7 %   3.418   15.000 %
`
	if got := strings.Join(strings.Fields(out.String()), " "); !strings.HasPrefix(got, strings.Join(strings.Fields(want), " ")) || strings.Count(out.String(), "\n") > 11 {
		t.Errorf("printed\n%s, want\n%s", out.String(), want)
	}
}

func kindNames(all []*kindJSON) string {
	var names []string
	for _, k := range all {
		names = append(names, k.Kind)
	}
	return strings.Join(names, " ")
}

// TestEvalCSV: the CSV of an evaluation has a row for the original, each model and each pair, all of the width of the header.
func TestEvalCSV(t *testing.T) {
	const text = "../../calib/testdata/harbour.txt"
	for _, tc := range []struct {
		name string
		args []string
		rows []string // of the first columns
	}{
		{"alone", []string{tiny}, []string{"model," + tiny + ","}},
		{"two", []string{tiny, tiny}, []string{"model," + tiny + ",", "model," + tiny + ",", "pair," + tiny + "," + tiny}},
		{
			"against",
			[]string{tiny, tiny, "--against", tiny},
			[]string{"original," + tiny + ",", "model," + tiny + "," + tiny, "model," + tiny + "," + tiny, "pair," + tiny + "," + tiny},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := exec(append([]string{"eval-ppl", "--text", text, "--ctx", "64", "--windows", "2", "--device", "cpu", "--quiet", "--format", "csv"}, tc.args...)...)
			if code != 0 {
				t.Fatal(stderr)
			}
			rows, err := csv.NewReader(strings.NewReader(stdout)).ReadAll() // which wants rows of one width
			if err != nil {
				t.Fatal(err)
			}
			if len(rows)-1 != len(tc.rows) {
				t.Fatalf("%d rows, want %d:\n%s", len(rows)-1, len(tc.rows), stdout)
			}
			column := func(row int, name string) string {
				for i, h := range rows[0] {
					if h == name {
						return rows[row][i]
					}
				}
				t.Fatalf("no column %s", name)
				return ""
			}
			for i, want := range tc.rows {
				if got := strings.Join(rows[i+1][:3], ","); got != want {
					t.Errorf("row %d is of %s, want %s", i+1, got, want)
				}
				if column(i+1, "tokens_scored") != "126" || column(i+1, "dtype") != "f32" {
					t.Errorf("row %d says of the text %v", i+1, rows[i+1])
				}
				switch column(i+1, "row") {
				case "pair":
					if column(i+1, "ln_ratio") != "0" {
						t.Errorf("a model is %s from itself", column(i+1, "ln_ratio"))
					}
				case "model":
					if ppl := column(i+1, "ppl"); ppl != column(1, "ppl") || column(i+1, "tokens_per_second") == "" {
						t.Errorf("row %d has perplexity %s, the first %s", i+1, ppl, column(1, "ppl"))
					}
				}
				if kl := column(i+1, "kl_mean"); (kl != "") != (tc.name == "against" && i > 0) {
					t.Errorf("row %d has a divergence of %q", i+1, kl)
				}
			}
		})
	}
}
