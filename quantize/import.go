package quantize

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/codes"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/target"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/weight"
)

// methodImport is what a layer's method is called whose codes and scales are those of another
// program.
const methodImport = "import"

// The reasons of weights that are not taken over as codes.
const (
	KeptHomeless Reason = "no form as a table"
	KeptDense    Reason = "not quantized"
)

// A Homeless weight is stored in a way that a container has no form for.
type Homeless struct {
	Tensor string `json:"tensor"`
	From   string `json:"from"` // how it is stored
	Why    string `json:"why"`
}

// NewImport plans a container that has the codes and scales of what another program
// quantized: every weight is the same number there. Weights without a home are kept
// dense in the plan, and listed.
func NewImport(src *hf.Checkpoint) (*Plan, []Homeless, error) {
	if err := src.CheckPlain(); err != nil {
		return nil, nil, err
	}
	p := &Plan{Source: src, names: newNames(src), command: "lutq import MODEL OUT"}
	var homeless []Homeless
	// What lutq exported says what its layers were; what it did not, or no longer does, is as well.
	var origins map[string]target.Origin
	_ = json.Unmarshal([]byte(src.Metadata()[target.OriginKey]), &origins)
	for _, t := range src.Tensors() {
		it, why, err := p.imported(t, origins)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		if why != "" {
			homeless = append(homeless, Homeless{t.Name, t.StoredAs(), why})
		}
		p.Items = append(p.Items, it)
	}
	if len(homeless) > 0 {
		p.command += " --keep-dense"
	}
	if !slices.ContainsFunc(p.Items, func(it Item) bool { return it.Tensor.Encoding() != nil }) {
		return nil, nil, fmt.Errorf("%s: no weight is quantized by another program", src.Dir())
	}
	p.Recipe.Default = p.mostCommon()
	if _, err := p.configJSON(&lutq.Config{}); err != nil {
		return nil, nil, err
	}
	return p, homeless, nil
}

// mostCommon returns the format that most layers have.
func (p *Plan) mostCommon() weight.Spec {
	count := make(map[weight.Spec]int)
	best := weight.Spec{Kind: lut.Name, Bits: DefaultBits, Group: weight.RowGroup, Method: methodImport, ScaleType: weight.F32}
	for i := range p.Items {
		if f := p.Items[i].Format; p.Items[i].Quantized() {
			if count[f]++; count[f] > count[best] {
				best = f
			}
		}
	}
	return best
}

// imported plans a tensor. why says what keeps its codes out of a container.
func (p *Plan) imported(t *hf.Tensor, origins map[string]target.Origin) (it Item, why string, err error) {
	it = Item{Tensor: t, Kept: p.names.kept(t)}
	e := t.Encoding()
	if e == nil {
		if it.Kept == KeptType && t.Packed() {
			return it, "", &PackedError{Type: t.DType}
		}
		it.Kept = cmp.Or(it.Kept, KeptDense)
		return it, "", it.store(hf.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	as := p.names.layer(t)
	n := as.Matrices() * as.N
	m, ok := e.Codec.(*codes.Matrix)
	switch {
	case !ok:
		why = "its weights are no table's times a scale"
	case m.Bits > lut.MaxBits:
		why = fmt.Sprintf("a table has at most %d bits", lut.MaxBits)
	case m.Bits < lut.MinBits:
		why = fmt.Sprintf("a table has at least %d bits", lut.MinBits)
	case len(t.Shape) > 2 && as.Experts == 0:
		why = "it is a stack of matrices of no model that is known"
	case as.Transposed || m.K != as.K:
		why = "its groups do not end with its rows"
	case m.N != n:
		return it, "", fmt.Errorf("has %d rows: its model has %d", m.N, n)
	case m.Groups != nil:
		why = "its groups are of columns that do not lie side by side"
	default:
		if it.taken, why, err = take(m); err == nil && why == "" {
			err = it.taken.restore(origins[as.Path])
		}
		if err != nil {
			return it, "", err
		}
	}
	if why != "" {
		if e.Turned {
			return it, "", fmt.Errorf("stored as %s: %s", e, why)
		}
		it.Kept = KeptHomeless
		return it, why, it.store(hf.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	it.Layer, it.N, it.K, it.Experts, it.Kept = as.Path, n, as.K, as.Experts, ""
	it.Codebook = it.taken.table
	if it.Codebook.Name == "" {
		by, _, _ := strings.Cut(e.Type, ",")
		it.Codebook.Name = filePrefix + strings.ToLower(strings.ReplaceAll(by, " ", "-"))
	}
	group := m.Group * it.taken.merged
	if group >= m.K {
		group = weight.RowGroup
	}
	it.Format = weight.Spec{
		Kind: lut.Name, Bits: m.Bits, Group: group, Codebook: it.Codebook.Name, Method: methodImport, ScaleType: it.taken.scales,
	}
	plain, err := p.Recipe.Methods.plain(lut.Name)
	if err != nil {
		return it, "", err
	}
	it.method = plain
	if it.plain, err = plain.Prepare(nil); err != nil {
		return it, "", err
	}
	if it.parts, err = (lut.Kind{}).Parts(it.Format, it.N, it.K); err != nil {
		return it, "", err
	}
	return it, "", it.store(lutq.Entries(it.Layer, it.parts)...)
}

// taken is how the codes and scales of another program become those of a layer.
type taken struct {
	from   *codes.Matrix
	table  lut.Codebook // without a name where it is none of ours
	rank   []uint8      // of each code's value in the table
	scales weight.ScaleType
	factor float32 // of scales, that is in the table instead: a power of two
	merged int     // groups that become one
}

// take finds out how the codes of a matrix become those of a layer.
func take(m *codes.Matrix) (t *taken, why string, err error) {
	s, err := survey(m)
	if err != nil {
		return nil, "", err
	}
	switch {
	case s.zeros:
		return nil, "each group has a zero point of its own, and a table has one zero", nil
	case s.offsets:
		return nil, "each group has an offset of its own, and a table has none", nil
	}
	t = &taken{from: m, scales: s.scaleType(m), factor: 1, merged: 1}
	values := slices.Clone(m.Values)
	for i := range values {
		values[i] -= float32(s.zero)
		if m.Offsets != nil {
			values[i] -= float32(int(1) << (m.Bits - 1))
		}
	}
	t.table.Values, t.rank = ranked(values)
	for _, name := range lut.CodebookNames() {
		c, err := lut.NewCodebook(name, m.Bits, m.Group)
		if err == nil && slices.EqualFunc(c.Values, t.table.Values, sameBits) {
			t.table.Name = name
			break
		}
	}
	if t.scales == weight.S1E4M3 {
		t.factor = 16 * m.Unit // a byte of F8_E4M3 is 2⁴ times what it is as S1E4M3
		t.table = t.table.Scaled(t.factor)
	}
	if err := t.table.Check(m.Bits); err != nil {
		return nil, err.Error(), nil
	}
	return t, "", nil
}

// restore makes scales and table those of the layer that the matrix was exported from, where that
// is known and still true.
func (t *taken) restore(o target.Origin) error {
	m := t.from
	group := weight.Spec{Group: o.Group}.Columns(m.K)
	factor := t.factor * o.Top / t.table.Max()
	frac, _ := math.Frexp(float64(factor))
	if o.ScaleType.Size() == 0 || group < 1 || group%m.Group != 0 || frac != 0.5 {
		return nil
	}
	merged, stored, fits := group/m.Group, make([]byte, 4), true
	back, groups := make([]float32, 1), m.GroupsInRow()
	err := eachGroup(m, m.Scales, func(scales []float32) {
		for i, v := range scales {
			if !fits {
				return
			}
			o.ScaleType.Encode(stored, []float32{v / factor})
			o.ScaleType.Decode(back, stored)
			fits = back[0]*factor == v && v == scales[i-i%groups%merged]
		}
	})
	if err != nil || !fits {
		return err
	}
	t.table = t.table.Scaled(factor / t.factor)
	t.scales, t.factor, t.merged = o.ScaleType, factor, merged
	return nil
}

// eachGroup reads numbers of groups in rows that follow each other.
func eachGroup[T any](m *codes.Matrix, f codes.Field[T], use func(numbers []T)) error {
	groups := m.GroupsInRow()
	rows := min(max(blockWeights/groups, 1), m.N)
	numbers := make([]T, rows*groups)
	for from := 0; from < m.N; from += rows {
		b := codes.Block{Row: from, Rows: min(rows, m.N-from), Cols: groups}
		part := numbers[:b.Rows*groups]
		if err := f(part, b); err != nil {
			return err
		}
		use(part)
	}
	return nil
}

func sameBits(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

// ranked sorts values, and says where each went. Of two zeros the negative one comes first.
func ranked(values []float32) (sorted []float32, rank []uint8) {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if values[a] == 0 && values[b] == 0 && math.Signbit(float64(values[a])) != math.Signbit(float64(values[b])) {
			if math.Signbit(float64(values[a])) {
				return -1
			}
			return 1
		}
		return cmp.Compare(values[a], values[b])
	})
	rank = make([]uint8, len(values))
	for r, i := range order {
		sorted = append(sorted, values[i])
		rank[i] = uint8(r)
	}
	return sorted, rank
}

// surveyed is what all groups of a matrix have in common.
type surveyed struct {
	zero      uint8 // of the first group
	zeros     bool  // some groups have others
	offsets   bool  // some are not that of codes around zero
	bf16, f16 bool  // scales are numbers of the type
}

// survey reads the scales, zero points and offsets of a matrix.
func survey(m *codes.Matrix) (*surveyed, error) {
	s := &surveyed{bf16: true, f16: true}
	err := eachGroup(m, m.Scales, func(scales []float32) {
		for _, v := range scales {
			s.bf16 = s.bf16 && num.BF16ToF32(num.F32ToBF16(v)) == v
			s.f16 = s.f16 && num.F16ToF32(num.F32ToF16(v)) == v
		}
	})
	if err == nil && m.Zeros != nil {
		first := true
		err = eachGroup(m, m.Zeros, func(zeros []uint8) {
			for _, z := range zeros {
				if first {
					s.zero, first = z, false
				}
				s.zeros = s.zeros || z != s.zero
			}
		})
	}
	if err == nil && m.Offsets != nil {
		middle := -float32(int(1) << (m.Bits - 1))
		off := difference(m, middle)
		err = eachGroup(m, off, func(offsets []float32) {
			for _, v := range offsets {
				s.offsets = s.offsets || v != 0
			}
		})
	}
	return s, err
}

// difference reads how far offsets are from those of codes around a middle.
func difference(m *codes.Matrix, middle float32) codes.Field[float32] {
	return func(dst []float32, b codes.Block) error {
		scales := make([]float32, len(dst))
		if err := m.Scales(scales, b); err != nil {
			return err
		}
		err := m.Offsets(dst, b)
		for i, s := range scales {
			dst[i] -= float32(s * middle)
		}
		return err
	}
}

// scaleType returns a type that holds all scales: the one that they have, or of wide ones the
// smallest.
func (s *surveyed) scaleType(m *codes.Matrix) weight.ScaleType {
	switch frac, _ := math.Frexp(float64(m.Unit)); {
	case m.ScaleType == hf.F16:
		return weight.F16
	case m.ScaleType == hf.BF16:
		return weight.BF16
	case m.ScaleType == hf.F8E8M0:
		return weight.E8M0
	case m.ScaleType == hf.U8:
		return weight.E4M4
	case frac == 0.5: // a power of two
		return weight.S1E4M3
	case s.bf16:
		return weight.BF16
	case s.f16:
		return weight.F16
	}
	return weight.F32
}

// transcribe writes a block of a layer that is taken over, after it has held every weight
// against the one that it is made from.
func (w *worker) transcribe(b block) error {
	it, t := b.item, b.item.taken
	n := b.to - b.from
	weights, err := w.rows(it, b.from, b.to)
	if err != nil {
		return err
	}
	parts := w.buffers(it, n)
	m := &lut.Matrix{
		N: n, K: it.K, Bits: it.Format.Bits, Group: it.Format.Columns(it.K), ScaleType: t.scales,
		Codes: parts[lut.CodesPart], Scales: parts[lut.ScalesPart], Codebook: it.Codebook.Values,
	}
	if err := t.codes(m, b.from); err != nil {
		return err
	}
	if err := t.setScales(m, b.from); err != nil {
		return err
	}
	num.EncodeF32(parts[lut.CodebookPart], m.Codebook)
	row := make([]float32, it.K)
	for i := range n {
		m.Row(row, i)
		for k, v := range weights[i*it.K:][:it.K] {
			if v != row[k] || v-v != 0 {
				return fmt.Errorf("weight [%d, %d] is %v, and would become %v", b.from+i, k, v, row[k])
			}
			b.errs[b.from+i].Energy += float64(v) * float64(v)
		}
	}
	w.advance(b.bytes(), it.Tensor.Name)
	return w.store(b, parts)
}

// codes writes the codes of the rows from first on to m.
func (t *taken) codes(m *lut.Matrix, first int) error {
	all := make([]uint8, m.N*m.K)
	if err := t.from.Codes(all, codes.Block{Row: first, Rows: m.N, Cols: m.K}); err != nil {
		return err
	}
	for i, c := range all {
		all[i] = t.rank[c]
	}
	for n := range m.N {
		lut.PackCodes(m.Codes[n*m.RowBytes():(n+1)*m.RowBytes()], all[n*m.K:(n+1)*m.K], m.Bits)
	}
	return nil
}

// setScales writes the scales of the rows from first on to m.
func (t *taken) setScales(m *lut.Matrix, first int) error {
	groups := t.from.GroupsInRow()
	all := make([]float32, m.N*groups)
	if err := t.from.Scales(all, codes.Block{Row: first, Rows: m.N, Cols: groups}); err != nil {
		return err
	}
	scales := all[:0]
	for i, s := range all {
		if i%groups%t.merged == 0 {
			scales = append(scales, s/t.factor)
		}
	}
	t.scales.Encode(m.Scales, scales)
	return nil
}
