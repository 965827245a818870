package codes

import "github.com/lutq/lutq/formats/hf"

// Binary is N rows of K weights, which are sums of binary codes:
//
//	w[n,k] = offset[n,g] ± alpha[n,g,0] ± alpha[n,g,1] …,  g = k/Group
//
// in float32, one operation after the other, with + where the bit of that index of code[n,k] is set. It implements
// [hf.Codec].
type Binary struct {
	N, K  int
	Bits  int // of a code, at most 8
	Group int // columns that share factors, a divisor of K

	Codes   Field[uint8]
	Alphas  Field[float32] // [N, groups·Bits]
	Offsets Field[float32] // [N, groups]; nil: 0

	// ScaleType is a type that holds all alphas and offsets: F16, BF16 or F32.
	ScaleType hf.DType
}

// GroupsInRow returns the number of groups of a row.
func (m *Binary) GroupsInRow() int { return m.K / m.Group }

// ReadFloat32 implements [hf.Codec].
func (m *Binary) ReadFloat32(dst []float32, start int64) error {
	return eachBlock(dst, start, m.K, m.read)
}

// read decodes a block.
func (m *Binary) read(dst []float32, b Block, s *scratch) error {
	if err := m.Codes(grow(&s.codes, b.size()), b); err != nil {
		return err
	}
	first := b.Col / m.Group
	groups := Block{b.Row, b.Rows, first, (b.Col+b.Cols-1)/m.Group + 1 - first}
	factors := Block{b.Row, b.Rows, first * m.Bits, groups.Cols * m.Bits}
	if err := m.Alphas(grow(&s.scales, factors.size()), factors); err != nil {
		return err
	}
	offsets := grow(&s.offsets, groups.size())
	if m.Offsets == nil {
		clear(offsets)
	} else if err := m.Offsets(offsets, groups); err != nil {
		return err
	}
	for r := range b.Rows {
		w, c := dst[r*b.Cols:][:b.Cols], s.codes[r*b.Cols:][:b.Cols]
		for i := 0; i < len(w); {
			k := b.Col + i
			n := min(m.Group-k%m.Group, len(w)-i)
			at := r*groups.Cols + k/m.Group - first
			group(w[i:i+n], c[i:i+n], s.scales[at*m.Bits:(at+1)*m.Bits], offsets[at])
			i += n
		}
	}
	return nil
}

// group decodes codes that share factors.
func group(dst []float32, codes []uint8, alphas []float32, offset float32) {
	for i, c := range codes {
		v := offset
		for bit, a := range alphas {
			if c>>bit&1 != 0 {
				v += a
			} else {
				v -= a
			}
		}
		dst[i] = v
	}
}

// Encoded returns the tensor [N, K] of a name, as [Matrix.Encoded] does.
func (m *Binary) Encoded(name, by string, parts ...*hf.Tensor) (hf.Encoded, error) {
	switch {
	case m.Bits < 1 || m.Bits > 8:
		return hf.Encoded{}, parts[0].Errorf("codes of %d bits: want 1 to 8", m.Bits)
	case m.N < 1 || m.K < 1 || m.Group < 1 || m.K%m.Group != 0:
		return hf.Encoded{}, parts[0].Errorf("groups of %d columns in %d rows of %d", m.Group, m.N, m.K)
	}
	return encoded(name, by, hf.F32, m.N, m.K, m.Group, m, parts), nil
}

// encoded returns the tensor [n, k] that a codec decodes.
func encoded(name, by string, t hf.DType, n, k, group int, codec hf.Codec, parts []*hf.Tensor) hf.Encoded {
	e := &hf.Encoding{Type: by, Rows: 1, Cols: group, N: n, K: k, Parts: parts, Codec: codec}
	return hf.Encoded{Name: name, DType: t, Shape: []int{n, k}, Encoding: e}
}
