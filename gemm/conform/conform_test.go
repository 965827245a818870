package conform

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/ref"
)

// TestReference holds results that are rounded once, as the kernels round, to
// the bounds, and lets each kind of mistake be found.
func TestReference(t *testing.T) {
	const m = 3
	for _, dtype := range []driver.DType{driver.F16, driver.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			w := RandomMatrix(r, 300, 96, 4, 32, weight.F16)
			x := RandomHalves(r, m*w.K, dtype)
			held := *w
			held.Codebook = RoundedTable(w.Codebook, dtype)
			y := Poisoned(m * w.N)
			for i, v := range ref.LUT(fromHalves(dtype, x), &held, m) {
				y[i] = ToHalf(dtype, float32(v))
			}
			if err := CheckWritten(y, dtype); err != nil {
				t.Error(err)
			}
			f := NewReference(r, w, x, nil, m, 1, dtype)
			if len(f.columns) != w.N {
				t.Errorf("got %d columns, want all %d", len(f.columns), w.N)
			}
			rel, largest := f.Errors(y)
			bound := Bound(dtype)
			if !(rel <= bound) || rel < bound/10 {
				t.Errorf("relative error: got %g, want a little less than %g", rel, bound)
			}
			if !(largest >= rel) || largest > 20*rel {
				t.Errorf("largest error: got %g beside a relative error of %g", largest, rel)
			}
			if got := f.limit(); got != bound {
				t.Errorf("the error may be %g, want %g", got, bound)
			}
			if !(f.TableErr > bound/100) || f.TableErr > 2*bound {
				t.Errorf("error of the table: got %g", f.TableErr)
			}
			exact := NewReference(r, &held, x, nil, m, 1, dtype)
			if exact.TableErr != 0 {
				t.Errorf("error of a rounded table: got %g, want none", exact.TableErr)
			}

			// One weight's share in one element.
			y[5] = ToHalf(dtype, FromHalf(dtype, y[5])+0.5)
			if rel, _ := f.Errors(y); rel <= bound {
				t.Errorf("a wrong element: relative error %g", rel)
			}
			y[5] = poisoned
			if rel, _ := f.Errors(y); rel <= bound {
				t.Errorf("a poisoned element: relative error %g", rel)
			}
			if CheckWritten(y, dtype) == nil {
				t.Error("a poisoned element: no error")
			}
			y[5] = ToHalf(dtype, float32(math.Inf(-1)))
			if CheckWritten(y, dtype) == nil {
				t.Error("an infinite element: no error")
			}
		})
	}

	// Large matrices are sampled, the last column included.
	r := rand.New(rand.NewPCG(1, 2))
	w := RandomMatrix(r, 3000, 1024, 2, 128, weight.F16)
	f := NewReference(r, w, make([]uint16, 8*w.K), nil, 8, 20, driver.F16)
	if len(f.columns) != referenceWork/(1024*8*20) || f.columns[0] != w.N-1 {
		t.Errorf("got %d columns, the first %d", len(f.columns), f.columns[0])
	}
}

// TestBounds holds the bounds to what they have always been: they only get tighter. A few elements
// may be rounded unluckily, by half a unit in the last place and no more.
func TestBounds(t *testing.T) {
	for dtype, most := range map[driver.DType]float64{driver.F16: 3e-4, driver.BF16: 2.5e-3} {
		if got := Bound(dtype); got > most {
			t.Errorf("%v: a bound of %g, want at most %g", dtype, got, most)
		}
		r := rand.New(rand.NewPCG(1, 2))
		for i := range 1000 {
			w := RandomMatrix(r, 1+i%8, 32, 4, 32, weight.F16)
			f := NewReference(r, w, RandomHalves(r, w.K, dtype), nil, 1, 1, dtype)
			if got := f.limit(); got < Bound(dtype) || got > 1.8*most {
				t.Errorf("%d elements of %v: the error may be %g", w.N, dtype, got)
			}
		}
	}
}

// formats are some, in an order in which each part meets every size.
func formats() []Format {
	var all []Format
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for _, group := range []int{32, 64, 128, 256, 0} {
			for _, scale := range []weight.ScaleType{weight.F16, weight.BF16, weight.F32} {
				for _, dtype := range []driver.DType{driver.F16, driver.BF16} {
					all = append(all, Format{bits, group, scale, dtype})
				}
			}
		}
	}
	return all
}

// TestDraw holds what is drawn to the sizes it is drawn from, whatever the seed: kernels are chosen
// by them.
func TestDraw(t *testing.T) {
	met := make(map[any]map[Size]bool)
	odd, differ := false, false
	for i, f := range formats() {
		s := SizeOf(i)
		for _, part := range []any{f.Bits, [1]int{f.Group}, f.Scale, f.Type} {
			if met[part] == nil {
				met[part] = make(map[Size]bool)
			}
			met[part][s] = true
		}
		first := Draw(0, i, f)
		for seed := range uint64(20) {
			c := Draw(seed, i, f)
			if !reflect.DeepEqual(c, Draw(seed, i, f)) {
				t.Fatalf("seed %d draws %v and %v", seed, c, Draw(seed, i, f))
			}
			units := (c.K + unitCols - 1) / unitCols
			if (c.N+tileRows-1)/tileRows != s.Tiles || units != s.Units && f.Group != 256 || c.K%32 != 0 || c.K <= f.Group {
				t.Fatalf("%+v: got %v", s, c)
			}
			for j, rows := range c.Rows {
				for _, bound := range []int{1, 4, 8, 16, 24, maxLaunch} { // where kernels change
					if (rows > bound) != (first.Rows[j] > bound) {
						t.Fatalf("seed %d draws %d rows, seed 0 %d", seed, rows, first.Rows[j])
					}
				}
			}
			odd = odd || c.N%2 == 1 && c.K%64 == 32
			differ = differ || c.N != first.N && c.K != first.K
		}
	}
	for part, sizes := range met {
		if len(sizes) != len(Sizes()) {
			t.Errorf("%T %v meets %d sizes, want all", part, part, len(sizes))
		}
	}
	if !odd || !differ {
		t.Errorf("odd shapes %v, other shapes with other seeds %v: want both", odd, differ)
	}
}

// plain multiplies on the host, as kernels should, or in a way that is wrong.
type plain struct {
	*Case
	wrong string
	calls int
}

// plainConfig is a configuration that splits K into so many slices.
type plainConfig int

func (c plainConfig) String() string { return fmt.Sprintf("k%d", int(c)) }

func (k *plain) Configs(int) []plainConfig { return []plainConfig{8, 8, 16} }

func (k *plain) Slices(c plainConfig, _ int) int { return int(c) }

func (k *plain) MatMul(c plainConfig, p *Product, blocks int, y []uint16) error {
	k.calls++
	held := *k.Matrix
	held.Codebook = RoundedTable(k.Matrix.Codebook, k.Type)
	if k.wrong == "the table is not rounded" {
		held.Codebook = k.Matrix.Codebook
	}
	if k.wrong == "a code" && p.Rows == k.K { // which unit vectors alone tell, at this size
		held.Codes = append([]byte(nil), held.Codes...)
		held.Codes[0] ^= 1
	}
	got := ref.LUT(fromHalves(k.Type, p.X), &held, p.Rows)
	for i, v := range got {
		if p.Bias != nil && k.wrong != "no bias" {
			v += float64(FromHalf(k.Type, p.Bias[i%k.N]))
		}
		y[i] = ToHalf(k.Type, float32(v))
	}
	last := p.Rows*k.N - 1
	switch {
	case k.wrong == "an element is not written":
		y[last] = poisoned
	case k.wrong == "an element is infinite":
		y[last] = ToHalf(k.Type, float32(math.Inf(1)))
	case k.wrong == "beyond the end":
		y[last+1] = 0
	case k.wrong == "other bits the second time" && k.calls%2 == 0,
		k.wrong == "other bits on few blocks" && blocks == 1,
		k.wrong == "other bits under another configuration" && k.calls%6 == 3:
		y[0] ^= 1
	case k.wrong == "other bits in other slices" && c == 16 && !unit(p.X[:k.K]):
		y[0] ^= 1 // the other neighbour, which is no error
	case k.wrong == "fails":
		return errors.New("of the device")
	}
	return nil
}

// unit reports whether a row has one number that is not 0.
func unit(row []uint16) bool {
	n := 0
	for _, v := range row {
		if v != 0 {
			n++
		}
	}
	return n == 1
}

// TestRaw: one case in three has a table and scales such as other programs' formats have.
func TestRaw(t *testing.T) {
	raw := 0
	for i := range 6 {
		c := Draw(1, i, Format{4, 32, weight.F16, driver.F16})
		c.Fill()
		scale := make([]float32, c.Matrix.Groups())
		c.Matrix.RowScales(scale, 0)
		if c.Matrix.Codebook[0] == -127 && scale[0] > 0 && scale[0] < 0x1p-14 { // subnormal in float16
			raw++
		}
		if i > 2 { // which takes long
			continue
		}
		res, err := Check(context.Background(), c, &plain{Case: c})
		if err != nil || len(res.Failures) > 0 {
			t.Errorf("%v: %q, %v", c, res.Failures, err)
		}
	}
	if raw != 2 {
		t.Errorf("%d of 6 cases are raw, want 2", raw)
	}
}

// TestCheck finds each way to be wrong, and nothing where kernels are right.
func TestCheck(t *testing.T) {
	// Of 4 bits this case has a table that rounding does not change.
	for _, f := range []Format{{2, 32, weight.F16, driver.F16}, {3, 0, weight.BF16, driver.BF16}, {5, 128, weight.F16, driver.BF16}} {
		c := Draw(1, 1, f)
		c.Fill()
		for wrong, want := range map[string]string{
			"":                                       "",
			"other bits in other slices":             "",
			"the table is not rounded":               "identity: weight",
			"a code":                                 "identity: weight",
			"no bias":                                "relative error",
			"an element is not written":              "was not written",
			"an element is infinite":                 "is +Inf",
			"beyond the end":                         "behind the result was written",
			"other bits the second time":             "not the bits of the first time",
			"other bits on few blocks":               "not the bits of the first time",
			"other bits under another configuration": "not the bits of the first time",
			"fails":                                  "",
		} {
			k := &plain{Case: c, wrong: wrong}
			res, err := Check(context.Background(), c, k)
			if wrong == "fails" {
				if err == nil || !strings.Contains(err.Error(), "of the device") || !strings.Contains(err.Error(), c.String()) {
					t.Errorf("%s: got error %v", wrong, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if n := 2 * len(c.Rows) * 3 * 2; res.Checks != n || k.calls != n {
				t.Errorf("%d checks, %d calls: want %d", res.Checks, k.calls, n)
			}
			all := strings.Join(res.Failures, "\n")
			if (all != "") != (want != "") || !strings.Contains(all, want) {
				t.Errorf("%v: %s: got failures %q, want %q", c, wrong, all, want)
			}
			if want == "" && (res.WorstErr > 1.1*Bound(f.Type) || res.WorstErr < Bound(f.Type)/10) {
				t.Errorf("%v: worst error %g", c, res.WorstErr)
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := Draw(1, 1, Format{4, 32, weight.F16, driver.F16})
	c.Fill()
	if _, err := Check(ctx, c, &plain{Case: c}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got error %v", err)
	}
}
