package ct

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// globalSuffix is that of the tensor with NVFP4's divisor.
const globalSuffix = ".weight_global_scale"

// e2m1 returns the values of the codes of E2M1, which have the sign in the highest bit.
func e2m1() []float32 {
	v := make([]float32, 16)
	for c := range v {
		v[c] = num.F4E2M1ToF32(uint8(c))
	}
	return v
}

// signBit is that of a code of E2M1.
const signBit = 8

// NVFP4 is the format nvfp4-pack-quantized: codes of E2M1 with a scale of OCP's E4M3 for 16 columns.
// It implements [foreign.Target].
type NVFP4 struct{}

// Name implements [foreign.Target].
func (NVFP4) Name() string { return "nvfp4" }

// Format implements [foreign.Target].
func (NVFP4) Format(m *foreign.Model) (foreign.Format, error) {
	f := &nvfp4Format{fp4: fp4{m, nvfp4, 16, "tensor_group", "torch.float8_e4m3fn"}, spans: make(map[*foreign.Layer]span)}
	f.globals = sync.OnceValue(f.findGlobals)
	return f, nil
}

// MXFP4 is the format mxfp4-pack-quantized: codes of E2M1 with a power of two for 32 columns. It
// implements [foreign.Target].
type MXFP4 struct{}

// Name implements [foreign.Target].
func (MXFP4) Name() string { return "mxfp4" }

// Format implements [foreign.Target].
func (MXFP4) Format(m *foreign.Model) (foreign.Format, error) {
	return &mxfp4Format{fp4{m, mxfp4, 32, "group", "torch.uint8"}}, nil
}

// fp4 is what the two formats share.
type fp4 struct {
	model     *foreign.Model
	name      string
	group     int
	strategy  string
	scaleType string
}

// match finds the table of E2M1, or a part of it, in a matrix.
func (f *fp4) match(l *foreign.Layer, w *lut.Matrix) (m foreign.Match, why string) {
	if why = f.unfit(l); why != "" || w == nil {
		return m, why
	}
	if foreign.FitGroup(w.Group, w.K, f.group) == 0 {
		return m, fmt.Sprintf("its groups of %d in %d columns are not of %d", w.Group, w.K, f.group)
	}
	m, ok := foreign.MatchTable(w.Codebook, e2m1(), false)
	if !ok {
		return m, "its table is not E2M1"
	}
	return m, ""
}

// unfit says why there is no form for a layer, or "".
func (f *fp4) unfit(l *foreign.Layer) string {
	if why := foreign.Linear(l); why != "" {
		return why
	}
	if l.K%f.group != 0 {
		return fmt.Sprintf("its %d columns are no multiple of %d", l.K, f.group)
	}
	return ""
}

// anew returns the table of E2M1 times a factor.
func (f *fp4) anew(l *foreign.Layer, factor float64, t weight.ScaleType) (lut.Format, error) {
	if why := f.unfit(l); why != "" {
		return lut.Format{}, errors.New(why)
	}
	values := e2m1()
	slices.SortFunc(values, func(a, b float32) int {
		if a == b && math.Signbit(float64(a)) {
			return -1 // the negative zero before the other
		}
		return int(math.Copysign(1, float64(a-b)))
	})
	cb := lut.Codebook{Name: "e2m1", Values: values}
	return lut.Format{Codebook: cb.Scaled(float32(factor)), Group: f.group, Scale: weight.MSE, ScaleType: t}, nil
}

// pack returns the codes and the scales of a matrix; encode writes the scales of a row, which are not
// negative.
func (f *fp4) pack(w *lut.Matrix, m foreign.Match, encode func(dst []byte, scales []float64)) (packed, stored []byte) {
	groups := w.K / f.group
	packed, stored = make([]byte, w.N*w.K/2), make([]byte, w.N*groups)
	codes, row, scales := make([]uint8, w.K), make([]float32, w.Groups()), make([]float64, groups)
	for n := range w.N {
		m.RowCodes(codes, w, n)
		w.RowScales(row, n)
		for g := range scales {
			s := float64(row[g*f.group/w.Group]) * m.Factor
			own := codes[g*f.group : (g+1)*f.group]
			for i := range own {
				switch {
				case s == 0:
					own[i] = 0 // a scale may have no 0
				case s < 0:
					own[i] ^= signBit
				}
			}
			scales[g] = math.Abs(s)
		}
		encode(stored[n*groups:(n+1)*groups], scales)
		num.PackBits(packed[n*w.K/2:(n+1)*w.K/2], codes, 4)
	}
	return packed, stored
}

// eachScale calls use with the magnitude of every scale that is not 0.
func eachScale(w *lut.Matrix, m foreign.Match, use func(s float64)) {
	row := make([]float32, w.Groups())
	for n := range w.N {
		w.RowScales(row, n)
		for _, s := range row {
			if s != 0 {
				use(math.Abs(float64(s) * m.Factor))
			}
		}
	}
}

// maxChange is what rounding a scale may change it by: no more than what its table is off.
const maxChange = 0x1p-19

// write writes the model with the packer's tensors.
func (f *fp4) write(ctx context.Context, dir string, s foreign.Source, p foreign.Packer) error {
	c := quantization{
		Method: "compressed-tensors", Format: f.name, Status: "compressed", Ignore: f.model.Unquantized(),
		Groups: map[string]scheme{"group_0": {Targets: []string{"Linear"}, Weights: args{
			Bits: 4, Type: "float", Symmetric: true, Strategy: f.strategy, Group: &f.group, Observer: "minmax", ScaleType: &f.scaleType,
		}}},
	}
	q, err := foreign.Indented(c)
	if err != nil {
		return err
	}
	return foreign.WriteFolder(ctx, dir, s, p, foreign.Folder{Edits: []foreign.Member{{Key: "quantization_config", Value: q}}})
}

// entries returns the tensors of a layer, with scales of a type.
func (f *fp4) entries(l *foreign.Layer, t hf.DType) []hf.Entry {
	return []hf.Entry{
		{Name: l.Name + packedSuffix, DType: hf.U8, Shape: []int{l.N, l.K / 2}},
		{Name: l.Name + scaleSuffix, DType: t, Shape: []int{l.N, l.K / f.group}},
	}
}

type mxfp4Format struct{ fp4 }

// Fit implements [foreign.Format].
func (f *mxfp4Format) Fit(l *foreign.Layer, w *lut.Matrix) foreign.Fit {
	m, why := f.match(l, w)
	if why != "" || w == nil {
		return foreign.Fit{Why: why}
	}
	change := m.Rounded
	eachScale(w, m, func(s float64) {
		change = max(change, math.Abs(math.Ldexp(1, exponent(s))/s-1))
	})
	if change > maxChange {
		return foreign.Fit{Why: "its scales are no powers of two"}
	}
	return foreign.Fit{Change: change}
}

// exponent returns that of the power of two nearest to a scale, of those that E8M0 has.
func exponent(s float64) int {
	return min(max(int(math.Round(math.Log2(s))), -127), 127)
}

// Anew implements [foreign.Format].
func (f *mxfp4Format) Anew(l *foreign.Layer) (lut.Format, error) { return f.anew(l, 1, weight.E8M0) }

// Entries implements [foreign.Packer].
func (f *mxfp4Format) Entries(l *foreign.Layer) ([]hf.Entry, error) { return f.entries(l, hf.U8), nil }

// Pack implements [foreign.Packer].
func (f *mxfp4Format) Pack(l *foreign.Layer, s foreign.Source) ([][]byte, error) {
	w, err := s.Matrix(l)
	if err != nil {
		return nil, err
	}
	m, why := f.match(l, w)
	if why != "" {
		return nil, errors.New(why)
	}
	packed, scales := f.pack(w, m, func(dst []byte, scales []float64) {
		for g, s := range scales {
			if dst[g] = 0; s > 0 {
				dst[g] = uint8(exponent(s) + 127)
			}
		}
	})
	return [][]byte{packed, scales}, nil
}

// Write implements [foreign.Format].
func (f *mxfp4Format) Write(ctx context.Context, dir string, s foreign.Source) error {
	return f.write(ctx, dir, s, f)
}

// The least step and the largest value of E4M3, and what its values are times those of S1E4M3, which has the
// same fields.
const (
	e4m3Step  = 0x1p-9
	e4m3Max   = 448
	e4m3Times = 0x1p4
)

// mostGlobal is the exponent of the largest power of two in float32, which the divisor is stored in.
const mostGlobal = 127

type nvfp4Format struct {
	fp4
	mu    sync.Mutex
	spans map[*foreign.Layer]span // of layers that fit
	// globals returns the divisors of scales, once all layers are looked at.
	globals func() map[*foreign.Layer]float64
}

// span is where the scales of a layer lie.
type span struct {
	global float64 // the largest power of two by which all can be multiplied and stay within E4M3
	step   float64 // a power of two that all are multiples of
}

// Fit implements [foreign.Format].
func (f *nvfp4Format) Fit(l *foreign.Layer, w *lut.Matrix) foreign.Fit {
	m, why := f.match(l, w)
	if why != "" || w == nil {
		return foreign.Fit{Why: why}
	}
	s := span{1, math.Inf(1)}
	top := 0.0
	eachScale(w, m, func(v float64) { top = max(top, v) })
	if top > 0 {
		s.global = math.Exp2(min(math.Floor(math.Log2(e4m3Max/top)), mostGlobal))
	}
	change := m.Rounded
	eachScale(w, m, func(v float64) {
		back := float64(num.F8E4M3ToF32(storedE4M3(v, s.global))) / s.global
		change = max(change, math.Abs(back/v-1))
		s.step = min(s.step, lowest(back))
	})
	if change > maxChange {
		return foreign.Fit{Why: "its scales are none of E4M3"}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spans[l] = s
	return foreign.Fit{Change: change}
}

// storedE4M3 returns the byte of a scale, which is not negative, times a power of two.
func storedE4M3(v, global float64) uint8 { return num.F32ToS1E4M3(float32(v * global / e4m3Times)) }

// lowest returns the power of two of the lowest bit that is set in a number that is not 0.
func lowest(v float64) float64 {
	frac, exp := math.Frexp(v)
	digits := uint64(math.Ldexp(frac, 53))
	return math.Ldexp(1, exp-53+bits.TrailingZeros64(digits))
}

// largestByte is the scale that layers quantized anew have at most, but for what a search adds.
const largestByte = 16

// Anew implements [foreign.Format].
func (f *nvfp4Format) Anew(l *foreign.Layer) (lut.Format, error) {
	_, exp := math.Frexp(float64(l.Top) / 6 / largestByte)
	f.mu.Lock()
	f.spans[l] = span{e4m3Times * math.Ldexp(1, -exp), math.Inf(1)}
	f.mu.Unlock()
	return f.anew(l, math.Ldexp(1, exp), weight.S1E4M3)
}

// findGlobals finds the divisors of the layers: one for those that runtimes make one matrix of, if all
// their scales can be multiplied by it, and else each its own.
func (f *nvfp4Format) findGlobals() map[*foreign.Layer]float64 {
	sets, steps := make(map[string]float64), make(map[string]float64)
	for _, l := range f.model.Layers {
		s, ok := f.spans[l]
		if l.Fuse == "" || !ok {
			continue
		}
		if g, ok := sets[l.Fuse]; !ok || s.global < g {
			sets[l.Fuse] = s.global
		}
		if step, ok := steps[l.Fuse]; !ok || s.step < step {
			steps[l.Fuse] = s.step
		}
	}
	all := make(map[*foreign.Layer]float64)
	for l, s := range f.spans {
		all[l] = s.global
		if g := sets[l.Fuse]; l.Fuse != "" && steps[l.Fuse]*g >= e4m3Step {
			all[l] = g
		}
	}
	return all
}

// Warnings implements [foreign.Warner].
func (f *nvfp4Format) Warnings() []string {
	globals, sets := f.globals(), make(map[string]float64)
	for _, l := range f.model.Layers {
		g, ok := globals[l]
		if l.Fuse == "" || !ok {
			continue
		}
		if other, ok := sets[l.Fuse]; ok && other != g {
			return []string{fmt.Sprintf("%s and what it is fused with have scales too far apart for one divisor, which vLLM wants", l.Name)}
		}
		sets[l.Fuse] = g
	}
	if n := f.model.Experts(); n > 0 {
		return []string{fmt.Sprintf("%d layers are of experts: transformers 5 has these as stacks, and opens them from NVFP4 with other values", n)}
	}
	return nil
}

// Entries implements [foreign.Packer].
func (f *nvfp4Format) Entries(l *foreign.Layer) ([]hf.Entry, error) {
	return append(f.entries(l, hf.F8E4M3), hf.Entry{Name: l.Name + globalSuffix, DType: hf.F32, Shape: []int{1}}), nil
}

// Pack implements [foreign.Packer].
func (f *nvfp4Format) Pack(l *foreign.Layer, s foreign.Source) ([][]byte, error) {
	w, err := s.Matrix(l)
	if err != nil {
		return nil, err
	}
	m, why := f.match(l, w)
	if why != "" {
		return nil, errors.New(why)
	}
	global := f.globals()[l]
	packed, scales := f.pack(w, m, func(dst []byte, scales []float64) {
		for g, v := range scales {
			dst[g] = storedE4M3(v, global)
		}
	})
	return [][]byte{packed, scales, binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(global)))}, nil
}

// Write implements [foreign.Format].
func (f *nvfp4Format) Write(ctx context.Context, dir string, s foreign.Source) error {
	return f.write(ctx, dir, s, f)
}
