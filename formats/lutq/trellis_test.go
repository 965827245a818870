package lutq_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/lutq/lutqtest"
	"github.com/lutq/lutq/formats/source/sourcetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/formats/weight/trellis/trellistest"
)

// rings writes the tiny model as random rings: of every codebook and rate, with and without factors and tables, and the embeddings
// too. The first of its layers are those that tests look at.
func rings(t testing.TB) string {
	t.Helper()
	type code struct {
		codebook string
		rate     int
	}
	var codes []code
	for _, codebook := range trellis.Codebooks() {
		for _, rate := range trellistest.Rates(codebook) {
			codes = append(codes, code{codebook, rate})
		}
	}
	types := trellis.Kind{}.ScaleTypes()
	i := 0
	return lutqtest.Trellis(t, tiny, func(layer string) lutqtest.Layer {
		switch {
		case layer == "model.embed_tokens":
			return lutqtest.Layer{Spec: trellistest.Spec(trellis.Pairs, 6, weight.F16)}
		case !strings.HasSuffix(layer, "_proj"):
			return lutqtest.Layer{}
		}
		c := codes[i%len(codes)]
		l := lutqtest.Layer{Spec: trellistest.Spec(c.codebook, c.rate, types[i%len(types)]), Factors: i%2 == 0, Table: i%4 < 2}
		i++
		return l
	})
}

// odd writes matrices of shapes that nothing divides as random rings of every codebook.
func odd(t testing.TB) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 7))
	var tensors []sourcetest.Tensor
	for i, shape := range [][]int{{1, 1}, {7, 3}, {9, 130}, {40, 176}, {131, 200}, {130, 255}} {
		for _, codebook := range trellis.Codebooks() {
			for _, stored := range []string{"plain", "stored"} {
				w := make([]float32, shape[0]*shape[1])
				for j := range w {
					w[j] = float32(rng.NormFloat64())
				}
				tensors = append(tensors, sourcetest.Of(fmt.Sprintf("model.%s.%s.%d.weight", codebook, stored, i), hf.F32, shape, w...))
			}
		}
	}
	return lutqtest.Trellis(t, sourcetest.Folder(t, "{}", tensors...), func(layer string) lutqtest.Layer {
		f := strings.Split(layer, ".")
		stored := f[2] == "stored"
		return lutqtest.Layer{Spec: trellistest.Spec(f[1], 6, weight.F16), Factors: stored, Table: stored}
	})
}

// copied copies a folder, for a test to damage.
func copied(t testing.TB, dir string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(out, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestVersion3 writes, opens, verifies and damages layers that are rings.
func TestVersion3(t *testing.T) {
	dir := rings(t)
	m, err := lutq.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Config().Version != lutq.Version3 || len(m.Linears()) != 29 {
		t.Errorf("version %d with %d layers", m.Config().Version, len(m.Linears()))
	}
	own, half := 0, 0
	for _, name := range m.Linears() {
		mat, err := m.Linear(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := trellis.Of(mat)
		if err != nil {
			t.Fatal(err)
		}
		s := m.Spec(name)
		s.Method = "" // of which matrices know nothing
		if got.Spec() != s {
			t.Errorf("%s is stored as %+v, read as %+v", name, s, got.Spec())
		}
		for i, part := range m.Parts(name) {
			if (part != nil) != (i < len(mat.Parts()) && mat.Parts()[i] != nil) {
				t.Errorf("%s: part %d is stored: %v", name, i, part != nil)
			}
		}
		if got.Own {
			own++
		}
		if s.Half {
			half++
		}
	}
	if own == 0 || half == 0 {
		t.Errorf("%d layers have tables, %d half a bit", own, half)
	}
	r, err := m.Verify(t.Context(), lutq.VerifyOptions{Original: open(t, tiny), Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Problems) > 0 || r.Layers != 29 || r.SHA256 != m.Config().SHA256 {
		t.Errorf("%+v", r)
	}
	for _, tc := range []struct {
		name, tensor string
		off          int64
		data         []byte
		want         string // with the original
	}{
		{"bits of a ring", "model.embed_tokens.rings", 1000, make([]byte, 20000), "has a relative error of"},
		{"an infinite scale", "model.embed_tokens.scales", 3, []byte{0x7C}, "the scale of row 1 is"},
		{"a scale", "model.embed_tokens.scales", 4, []byte{0xFF, 0x7B}, "has a relative error of"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := copied(t, dir)
			patch(t, dir, tc.tensor, tc.off, tc.data)
			if err := load(dir, lutq.Open); err == nil || !strings.Contains(err.Error(), tc.tensor+" differs from what was written") {
				t.Errorf("reading it gives the error %v", err)
			}
			m, err := openUnchecked(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			r, err := m.Verify(t.Context(), lutq.VerifyOptions{Original: open(t, tiny)})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.Problems, "\n"); !strings.Contains(got, tc.want) {
				t.Errorf("got problems %q, want %q", got, tc.want)
			}
		})
	}
}

// TestTables: a container has the tables that its layers may need, no others, and none that this program does not have.
func TestTables(t *testing.T) {
	dir := rings(t)
	m, err := lutq.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var widths []string
	for width, table := range m.Config().Tables {
		widths = append(widths, width)
		if len(table) != 4*trellis.Entries {
			t.Errorf("the table for %s bits has %d bytes", width, len(table))
		}
	}
	slices.Sort(widths)
	// Of mul1 there is 7, and the other rates.
	if got, want := fmt.Sprint(widths), "[1 1.5 2 2.5 3 3.5 4 4.5 5 5.5 6]"; got != want {
		t.Errorf("tables for %s bits: want %s", got, want)
	}
	for _, tc := range []struct {
		name string
		edit func(q map[string]any)
		want string
	}{
		{"none", func(q map[string]any) { delete(q, "tables") }, "tables has none for 1 bits"},
		{"one less", func(q map[string]any) { delete(q["tables"].(map[string]any), "2.5") }, "tables has none for 2.5 bits"},
		{"another", func(q map[string]any) { q["tables"].(map[string]any)["3"] = "AAAA" }, "the table for 3 bits is not the one that this lutq has"},
		{"no base64", func(q map[string]any) { q["tables"].(map[string]any)["3"] = "A" }, "illegal base64"},
		{"one more", func(q map[string]any) { q["tables"].(map[string]any)["7"] = "AAAA" }, ""},
		{"another kind's codebook", func(q map[string]any) { q["codebook"] = "nf" }, `unknown trellis codebook "nf"`},
		{"a width that there is not", func(q map[string]any) { q["bits"] = 7 }, "7 bits a weight: codebook trellis has 1 to 6"},
		{"version 2", func(q map[string]any) { q["version"] = 2 }, "version 2 knows no layers of kind trellis"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := copied(t, dir)
			editConfig(t, dir, tc.edit)
			m, err := lutq.Open(dir)
			if err == nil {
				m.Close()
			}
			if got := fmt.Sprint(err); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(got, tc.want) {
				t.Errorf("got error %q: want %q", got, tc.want)
			}
		})
	}
	if m, err = lutq.Open(container(t, `{}`)); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Config().Tables != nil || m.Config().Version != lutq.Version1 {
		t.Errorf("of other kinds: version %d, %d tables", m.Config().Version, len(m.Config().Tables))
	}
}
