package quantize

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/racetest"
)

// writeDecoded writes the model that a checkpoint in codes stands for.
func writeDecoded(t *testing.T, src *hf.Checkpoint) string {
	t.Helper()
	dir := t.TempDir()
	var entries []hf.Entry
	data := make(map[string][]byte)
	for _, x := range src.Tensors() {
		e := hf.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape}
		raw := make([]byte, x.Bytes())
		if _, err := x.ReadAt(raw, 0); err != nil {
			t.Fatal(err)
		}
		if enc := x.Encoding(); enc != nil && enc.Turned {
			// Which gpt-oss has by columns in 16 bits.
			n, k := x.Shape[1], x.Shape[2]
			e.Shape = []int{x.Shape[0], k, n}
			all := make([]float32, x.Elements())
			for expert := range x.Shape[0] {
				if err := x.ReadTransposed(all[expert*n*k:][:n*k], int64(expert*n*k), n, k); err != nil {
					t.Fatal(err)
				}
			}
			num.EncodeBF16(raw, all)
		}
		entries = append(entries, e)
		data[x.Name] = raw
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for name, raw := range data {
		if err := w.WriteAt(name, raw, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	config, err := src.ConfigJSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestSources: a checkpoint in codes gives the same bytes as the weights that it
// stands for, and progress counts the bytes of its files.
func TestSources(t *testing.T) {
	racetest.Skip(t)
	for _, g := range archtest.Goldens(t) {
		isFP8 := strings.HasSuffix(g.Name, "fp8")
		if !isFP8 && !strings.HasSuffix(g.Name, "mxfp4") {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			src, recipe := t.TempDir(), `{"bits": 3, "group": 32, "scale_type": "e4m3"}`
			g.Write(t, src)
			if isFP8 {
				recipe = `{"bits": 3, "group": 32, "tensors": [{"match": "o_proj", "keep": true}]}`
			}
			var sums []string
			for _, dir := range []string{src, writeDecoded(t, open(t, src))} {
				p, out := plan(t, dir, recipe), filepath.Join(t.TempDir(), "out")
				var last int64
				res, err := p.Run(context.Background(), out, RunOptions{Threads: 2, Progress: func(done int64, _ string) { last = done }})
				if err != nil {
					t.Fatal(err)
				}
				var stored int64
				for _, x := range p.Source.Tensors() {
					stored += x.StoredBytes()
				}
				if last != stored || res.BytesIn != stored {
					t.Errorf("progress ends at %d, and %d bytes were read: want %d", last, res.BytesIn, stored)
				}
				sums = append(sums, res.SHA256)
				decoded := p.Decoded()
				if dir != src {
					if len(decoded) != 0 {
						t.Errorf("of plain weights, %v are decoded", decoded)
					}
					continue
				}
				if len(decoded) != 1 || decoded[0].Tensors == 0 || (decoded[0].Kept > 0) != isFP8 || !slices.Contains([]string{"F32", "BF16"}, decoded[0].KeptAs) {
					t.Errorf("decoded are %+v", decoded)
				}
				for _, x := range open(t, out).Tensors() {
					if x.Name == "model.layers.0.self_attn.o_proj.weight" && isFP8 && x.DType != hf.F32 {
						t.Errorf("%s is kept as %s", x.Name, x.DType)
					}
				}
			}
			if sums[0] != sums[1] {
				t.Errorf("the digest is %s: that of the decoded weights is %s", sums[0], sums[1])
			}
		})
	}
}
