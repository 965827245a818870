package quantize

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/racetest"
)

// TestMerge: parts in any order, some made twice and some at once, of two numbers of them, are installed as one process
// would have made them, file by file.
func TestMerge(t *testing.T) {
	dirs := textModels(t)
	dirs["tiny"] = tiny
	dirs["granite-hybrid-fused"] = goldenModel(t, "granite-hybrid-fused")
	const text = `"method": "gptq"`
	for _, tc := range []struct{ name, model, recipe string }{
		{"tables chosen", "tiny", `{"bits": 3}`},
		{"experts chosen", "mixtral-fused", `{"bits": 3, "group": 32}`},
		{"experts as columns", "gpt-oss", `{"bits": 4, "group": 32, "scale_type": "e4m4"}`},
		{"experts apart", "qwen3-moe", `{"bits": 2, "group": 32, "codebook": "nf", "scale": "absmax"}`},
		{"sums of binary codes", "mixtral-fused", `{"bits": 3, "group": 32, "method": "bcq"}`},
		{"k bits", "tiny", `{"bits": 4, "method": "bnb-kbit", "codebook": "kbit"}`},
		{"two of four", "tiny", `{"bits": 4, "method": "magnitude"}`},
		{"rings", "granite-hybrid-fused", `{"bits": 2, "codebook": "trellis"}`},
		{"an embedding", "llama", `{"bits": 4, "group": 32, "tensors": [{"match": "embed_tokens", "bits": 5}, {"match": "layers.0.*down", "keep": true}]}`},
		{"fitted", "llama", `{"bits": 3, "group": 32, ` + text + `, "tensors": [{"match": "layers\\.1\\..*o_proj", "method": "rtn"}]}`},
		{"fitted experts", "mixtral-fused", `{"bits": 3, "group": 32, ` + text + `}`},
		{"fitted rings", "qwen3-moe", `{"bits": 2, "codebook": "trellis", ` + text + `}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.model != "llama" {
				racetest.Skip(t)
			}
			dir := dirs[tc.model]
			again := func() *Plan {
				if !strings.Contains(tc.recipe, text) {
					return plan(t, dir, tc.recipe)
				}
				x := newText(t, dir)
				x.apart = true
				return textPlan(t, dir, tc.recipe, x, nil)
			}
			want, out := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out")
			single, err := again().Run(t.Context(), want, RunOptions{MaxShardSize: 1 << 18})
			if err != nil {
				t.Fatal(err)
			}
			part := func(i, n int) {
				t.Helper()
				res, err := again().RunPart(t.Context(), out, Part{i, n}, RunOptions{Threads: i})
				if err != nil {
					t.Fatal(err)
				}
				if res.Found > res.Files || res.All < 2 {
					t.Errorf("part %d of %d: %+v", i, n, res)
				}
			}
			part(2, 3)
			var missing *MissingError
			if _, err := again().Merge(t.Context(), out, RunOptions{}); !errors.As(err, &missing) || !slices.Equal(missing.Parts, []int{1, 3}) || missing.N != 3 {
				t.Errorf("merged with two parts missing: %v", err)
			}
			var group errgroup.Group
			for range 2 {
				group.Go(func() error {
					_, err := again().RunPart(t.Context(), out, Part{2, 2}, RunOptions{Threads: 2})
					return err
				})
			}
			if err := group.Wait(); err != nil {
				t.Fatal(err)
			}
			part(1, 3)
			part(1, 3)
			merged, err := again().Merge(t.Context(), out, RunOptions{MaxShardSize: 1 << 18})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(files(t, want), files(t, out)); d != "" {
				t.Errorf("files of one process -, of parts +:\n%.2000s", d)
			}
			single.sums, merged.sums = nil, nil
			if d := cmp.Diff(single, merged, cmp.AllowUnexported(Result{})); d != "" {
				t.Errorf("result of one process -, of parts +:\n%s", d)
			}
			if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) != 1 {
				t.Errorf("beside the output there is %v, error %v", left, err)
			}
		})
	}
}
