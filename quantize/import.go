package quantize

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/exl3"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
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

// ImportOptions say how codes are taken over.
type ImportOptions struct {
	// Factors, if set, is the type that factors of binary codes are rounded to. Otherwise they have one that holds them.
	Factors weight.ScaleType
}

// NewImport plans a container that has the codes and scales of what another program
// quantized: every weight is the same number there, but where the options have factors
// rounded. Weights without a home are kept dense in the plan, and listed.
func NewImport(m *source.Model, o ImportOptions) (*Plan, []Homeless, error) {
	src, err := m.Weights()
	if err != nil {
		return nil, nil, err
	}
	if err := src.CheckPlain(); err != nil {
		return nil, nil, err
	}
	p := &Plan{Source: src, names: newNames(m, src), command: "lutq import MODEL OUT"}
	var homeless []Homeless
	if why := p.names.mismatch(src); why != "" {
		return nil, nil, fmt.Errorf("%s: weights are not those of its model%s", src.Dir(), why)
	}
	// What lutq exported says what its layers were; what it did not, or no longer does, is as well.
	var origins map[string]foreign.Origin
	_ = json.Unmarshal([]byte(src.Metadata()[foreign.OriginKey]), &origins)
	for _, t := range src.Tensors() {
		it, why, err := p.imported(t, origins, o)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		if why != "" {
			homeless = append(homeless, Homeless{t.Name, t.StoredAs(), why})
		}
		p.Items = append(p.Items, it)
	}
	if o.Factors != 0 {
		p.command += " --scale-type " + o.Factors.String()
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
func (p *Plan) imported(t *hf.Tensor, origins map[string]foreign.Origin, o ImportOptions) (it Item, why string, err error) {
	it = Item{Tensor: t, Kept: p.names.kept(t)}
	e := t.Encoding()
	if e == nil || isBias(e) {
		if it.Kept == KeptType && t.Packed() {
			return it, "", &PackedError{Type: t.DType}
		}
		it.Kept = cmp.Or(it.Kept, KeptDense)
		return it, "", it.store(hf.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	as := p.names.layer(t)
	of, why, err := take(t, as, origins[as.Path], o)
	if err != nil {
		return it, "", err
	}
	if why != "" {
		if e.Turned {
			return it, "", fmt.Errorf("stored as %s: %s", e, why)
		}
		it.Kept = KeptHomeless
		return it, why, it.store(hf.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	it.Layer, it.N, it.K, it.Experts, it.Kept = as.Path, as.Matrices()*as.N, as.K, as.Experts, ""
	it.taken = of
	it.Format, it.Codebook = of.format(e.Type)
	it.method = nearest(methodImport) // which is not asked for anything
	kind, err := lutq.KindOf(it.Format.Kind)
	if err != nil {
		return it, "", err
	}
	if it.parts, err = kind.Parts(it.Format, it.N, it.K); err != nil {
		return it, "", err
	}
	it.parts = slices.DeleteFunc(it.parts, func(p weight.Part) bool { return p.Optional && !of.optional() })
	return it, "", it.store(lutq.Entries(it.Layer, it.parts)...)
}

// isBias reports whether a tensor is plain numbers with some behind them that do not count.
func isBias(e *hf.Encoding) bool {
	_, is := e.Codec.(exl3.Bias)
	return is
}

// taken is how what another program quantized becomes a layer.
type taken interface {
	// format returns all of how the layer is stored, by what the other program calls it, and its table if it has one.
	format(by string) (weight.Spec, lut.Codebook)
	// optional reports whether the layer has the parts that may be left out.
	optional() bool
	// rounds reports whether weights may be other numbers than those of the other program.
	rounds() bool
	// rows writes n rows from one on to parts, and returns them.
	rows(parts [][]byte, first, n int) (weight.Matrix, error)
}

// take finds out how a tensor becomes a layer. why says what keeps it from that.
func take(t *hf.Tensor, as arch.Stored, was foreign.Origin, o ImportOptions) (of taken, why string, err error) {
	var n, k int
	switch m := t.Encoding().Codec.(type) {
	case *codes.Matrix:
		n, k, of = m.N, m.K, &takenTable{from: m, factor: 1, merged: 1}
	case *codes.Binary:
		n, k, of = m.N, m.K, &takenPlanes{m}
	case *exl3.Stack:
		return nil, "it is several layers, whose columns have factors of their own", nil
	case *exl3.Layer:
		n, k, of = m.N, m.K, &takenRings{m}
	default:
		return nil, "its weights are no table's times a scale", nil
	}
	switch {
	case len(t.Shape) > 2 && as.Experts == 0:
		return nil, "it is a stack of matrices of no model that is known", nil
	case as.Transposed || k != as.K:
		return nil, "its groups do not end with its rows", nil
	case n != as.Matrices()*as.N:
		return nil, "", fmt.Errorf("has %d rows: its model has %d", n, as.Matrices()*as.N)
	}
	table, ok := of.(*takenTable)
	if !ok {
		return of, "", nil
	}
	if why, err = table.take(); err != nil {
		return nil, "", err
	}
	if why == "" {
		return of, "", table.restore(was)
	}
	sums := &takenSums{from: table.from}
	if ok, err := sums.take(o.Factors); err != nil || ok {
		return sums, "", err
	}
	return nil, why, nil
}

// takenTable is how the codes and scales of another program become those of a layer with a table.
type takenTable struct {
	from   *codes.Matrix
	table  lut.Codebook // without a name where it is none of ours
	rank   []uint8      // of each code's value in the table
	scales weight.ScaleType
	factor float32 // of scales, that is in the table instead: a power of two
	merged int     // groups that become one
}

// take finds out how the codes of the matrix become those of a layer.
func (t *takenTable) take() (why string, err error) {
	m := t.from
	switch {
	case m.Bits > lut.MaxBits:
		return fmt.Sprintf("a table has at most %d bits", lut.MaxBits), nil
	case m.Bits < lut.MinBits:
		return fmt.Sprintf("a table has at least %d bits", lut.MinBits), nil
	case m.Groups != nil:
		return "its groups are of columns that do not lie side by side", nil
	}
	s, err := survey(m)
	if err != nil {
		return "", err
	}
	switch {
	case s.zeros:
		return "each group has a zero point of its own, and as binary codes its sums round", nil
	case s.offsets:
		return "each group has an offset of its own, and as binary codes its sums round", nil
	}
	t.scales = s.scaleType(m)
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
		return err.Error(), nil
	}
	return "", nil
}

// format implements [taken].
func (t *takenTable) format(by string) (weight.Spec, lut.Codebook) {
	cb := t.table
	if cb.Name == "" {
		name, _, _ := strings.Cut(by, ",")
		cb.Name = filePrefix + strings.ToLower(strings.ReplaceAll(name, " ", "-"))
	}
	return weight.Spec{
		Kind: lut.Name, Bits: t.from.Bits, Group: groupOf(t.from.Group*t.merged, t.from.K), Codebook: cb.Name, Method: methodImport, ScaleType: t.scales,
	}, cb
}

// groupOf returns a number of columns of k as formats have it.
func groupOf(group, k int) int {
	if group >= k {
		return weight.RowGroup
	}
	return group
}

// optional implements [taken].
func (t *takenTable) optional() bool { return false }

// rounds implements [taken].
func (t *takenTable) rounds() bool { return false }

// restore makes scales and table those of the layer that the matrix was exported from, where that
// is known and still true.
func (t *takenTable) restore(o foreign.Origin) error {
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
// against the one that it is made from, which it may differ from where factors were rounded.
func (w *worker) transcribe(b block) error {
	it := b.item
	n := b.to - b.from
	weights, err := w.rows(it, b.from, b.to)
	if err != nil {
		return err
	}
	parts := w.buffers(it, n)
	m, err := it.taken.rows(parts, b.from, n)
	if err != nil {
		return err
	}
	back := weight.Dequantize(m)
	for i := range n {
		row := back[i*it.K:][:it.K]
		for k, v := range weights[i*it.K:][:it.K] {
			if v != row[k] && !it.taken.rounds() || v-v != 0 || row[k]-row[k] != 0 {
				return fmt.Errorf("weight [%d, %d] is %v, and would become %v", b.from+i, k, v, row[k])
			}
			e := &b.errs[b.from-b.at.from+i]
			e.Energy += float64(v) * float64(v)
			e.Squared += (float64(v) - float64(row[k])) * (float64(v) - float64(row[k]))
		}
	}
	w.advance(b.bytes(), it.Tensor.Name)
	return w.store(b, parts)
}

// rows implements [taken].
func (t *takenTable) rows(parts [][]byte, first, n int) (weight.Matrix, error) {
	m := &lut.Matrix{
		N: n, K: t.from.K, Bits: t.from.Bits, Group: t.from.Group * t.merged, ScaleType: t.scales,
		Codes: parts[lut.CodesPart], Scales: parts[lut.ScalesPart], Codebook: t.table.Values,
	}
	if err := t.codes(m, first); err != nil {
		return nil, err
	}
	num.EncodeF32(parts[lut.CodebookPart], m.Codebook)
	return m, t.setScales(m, first)
}

// codes writes the codes of the rows from first on to m.
func (t *takenTable) codes(m *lut.Matrix, first int) error {
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
func (t *takenTable) setScales(m *lut.Matrix, first int) error {
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

// takenSums is how codes in equal steps, of groups that each begin where they like, become sums of binary codes: with
// b ∈ {0, 1} for the bits of a code, s·(code − zero) is s·(Σ 2^i·b_i − zero), so that αᵢ = 2^(i-1)·s, and the offset
// s·((2^b − 1)/2 − zero).
type takenSums struct {
	from    *codes.Matrix
	scales  weight.ScaleType // of all factors
	inexact bool
}

// take finds the least type of factors whose sums are the weights to the bit, if there is one, or how it is with the type
// that they are rounded to, unless that is 0.
func (t *takenSums) take(round weight.ScaleType) (ok bool, err error) {
	m := t.from
	if m.Groups != nil || m.Bits < bcq.MinBits || m.Bits > bcq.MaxBits {
		return false, nil
	}
	for c, v := range m.Values {
		if v != m.Values[0]+float32(c) {
			return false, nil
		}
	}
	types := bcq.Kind{}.ScaleTypes()
	all, finite := make([]float32, m.Bits+1), true
	err = t.factors(0, m.N, func(_ int, s float64, f []float64) {
		if !exactSums(s, f, m.Bits) {
			types = nil
		}
		for i, x := range f {
			all[i] = float32(x)
		}
		types = slices.DeleteFunc(types, func(s weight.ScaleType) bool { return !slices.Equal(rounded(s, all), all) })
		if round != 0 {
			finite = finite && !slices.ContainsFunc(rounded(round, all), func(x float32) bool { return x-x != 0 })
		}
	})
	switch {
	case round != 0:
		t.scales, t.inexact = round, !slices.Contains(types, round)
		return finite, err
	case len(types) > 0:
		t.scales = types[0]
	}
	return len(types) > 0, err
}

// rounds implements [taken].
func (t *takenSums) rounds() bool { return t.inexact }

// factors calls use for each group of some rows, in order, with its scale, and its factors from the least on and
// the offset behind them.
func (t *takenSums) factors(first, rows int, use func(group int, scale float64, f []float64)) error {
	m := t.from
	groups := m.GroupsInRow()
	step := max(blockWeights/groups, 1)
	scales, zeros, offsets := make([]float32, step*groups), make([]uint8, step*groups), make([]float32, step*groups)
	f := make([]float64, m.Bits+1)
	middle := float64(m.Values[0]) + float64(int(1)<<m.Bits-1)/2
	for from := 0; from < rows; from += step {
		b := codes.Block{Row: first + from, Rows: min(step, rows-from), Cols: groups}
		n := b.Rows * groups
		if err := m.Scales(scales[:n], b); err != nil {
			return err
		}
		if m.Zeros != nil {
			if err := m.Zeros(zeros[:n], b); err != nil {
				return err
			}
		}
		if m.Offsets != nil {
			if err := m.Offsets(offsets[:n], b); err != nil {
				return err
			}
		}
		for i, s := range scales[:n] {
			scale := float64(s)
			for bit := range m.Bits {
				f[bit] = math.Ldexp(scale, bit-1)
			}
			f[m.Bits] = scale*(middle-float64(zeros[i])) + float64(offsets[i])
			use(from*groups+i, scale, f)
		}
	}
	return nil
}

// exactSums reports whether neither the product of a scale of float32 and a code less a zero point, nor a sum of factors
// as a group of binary codes adds them up, rounds in float32: all are multiples of a power of two that is no smaller than a
// float32 of their size can be told apart by.
func exactSums(scale float64, f []float64, width int) bool {
	if scale != 0 && math.Abs(scale)*float64(int(1)<<width) > exactFloats*unit(scale) {
		return false
	}
	least, sum := math.Inf(1), 0.0
	for _, x := range f {
		least, sum = min(least, unit(x)), sum+math.Abs(x)
	}
	return sum == 0 || sum <= exactFloats*least && sum <= math.MaxFloat32 && least >= math.SmallestNonzeroFloat32
}

// exactFloats is up to where all integers are numbers of float32.
const exactFloats = 1 << 24

// unit returns the largest power of two that a number is a multiple of.
func unit(x float64) float64 {
	if x == 0 {
		return math.Inf(1)
	}
	frac, exp := math.Frexp(x)
	return math.Ldexp(1, exp-53+bits.TrailingZeros64(uint64(math.Abs(math.Ldexp(frac, 53)))))
}

// rounded returns numbers as a type has them.
func rounded(s weight.ScaleType, v []float32) []float32 {
	raw, back := make([]byte, s.Size()*len(v)), make([]float32, len(v))
	s.Encode(raw, v)
	s.Decode(back, raw)
	return back
}

// format implements [taken].
func (t *takenSums) format(string) (weight.Spec, lut.Codebook) {
	return weight.Spec{
		Kind: bcq.Name, Bits: t.from.Bits, Group: groupOf(t.from.Group, t.from.K), Method: methodImport, ScaleType: t.scales,
	}, lut.Codebook{}
}

// optional implements [taken]: there are offsets.
func (t *takenSums) optional() bool { return true }

// rows implements [taken].
func (t *takenSums) rows(parts [][]byte, first, n int) (weight.Matrix, error) {
	m := &bcq.Matrix{
		N: n, K: t.from.K, Bits: t.from.Bits, Group: t.from.Group, ScaleType: t.scales,
		Planes: parts[bcq.PlanesPart], Alphas: parts[bcq.AlphasPart], Offsets: parts[bcq.OffsetsPart],
	}
	if err := setPlanes(m, t.from.Codes, first); err != nil {
		return nil, err
	}
	alphas, offsets := make([]float32, n*m.Groups()*m.Bits), make([]float32, n*m.Groups())
	err := t.factors(first, n, func(g int, _ float64, f []float64) {
		for i, a := range f[:m.Bits] {
			alphas[g*m.Bits+i] = float32(a)
		}
		offsets[g] = float32(f[m.Bits])
	})
	m.ScaleType.Encode(m.Alphas, alphas)
	m.ScaleType.Encode(m.Offsets, offsets)
	return m, err
}

// setPlanes reads the codes of rows from first on to the planes of m.
func setPlanes(m *bcq.Matrix, from codes.Field[uint8], first int) error {
	all := make([]uint8, m.N*m.K)
	if err := from(all, codes.Block{Row: first, Rows: m.N, Cols: m.K}); err != nil {
		return err
	}
	size := m.Bits * m.PlaneBytes()
	for i := range m.N {
		bcq.PackCodes(m.Planes[i*size:(i+1)*size], all[i*m.K:(i+1)*m.K], m.Bits)
	}
	return nil
}

// takenPlanes is how planes and factors of another program become those of a layer of binary codes.
type takenPlanes struct{ from *codes.Binary }

// format implements [taken].
func (t *takenPlanes) format(string) (weight.Spec, lut.Codebook) {
	return weight.Spec{
		Kind: bcq.Name, Bits: t.from.Bits, Group: groupOf(t.from.Group, t.from.K), Method: methodImport, ScaleType: t.scaleType(),
	}, lut.Codebook{}
}

// scaleType returns the type that factors have.
func (t *takenPlanes) scaleType() weight.ScaleType {
	switch t.from.ScaleType {
	case hf.F16:
		return weight.F16
	case hf.BF16:
		return weight.BF16
	}
	return weight.F32
}

// rounds implements [taken].
func (t *takenPlanes) rounds() bool { return false }

// optional implements [taken]: there are offsets.
func (t *takenPlanes) optional() bool { return t.from.Offsets != nil }

// rows implements [taken].
func (t *takenPlanes) rows(parts [][]byte, first, n int) (weight.Matrix, error) {
	from := t.from
	m := &bcq.Matrix{
		N: n, K: from.K, Bits: from.Bits, Group: from.Group, ScaleType: t.scaleType(),
		Planes: parts[bcq.PlanesPart], Alphas: parts[bcq.AlphasPart],
	}
	if err := setPlanes(m, from.Codes, first); err != nil {
		return nil, err
	}
	factors := make([]float32, n*m.Groups()*m.Bits)
	if err := from.Alphas(factors, codes.Block{Row: first, Rows: n, Cols: m.Groups() * m.Bits}); err != nil {
		return nil, err
	}
	m.ScaleType.Encode(m.Alphas, factors)
	if from.Offsets == nil {
		return m, nil
	}
	m.Offsets, factors = parts[bcq.OffsetsPart], factors[:n*m.Groups()]
	if err := from.Offsets(factors, codes.Block{Row: first, Rows: n, Cols: m.Groups()}); err != nil {
		return nil, err
	}
	m.ScaleType.Encode(m.Offsets, factors)
	return m, nil
}

// takenRings is how the tiles of EXL3 become those of a layer of the kind trellis, byte for byte.
type takenRings struct{ from *exl3.Layer }

// format implements [taken].
func (t *takenRings) format(string) (weight.Spec, lut.Codebook) {
	s := t.from.Spec()
	s.Method = methodImport
	return s, lut.Codebook{}
}

// optional implements [taken].
func (t *takenRings) optional() bool { return true }

// rounds implements [taken].
func (t *takenRings) rounds() bool { return false }

// rows implements [taken].
func (t *takenRings) rows(parts [][]byte, first, n int) (weight.Matrix, error) {
	m, err := t.from.Matrix(first, n)
	if err != nil {
		return nil, err
	}
	for i, p := range m.Parts() {
		copy(parts[i], p)
	}
	return m, nil
}
