package quantize

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/racetest"
)

// TestMerge: parts in any order, some made twice and some at once, of two numbers of them, are installed as one process
// would have made them, file by file.
func TestMerge(t *testing.T) {
	dirs := textModels(t)
	dirs["tiny"] = tiny
	const text = `"method": "gptq"`
	for _, tc := range []struct{ name, model, recipe string }{
		{"tables chosen", "tiny", `{"bits": 3}`},
		{"experts chosen", "mixtral-fused", `{"bits": 3, "group": 32}`},
		{"experts as columns", "gpt-oss", `{"bits": 4, "group": 32, "scale_type": "e4m4"}`},
		{"experts apart", "qwen3-moe", `{"bits": 2, "group": 32, "codebook": "nf", "scale": "absmax"}`},
		{"sums of binary codes", "mixtral-fused", `{"bits": 3, "group": 32, "method": "bcq"}`},
		{"k bits", "tiny", `{"bits": 4, "method": "bnb-kbit", "codebook": "kbit"}`},
		{"two of four", "tiny", `{"bits": 4, "method": "magnitude"}`},
		{"rings", "mixtral-fused", `{"bits": 2, "group": 32, "codebook": "nf", "tensors": [{"match": "layers\\.1\\..*down", "codebook": "trellis"}]}`},
		{"an embedding", "llama", `{"bits": 4, "group": 32, "tensors": [{"match": "embed_tokens", "bits": 5}, {"match": "layers.0.*down", "keep": true}]}`},
		{"fitted", "llama", `{"bits": 3, "group": 32, ` + text + `, "tensors": [{"match": "layers\\.1\\..*o_proj", "method": "rtn"}]}`},
		{"fitted experts", "mixtral-fused", `{"bits": 3, "group": 32, ` + text + `}`},
		{"fitted rings", "llama", `{"bits": 2, "group": 32, "codebook": "nf", ` + text + `, "tensors": [{"match": "layers\\.1\\..*o_proj", "codebook": "trellis"}]}`},
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

// FuzzLot reads records of parts, and writes and reads again what is one.
func FuzzLot(f *testing.F) {
	f.Add([]byte(`{"lutq":"part 1","plan":"p","part":"1/2","pieces":[{"tensor":"a.weight","sums":["` + strings.Repeat("0", 64) + `"],"from":0,"to":8,"matrices":[{"energy":2.5,"squared":1e-3,"narrow_rows":2}]}]}`))
	f.Add([]byte(`{"lutq":"part 1","pieces":[{"matrices":[`))
	f.Add([]byte(`{"lutq":"part 2"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		u, err := parseLot(data)
		if err != nil {
			return
		}
		text, err := u.bytes()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseLot(text)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(u, again, cmp.AllowUnexported(pieceRecord{}, record{}), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("read -, written and read again +:\n%s", d)
		}
	})
}

// TestParsePart: parts are counted from 1, and the last is 0 as well.
func TestParsePart(t *testing.T) {
	for text, want := range map[string]Part{
		"3/8": {3, 8}, "0/8": {8, 8}, "8/8": {8, 8}, "1/1": {1, 1}, "65536/65536": {65536, 65536},
		"9/8": {}, "-1/8": {}, "1/0": {}, "1": {}, "1/2/3": {}, "a/b": {}, "1/65537": {}, "": {},
	} {
		got, err := ParsePart(text)
		if got != want || (err == nil) != (want.N > 0) {
			t.Errorf("%q: %v, error %v: want %v", text, got, err, want)
		}
	}
}

// TestLots: every matrix is in one lot, every lot in one part of any number of them, and parts have about as many bytes each.
func TestLots(t *testing.T) {
	for name, tc := range map[string]struct {
		recipe string
		lots   int // at least, of layers and of experts in a stack
	}{
		"llama":         {`{}`, 14},
		"mixtral-fused": {`{}`, 2 * (4 + 2*4)},
		"gpt-oss":       {`{"group": 32}`, 2 * (4 + 2*4)},
		"qwen3-moe":     {`{"group": 32}`, 2 * (4 + 3*4)},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(t, goldenModel(t, name), tc.recipe)
			lots := p.lots()
			if len(lots) < tc.lots {
				t.Errorf("%d lots, want %d or more", len(lots), tc.lots)
			}
			rows := make(map[int]int)
			var all, most int64
			for _, l := range lots {
				all, most = all+l.bytes, max(most, l.bytes)
				for _, at := range l.pieces {
					if at.from != rows[at.item] {
						t.Errorf("a piece of item %d begins with row %d, and the last ended with %d", at.item, at.from, rows[at.item])
					}
					rows[at.item] = at.to
				}
			}
			for i := range p.Items {
				if it := &p.Items[i]; it.Quantized() && rows[i] != it.N {
					t.Errorf("%s: %d of %d rows", it.Layer, rows[i], it.N)
				}
			}
			for _, n := range []int{1, 2, 3, 7, 100} {
				next := 0
				for i := 1; i <= n; i++ {
					var bytes int64
					for _, l := range (Part{i, n}).of(lots) {
						if l != next {
							t.Fatalf("part %d/%d has lot %d, want %d", i, n, l, next)
						}
						next, bytes = next+1, bytes+lots[l].bytes
					}
					if bytes > all/int64(n)+most {
						t.Errorf("part %d/%d has %d of %d bytes", i, n, bytes, all)
					}
				}
				if next != len(lots) {
					t.Errorf("%d parts have %d of %d lots", n, next, len(lots))
				}
			}
		})
	}
}

// TestPartResume stops a part again and again, and then what merges: at last the bytes are those of one process, and nothing is left.
func TestPartResume(t *testing.T) {
	const recipe = `{"bits": 4, "group": 32, "tensors": [{"match": "layers\\.1\\.", "bits": 5}]}`
	want, out := filepath.Join(t.TempDir(), "want"), filepath.Join(t.TempDir(), "out")
	if _, err := plan(t, tiny, recipe).Run(t.Context(), want, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	stop := func(after int32, run func(ctx context.Context, o RunOptions) error) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var pieces atomic.Int32
		return run(ctx, RunOptions{Threads: 2, Progress: func(int64, string) {
			if pieces.Add(1) == after {
				cancel()
			}
		}})
	}
	stopped, found := 0, 0
	for after := int32(1); ; after += 8 {
		err := stop(after, func(ctx context.Context, o RunOptions) error {
			res, err := plan(t, tiny, recipe).RunPart(ctx, out, Part{1, 1}, o)
			if err == nil {
				found = res.Found
			}
			return err
		})
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		stopped++
		// What a process leaves that has no time to remove it, and one whose copy of a file was cut short.
		scratch := filepath.Join(out+".parts", fmt.Sprintf(".%04d.killed", stopped+10))
		if err := errors.Join(os.Mkdir(scratch, 0o755), os.WriteFile(filepath.Join(scratch, "0011.bin"), []byte("half"), 0o644)); err != nil {
			t.Fatal(err)
		}
		if stopped == 2 {
			if err := os.Truncate(filepath.Join(out+".parts", "0000.json"), 40); err != nil {
				t.Fatal(err)
			}
		}
	}
	if stopped < 3 || found == 0 {
		t.Errorf("stopped %d times, and found %d files in the end", stopped, found)
	}
	if left, err := filepath.Glob(out + ".parts/.[0-9]*"); err != nil || len(left) > 0 {
		t.Errorf("left in the making: %v, error %v", left, err)
	}
	merge := func(ctx context.Context, o RunOptions) error {
		_, err := plan(t, tiny, recipe).Merge(ctx, out, o)
		return err
	}
	if err := stop(9, merge); !errors.Is(err, context.Canceled) {
		t.Errorf("merging was stopped: got error %v", err)
	}
	// What merges is killed when the output is in its place and the parts are still there.
	p := plan(t, tiny, recipe)
	digest, err := p.digest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	folder, err := outdir.FindParts(out, outdir.Options{Plan: digest})
	if err != nil {
		t.Fatal(err)
	}
	g, err := p.find(t.Context(), folder, digest, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.build(t.Context(), out, RunOptions{Leave: true}, g); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(out+".parts", "0002.bin")); err != nil {
		t.Fatal(err)
	}
	if err := merge(t.Context(), RunOptions{}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(files(t, want), files(t, out)); d != "" {
		t.Errorf("files of one process -, of parts +:\n%.2000s", d)
	}
	if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) != 1 {
		t.Errorf("beside the output there is %v, error %v", left, err)
	}
}

// TestPartRefused: what cannot be made in parts is refused before anything is written, and what is bad in a part names the tensor.
func TestPartRefused(t *testing.T) {
	llama := goldenModel(t, "llama")
	for _, tc := range []struct {
		name string
		plan *Plan
		want string
	}{
		{"a stream", textPlan(t, llama, textRecipe, newText(t, llama), nil), "layers are fitted to what those before them make of a text"},
		{"learned scales", textPlan(t, llama, `{"group": 32}`, nil, &halver{}), "scales are learned of a whole model"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			_, err := tc.plan.RunPart(t.Context(), out, Part{1, 2}, RunOptions{})
			_, merged := tc.plan.Merge(t.Context(), out, RunOptions{})
			for _, err := range []error{err, merged} {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got error %v, want one that says %q", err, tc.want)
				}
			}
			if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, error %v", left, err)
			}
		})
	}
	nan := scaledModel(t, "model.layers.1.mlp.up_proj.weight", math.NaN())
	out := filepath.Join(t.TempDir(), "out")
	_, err := plan(t, nan, `{}`).RunPart(t.Context(), out, Part{1, 1}, RunOptions{})
	if err == nil || !strings.Contains(err.Error(), "model.safetensors: model.layers.1.mlp.up_proj.weight: ") {
		t.Errorf("got error %v, want one that names the tensor", err)
	}
	// Another model of the same shapes and sizes is another plan.
	other := scaledModel(t, "model.layers.1.mlp.up_proj.weight", 2)
	if _, err := plan(t, other, `{}`).RunPart(t.Context(), out, Part{1, 1}, RunOptions{}); !errors.Is(err, outdir.ErrOtherRun) {
		t.Errorf("another model's part: got error %v", err)
	}
}

// TestPartsGone: a part that is at work when others were merged says so, in one line, and leaves nothing.
func TestPartsGone(t *testing.T) {
	for _, after := range []int32{1, 20} { // in the first file, and later
		out := filepath.Join(t.TempDir(), "out")
		var pieces atomic.Int32
		_, err := plan(t, tiny, `{}`).RunPart(t.Context(), out, Part{1, 1}, RunOptions{Threads: 1, Progress: func(int64, string) {
			if pieces.Add(1) == after {
				if err := os.RemoveAll(out + ".parts"); err != nil {
					t.Error(err)
				}
			}
		}})
		if err == nil || !strings.Contains(err.Error(), "out.parts is gone: the parts were merged, or the folder was deleted") {
			t.Errorf("got error %v", err)
		}
		if left, err := os.ReadDir(filepath.Dir(out)); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, error %v", left, err)
		}
	}
}
