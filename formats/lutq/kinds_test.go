package lutq_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
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
				if kind.Name() == trellis.Name && bits > 6 {
					s.Codebook = trellis.Mul1
				}
				parts, err := kind.Parts(s, 3, 72)
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
					if parts[i].Rows && parts[i].Shape[0] != parts[i].Entries(3) {
						t.Errorf("%+v: %s of 3 rows has the shape %v", s, e.Name, e.Shape)
					}
				}
				if !own {
					t.Errorf("%+v: no part %s", s, kind.Suffix())
				}
				if kind.Name() != "bcq" {
					continue // whose table may not be zeros
				}
				m, err := kind.Open(s, 3, 72, data)
				if err != nil {
					t.Fatal(err)
				}
				if n, k := m.Shape(); n != 3 || k != 72 || m.Kind() != kind.Name() || len(m.Parts()) != len(parts) {
					t.Errorf("%+v: a matrix %d×%d of kind %s", s, n, k, m.Kind())
				}
			}
		}
	}
}

// FuzzKinds opens what kinds store, filled with anything: what opens has rows of numbers.
func FuzzKinds(f *testing.F) {
	f.Add(uint8(1), uint8(3), int16(64), uint8(weight.F16), uint8(3), uint8(70), []byte{1, 2, 3}, true)
	f.Add(uint8(0), uint8(4), int16(-1), uint8(weight.E4M4), uint8(2), uint8(33), []byte{0}, false)
	f.Add(uint8(0), uint8(2), int16(32), uint8(weight.F32), uint8(1), uint8(1), []byte{0, 0, 0x80, 0x3f}, false)
	f.Add(uint8(1), uint8(8), int16(7), uint8(weight.BF16), uint8(1), uint8(9), []byte{0x80, 0x7f}, false)
	f.Add(uint8(2), uint8(4), int16(32), uint8(weight.F16), uint8(2), uint8(71), []byte{0x44}, true)
	f.Add(uint8(3), uint8(2|0x80), int16(-1), uint8(weight.F16), uint8(9), uint8(140), []byte{7, 0x2A, 0x91}, true)
	f.Add(uint8(3|4<<2), uint8(2|0x80), int16(-1), uint8(weight.F32), uint8(1), uint8(9), []byte{0xFF, 0x7B}, false)
	f.Fuzz(func(t *testing.T, which, bits uint8, group int16, st, n, k uint8, fill []byte, all bool) {
		kinds := lutq.Kinds()
		kind := kinds[int(which)%len(kinds)]
		s := weight.Spec{Kind: kind.Name(), Bits: int(bits & 0x7F), Half: bits > 0x7F, Group: int(group), ScaleType: weight.ScaleType(st)}
		if books := trellis.Codebooks(); kind.Name() == trellis.Name && int(which)/len(kinds) > 0 {
			s.Codebook = books[int(which)/len(kinds)%len(books)]
		}
		rows, cols := int(n)+1, int(k)+1
		parts, err := kind.Parts(s, rows, cols)
		if err != nil {
			return
		}
		var data [][]byte
		for i, e := range lutq.Entries("p", parts) {
			size, err := e.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			if parts[i].Optional && !all {
				break
			}
			part := make([]byte, size)
			for j := range part {
				if len(fill) > 0 {
					part[j] = fill[j%len(fill)]
				}
			}
			data = append(data, part)
		}
		m, err := kind.Open(s, rows, cols, data)
		if err != nil {
			return
		}
		row := make([]float32, cols)
		for i := range rows {
			m.Row(row, i)
			for j, v := range row {
				if v-v != 0 {
					t.Fatalf("weight [%d, %d] is %v", i, j, v)
				}
			}
			if m.Farther(i, row) >= 0 {
				t.Fatalf("row %d is not the nearest to itself", i)
			}
		}
		_ = m.CheckPadding() // does not fail otherwise
		several := make([]float32, rows*cols)
		if weight.RowsTo(several, m, 0, rows); !slices.Equal(several[(rows-1)*cols:], row) {
			t.Fatal("the last row is another one among all")
		}
		if one := m.Rows(rows-1, 1, 1); one.Validate() != nil || len(one.Parts()) < len(data) {
			t.Fatal("a row that is no matrix")
		}
	})
}

// TestVersion2 writes, opens, verifies and damages layers of two kinds.
func TestVersion2(t *testing.T) {
	racetest.Skip(t)
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
		for name, want := range map[string]string{layer: "3:64:::f16:bcq:bcq", table: "3:64:js:mse:f16:lut:rtn"} {
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

func readLayer(t *testing.T, dir string) (weight.Matrix, error) {
	t.Helper()
	m, err := lutq.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	return m.Linear(layer)
}
