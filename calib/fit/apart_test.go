package fit

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/quantizetest"
)

var long = flag.Bool("long", false, "quantize parts of all families")

// handOn are families whose blocks hand on more than a stream, whose layers go together, or none of that.
var handOn = []string{"deepseek-v32", "gemma4", "gemma4-moe", "llama", "llama4", "lfm2-moe-fused", "mixtral", "nemotron-h"}

// TestApart: parts that share the way, one after the other or at once, on one device or on two with windows that pass through
// experts together, make what one process does, in every family.
func TestApart(t *testing.T) {
	racetest.Skip(t)
	for i, g := range archtest.Goldens(t) {
		if !*long && !slices.Contains(handOn, g.Name) {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			o := tinyOptions()
			if i%3 == 1 {
				o = o.onDevices(2)
			}
			o.Float = true
			o.Warn = func(s string) { t.Errorf("warned: %s", s) }
			o.text = &corpus.Mixture{Context: len(g.Tokens), BOS: corpus.BOSNone}
			for n := range 7 {
				o.text.Windows = append(o.text.Windows, slices.Concat(g.Tokens[n:], g.Tokens[:n]))
			}
			plan := func() *quantize.Plan {
				r := quantizetest.Recipe(t, `{"bits": 3, "group": 32, "codebook": "nf", "method": "gptq"}`)
				m := modeltest.Open(t, dir)
				if _, err := To(t.Context(), m, &r, o); err != nil {
					t.Fatal(err)
				}
				p, err := quantize.NewPlan(m, r)
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			want, err := plan().Run(t.Context(), filepath.Join(t.TempDir(), "out"), quantize.RunOptions{Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "out")
			part := func(i int) error {
				_, err := plan().RunPart(t.Context(), out, quantize.Part{I: i, N: 4}, quantize.RunOptions{Threads: 1})
				return err
			}
			if err := part(3); err != nil {
				t.Fatal(err)
			}
			d, err := modeltest.Open(t, dir).Decoder()
			if err != nil {
				t.Fatal(err)
			}
			if kept := keptFiles(t, out); len(kept) == 0 && len(d.Blocks) > 1 {
				t.Error("nothing is kept for others")
			}
			var group errgroup.Group
			for _, i := range []int{1, 2, 4} {
				group.Go(func() error { return part(i) })
			}
			if err := group.Wait(); err != nil {
				t.Fatal(err)
			}
			if kept := keptFiles(t, out); len(kept) > 0 {
				t.Errorf("when all is made there are still %v", kept)
			}
			got, err := plan().Merge(t.Context(), out, quantize.RunOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got.SHA256 != want.SHA256 {
				t.Errorf("parts make %s: want %s", got.SHA256, want.SHA256)
			}
		})
	}
}

// keptFiles are the files that parts have gone on from, or are in the making.
func keptFiles(t *testing.T, out string) []string {
	t.Helper()
	entries, err := os.ReadDir(out + ".parts")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "states-") || strings.HasPrefix(e.Name(), ".walk-") {
			all = append(all, e.Name())
		}
	}
	return all
}
