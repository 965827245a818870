package lutq_test

import (
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/quantize/weight"
)

// TestKinds: the kinds that are listed have names, suffixes and parts of their own.
func TestKinds(t *testing.T) {
	names, suffixes := make(map[string]bool), make(map[string]bool)
	for _, kind := range lutq.Kinds() {
		if names[kind.Name()] || suffixes[kind.Suffix()] || kind.Name() == "" {
			t.Errorf("%q with the suffix %s is not the only one", kind.Name(), kind.Suffix())
		}
		names[kind.Name()], suffixes[kind.Suffix()] = true, true
		if got, err := lutq.KindOf(kind.Name()); err != nil || got != kind {
			t.Errorf("%s is found as %v, %v", kind.Name(), got, err)
		}
		least, most := kind.Widths()
		for bits := least; bits <= most; bits++ {
			for _, st := range kind.ScaleTypes() {
				s := weight.Spec{Kind: kind.Name(), Bits: bits, Group: 64, ScaleType: st}
				parts, err := kind.Parts(s, 3, 70)
				if err != nil {
					t.Fatal(err)
				}
				var own, optional bool
				var data [][]byte
				for i, e := range lutq.Entries("p", parts) {
					size, err := e.Bytes()
					if err != nil {
						t.Fatal(err)
					}
					data = append(data, make([]byte, size))
					own = own || parts[i].Suffix == kind.Suffix() && !parts[i].Optional
					if optional && !parts[i].Optional {
						t.Errorf("%+v: %s comes after an optional part", s, e.Name)
					}
					optional = parts[i].Optional
					if parts[i].Rows && parts[i].Shape[0] != 3 {
						t.Errorf("%+v: %s of 3 rows has the shape %v", s, e.Name, e.Shape)
					}
				}
				if !own {
					t.Errorf("%+v: no part %s", s, kind.Suffix())
				}
				if kind.Name() == "lut" {
					continue // whose table may not be zeros
				}
				m, err := kind.Open(s, 3, 70, data)
				if err != nil {
					t.Fatal(err)
				}
				if n, k := m.Shape(); n != 3 || k != 70 || m.Kind() != kind.Name() || len(m.Parts()) != len(parts) {
					t.Errorf("%+v: a matrix %d×%d of kind %s", s, n, k, m.Kind())
				}
			}
		}
	}
}

// TestVersion2 writes, opens, verifies and damages layers of two kinds.
func TestVersion2(t *testing.T) {
	const table = "model.layers.1.mlp.down_proj"
	for _, offset := range []bool{true, false} {
		dir := binary(t, offset)
		m, err := lutq.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if m.Config().Version != lutq.Version2 {
			t.Errorf("version %d", m.Config().Version)
		}
		if _, ok := m.Checkpoint().Tensor(layer + ".offsets"); ok != offset {
			t.Errorf("offsets are there: %v, want %v", ok, offset)
		}
		for name, want := range map[string]string{layer: "3:64:::f16:bcq", table: "3:64:nf:mse:f16:lut"} {
			mat, err := m.Linear(name)
			if err != nil {
				t.Fatal(err)
			}
			if s := m.Spec(name); s.Fields() != want || s.Kind != mat.Kind() {
				t.Errorf("%s is stored as %s, read as %s: want %s", name, s.Fields(), mat.Kind(), want)
			}
		}
		r, err := m.Verify(t.Context(), lutq.VerifyOptions{Original: open(t, tiny), Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Problems) > 0 || r.Layers != 28 || r.SHA256 != m.Config().SHA256 {
			t.Errorf("offsets %v: %+v", offset, r)
		}
	}
	for _, tc := range []struct {
		name, tensor string
		off          int64
		data         []byte
		want         string // with the original
	}{
		{"a plane", layer + ".planes", 17, []byte{0xff}, "is not the nearest"},
		{"a factor", layer + ".alphas", 1, []byte{0x3f}, "is not the nearest"},
		{"an infinite factor", layer + ".alphas", 0, []byte{0, 0x7c}, "factors of row 0, group 0, reach +Inf"},
		{"an offset that is no number", layer + ".offsets", 2, []byte{1, 0x7e}, "factors of row 0, group 1, reach NaN"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := binary(t, true)
			patch(t, dir, tc.tensor, tc.off, tc.data)
			if _, err := readLayer(t, dir); err == nil || !strings.Contains(err.Error(), tc.tensor+" differs from what was written") {
				t.Errorf("reading it gives the error %v", err)
			}
			m, err := lutq.OpenUnchecked(dir)
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

func readLayer(t *testing.T, dir string) (weight.Matrix, error) {
	t.Helper()
	m, err := lutq.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	return m.Linear(layer)
}
