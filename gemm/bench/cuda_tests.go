package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// kernelVariant is a format of a kind of weights, and of families with several configurations one. All families of a kind are run in
// the same formats.
type kernelVariant struct {
	cuda.Format
	kind   string
	config cuda.Way
}

func (v kernelVariant) traits() []string {
	if v.config != nil {
		return append(v.Traits(), fmt.Sprintf("%v to %d rows", v.config, v.config.Rows()))
	}
	all := v.Traits()
	for i := range all {
		all[i] += " of kind " + v.kind
	}
	return all
}

// familyTests returns the self-tests of the formats of a family that are asked for and that the GPU has kernels for.
func (t *cudaSelftest) familyTests(f cuda.Family, o *CUDASelftestOptions) []*formatTest {
	var all []*formatTest
	kind := conform.KindOf(f.Kind())
	for i, of := range o.asked(f) {
		if kind.Case != nil {
			all = append(all, t.caseTest(f, i, of, kind.Case(o.Seed, i, conform.Format(of))))
		} else if like := f.Like(of, 1, 32); like.Runs(t.engine.GPU()) == nil {
			all = append(all, t.drawnTest(f, i, of, o.Seed).formatTest)
		}
	}
	return all
}

// matrixTest is the test of one format of a family.
type matrixTest struct {
	*cudaSelftest
	*formatTest
	family cuda.Family
	of     cuda.Format
	matrix weight.Matrix
	tiles  cuda.Tiles
	laid   [][]byte
	w      *cuda.Matrix
	unpack *part
}

// fillAs packs a matrix, which fill makes, and uploads it before run checks its kernels; then its rows are checked.
func (f *matrixTest) fillAs(fill func() (weight.Matrix, error), run func(ctx context.Context) error) {
	f.fill = func() (err error) {
		if f.matrix, err = fill(); err != nil {
			return err
		}
		if f.tiles, f.laid, err = f.family.Pack(f.matrix, f.of.Type); f.tiles == nil && err == nil {
			err = fmt.Errorf("%s, %+v: no kernel", f.family.Name(), f.of)
		}
		return err
	}
	f.formatTest.run = func(ctx context.Context) (err error) {
		if f.w, err = f.engine.Upload(f.tiles, f.laid); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.w.Close()) }()
		if err := run(ctx); err != nil || f.unpack == nil || !f.unpack.run {
			return err
		}
		held := f.matrix
		if h, ok := f.family.(cuda.Holder); ok {
			held = h.Held(held, f.of.Type)
		}
		n, k := held.Shape()
		return f.checkRows(f.w, weight.Dequantize(held), fmt.Sprintf("%s, %+v, %d×%d", f.family.Name(), f.of, n, k))
	}
}

// addUnpack adds the kernels that write rows as numbers, if there are such, to be run with a variant or in any case.
func (f *matrixTest) addUnpack(like cuda.Tiles, with variant) {
	if kernels := like.RowKernels(); len(kernels) > 0 {
		f.unpack = f.add(with, "", kernels...)
	}
}

// caseTest returns the test of case i of the suite: under every configuration, and by many rows of X in one of the ways for those.
func (t *cudaSelftest) caseTest(f cuda.Family, i int, of cuda.Format, c *conform.Case) *formatTest {
	test := &configuredTest{matrixTest: matrixTest{cudaSelftest: t, formatTest: new(formatTest), family: f, of: of}, Case: c, like: f.Like(of, c.N, c.K)}
	for j, m := range c.Rows {
		for _, config := range test.configs(m) {
			test.add(kernelVariant{of, f.Kind(), config}, fmt.Sprintf(" for rows %d", j), test.like.Kernels(t.engine.GPU(), config, m)...)
		}
	}
	test.inMany = test.like
	if rounder, ok := test.like.(cuda.Rounder); ok && i%3 == 0 {
		if rounded := rounder.RoundToFP8(t.engine.GPU()); rounded != nil {
			test.inMany = rounded
		}
	}
	ways := slices.DeleteFunc(t.engine.Ways(test.inMany, c.Many.Rows), func(by cuda.Way) bool {
		return by == cuda.AsNumbers || by == cuda.InFP8 || by == cuda.InTurns && !c.Many.Turns // what writes numbers is checked by itself
	})
	if len(ways) == 0 && c.Many.Turns {
		ways = []cuda.Way{cuda.InTurns}
	}
	if len(ways) > 0 {
		test.way = ways[c.Many.Way%len(ways)]
		test.byMany = test.add(nil, " for many rows", test.inMany.Kernels(t.engine.GPU(), test.way, c.Many.Rows)...)
	}
	test.addUnpack(test.like, nil)
	test.fillAs(func() (weight.Matrix, error) {
		test.Fill()
		return test.Weights(), nil
	}, test.run)
	return test.formatTest
}

// configuredTest is the test of a case of the suite.
type configuredTest struct {
	matrixTest
	*conform.Case
	like cuda.Tiles // the matrix without numbers, by which choices are made

	inMany cuda.Tiles // by which many rows are multiplied,
	way    cuda.Way
	byMany *part // if that is run

	product *conform.Product // whose operands these are
	o       cuda.Operands
	mem     memory
}

// configs returns all configurations for a number of rows of X.
func (f *configuredTest) configs(rows int) []cuda.Way {
	return slices.Concat(f.engine.Configs(f.like, rows), f.engine.Others(f.like, rows))
}

// run checks the kernels of the format.
func (f *configuredTest) run(ctx context.Context) (err error) {
	f.mem.dev = f.dev
	defer func() { err = errors.Join(err, f.mem.free()) }()
	r, err := conform.Check(ctx, f.Case, f)
	if err != nil {
		return err
	}
	f.Checks += r.Checks
	f.WorstErr[f.Type.String()] = max(f.WorstErr[f.Type.String()], r.WorstErr)
	f.Failures = append(f.Failures, r.Failures...)
	if f.byMany == nil || !f.byMany.run {
		return nil
	}
	w := f.w
	if cuda.RoundsToFP8(f.way) {
		f.engine.RoundToFP8(w)
	}
	many := f.Many.Rows
	random := rand.New(rand.NewPCG(uint64(many), uint64(f.N)))
	reference := referenceOf(f.family, f.way)
	_, err = f.repeat(random, repeated{
		what: fmt.Sprintf("%v, %d rows, %v", f.Case, many, f.way),
		rows: many, n: f.N, k: f.K, dtype: f.Type, scratch: f.engine.NeedsOf(w.Tiles, f.way, many).Scratch(many, f.K),
		blocks: func() [2]int { return [2]int{math.MaxInt, 5} },
		reference: func(x, bias []uint16) *conform.Reference {
			return reference(random, f.matrix, x, bias, many, 1, f.Type)
		},
		bound: manyMore * conform.Bound(f.Type), multiply: func(o cuda.Operands) error { return f.engine.MatMulWay(f.stream, w, o, f.way) },
	})
	return err
}

// testedConfig is a configuration, or what the engine chooses for each launch.
type testedConfig struct {
	cuda.Way
	chosen bool
}

func (c testedConfig) String() string {
	if c.chosen {
		return "chosen"
	}
	return c.Way.String()
}

// Configs returns the configurations that are run for a number of rows of X, and for more than one launch takes what is chosen, if
// all that may be are.
func (f *configuredTest) Configs(rows int) []testedConfig {
	run := make(map[cuda.Way]bool)
	for _, p := range f.parts {
		if v, ok := p.variant.(kernelVariant); ok && p.run {
			run[v.config] = true
		}
	}
	var all []testedConfig
	for _, c := range f.configs(rows) {
		if run[c] {
			all = append(all, testedConfig{Way: c})
		}
	}
	if rows > cuda.MaxRows && !slices.ContainsFunc(f.engine.Configs(f.like, rows), func(c cuda.Way) bool { return !run[c] }) {
		all = append(all, testedConfig{chosen: true})
	}
	return all
}

// Slices implements what [conform.Check] asks for.
func (f *configuredTest) Slices(c testedConfig, rows int) int {
	return f.engine.Order(f.like, c.Way, rows)
}

// MatMul implements what [conform.Check] asks for.
func (f *configuredTest) MatMul(c testedConfig, p *conform.Product, blocks int, y []uint16) error {
	if err := f.load(p); err != nil {
		return err
	}
	if err := f.dev.Write(f.o.Y, driver.Bytes(y)); err != nil {
		return err
	}
	f.engine.LimitBlocks(blocks)
	by := c.Way
	if c.chosen {
		by = cuda.InTurns
	}
	return errors.Join(f.engine.MatMulWay(f.stream, f.w, f.o, by), f.stream.Sync(), f.dev.Read(driver.Bytes(y), f.o.Y))
}

// load uploads the operands of a product, unless they are there.
func (f *configuredTest) load(p *conform.Product) error {
	if f.product == p {
		return nil
	}
	f.product = nil
	if err := f.mem.free(); err != nil {
		return err
	}
	f.o = cuda.Operands{M: p.Rows, X: f.mem.upload(driver.Bytes(p.X)), Y: f.mem.alloc(2 * (p.Rows*f.N + conform.Guard))}
	if p.Bias != nil {
		f.o.Bias = f.mem.upload(driver.Bytes(p.Bias))
	}
	f.product = p
	return f.mem.err
}

// drawnTest returns the test of format i on a matrix that the family draws: by few and many rows of X, as the engine chooses.
func (t *cudaSelftest) drawnTest(f cuda.Family, i int, of cuda.Format, seed uint64) *matrixTest {
	test := &matrixTest{cudaSelftest: t, formatTest: new(formatTest), family: f, of: of}
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	n, k, group := 1+r.IntN(600), 32*(9+r.IntN(60)), cuda.Columns(f, of)
	if group == 0 {
		group = k
	}
	like := f.Like(of, n, k)
	var kernels []driver.Kernel // for all numbers of rows, each once
	for m := range cuda.MaxRows {
		for _, config := range t.engine.Configs(like, m+1) {
			for _, k := range like.Kernels(t.engine.GPU(), config, m+1) {
				if !slices.ContainsFunc(kernels, func(other driver.Kernel) bool { return t.key(other) == t.key(k) }) {
					kernels = append(kernels, k)
				}
			}
		}
	}
	variant := kernelVariant{Format: of, kind: f.Kind()}
	test.add(variant, "", kernels...)
	test.addUnpack(like, variant)
	bound := conform.Bound(of.Type)
	if l, ok := f.(interface{ Loosened() float64 }); ok {
		bound *= l.Loosened()
	}
	kind := conform.KindOf(f.Kind())
	test.fillAs(func() (weight.Matrix, error) {
		m := kind.Random(r, n, k, of.Bits, group, of.Scale)
		if i%3 == 2 {
			return kind.Bare(m)
		}
		return m, nil
	}, func(context.Context) error {
		for _, m := range drawnRows(r, like.AtOnce(t.engine.GPU(), cuda.MaxRows)) {
			worst, err := test.repeat(r, repeated{
				what: fmt.Sprintf("%s, %+v, %d×%d, %d rows", f.Name(), of, n, k, m),
				rows: m, n: n, k: k, dtype: of.Type, bound: bound, scratch: t.engine.NeedsOf(test.w.Tiles, cuda.InTurns, m).Scratch(m, k),
				blocks: func() [2]int { return [2]int{t.dev.Info.SMs, 1 + r.IntN(4)} },
				reference: func(x, bias []uint16) *conform.Reference {
					return referenceOf(f, cuda.InTurns)(r, test.matrix, x, bias, m, 1, of.Type)
				},
				multiply: func(o cuda.Operands) error { return t.engine.MatMulWay(t.stream, test.w, o, cuda.InTurns) },
			})
			if err != nil {
				return err
			}
			t.WorstErr[of.Type.String()] = max(t.WorstErr[of.Type.String()], worst)
		}
		return nil
	})
	return test
}

// drawnRows returns numbers of rows of X for a kernel that takes up to so many in a launch: one launch and several.
func drawnRows(r *rand.Rand, most int) []int {
	if most < cuda.MaxRows {
		return []int{1, most, 2*most + 1}
	}
	return []int{1, 2 + r.IntN(most/2-2), most / 2, most/2 + 1 + r.IntN(most/2), most + 1 + r.IntN(40)}
}
