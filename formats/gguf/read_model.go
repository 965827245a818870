package gguf

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
)

// readAs names the type, as safetensors spell it, that holds every value of a type of
// blocks. What is not of 16 bits itself takes 32, but for MXFP4, whose few bits and power
// of two are a BF16.
func readAs(t Type) string {
	switch t {
	case F16:
		return "F16"
	case BF16, MXFP4:
		return "BF16"
	}
	return "F32"
}

// View is a tensor as a Hugging Face folder has it: the rows of one or more tensors of a
// file, in another order. Its methods may be called from several goroutines.
type View struct {
	Name  string
	Shape []int
	DType string // of safetensors, that holds all its values: F32, F16 or BF16
	Raw   []*Raw // the file's tensors that it is made of, of one type

	// Turned says that a matrix of a stack is stored by rows where the same model in 16
	// bits has it by columns.
	Turned bool

	n, k   int // of a matrix, of which a stack has several; a vector is a matrix of one column
	pieces [][]piece
	of     *Tensor // that it is a source of, whose elements differ; or nil
	places []int   // where each column lies; nil: in order
}

// piece says which rows of a matrix a tensor has.
type piece struct {
	raw  *Raw
	from int                       // its row that is the layer's first
	rows int                       // the layer's
	of   func(row int) (int, bool) // where the matrix's row lies, counted from its first
	wide int                       // if not 0, that row is a column of matrices of so many, counted on from one to the next
}

// Model is a model's description and its tensors under the names of a Hugging Face folder.
type Model struct {
	Decoder *arch.Decoder
	Config  []byte // config.json
	Views   []*View

	byColumns bool // see [family]
}

// Model finds the model in an open file: its config.json, and the tensors that it
// describes. A tensor that is missing, of another shape or that has no place in the
// model is an error.
func (f *File) Model() (*Model, error) {
	config, err := f.ConfigJSON()
	if err != nil {
		return nil, err
	}
	// Stacks of experts are stored by rows, as gpt-oss has them in MXFP4, and no other model has a folder of.
	d, err := arch.Describe(config, f.stores)
	if err != nil {
		return nil, fmt.Errorf("config.json made of the pairs: %w", err)
	}
	tensors, err := Tensors(d)
	if err != nil {
		return nil, err
	}
	family, err := familyOf(d)
	if err != nil {
		return nil, err
	}
	m := &Model{Decoder: d, Config: config, byColumns: family.byColumns}
	views := make(map[string]*View)
	used := make(map[*Raw]bool)
	for i := range tensors {
		t := &tensors[i]
		raw, ok := f.byName[t.Name]
		if !ok {
			return nil, fmt.Errorf("no tensor %s, which a model of the architecture %s has", t.Name, d.ModelType)
		}
		if t.Shape != nil && !slices.Equal(squeeze(raw.Shape), squeeze(t.Shape)) {
			return nil, raw.wrap(fmt.Errorf("shape %v: want %v", raw.Shape, t.Shape))
		}
		used[raw] = true
		if t.Values == nil { // which config.json has
			m.add(views, t, raw)
		}
	}
	for _, raw := range f.Tensors {
		if !used[raw] && raw.Name != "rope_freqs.weight" && !f.further(raw.Name) { // of ones, where the config has none
			return nil, raw.wrap(errors.New("has no place in a model of these pairs"))
		}
	}
	for _, v := range m.Views {
		for _, raw := range v.Raw {
			if raw.Type != v.Raw[0].Type {
				v.DType = "F32"
			}
		}
		if v.of != nil {
			v.DType = "F32"
		}
		if err := v.check(); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// stores reports whether a folder of the model stores a tensor, of those that package arch asks for.
func (f *File) stores(tensor string) bool {
	return StoredByRows(tensor) || strings.HasSuffix(tensor, ".layer_scalar") && f.byName["blk.0."+layerScale] != nil
}

// further reports whether a tensor is of a layer for tokens behind the next one, which are left out.
func (f *File) further(tensor string) bool {
	arch, _ := f.Meta.Text("general.architecture")
	blocks, _ := f.Meta.Int(arch + ".block_count")
	layers, _ := f.Meta.Int(arch + ".nextn_predict_layers")
	rest, ok := strings.CutPrefix(tensor, "blk.")
	number, _, dot := strings.Cut(rest, ".")
	n, err := strconv.ParseInt(number, 10, 32)
	return ok && dot && err == nil && layers > 0 && n >= blocks-layers && n < blocks
}

// StoredByRows reports whether a name is one that tells package arch that stacks of
// experts are stored by rows.
func StoredByRows(tensor string) bool {
	const suffix = ".experts.gate_up_proj_blocks"
	return len(tensor) > len(suffix) && tensor[len(tensor)-len(suffix):] == suffix
}

// SideFiles returns what makes the files that a model folder has beside its weights.
func (f *File) SideFiles() map[string]func() ([]byte, error) {
	files := map[string]func() ([]byte, error){"config.json": f.ConfigJSON, "generation_config.json": f.GenerationConfigJSON}
	if f.HasTokenizer() {
		files["tokenizer.json"], files["tokenizer_config.json"] = f.TokenizerJSON, f.TokenizerConfigJSON
	}
	return files
}

// Notes returns what is odd about the file but has one reading, a line each.
func (f *File) Notes() []string {
	model, _ := f.Meta.Text("tokenizer.ggml.model")
	if pre, _ := f.Meta.Text(preKey); model != "gpt2" || pre != "" {
		return nil
	}
	return []string{fmt.Sprintf("%s: names no %s: text is cut as llama.cpp does it then, which is right for few models. "+
		"A newer file of the model has it, or gguf-new-metadata --pre-tokenizer NAME adds it", f.path, preKey)}
}

// Checkpoint makes of the file what a Hugging Face folder of the same model is when it is open: the tensors have that one's
// names and rows, decoded when they are read, and the files beside them are made. It closes the file.
func (f *File) Checkpoint() (*hf.Checkpoint, error) {
	m, err := f.Model()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	made := hf.Made{Path: f.path, Files: f.parts, Side: f.SideFiles(), Notes: f.Notes(), Stores: StoredByRows}
	for _, v := range m.Views {
		made.Tensors = append(made.Tensors, v.tensor())
	}
	c, err := hf.Make(made)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	f.parts = nil // which are the checkpoint's
	return c, nil
}

// tensor is the view as a checkpoint has it. Where several are made of one tensor, each counts its rows.
func (v *View) tensor() hf.MadeTensor {
	raw := v.Raw[0]
	t := hf.MadeTensor{Name: v.Name, DType: hf.DType(v.DType), Shape: v.Shape, Shard: raw.Part, Codec: v}
	elements := int64(1)
	for _, n := range v.Shape {
		elements *= int64(n)
	}
	n, size := raw.Type.Block()
	t.Bytes = elements / int64(n) * int64(size)
	if n > 1 {
		t.Encoding = &hf.Encoding{Type: strings.ToUpper(raw.Type.String()), Rows: 1, Cols: raw.Type.scaled(), N: v.n, K: v.k, Turned: v.Turned, Codec: v}
		if m := v.matrix(); m != nil {
			t.Encoding.Codec = m
		}
	}
	return t
}

// scaled returns how many elements share a scale.
func (t Type) scaled() int {
	switch t {
	case Q2_K, Q3_K, Q6_K:
		return 16
	}
	return 32
}

// squeeze leaves out dimensions of 1, which a vector may be stored with.
func squeeze(shape []int) []int {
	return slices.DeleteFunc(slices.Clone(shape), func(n int) bool { return n == 1 })
}

// view returns the view of a name, which is new or has parts already.
func (m *Model) view(views map[string]*View, name string, shape []int, matrices int, raw *Raw) *View {
	v := views[name]
	if v == nil {
		v = &View{Name: name, Shape: shape, DType: readAs(raw.Type), pieces: make([][]piece, matrices)}
		v.k = 1
		if len(shape) > 1 {
			v.k = shape[len(shape)-1]
		}
		v.n = 1
		for _, n := range shape {
			v.n *= n
		}
		v.n /= v.k * matrices
		views[name] = v
		m.Views = append(m.Views, v)
	}
	if !slices.Contains(v.Raw, raw) {
		v.Raw = append(v.Raw, raw)
	}
	return v
}

// add adds what a tensor holds to the views of what it is made of.
func (m *Model) add(views map[string]*View, t *Tensor, raw *Raw) {
	place := t.places()
	if t.Source != "" {
		shape := raw.Shape
		if t.Of != nil {
			shape = t.Of
		}
		v := m.view(views, t.Source, shape, 1, raw)
		if t.Offset != 0 || t.Decay {
			v.of = t
		}
		v.pieces[0] = []piece{{raw: raw, rows: v.n, of: func(row int) (int, bool) { return place(row), true }}}
		return
	}
	from := 0
	for _, l := range t.Layers {
		s := l.Stored
		name, shape := s.Tensor, s.Shape()
		if t.Bias {
			name, shape = s.Bias, shape[:len(shape)-1]
		}
		v := m.view(views, name, shape, s.Matrices(), raw)
		if t.Bias { // a stack of biases is [experts, N], each element a row
			v.k, v.n = 1, s.N
		}
		if t.Columns != nil {
			v.places = inverse(t.Columns, len(t.Columns))
		}
		v.Turned = s.Experts > 0 && !t.Bias && m.byColumns
		p := piece{
			raw: raw, from: from, rows: t.Taken(l),
			of: func(row int) (int, bool) {
				i := row - l.Row
				if i < 0 || i%l.Step != 0 || i/l.Step >= l.N {
					return 0, false
				}
				i = place(i / l.Step)
				return i, i >= 0
			},
		}
		if t.Turned {
			p.wide = t.Shape[len(t.Shape)-1]
		}
		v.pieces[l.Expert] = append(v.pieces[l.Expert], p)
		from += p.rows
	}
}

// places undoes [Tensor.Row]. Of a row that the tensor has not it returns -1.
func (t *Tensor) places() func(row int) int {
	if t.Order == nil {
		return func(row int) int { return row }
	}
	most := 0
	for _, row := range t.Order {
		most = max(most, row)
	}
	at := inverse(t.Order, most+1)
	return func(row int) int {
		if row >= len(at) {
			return -1
		}
		return at[row]
	}
}

// inverse returns where each of n is in order, -1 for what is not.
func inverse(order []int, n int) []int {
	at := slices.Repeat([]int{-1}, n)
	for i, x := range order {
		at[x] = i
	}
	return at
}

// check fails where a row of a view lies nowhere.
func (v *View) check() error {
	for _, pieces := range v.pieces {
		rows := 0
		for _, p := range pieces {
			rows += p.rows
		}
		if rows != v.n {
			return fmt.Errorf("tensor %s: the file has %d of its %d rows", v.Name, rows, v.n)
		}
	}
	return nil
}

// find returns where a row of all matrices lies.
func (v *View) find(row int64) (p *piece, at int64) {
	matrix, r := int(row/int64(v.n)), int(row%int64(v.n))
	for i := range v.pieces[matrix] {
		p := &v.pieces[matrix][i]
		if at, ok := p.of(r); ok {
			return p, int64(p.from + at)
		}
	}
	panic("gguf: a row that check found is not there")
}

// plain reports whether rows lie as rows do, and columns in order.
func (v *View) plain() bool {
	return v.places == nil && !slices.ContainsFunc(v.pieces, func(all []piece) bool {
		return slices.ContainsFunc(all, func(p piece) bool { return p.wide != 0 })
	})
}

// ReadFloat32 reads the elements [start, start+len(dst)), which exist, in row-major order.
func (v *View) ReadFloat32(dst []float32, start int64) error {
	if !v.plain() {
		return v.gather(dst, start)
	}
	for k := int64(v.k); len(dst) > 0; {
		row, col := start/k, start%k
		p, at := v.find(row)
		n := min(int64(len(dst)), k-col)
		for next := row + 1; n < int64(len(dst)); next++ { // rows that follow here and there
			r, i := v.find(next)
			if r.raw != p.raw || i != at+next-row {
				break
			}
			n = min(int64(len(dst)), n+k)
		}
		if err := p.raw.ReadFloat32(dst[:n], at*k+col); err != nil {
			return err
		}
		if v.of != nil {
			for i := range dst[:n] {
				dst[i] = v.of.From(dst[i])
			}
		}
		dst, start = dst[n:], start+n
	}
	return nil
}

// gather reads elements row by row, those of rows that are columns of a matrix from all of it.
func (v *View) gather(dst []float32, start int64) error {
	k := int64(v.k)
	row := make([]float32, k)
	var turned []float32 // matrix of the piece
	var of *piece
	matrix := int64(-1)
	for len(dst) > 0 {
		p, at := v.find(start / k)
		if wide := int64(p.wide); wide != 0 {
			if p != of || at/wide != matrix {
				turned, of, matrix = slices.Grow(turned[:0], int(k*wide))[:k*wide], p, at/wide
				if err := p.raw.ReadFloat32(turned, matrix*k*wide); err != nil {
					return err
				}
			}
			for i := range row {
				row[i] = turned[int64(i)*wide+at%wide]
			}
		} else if err := p.raw.ReadFloat32(row, at*k); err != nil {
			return err
		}
		col := start % k
		n := min(int64(len(dst)), k-col)
		for i := range dst[:n] {
			from := int(col) + i
			if v.places != nil {
				from = v.places[from]
			}
			dst[i] = row[from]
		}
		dst, start = dst[n:], start+n
	}
	return nil
}
