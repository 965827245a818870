package gguf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// FileName is the file that a folder of this target has.
const FileName = "model.gguf"

// Target is a folder with a GGUF file. It implements [foreign.Target].
type Target struct {
	// Kept, if set, is the type of matrices that are not quantized: f32, f16, bf16 or q8_0. Otherwise they stay in
	// theirs. Vectors and routers are in f32.
	Kept string
	// Type, if set, is one of [WeightNames] that all linear layers of blocks are quantized to, also those of a model in
	// 16 or 32 bits. Otherwise layers are written as they are, where that can be.
	Type string
	// NoTokenizer leaves the tokenizer out.
	NoTokenizer bool
}

// KeptNames lists what [Target].Kept may be.
func KeptNames() []string { return []string{"f16", "bf16", "f32", "q8_0"} }

// WeightNames lists what [Target].Type may be.
func WeightNames() []string {
	var names []string
	for _, t := range types() {
		if t.Type == Q8_0 || t.codebook().Values != nil || searchedOf(t.Type) != nil {
			names = append(names, t.name)
		}
	}
	return names
}

// Name implements [foreign.Target].
func (Target) Name() string { return "gguf" }

// Universal implements [foreign.Universal].
func (Target) Universal() {}

// Format implements [foreign.Target].
func (t Target) Format(m *foreign.Model) (foreign.Format, error) {
	if m.Decoder == nil {
		return nil, m.Why
	}
	f := &format{
		model: m, layers: make(map[string]*foreign.Layer), kept: make(map[string]*hf.Tensor),
		types: make(map[*foreign.Layer][]Type),
	}
	var err error
	if t.Kept != "" {
		if f.keptType, err = ParseType(t.Kept); err != nil {
			return nil, err
		}
		f.keep = true
	}
	if t.Type != "" {
		if f.typ, err = ParseType(t.Type); err != nil {
			return nil, err
		}
		f.retype = true
	}
	for _, l := range m.Layers {
		f.layers[l.Tensor] = l
	}
	for _, k := range m.Kept {
		f.kept[k.Name] = k
	}
	if f.tensors, err = Tensors(m.Decoder); err != nil {
		return nil, err
	}
	if err := f.resolve(); err != nil {
		return nil, err
	}
	return f, f.describe(t.NoTokenizer)
}

// format implements [foreign.Format].
type format struct {
	model    *foreign.Model
	keep     bool // that keptType is set
	keptType Type
	retype   bool // that typ is set
	typ      Type
	layers   map[string]*foreign.Layer // by the tensor of the model
	kept     map[string]*hf.Tensor
	tensors  []Tensor
	kvs      []KV
	lacks    []lack

	mu    sync.Mutex
	types map[*foreign.Layer][]Type // that hold a layer, by [format.Fit]
}

// resolve finds what the model's tensors are called that may go by two names, and reports one that is missing, or has
// another shape than config.json says.
func (f *format) resolve() error {
	d := f.model.Decoder
	for i := range f.tensors {
		t := &f.tensors[i]
		if t.Source != "" && f.kept[t.Source] == nil {
			if t.Source != d.Embed+".weight" || !d.Tied || f.kept[d.Head.Stored.Tensor] == nil {
				return fmt.Errorf("tensor %s is missing", t.Source)
			}
			t.Source = d.Head.Stored.Tensor
		}
		if t.Source != "" {
			has, want := f.kept[t.Source].Shape, t.Shape
			if t.Of != nil {
				want = t.Of
			}
			if !slices.Equal(has, want) {
				return shapeError(t.Source, has, want)
			}
		}
		for _, l := range t.Layers {
			s := l.Stored
			name, want := s.Tensor, s.Shape()
			if t.Bias {
				if name, want = s.Bias, []int{s.N}; s.Experts > 0 {
					want = []int{s.Experts, s.N}
				}
			}
			kept, packed := f.kept[name], f.layers[name]
			switch {
			case kept == nil && (t.Bias || packed == nil):
				return fmt.Errorf("tensor %s is missing", name)
			case kept != nil && !slices.Equal(kept.Shape, want):
				return shapeError(name, kept.Shape, want)
			case kept == nil && (packed.N != s.Matrices()*s.N || packed.K != s.K):
				return shapeError(name, []int{packed.N, packed.K}, []int{s.Matrices() * s.N, s.K})
			}
		}
	}
	return nil
}

// shapeError is the error for a tensor of another shape than a model of its config.json has.
func shapeError(name string, has, want []int) error {
	return fmt.Errorf("tensor %s has shape %v: by config.json it should be %v", name, has, want)
}

// describe collects the pairs.
func (f *format) describe(noTokenizer bool) error {
	d := f.model.Decoder
	model, err := Describe(d)
	if err != nil {
		return err
	}
	f.kvs = append(f.kvs, model[0], KV{"general.type", "model"}, KV{"general.name", f.name()}, KV{"general.quantization_version", uint32(2)})
	license, err := f.license()
	if err != nil {
		return err
	}
	if license != "" {
		f.kvs = append(f.kvs, KV{"general.license", license})
	}
	f.kvs = append(f.kvs, model[1:]...)
	family, err := familyOf(d)
	if err != nil {
		return err
	}
	f.lacks = family.lacks(d)
	if noTokenizer {
		f.kvs = append(f.kvs, KV{"tokenizer.ggml.model", "none"})
		return f.keepConfig()
	}
	tokenizer, lacks, err := describeTokenizer(f.model, d)
	if err != nil {
		return err
	}
	f.kvs, f.lacks = append(f.kvs, tokenizer...), append(f.lacks, lacks...)
	return f.keepConfig()
}

// name is what the model is called: after its folder.
func (f *format) name() string {
	path, err := filepath.Abs(f.model.Dir)
	if err != nil {
		path = f.model.Dir
	}
	return input.Name(filepath.Base(path))
}

// license returns what the first lines of README.md give as the licence, as model cards do; "" where they give none.
func (f *format) license() (string, error) {
	text, err := readOptional(f.model, "README.md", input.Text)
	if err != nil {
		return "", err
	}
	for i, line := range strings.Split(string(text[:min(len(text), 1<<16)]), "\n") {
		line = strings.TrimRight(line, "\r")
		if line == "---" && i > 0 || line != "---" && i == 0 {
			break
		}
		if v, ok := strings.CutPrefix(line, "license:"); ok {
			return strings.Trim(v, " \t\"'"), nil
		}
	}
	return "", nil
}

// Fit implements [foreign.Format].
func (f *format) Fit(l *foreign.Layer, w *lut.Matrix) foreign.Fit {
	if w == nil {
		return foreign.Fit{Why: "it has no table"}
	}
	types, fit := fitBlocks(w)
	if why := f.divided(l); why != nil && fit.Why == "" {
		fit = foreign.Fit{Why: why.Error()}
	}
	if f.retype && fit.Why == "" {
		if !slices.Contains(types, f.typ) {
			fit = foreign.Fit{Why: "it is to be of type " + f.typ.String()}
		}
		types = []Type{f.typ}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.types[l] = types
	return fit
}

// Anew implements [foreign.Format]: in as many bits, or the next that there are.
func (f *format) Anew(l *foreign.Layer) (lut.Format, error) {
	if l.K%block != 0 {
		return lut.Format{}, fmt.Errorf("rows of %d weights are no whole blocks of %d", l.K, block)
	}
	if err := f.divided(l); err != nil {
		return lut.Format{}, err
	}
	o := lut.Format{Codebook: f.anewType(l).codebook(), Group: block, Scale: weight.MSE, ScaleType: weight.F16}
	if o.Codebook.Values == nil {
		return o, &foreign.OwnError{Type: f.fallback(l.K).String()}
	}
	if top := float64(l.Top) / float64(o.Codebook.Max()); top > 65504 {
		return lut.Format{}, fmt.Errorf("weights of %v are beyond F16", l.Top)
	}
	return o, nil
}

// divided refuses codes of a layer whose columns stand in another order in the file, if that divides blocks.
func (f *format) divided(l *foreign.Layer) error {
	for i := range f.tensors {
		t := &f.tensors[i]
		if t.Columns == nil || t.Layers[0].Stored.Tensor != l.Tensor {
			continue
		}
		for j, from := range t.Columns {
			if j%block == 0 && from%block != 0 || j%block != 0 && from != t.Columns[j-1]+1 {
				return errors.New("llama.cpp has its columns in another order, which divides blocks of 32")
			}
		}
	}
	return nil
}

// anewType is the type that a layer is quantized to anew.
func (f *format) anewType(l *foreign.Layer) Type {
	switch {
	case f.retype:
		return f.typ
	case l.Stored.Bits > 4:
		return Q5_0
	}
	return IQ4_NL
}

// Rounds implements [foreign.Rounder]: it reports whether a matrix that is kept is written in a type that does not
// hold all of its own, or is quantized.
func (f *format) Rounds() bool {
	for i := range f.tensors {
		t := &f.tensors[i]
		if t.Float {
			continue
		}
		sources := []*hf.Tensor{f.kept[t.Source]}
		for _, l := range t.Layers {
			sources = append(sources, f.kept[l.Stored.Tensor])
		}
		if t.Turned && f.layers[t.Layers[0].Stored.Tensor] != nil && (f.keep || f.retype) {
			return true
		}
		for j, k := range sources {
			if k == nil {
				continue
			}
			typ, err := f.typeOfKept(k)
			if j > 0 && f.retype {
				typ, err = f.typeOfDense(t.Layers[j-1], nil)
			}
			if own, ok := scaleType(k.DType); err == nil && ok == nil && (typ != F32 && typ != denseType(own) || k.DType == hf.F64) {
				return true
			}
		}
	}
	return false
}

// Lacks implements [foreign.Lacker].
func (f *format) Lacks() []string {
	var all []string
	for _, l := range f.lacks {
		all = append(all, l.what)
	}
	return all
}

// Warnings implements [foreign.Warner]: what llama.cpp computes otherwise than the model, or does not get.
func (f *format) Warnings() []string {
	var lines []string
	d := f.model.Decoder
	for _, l := range f.lacks {
		lines = append(lines, fmt.Sprintf("llama.cpp has %s: %s", l.what, l.then))
	}
	used := make(map[string]bool)
	for i := range f.tensors {
		used[f.tensors[i].Source] = true
		for _, l := range f.tensors[i].Layers {
			used[l.Stored.Tensor], used[l.Stored.Bias] = true, true
		}
	}
	left := 0
	for name := range f.kept {
		if !used[name] && !(d.Tied && name == d.Head.Stored.Tensor) {
			left++
		}
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("%d tensors that are no part of the language model are left out", left))
	}
	return lines
}

// Write implements [foreign.Format].
func (f *format) Write(ctx context.Context, dir string, s foreign.Source) error {
	entries := make([]Entry, len(f.tensors))
	sizes := make(map[Type]int64)
	for i := range f.tensors {
		t := &f.tensors[i]
		typ, err := f.typeOf(t)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
		entries[i] = Entry{t.Name, typ, t.Shape}
		size, err := entries[i].Bytes()
		if err != nil {
			return err
		}
		sizes[typ] += size
	}
	most := F32
	for _, i := range types() {
		if sizes[i.Type] > sizes[most] {
			most = i.Type
		}
	}
	label, _ := most.info()
	kvs := slices.Insert(slices.Clone(f.kvs), 1, KV{"general.file_type", label.fileType})
	out, err := NewWriter(filepath.Join(dir, FileName), kvs, entries)
	if err != nil {
		return err
	}
	defer out.Abort() // does nothing after Commit
	w := &fileWriter{format: f, source: s, out: out}
	if err := w.write(ctx, entries); err != nil {
		return err
	}
	return out.Commit()
}

// Types implements [foreign.Typer].
func (f *format) Types() []foreign.Written {
	type kind struct{ typ, asked Type }
	counts := make(map[kind]int)
	rows := make(map[kind][]string) // how long those are that do not fill blocks
	var order []kind
	for i := range f.tensors {
		t := &f.tensors[i]
		typ, err := f.typeOf(t)
		if t.Float || err != nil { // of which Write tells
			continue
		}
		k := kind{typ, typ}
		if asked, ok := f.asked(t); ok && asked != typ {
			k.asked = asked
		}
		if counts[k] == 0 {
			order = append(order, k)
		}
		counts[k]++
		if n := strconv.Itoa(t.Shape[len(t.Shape)-1]); k.asked != typ && !slices.Contains(rows[k], n) {
			rows[k] = append(rows[k], n)
		}
	}
	var all []foreign.Written
	for _, k := range order {
		w := foreign.Written{Type: k.typ.String(), Matrices: counts[k]}
		if k.asked != k.typ {
			n, _ := k.asked.Block()
			w.Why = fmt.Sprintf("rows of %s weights do not fill blocks of %d of %s", strings.Join(rows[k], " and "), n, k.asked)
		}
		all = append(all, w)
	}
	slices.SortStableFunc(all, func(a, b foreign.Written) int { return cmp.Compare(b.Matrices, a.Matrices) })
	return all
}

// asked returns the type that was asked for a matrix, if any was.
func (f *format) asked(t *Tensor) (Type, bool) {
	switch {
	case t.Source != "":
		return f.keptType, f.keep
	case f.retype && t.Layers[0].Stored.Role == arch.LinearWeight:
		return f.typ, true
	case f.layers[t.Layers[0].Stored.Tensor] == nil:
		return f.keptType, f.keep
	}
	return 0, false
}

// typeOf returns the type that a tensor is written in.
func (f *format) typeOf(t *Tensor) (Type, error) {
	if t.Float {
		return F32, nil
	}
	if t.Source != "" {
		return f.typeOfKept(f.kept[t.Source])
	}
	var common []Type // that all layers can be written in, which have codes
	dense := 0
	first := F32
	for i, l := range t.Layers {
		layer := f.layers[l.Stored.Tensor]
		switch {
		case t.Turned: // which codes along rows cannot be
			return f.typeOfTurned(l, layer, t.Shape[len(t.Shape)-1])
		case layer == nil || layer.As == foreign.Dense:
			typ, err := f.typeOfDense(l, layer)
			if err != nil {
				return 0, err
			}
			dense++
			if i == 0 {
				first = typ
			} else if typ != first {
				return 0, errors.New("its layers have different types")
			}
		default:
			held := f.holding(layer)
			if i == 0 {
				common = slices.Clone(held)
			}
			common = slices.DeleteFunc(common, func(t Type) bool { return !slices.Contains(held, t) })
		}
	}
	switch {
	case dense == len(t.Layers):
		return first, nil
	case dense > 0:
		return 0, errors.New("some of its layers are quantized and some are not: a stack has one type")
	case len(common) == 0:
		return 0, errors.New("its layers have tables that no type has in common: a stack has one type")
	}
	return common[0], nil
}

// typeOfDense returns the type of a layer that is written from its weights. layer is nil for one that is not quantized.
func (f *format) typeOfDense(l *arch.Linear, layer *foreign.Layer) (Type, error) {
	switch {
	case f.retype && l.Stored.Role == arch.LinearWeight:
		return f.fallback(l.K), nil
	case layer == nil:
		return f.typeOfKept(f.kept[l.Stored.Tensor])
	}
	return denseType(f.model.DType), nil
}

// typeOfTurned returns the type of matrices with k columns that are rows of a layer: of one that has codes, F32, which holds them.
func (f *format) typeOfTurned(l *arch.Linear, layer *foreign.Layer, k int) (Type, error) {
	switch elements, _ := f.keptType.Block(); {
	case f.retype:
		return f.fallback(k), nil
	case f.keep && k%elements == 0:
		return f.keptType, nil
	case layer != nil:
		return F32, nil
	}
	s, err := scaleType(f.kept[l.Stored.Tensor].DType)
	return denseType(s), err
}

// fallback returns the type that rows of k weights get, which are to be of the one that was asked for.
func (f *format) fallback(k int) Type {
	t, err := FallbackOf(f.typ, k)
	switch {
	case err != nil:
		return F16
	case t == Q5_1: // which nothing here rounds to
		return Q8_0
	}
	return t
}

// holding lists the types that hold a layer's table, the best first.
func (f *format) holding(l *foreign.Layer) []Type {
	if l.As == foreign.AsIs {
		return f.types[l]
	}
	return []Type{f.anewType(l)}
}

// scaleType returns the type that a tensor which is not quantized is read as.
func scaleType(t hf.DType) (weight.ScaleType, error) {
	if t == hf.F64 {
		return weight.F32, nil // the widest that llama.cpp multiplies by
	}
	return foreign.ScaleType(t)
}

func denseType(t weight.ScaleType) Type {
	switch t {
	case weight.F16:
		return F16
	case weight.BF16:
		return BF16
	}
	return F32
}

// typeOfKept returns the type of a matrix that is not quantized.
func (f *format) typeOfKept(t *hf.Tensor) (Type, error) {
	k := t.Shape[len(t.Shape)-1]
	if elements, _ := f.keptType.Block(); f.keep && k%elements == 0 {
		return f.keptType, nil
	}
	s, err := scaleType(t.DType)
	return denseType(s), err
}

// fileWriter writes the data of a file's tensors.
type fileWriter struct {
	*format
	source foreign.Source
	out    *Writer
}

// write writes all tensors. Layers of one matrix, or stack of such, are written together, so that it is read once.
func (w *fileWriter) write(ctx context.Context, entries []Entry) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	jobs := make(map[string]*job)
	var order []*job
	add := func(source string, p part) {
		j := jobs[source]
		if j == nil {
			j = &job{fileWriter: w, name: source}
			jobs[source] = j
			order = append(order, j)
		}
		j.parts = append(j.parts, p)
	}
	for i := range w.tensors {
		t, typ := &w.tensors[i], entries[i].Type
		switch {
		case t.Values != nil:
			if err := w.values(t); err != nil {
				return err
			}
		case t.Source != "":
			add(t.Source, part{tensor: t, typ: typ, rows: t.Rows(), step: 1})
		}
		at := 0
		for _, l := range t.Layers {
			s := l.Stored
			p := part{tensor: t, typ: typ, at: at, first: l.Expert*s.N + l.Row, step: l.Step, rows: t.Taken(l)}
			if t.Bias {
				add(s.Bias, p)
			} else {
				p.stored = s
				add(s.Tensor, p)
			}
			at += p.rows
		}
	}
	for _, j := range order {
		group.Go(func() error {
			if err := j.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", j.name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// values writes a tensor that follows from config.json.
func (w *fileWriter) values(t *Tensor) error {
	data := make([]byte, 4*len(t.Values))
	if err := F32.encode(data, t.Values); err != nil {
		return err
	}
	w.source.Wrote(int64(len(data)), t.Name)
	return w.out.WriteAt(t.Name, data, 0)
}

// part is where rows of a matrix go: rows first, first+step, … of it, in the order that [Tensor.Row] has them, are
// those of a tensor from row at on. A vector's elements are rows of one.
type part struct {
	tensor      *Tensor
	stored      *arch.Stored // nil for what is no matrix of a layer
	typ         Type
	at          int
	first, step int
	rows        int
}

// source returns the matrix's row that is row i of the part.
func (p *part) source(i int) int { return p.first + p.tensor.Row(i)*p.step }

// columns returns the elements of a row.
func (p *part) columns() int {
	if len(p.tensor.Shape) == 1 || p.tensor.Bias {
		return 1
	}
	return p.tensor.Shape[len(p.tensor.Shape)-1]
}

// job writes all that is made of one tensor of the model.
type job struct {
	*fileWriter
	name  string
	parts []part
}

// pieceWeights is about how many weights are encoded at a time.
const pieceWeights = 1 << 18

func (j *job) run(ctx context.Context) error {
	l := j.layers[j.name]
	switch {
	case l == nil:
		return j.runKept(ctx, j.kept[j.name])
	case l.As == foreign.Dense:
		mat, err := j.source.Weights(l)
		if err != nil {
			return err
		}
		read := weight.NewReader(mat)
		return j.weights(ctx, func(dst []float32, row int) error {
			copy(dst, read.Row(row))
			return nil
		})
	}
	mat, err := j.source.Matrix(l)
	if err != nil {
		return err
	}
	for i := range j.parts {
		p := &j.parts[i]
		if p.tensor.Turned {
			if err := j.turn(ctx, p, func(dst []float32, row int) error {
				mat.Row(dst, row)
				return nil
			}); err != nil {
				return err
			}
			continue
		}
		pack, err := newPacker(p.typ, mat)
		if err != nil {
			return err
		}
		scratch := make([]byte, p.typ.RowBytes(p.columns()))
		if err := j.rows(ctx, p, func(dst []byte, row int) error {
			pack.row(dst, row)
			moveBlocks(dst, scratch, p.tensor.Columns)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// moveBlocks puts the blocks of a row into the order of columns, nil where it has that.
func moveBlocks(row, scratch []byte, columns []int) {
	if columns == nil {
		return
	}
	copy(scratch, row)
	size := len(row) / (len(columns) / block)
	for b := range len(columns) / block {
		from := columns[b*block] / block
		copy(row[b*size:(b+1)*size], scratch[from*size:(from+1)*size])
	}
}

// runKept writes what is made of a tensor that is not quantized.
func (j *job) runKept(ctx context.Context, t *hf.Tensor) error {
	st, err := scaleType(t.DType)
	if err != nil {
		return err
	}
	p := &j.parts[0]
	if t.DType != hf.F64 && len(j.parts) == 1 && p.typ == denseType(st) && p.tensor.asStored() && p.step == 1 &&
		(p.stored == nil || !p.stored.Transposed && p.stored.Experts == 0) {
		from := int64(p.at) * int64(p.typ.RowBytes(p.columns()))
		return j.source.Copy(t, func(data []byte, off int64) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			j.source.Wrote(int64(len(data)), t.Name)
			return j.out.WriteAt(p.tensor.Name, data, from+off)
		})
	}
	data := make([]byte, t.Bytes())
	if err := j.source.Copy(t, func(p []byte, off int64) error {
		copy(data[off:], p)
		return ctx.Err()
	}); err != nil {
		return err
	}
	if t.DType == hf.F64 {
		v := make([]float32, t.Elements())
		num.DecodeF64(v, data)
		data = data[:4*len(v)]
		num.EncodeF32(data, v)
	}
	if p.stored != nil && p.stored.Transposed {
		return j.weights(ctx, transposed(data, st, p.stored))
	}
	return j.weights(ctx, func(dst []float32, row int) error {
		size := len(dst) * st.Size()
		st.Decode(dst, data[row*size:(row+1)*size])
		return nil
	})
}

// transposed reads rows of matrices that are stored by columns.
func transposed(data []byte, st weight.ScaleType, s *arch.Stored) func(dst []float32, row int) error {
	return func(dst []float32, row int) error {
		e, n := row/s.N, row%s.N
		for k := range dst {
			at := ((e*s.K+k)*s.N + n) * st.Size()
			st.Decode(dst[k:k+1], data[at:at+st.Size()])
		}
		return nil
	}
}

// weights writes parts of which read gives the rows.
func (j *job) weights(ctx context.Context, read func(dst []float32, row int) error) error {
	for i := range j.parts {
		p := &j.parts[i]
		if p.tensor.Turned {
			if err := j.turn(ctx, p, read); err != nil {
				return err
			}
			continue
		}
		row, scratch := make([]float32, p.columns()), make([]float32, p.columns())
		encode, err := p.typ.rounder(p.columns(), j.source.Rounder)
		if err != nil {
			return err
		}
		if err := j.rows(ctx, p, func(dst []byte, n int) error {
			if err := read(row, n); err != nil {
				return err
			}
			if p.tensor.Source != "" {
				for k := range row {
					row[k] = p.tensor.To(row[k])
				}
			}
			if p.tensor.Columns == nil {
				return encode(dst, row)
			}
			for k, from := range p.tensor.Columns {
				scratch[k] = row[from]
			}
			return encode(dst, scratch)
		}); err != nil {
			return err
		}
	}
	return nil
}

// turn writes a part of which read gives what are columns of matrices.
func (j *job) turn(ctx context.Context, p *part, read func(dst []float32, row int) error) error {
	wide, k := p.columns(), p.stored.K
	encode, err := p.typ.rounder(wide, j.source.Rounder)
	if err != nil {
		return err
	}
	size := p.typ.RowBytes(wide)
	row, turned, data := make([]float32, k), make([]float32, k*wide), make([]byte, k*size)
	for at := 0; at < p.rows; at += wide {
		if err := ctx.Err(); err != nil {
			return err
		}
		for c := range wide {
			if err := read(row, p.source(at+c)); err != nil {
				return err
			}
			for i, x := range row {
				turned[i*wide+c] = x
			}
		}
		for i := range k {
			if err := encode(data[i*size:(i+1)*size], turned[i*wide:(i+1)*wide]); err != nil {
				return fmt.Errorf("column %d: %w", i, err)
			}
		}
		if err := j.out.WriteAt(p.tensor.Name, data, int64(at/wide)*int64(len(data))); err != nil {
			return err
		}
		j.source.Wrote(int64(len(data)), j.name)
	}
	return nil
}

// rows writes a part, of which encode gives the matrix's rows.
func (j *job) rows(ctx context.Context, p *part, encode func(dst []byte, row int) error) error {
	k := p.columns()
	size := p.typ.RowBytes(k)
	step := max(1, pieceWeights/k)
	buf := make([]byte, min(step, p.rows)*size)
	for i := 0; i < p.rows; i += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(step, p.rows-i)
		for r := range n {
			if err := encode(buf[r*size:(r+1)*size], p.source(i+r)); err != nil {
				return fmt.Errorf("row %d: %w", p.source(i+r), err)
			}
		}
		if err := j.out.WriteAt(p.tensor.Name, buf[:n*size], int64(p.at+i)*int64(size)); err != nil {
			return err
		}
		j.source.Wrote(int64(n*size), j.name)
	}
	return nil
}
