package bcq

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/weight"
)

// Widths of a code, in bits.
const (
	MinBits = 1
	MaxBits = 8
)

// Matrix is a linear layer of N output features and K input features as sums of
// binary codes. Its data is held exactly as the container stores it.
type Matrix struct {
	N, K  int // output and input features
	Bits  int // planes, 1 to 8
	Group int // consecutive input features of a row that share factors; K is one set a row

	// Planes holds N rows of Bits planes of PlaneBytes bytes. Bit k%8 of byte k/8
	// of plane i is set where αᵢ is added to weight k, and clear where it is taken
	// off. What is left of the last byte is zero.
	Planes []byte

	// Alphas holds N rows of Groups sets of Bits little-endian numbers of type
	// ScaleType, and Offsets N rows of Groups numbers. Nil offsets are 0.
	Alphas, Offsets []byte
	ScaleType       weight.ScaleType
}

// PlaneBytes returns the bytes of a plane of a row.
func (m *Matrix) PlaneBytes() int { return (m.K + 7) / 8 }

// Groups returns the groups of a row.
func (m *Matrix) Groups() int { return weight.GroupsIn(m.K, m.Group) }

// Kind implements [weight.Matrix].
func (m *Matrix) Kind() string { return Name }

// Spec returns how the matrix is stored, with its group in columns, and nothing of how it was found.
func (m *Matrix) Spec() weight.Spec {
	return weight.Spec{Kind: Name, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType}
}

// Shape implements [weight.Matrix].
func (m *Matrix) Shape() (n, k int) { return m.N, m.K }

// Bytes implements [weight.Matrix].
func (m *Matrix) Bytes() int64 {
	return int64(len(m.Planes)) + int64(len(m.Alphas)) + int64(len(m.Offsets))
}

// Parts implements [weight.Matrix].
func (m *Matrix) Parts() [][]byte {
	return [][]byte{PlanesPart: m.Planes, AlphasPart: m.Alphas, OffsetsPart: m.Offsets}
}

// Validate implements [weight.Matrix].
func (m *Matrix) Validate() error {
	if err := weight.CheckShape(m.N, m.K, m.Bits, m.Group, MinBits, MaxBits); err != nil {
		return err
	}
	switch {
	case !slices.Contains(Kind{}.ScaleTypes(), m.ScaleType):
		return errors.New("unknown type of factors")
	case len(m.Planes) != m.N*m.Bits*m.PlaneBytes():
		return fmt.Errorf("planes take %d bytes: want %d", len(m.Planes), m.N*m.Bits*m.PlaneBytes())
	case len(m.Alphas) != m.N*m.Groups()*m.Bits*m.ScaleType.Size():
		return fmt.Errorf("alphas take %d bytes: want %d", len(m.Alphas), m.N*m.Groups()*m.Bits*m.ScaleType.Size())
	case m.Offsets != nil && len(m.Offsets) != m.N*m.Groups()*m.ScaleType.Size():
		return fmt.Errorf("offsets take %d bytes: want %d", len(m.Offsets), m.N*m.Groups()*m.ScaleType.Size())
	}
	return nil
}

// Factors are those of a group.
type Factors struct {
	Alpha [MaxBits]float32
	Z     float32
}

// Largest returns the largest magnitude of the factors of some planes.
func (f *Factors) Largest(bits int) float32 {
	top := float32(math.Abs(float64(f.Z)))
	for _, a := range f.Alpha[:bits] {
		top = max(top, a)
	}
	return top
}

// ReadFactors sets f to the factors of group g of row n.
func (m *Matrix) ReadFactors(f *Factors, n, g int) {
	at, size := n*m.Groups()+g, m.ScaleType.Size()
	m.ScaleType.Decode(f.Alpha[:m.Bits], m.Alphas[at*m.Bits*size:(at+1)*m.Bits*size])
	if m.Offsets != nil {
		var z [1]float32
		m.ScaleType.Decode(z[:], m.Offsets[at*size:(at+1)*size])
		f.Z = z[0]
	}
}

// Row implements [weight.Matrix]: in float32, beginning with the offset, it adds or
// takes off the factor of one plane after the other.
func (m *Matrix) Row(dst []float32, n int) {
	pb := m.PlaneBytes()
	planes := m.Planes[n*m.Bits*pb:]
	var f Factors
	for from := 0; from < m.K; from += m.Group {
		m.ReadFactors(&f, n, from/m.Group)
		group := dst[from:min(from+m.Group, m.K)]
		for i := range group {
			group[i] = f.Z
		}
		for p, a := range f.Alpha[:m.Bits] {
			plane := planes[p*pb:]
			for i := range group {
				k := from + i
				if plane[k/8]>>(k%8)&1 != 0 {
					group[i] += a
				} else {
					group[i] -= a
				}
			}
		}
	}
}

// RowCodes writes the codes of row n to dst: bit i of one is that of plane i.
func (m *Matrix) RowCodes(dst []uint8, n int) {
	pb := m.PlaneBytes()
	clear(dst)
	for p := range m.Bits {
		plane := m.Planes[(n*m.Bits+p)*pb:]
		for k := range dst {
			dst[k] |= plane[k/8] >> (k % 8) & 1 << p
		}
	}
}

// PackCodes writes the planes of a row of codes to dst: bit i of a code is that of plane i.
func PackCodes(dst []byte, codes []uint8, bits int) {
	clear(dst)
	pb := len(dst) / bits
	for k, c := range codes {
		for p := range bits {
			dst[p*pb+k/8] |= c >> p & 1 << (k % 8)
		}
	}
}

// Rows implements [weight.Matrix].
func (m *Matrix) Rows(first, step, n int) weight.Matrix {
	r := *m
	r.N = n
	for _, data := range []*[]byte{&r.Planes, &r.Alphas, &r.Offsets} {
		if *data == nil {
			continue
		}
		size := len(*data) / m.N
		rows := make([]byte, 0, n*size)
		for i := range n {
			rows = append(rows, (*data)[(first+i*step)*size:][:size]...)
		}
		*data = rows
	}
	return &r
}

// CheckPadding implements [weight.Matrix].
func (m *Matrix) CheckPadding() error {
	used := m.K % 8
	if used == 0 {
		return nil
	}
	pb := m.PlaneBytes()
	for i := range m.N * m.Bits {
		if m.Planes[(i+1)*pb-1]>>used != 0 {
			return fmt.Errorf("row %d has bits set after the last of plane %d", i/m.Bits, i%m.Bits)
		}
	}
	return nil
}

// Farther implements [weight.Matrix].
func (m *Matrix) Farther(n int, w []float32) int {
	row := make([]float32, m.K)
	m.Row(row, n)
	var f Factors
	var l Levels
	for from := 0; from < m.K; from += m.Group {
		m.ReadFactors(&f, n, from/m.Group)
		l.Set(f.Alpha[:m.Bits], f.Z)
		reach := float64(max(-l.Value[0], l.Value[len(l.Value)-1]))
		for k := from; k < min(from+m.Group, m.K); k++ {
			v := float64(w[k])
			best := math.Abs(v - float64(l.Value[l.Nearest(v)]))
			if math.Abs(v-float64(row[k])) > best+1e-5*(math.Abs(v)+reach) {
				return k
			}
		}
	}
	return -1
}

// checkValues reports a factor that cannot be added up with the others.
func (m *Matrix) checkValues() error {
	var f Factors
	for n := range m.N {
		for g := range m.Groups() {
			m.ReadFactors(&f, n, g)
			sum := math.Abs(float64(f.Z))
			for _, a := range f.Alpha[:m.Bits] {
				sum += math.Abs(float64(a))
			}
			if !(sum <= math.MaxFloat32) {
				return fmt.Errorf("factors of row %d, group %d, reach %v", n, g, sum)
			}
		}
	}
	return nil
}
