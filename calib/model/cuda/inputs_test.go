package cuda

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/decodebench"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/conform"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
)

func TestGPUInputs(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i == 0 {
			return
		}
		testInputs(t, o, true)
		t.Run("GLURows", func(t *testing.T) { testGLURows(t, o) })
		t.Run("Rings", func(t *testing.T) { testRingInputs(t, o, 1, 3, 8, 9, 16) })
		if o.dev.Info.Major == 9 {
			t.Run("Model", func(t *testing.T) { testModelInputs(t, o) })
			t.Run("Forms", func(t *testing.T) { testForms(t, o) })
			t.Run("Gated", func(t *testing.T) { testGated(t, o) })
			t.Run("Joined", func(t *testing.T) { testJoinedInputs(t, o) })
		}
	})
}

// testInputs holds what operations write for products of many rows to what lutcolumns.cu makes of what they write row by row.
func testInputs(t *testing.T, o *Ops, long bool) {
	acts := func(seed uint64, n int) model.Array {
		a := o.Acts(n)
		o.Write(a, randoms(seed, n, 1))
		return a
	}
	floats := func(seed uint64, n int) model.Array {
		a := o.Floats(n)
		o.Write(a, randoms(seed, n, 1))
		return a
	}
	for _, test := range []struct{ rows, k int }{{1, 128}, {17, 384}, {40, 2176}, {8, 8448}, {3, 4096}} {
		n := test.rows * test.k
		c := inputCheck{t, o, test.rows, test.k}
		x, h, w := acts(1, n), floats(2, n), floats(3, test.k)
		c.check("norm of floats", true, func(y model.Array) { o.RMSNorm(y, h, w, test.rows, 1e-5) })
		c.check("norm of acts", true, func(y model.Array) { o.RMSNorm(y, x, w, test.rows, 1e-5) })
		c.check("norms of groups", true, func(y model.Array) { o.NormGroups(y, x, w, test.rows, 2, 1e-5) })
		var sums []float32 // by whichever kernel
		c.check("sum and norm", true, func(y model.Array) {
			sum, got := floats(2, n), make([]float32, n)
			o.AddNorm(y, sum, x, w, test.rows, 1e-5)
			o.Read(got, sum)
			o.Free(sum)
			if sums != nil && !slices.Equal(got, sums) {
				t.Errorf("sums of %d rows of %d are others where they are prepared", test.rows, test.k)
			}
			sums = got
		})
		up := acts(4, n)
		both := o.Acts(2 * n)
		o.Write(both, randoms(10, 2*n, 1))
		c.check("rows of gates and factors", true, func(y model.Array) {
			o.GLURows(y, both, test.rows, arch.Gating{Act: arch.SiLU})
		})
		o.Free(both)
		for _, a := range []arch.Activation{arch.SiLU, arch.GELU, arch.GELUTanh, arch.ReLU, arch.Sigmoid, arch.SwiGLUOAI} {
			c.check(string(a), true, func(y model.Array) { o.GLU(y, x, up, arch.Gating{Act: a, Alpha: 1.7, Limit: 1}) })
		}
		o.Free(x, h, w, up)

		made, taps, ring := acts(4, 3*n), floats(5, 3*test.k), acts(6, test.rows*3*test.k)
		for what, runs := range map[string][]model.Run{"a text": {{From: 5, Rows: test.rows}}, "texts": {{Slot: 1, Rows: test.rows / 3}, {From: 2, Rows: test.rows - test.rows/3}}} {
			at := places(o, runs)
			c.check("short convolution of "+what, true, func(y model.Array) {
				o.Write(ring, randoms(6, ring.Len(), 1))
				o.ShortConv(y, made, taps, nil, ring, at, model.ConvShape{Channels: test.k, Width: 3})
			})
			o.Free(at.Rows)
		}
		var steps []model.Run
		for slot := range test.rows {
			steps = append(steps, model.Run{Slot: slot, From: slot + 7, Rows: 1})
		}
		at := places(o, steps)
		c.check("steps of short convolutions", true, func(y model.Array) {
			o.Write(ring, randoms(6, ring.Len(), 1))
			o.ShortConv(y, made, taps, nil, ring, at, model.ConvShape{Channels: test.k, Width: 3})
		})
		o.Free(at.Rows, made, taps, ring)
	}

	// Heads of 24 and 80 elements are mixed row by row, as in parts of several texts.
	for _, test := range []struct{ heads, kvHeads, dim, rows int }{{1, 1, 128, 37}, {6, 3, 128, 150}, {16, 4, 24, 20}, {4, 2, 64, 130}, {4, 1, 32, 19}, {4, 4, 96, 33}, {8, 4, 80, 9}, {2, 1, 256, 70}} {
		if !long && test.dim != 128 && test.dim != 24 { // which take others to be compiled
			continue
		}
		k := test.heads * test.dim
		s := model.AttentionShape{T: test.rows, Heads: test.heads, KVHeads: test.kvHeads, Dim: test.dim, Scale: float32(1 / math.Sqrt(float64(test.dim)))}
		c := inputCheck{t, o, test.rows, k}
		q, keys, values := acts(5, test.rows*k), acts(6, test.rows*test.kvHeads*test.dim), acts(7, test.rows*test.kvHeads*test.dim)
		c.check(fmt.Sprintf("attention, heads of %d", test.dim), false, func(y model.Array) { o.Attention(y, nil, q, keys, values, s) })
		shape := model.CacheShape{Slots: 2, Positions: test.rows + 3, KVHeads: test.kvHeads, Dim: test.dim}
		kept, mixed := acts(8, shape.Elements()), acts(9, shape.Elements())
		for _, runs := range [][]model.Run{{{Slot: 1, From: 2, Rows: test.rows}}, {{Slot: 1, From: 2, Rows: 3}, {Slot: 0, Rows: test.rows - 3}}} {
			at := places(o, runs)
			c.check(fmt.Sprintf("%d runs, heads of %d", len(runs), test.dim), false, func(y model.Array) { o.Recall(y, q, kept, mixed, at, shape, s) })
			o.Free(at.Rows)
		}
		o.Free(q, keys, values, kept, mixed)
	}

	for _, dim := range []int{32, 64, 96, 128} {
		s := model.AttentionShape{Heads: 4, KVHeads: 2, Dim: dim, Scale: float32(1 / math.Sqrt(float64(dim)))}
		shape := model.CacheShape{Slots: 19, Positions: 600, KVHeads: 2, Dim: dim}
		var runs []model.Run
		for slot := range shape.Slots {
			runs = append(runs, model.Run{Slot: slot, From: slot * slot, Rows: 1}) // up to two parts
		}
		at := places(o, runs)
		rows, wide, narrow := len(runs), 4*dim, 2*dim
		keys, values, arrived := acts(1, shape.Elements()), acts(2, shape.Elements()), o.Floats(rows*s.Heads)
		qkv, angles := acts(3, rows*(wide+2*narrow)), floats(4, rows*dim/2)
		pitch := wide + 2*narrow
		h := model.StepHeads{
			Q: qkv, K: qkv.Slice(wide, qkv.Len()), V: qkv.Slice(wide+narrow, qkv.Len()), QPitch: pitch, KVPitch: pitch, Cos: angles, Sin: angles, Half: dim / 2,
		}
		c := inputCheck{t, o, rows, wide}
		c.check(fmt.Sprintf("a token a text, heads of %d", dim), false, func(y model.Array) { o.Attend(y, keys, values, h, at, shape, s, arrived) })
		o.Free(at.Rows, keys, values, arrived, qkv, angles)
	}
}

// testGLURows holds gates and factors that are rows of one product to those of two.
func testGLURows(t *testing.T, o *Ops) {
	for _, test := range []struct{ rows, cols int }{{1, 1}, {1, 64}, {3, 13}, {16, 2056}, {5, 2304}} {
		n := test.rows * test.cols
		gates, factors := randoms(1, n, 3), randoms(2, n, 3)
		var joined []float32
		for i := 0; i < n; i += test.cols {
			joined = append(append(joined, gates[i:i+test.cols]...), factors[i:i+test.cols]...)
		}
		g, u, both, want, got := o.Acts(n), o.Acts(n), o.Acts(2*n), o.Acts(n), o.Acts(n)
		o.Write(g, gates)
		o.Write(u, factors)
		o.Write(both, joined)
		act := arch.Gating{Act: arch.SwiGLUOAI, Alpha: 1.7, Limit: 2}
		o.GLU(want, g, u, act)
		o.GLURows(got, both, test.rows, act)
		a, b := make([]float32, n), make([]float32, n)
		o.Read(a, want)
		o.Read(b, got)
		if !slices.Equal(a, b) || !slices.ContainsFunc(a, func(x float32) bool { return x != 0 }) {
			t.Errorf("%d rows of %d are others by one product", test.rows, test.cols)
		}
		o.Free(g, u, both, want, got)
	}
}

// places returns where the rows of a step stand.
func places(o *Ops, runs []model.Run) model.Step {
	var at []float32
	for _, run := range runs {
		for i := range run.Rows {
			at = append(at, float32(run.Slot), float32(run.From+i))
		}
	}
	step := model.Step{Runs: runs, Rows: o.Floats(len(at))}
	o.Write(step.Rows, at)
	return step
}

// inputCheck is for rows of k acts.
type inputCheck struct {
	t       *testing.T
	o       *Ops
	rows, k int
}

// check has rows written as they are, in each form that kernels write, and if it can be both at once.
func (c inputCheck) check(what string, both bool, write func(y model.Array)) {
	c.t.Helper()
	// Of eight rows in turn there are so many bytes, and behind the last row zeros or what was there.
	c.checkForm(what, columns, 128, both, write)
	c.checkForm(what+", rotated", rotated, 64, both, write)
}

func (c inputCheck) checkForm(what string, form gemmcuda.Form, each int, both bool, write func(y model.Array)) {
	c.t.Helper()
	o, n := c.o, c.rows*c.k
	plain := o.Acts(n).(*array)
	write(plain)
	raw := c.bytes(plain.ptr, 2*n)
	if !slices.ContainsFunc(raw, func(b byte) bool { return b != 0 }) {
		c.t.Errorf("%s: nothing was written", what)
	}
	size := form.Bytes(c.rows, c.k)
	room := func() driver.Ptr {
		at := o.scratch(size)
		o.fail(o.stream.Fill8(at, 0xff, size))
		return at
	}
	var want, got driver.Ptr
	o.do(func() {
		want = room()
		o.prepare(form, want, plain.ptr, c.rows, c.k)
	})
	lines := func(at driver.Ptr) []byte {
		all := c.bytes(at, size)
		for i := 0; i < size; i += each {
			line := all[i : i+each]
			if i/1024%((c.rows+7)/8)*8+i/each%8 >= c.rows && bytes.Equal(line, bytes.Repeat([]byte{0xff}, each)) {
				clear(line)
			}
		}
		return all
	}
	prepared := lines(want)
	for _, rowsToo := range []bool{false, true} {
		if rowsToo && !both {
			break
		}
		o.do(func() { got = room() })
		in := &input{form: form, room: got, k: c.k, n: n}
		if rowsToo {
			in.rows = plain
			o.Zero(plain)
		}
		write(in)
		if !bytes.Equal(lines(got), prepared) {
			c.t.Errorf("%s: %d rows of %d are prepared otherwise", what, c.rows, c.k)
		}
		if rowsToo && !bytes.Equal(c.bytes(plain.ptr, 2*n), raw) {
			c.t.Errorf("%s: %d rows of %d are others where they are prepared as well", what, c.rows, c.k)
		}
		o.do(func() { o.release(got) })
	}
	o.Free(plain)
	o.do(func() { o.release(want) })
	if err := o.Err(); err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

func (c inputCheck) bytes(at driver.Ptr, n int) []byte {
	b := make([]byte, n)
	c.o.do(func() { c.o.fail(c.o.dev.Read(b, at)) })
	return b
}

// testForms has products that read rows in several forms multiply what is written for all of them, and holds them to what each makes of
// rows by itself. What none reads as it is written prepared is written row by row.
func testForms(t *testing.T, o *Ops) {
	const rows, n, k = 35, 40, 512
	r := rand.New(rand.NewPCG(1, 1))
	any, sym := conform.RandomMatrix(r, n, k, 4, 64, weight.F16), conform.RandomMatrix(r, n, k, 4, 64, weight.F16)
	codebook, err := lut.NewCodebook("sym", 4, 64)
	if err != nil {
		t.Fatal(err)
	}
	sym.Codebook = codebook.Values
	var all []model.Weight
	for _, m := range []weight.Matrix{any, sym, conform.RandomSparse(r, n, k, 4, 128, weight.F16)} {
		w, err := o.Packed(m)
		if err != nil {
			t.Fatal(err)
		}
		defer o.FreeWeight(w)
		all = append(all, w)
	}
	forms := []gemmcuda.Form{table.Columns, table.Skipping, table.InOrder}
	o.do(func() {
		for i, w := range all {
			packed := w.(*matrix).packed
			for _, way := range o.engine.Ways(packed.Tiles, rows) {
				if o.formOf(w, rows) != forms[i] {
					o.engine.Prefer(packed.Tiles, rows, way)
				}
			}
			if form := o.formOf(w, rows); form != forms[i] {
				t.Errorf("%d rows are read in form %v, want %v", rows, form, forms[i])
			}
		}
	})
	x, room, h, norm := o.Acts(rows*k), o.Acts(o.PreparedLen(rows, k)), o.Floats(rows*k), o.Floats(k)
	defer o.Free(x, room, h, norm)
	o.Write(h, randoms(2, rows*k, 1))
	o.Write(norm, randoms(3, k, 1))
	if o.Prepared(x, room, rows, all[1:]...) != model.Array(x) {
		t.Error("rows are prepared for products that read other forms")
	}
	multiply := func(in model.Array, by ...model.Weight) (results [][]float32) {
		o.RMSNorm(in, h, norm, rows, 1e-5)
		var to []model.Product
		for _, w := range by {
			y := o.Acts(rows * n)
			defer o.Free(y)
			to = append(to, model.Product{W: w, Y: y})
		}
		o.Linear(in, rows, to...)
		for _, p := range to {
			results = append(results, make([]float32, rows*n))
			o.Read(results[len(results)-1], p.Y)
		}
		return results
	}
	got := multiply(o.Prepared(x, room, rows, all...), all...)
	for i, w := range all {
		if !slices.Equal(got[i], multiply(x, w)[0]) {
			t.Errorf("product %d has other bits", i)
		}
	}
}

// testGated holds gates of many rows, which the product ends with, to what a kernel makes of its results, and what is written for other
// products to what is row by row.
func testGated(t *testing.T, o *Ops) {
	const rows, n, k = 40, 512, 256
	w, err := o.Packed(conform.RandomMatrix(rand.New(rand.NewPCG(1, 2)), n, k, 4, 64, weight.F16))
	if err != nil {
		t.Fatal(err)
	}
	defer o.FreeWeight(w)
	act := arch.Gating{Act: arch.SiLU}
	o.do(func() {
		packed := w.(*matrix).packed
		for _, way := range o.engine.Ways(packed.Tiles, rows) {
			if o.formOf(w, rows) != columns {
				o.engine.Prefer(packed.Tiles, rows, way)
			}
		}
	})
	if !o.Gates(rows, w, act) {
		t.Fatal("there is no kernel with gates")
	}
	x, both, want, got := o.Acts(rows*k), o.Acts(rows*n), o.Acts(rows*n/2), o.Acts(rows*n/2)
	defer o.Free(x, both, want, got)
	o.Write(x, randoms(3, rows*k, 1))
	o.Linear(x, rows, model.Product{W: w, Y: both})
	o.GLURows(want, both, rows, act)
	o.Gated(got, x, rows, w, act)
	a, b := make([]float32, rows*n/2), make([]float32, rows*n/2)
	o.Read(a, want)
	o.Read(b, got)
	most := 5e-4 // of a rounding
	if o.acts == driver.BF16 {
		most = 4e-3
	}
	if d := distance(b, a); !(d <= most) {
		t.Errorf("results differ by %.2g, want at most %.2g", d, most)
	}
	c := inputCheck{t, o, rows, n / 2}
	c.check("gates of a product", true, func(y model.Array) { o.Gated(y, x, rows, w, act) })
}

// counting counts inputs that are prepared, and those that are read row by row as well.
type counting struct {
	*Ops
	prepared, both int
}

// preferring multiplies so many rows, and a few more or less, by the kernel that reads them prepared, but for square weights.
type preferring struct {
	counting
	rows int
}

func (o *preferring) Packed(m weight.Matrix) (model.Weight, error) { return o.prefer(o.Ops.Packed(m)) }

func (o *preferring) Join(parts ...model.Weight) (model.Weight, error) {
	return o.prefer(o.Ops.Join(parts...))
}

func (o *preferring) prefer(w model.Weight, err error) (model.Weight, error) {
	if w == nil || err != nil {
		return w, err
	}
	packed := w.(*matrix).packed
	if n, k := w.Shape(); packed == nil || n == k {
		return w, nil
	}
	o.do(func() {
		for _, way := range o.engine.Ways(packed.Tiles, o.rows) {
			if o.formOf(w, o.rows) != table.Columns {
				o.engine.Prefer(packed.Tiles, o.rows, way)
			}
		}
		if form := o.formOf(w, o.rows); form != table.Columns {
			err = fmt.Errorf("%d rows are read in form %v", o.rows, form)
		}
	})
	return w, err
}

func (o *counting) Prepared(x, room model.Array, rows int, by ...model.Weight) model.Array {
	y := o.Ops.Prepared(x, room, rows, by...)
	if in, ok := y.(*input); ok {
		o.prepared++
		if in.rows != nil {
			o.both++
		}
	}
	return y
}

// rowwise are operations of which none but those that multiply knows of another form.
type rowwise struct{ model.Recorder }

// testModelInputs compares the logits of a window, of a text that goes on and of steps of many texts with those of operations
// that all read and write rows. Of what reads the norm in front of attention some products of a window read rows too.
func testModelInputs(t *testing.T, o *Ops) {
	const config = `{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1,
		"head_dim": 128, "num_hidden_layers": 2, "vocab_size": 96, "intermediate_size": 384, "rms_norm_eps": 1e-5, "tie_word_embeddings": false}`
	d, err := arch.Describe([]byte(config), nil)
	if err != nil {
		t.Fatal(err)
	}
	const rows = 35 // more than go in one launch
	prefers := &preferring{counting{Ops: o}, rows}
	var tokens []int
	for i := range rows {
		tokens = append(tokens, i*37%d.Vocab)
	}
	results := func(ops model.Ops) (all [][]float32) {
		src, err := decodebench.NewRandom("llama", d, decodebench.RandomOptions{Bits: 4, Group: 64, DType: hf.F16})
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.New(src, ops)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		all = append(all, opstest.Logits(t, m, tokens))
		c, err := m.NewCache(rows, rows+2)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		h, err := c.Continue(context.Background(), model.Part{Slot: 0, Tokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		state := make([]float32, h.Len())
		ops.Read(state, h)
		texts := make([][]int, rows)
		for i := range texts {
			texts[i] = []int{tokens[i], tokens[(i+5)%rows]}
		}
		return append(append(all, state), mixtureSteps(t, m, texts)...)
	}
	want, got := results(rowwise{prefers}), results(prefers)
	// In both layers of a window, of a text that goes on, and of a step, which is asked for twice, four; where q, k and v are apart, that of these too.
	if prefers.prepared != 2*4*4 || prefers.both != 2*2 {
		t.Errorf("%d inputs are prepared, %d of them read row by row as well", prefers.prepared, prefers.both)
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("result %d has other bits", i)
		}
	}
}

// joinedOtherwise has what is joined read otherwise than its parts would be.
type joinedOtherwise struct{ preferring }

func (o *joinedOtherwise) Join(parts ...model.Weight) (model.Weight, error) {
	return o.Ops.Join(parts...)
}

// testJoinedInputs has steps of many texts whose joined weights read rows, where their parts would read them prepared.
func testJoinedInputs(t *testing.T, o *Ops) {
	const config = `{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_attention_heads": 3, "num_key_value_heads": 1,
		"head_dim": 128, "num_hidden_layers": 1, "vocab_size": 96, "intermediate_size": 384, "rms_norm_eps": 1e-5, "tie_word_embeddings": false}`
	d, err := arch.Describe([]byte(config), nil)
	if err != nil {
		t.Fatal(err)
	}
	const rows = 35 // and shapes for which no other test has preferred a kernel
	ops := &joinedOtherwise{preferring{counting{Ops: o}, rows}}
	src, err := decodebench.NewRandom("llama", d, decodebench.RandomOptions{Bits: 4, Group: 64, DType: hf.F16})
	if err != nil {
		t.Fatal(err)
	}
	steps := func(ops model.Ops) [][]float32 {
		m, err := model.New(src, ops)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		texts := make([][]int, rows)
		for i := range texts {
			texts[i] = []int{i % d.Vocab}
		}
		return mixtureSteps(t, m, texts)
	}
	want, got := steps(rowwise{ops}), steps(ops)
	if ops.prepared != 2*2 { // what O and Down read, asked for twice
		t.Errorf("%d inputs are prepared", ops.prepared)
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("text %d has other bits", i)
		}
	}
}

// testRingInputs compares the logits of steps of so many texts, whose products are by rings, with those of operations that write rows,
// which are rotated after. Of gates and factors one product is made.
func testRingInputs(t *testing.T, o *Ops, texts ...int) {
	for _, test := range []struct {
		name                            string
		heads, kvHeads, dim, mlp, parts int // inputs of a layer that are written rotated
	}{
		{"heads of 128", 2, 1, 128, 384, 4},
		{"heads of 64", 4, 2, 64, 256, 4},
		{"heads of 64, of which none share keys", 2, 2, 64, 320, 3}, // attention by a launch more, and factors row by row
	} {
		config := fmt.Sprintf(`{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "num_attention_heads": %d,
			"num_key_value_heads": %d, "head_dim": %d, "num_hidden_layers": 2, "vocab_size": 96, "intermediate_size": %d, "rms_norm_eps": 1e-5,
			"tie_word_embeddings": false}`, test.heads, test.kvHeads, test.dim, test.mlp)
		d, err := arch.Describe([]byte(config), nil)
		if err != nil {
			t.Fatal(err)
		}
		src, err := decodebench.NewRandom("llama", d, decodebench.RandomOptions{Kind: trellis.Name, Bits: 3, DType: hf.F16})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range texts {
			t.Run(fmt.Sprintf("%s, %d texts", test.name, n), func(t *testing.T) {
				counts := &counting{Ops: o}
				steps := func(ops model.Ops) [][]float32 {
					m, err := model.New(src, ops)
					if err != nil {
						t.Fatal(err)
					}
					defer m.Close()
					all := make([][]int, n)
					for i := range all {
						all[i] = []int{i * 37 % d.Vocab, (i*5 + 1) % d.Vocab}
					}
					return mixtureSteps(t, m, all)
				}
				want := steps(rowwise{o})
				got := steps(counts)
				if counts.prepared != 2*2*test.parts || counts.both != 0 { // a step is asked for twice
					t.Errorf("%d inputs are rotated, %d of them read row by row as well: want %d", counts.prepared, counts.both, 2*2*test.parts)
				}
				for i := range want {
					if !slices.Equal(got[i], want[i]) {
						t.Errorf("text %d has other bits", i)
					}
				}
			})
		}
	}
}
