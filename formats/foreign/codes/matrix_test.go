package codes

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// field reads a matrix that is in memory.
func field[T any](all []T, columns int) Field[T] {
	return func(dst []T, b Block) error {
		for r := range b.Rows {
			copy(dst[r*b.Cols:(r+1)*b.Cols], all[(b.Row+r)*columns+b.Col:])
		}
		return nil
	}
}

// TestLarge reads what takes several pieces, of many rows or of a part of one, from any place on.
func TestLarge(t *testing.T) {
	for _, tt := range []struct {
		name        string
		n, k, group int
		reordered   bool
	}{
		{"rows", 700, 600, 64, false},
		{"long rows", 2, 400_000, 7, false},
		{"one column", 300_000, 1, 1, false},
		{"reordered", 300, 1000, 100, true},
		{"long rows, reordered", 2, 300_000, 1000, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			m := &Matrix{N: tt.n, K: tt.k, Bits: 4, Group: tt.group, Values: Unsigned(4)}
			groups := m.GroupsInRow()
			c, z := make([]uint8, tt.n*tt.k), make([]uint8, tt.n*groups)
			s, o := make([]float32, len(z)), make([]float32, len(z))
			for i := range c {
				c[i] = uint8(r.IntN(16))
			}
			for i := range z {
				z[i], s[i], o[i] = uint8(r.IntN(16)), r.Float32(), r.Float32()
			}
			m.Codes, m.Zeros, m.Scales, m.Offsets = field(c, tt.k), field(z, groups), field(s, groups), field(o, groups)
			if tt.reordered {
				g := make([]int32, tt.k)
				for i := range g {
					g[i] = int32(r.IntN(groups))
				}
				m.SetGroups(g)
			}
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			want := make([]float32, len(c))
			for i := range want {
				g := i % tt.k / tt.group
				if tt.reordered {
					g = int(m.Groups[i%tt.k])
				}
				g += i / tt.k * groups
				want[i] = float32((float32(c[i])-float32(z[g]))*s[g]) + o[g]
			}
			got := make([]float32, len(want))
			for range 5 {
				from := r.IntN(len(want))
				part := got[:1+r.IntN(len(want)-from)]
				if err := m.ReadFloat32(part, int64(from)); err != nil || !slices.Equal(part, want[from:from+len(part)]) {
					t.Fatalf("weights %d to %d are others, or cannot be read: %v", from, from+len(part), err)
				}
			}
			if err := m.ReadFloat32(got, 0); err != nil || !slices.Equal(got, want) {
				t.Fatalf("the weights are others, or cannot be read: %v", err)
			}
		})
	}
}

func TestSetGroups(t *testing.T) {
	m := Matrix{K: 4, Group: 2}
	if m.SetGroups([]int32{0, 0, 1, 1}); m.Groups != nil {
		t.Error("groups of columns in their order are kept")
	}
	if m.SetGroups([]int32{0, 1, 0, 1}); m.Groups == nil {
		t.Error("groups of columns in another order are not kept")
	}
}

func TestCheck(t *testing.T) {
	sound := func() *Matrix { return &Matrix{N: 2, K: 4, Bits: 2, Group: 2, Values: Unsigned(2)} }
	for _, tt := range []struct {
		name, want string
		change     func(m *Matrix)
	}{
		{"no rows", "shape 0×4: want a matrix", func(m *Matrix) { m.N = 0 }},
		{"no columns", "shape 2×0: want a matrix", func(m *Matrix) { m.K = 0 }},
		{"wide codes", "codes of 9 bits", func(m *Matrix) { m.Bits = 9 }},
		{"few values", "codes of 3 bits", func(m *Matrix) { m.Bits = 3 }},
		{"no group", "groups of 0 columns", func(m *Matrix) { m.Group = 0 }},
		{"wide group", "groups of 5 columns", func(m *Matrix) { m.Group = 5 }},
		{"few columns in groups", "groups of 1 columns", func(m *Matrix) { m.Groups = []int32{1} }},
		{"a group that is not there", "column 3 is in group 2 of 2", func(m *Matrix) { m.Groups = []int32{1, 0, 1, 2} }},
	} {
		m := sound()
		tt.change(m)
		if err := m.Check(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got error %v, want %q in it", tt.name, err, tt.want)
		}
	}
	if err := sound().Check(); err != nil {
		t.Error(err)
	}
}

// TestBinary reads sums of binary codes in pieces, of many rows or of a part of one, from any place on.
func TestBinary(t *testing.T) {
	for _, tt := range []struct {
		name        string
		n, k, group int
		offsets     bool
	}{
		{"rows", 700, 600, 60, true},
		{"long rows", 2, 400_000, 8, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			m := &Binary{N: tt.n, K: tt.k, Bits: 3, Group: tt.group}
			groups := m.GroupsInRow()
			c, z, a := make([]uint8, tt.n*tt.k), make([]float32, tt.n*groups), make([]float32, tt.n*groups*m.Bits)
			for i := range c {
				c[i] = uint8(r.IntN(1 << m.Bits))
			}
			for i := range a {
				a[i] = r.Float32()
			}
			m.Codes, m.Alphas = field(c, tt.k), field(a, groups*m.Bits)
			if tt.offsets {
				for i := range z {
					z[i] = r.Float32()
				}
				m.Offsets = field(z, groups)
			}
			want := make([]float32, len(c))
			for i := range want {
				g := i/tt.k*groups + i%tt.k/tt.group
				want[i] = z[g]
				for bit, v := range a[g*m.Bits : (g+1)*m.Bits] {
					want[i] += v * (2*float32(c[i]>>bit&1) - 1)
				}
			}
			got := make([]float32, len(want))
			for range 5 {
				from := r.IntN(len(want))
				part := got[:1+r.IntN(len(want)-from)]
				if err := m.ReadFloat32(part, int64(from)); err != nil || !slices.Equal(part, want[from:from+len(part)]) {
					t.Fatalf("weights %d to %d are others, or cannot be read: %v", from, from+len(part), err)
				}
			}
		})
	}
}
