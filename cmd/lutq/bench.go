package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/bench"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
)

type benchOptions struct {
	shapes, m, bits []string
	formats         []string
	group           string
	deviceFlags
	actFlag
	blas             string
	kind, kernel     string
	format           string
	lookups          []string
	sustain          time.Duration
	energy           bool
	least, limit     time.Duration // of a measurement on the cpu, and of all
	cache            size
	roofline         string
	force            bool
	threads          int
	selftest         coverage
	sums             bool
	asJSON           bool
	noVerify, noTune bool
	summary          bool

	decode decodeFlags
	tiles  tileFolders
	given  func(flag string) bool // whether a flag is in the command line
}

func newBenchCommand(u *ui) *cobra.Command {
	o := benchOptions{tiles: tileFolders{ui: u}}
	c := &cobra.Command{
		Use:   "bench [MODEL | config.json]",
		Short: "Time the multiplication by quantized weights",
		Long: `Bench times the product Y = X·Ŵᵀ of some rows of activations X and a quantized
layer Ŵ, and checks each result against float64. The layers are those of a
quantized MODEL. Of an ordinary model (a folder, a GGUF file or a config.json)
and of --shapes the weights are random.

  lutq bench OUT                                 layers of a quantized model
  lutq bench --shapes 4096x4096 --bits 3 --m 1   random weights
  lutq bench OUT --decode                        tokens a second of the model

The column "read ratio" says how near the time is to that of reading the same
bytes (1.00 is as fast as memory), "dense ratio" how many times faster it is
than with dense weights. A star marks a noisy row. "lutq help timing" tells more
of products, "lutq help decode" of whole models.`,
		Annotations: more(withLimits(`Of an ordinary model, the shapes that runtimes join (q, k and v; gate and up)
are timed on cuda too. --shapes comes before MODEL.

--selftest times nothing. It checks kernels on random data: the cpu's, and a
GPU's where there is one. --device names one of the two; --bits, --group and
--dtype narrow down the GPU's. "lutq help timing" lists its values.

Exit code 3 means that a kernel computes something wrong, or that an error
exceeds its bound: 1e-5 for f32 (2e-4 in fixed point), 3e-4 for f16 and 2.5e-3
for bf16. The bound is half as much again where weights are unpacked first, as
for many rows of X.`, input.Config, input.Index, input.Header, input.GGUF)),
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			o.given = c.Flags().Changed
			if o.summary {
				return u.benchSummary(c.Context(), args, o)
			}
			if err := cobra.MaximumNArgs(1)(c, args); err != nil {
				return badArgs(c, err)
			}
			model := ""
			if len(args) == 1 {
				model = args[0]
			}
			return u.bench(c.Context(), model, o)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.shapes, "shapes", nil, "`SHAPES` NxK, a list: output by input features")
	f.StringSliceVar(&o.bits, "bits", []string{"4"}, "`BITS` of a code, a list as 3,4")
	f.Var(newWord(&o.group, "128", weight.GroupNames()...), "group", "`COLUMNS` to a scale: 32 to 256, or row")
	f.StringSliceVar(&o.m, "m", []string{"1", "2", "4", "8", "16"}, "`ROWS` of X, a list")
	o.addDType(f, "X and Y: cpu f32; cuda f16 (default) or bf16")
	f.StringSliceVar(&o.formats, "formats", nil, "`LIST` of groups and types of scales, as 128:f16,32:e4m4")
	f.Var(newWord(&o.kind, "", append([]string{lut.Name}, bench.KindNames()...)...), "kind", "`KIND` of random weights: lut (default), "+strings.Join(bench.KindNames(), ", "))
	o.addAct(f)
	f.DurationVar(&o.least, "time", 0, "least `TIME` for each of the cpu's measurements (default 300ms)")
	f.DurationVar(&o.limit, "limit", 0, "most `TIME` for the cpu's rows (default 1m each)")
	f.Var(&o.cache, "cache", "`SIZE` of the last cache, as 32MB (default as the system tells)")
	f.StringVar(&o.blas, "blas", "", "time the cpu's sgemm of `LIB` too, as libopenblas.so.0")
	o.tiles.register(f)
	f.BoolVar(&o.noVerify, "no-verify", false, "do not check MODEL while reading it")
	f.BoolVar(&o.noTune, "no-tune", false, "take cuda's kernels as tuned before, or by rule")
	f.BoolVar(&o.summary, "summary", false, "sum up all layer shapes of MODELs")
	f.Var(&o.selftest, "selftest", "check kernels instead of timing them")
	f.Lookup("selftest").NoOptDefVal = coverPairs
	f.BoolVar(&o.sums, "sums", false, "time sums over several GPUs instead of products")
	o.addPrefill(f)
	o.decode.register(f)
	f.StringVar(&o.kernel, "kernel", "", "`NAME` of a kernel on cuda. bcq: planes (default), gather:full, gather:half; lut24: mma.sp, wgmma.sp:c64g4")
	f.StringSliceVar(&o.lookups, "lookup", nil, "`NAMES` of table lookups on cuda: replicated, integers, shuffle, copies1 to copies16 (default chosen)")
	f.DurationVar(&o.sustain, "sustain", 0, "call each product for `TIME` besides, as 10s (default none)")
	f.BoolVar(&o.energy, "energy", false, "measure the energy of a GPU too, for a second or two each")
	f.StringVar(&o.roofline, "roofline", "", "draw products below the device's roofs, in folder `OUT`")
	f.BoolVar(&o.force, "force", false, "replace OUT if lutq wrote it")
	o.addDevice(f, "a GPU if any, unless --dtype is f32")
	o.addDevices(f, "for --decode and --sums")
	f.Var(newNumber(&o.threads, 0, 0, maxThreads), "threads", "`N` workers on the cpu (default one for each processor)")
	f.Var(newWord(&o.format, "table", "table", "md", "json", "csv"), "format", "output `NAME`: table, md, json or csv")
	f.BoolVar(&o.asJSON, "json", false, "the same as --format json")
	setGroup(f, "Products", "shapes", "bits", "group", "m", "dtype", "formats", "kind", "act", "time", "limit", "cache", "blas", "tiles", "no-verify", "no-tune", "summary", "selftest", "sums")
	setGroup(f, "Run", "device", "devices", "threads", "energy", "format", "json")
	setLater(f, "energy", "formats", "kind", "act", "time", "cache", "blas", "tiles", "no-verify", "no-tune", "devices", "sums")
	setResearch(f, "kernel", "lookup", "sustain", "roofline", "force")
	return c
}

func (u *ui) bench(ctx context.Context, model string, o benchOptions) error {
	if err := o.check(model); err != nil {
		return err
	}
	if o.asJSON {
		o.format = "json"
	}
	bo, err := o.parse()
	if err != nil {
		return usageError{err}
	}
	switch {
	case o.selftest.on():
		return u.selftest(ctx, o, bo)
	case o.sums:
		return u.benchSums(ctx, o)
	case o.decode.on:
		return u.benchDecode(ctx, model, o)
	}
	lookups, err := o.parseLookups()
	if err != nil {
		return usageError{err}
	}
	gpu, err := o.onGPU()
	if err != nil {
		return err
	}
	if len(o.formats) > 0 {
		stored, err := o.storages()
		if err != nil {
			return usageError{err}
		}
		bo.Layers, bo.Shapes = bench.RandomLayers(bo.Shapes, bo.Bits, stored, bo.Seed), nil
	}
	if o.roofline != "" {
		if err := outdir.Check(o.roofline, o.rooflineFolder(model)); err != nil {
			return outputHint(err)
		}
	}
	if o.fp8() && !gpu {
		return usage("--act fp8: products on the cpu are not faster in it")
	}
	if len(bo.Shapes)+len(bo.Layers) == 0 {
		device := "cpu"
		if gpu {
			device = "cuda"
		}
		if err := o.addLayers(ctx, u, &bo, model, device); err != nil {
			return hintDiffers(err)
		}
	}
	bar := u.startProgress("timing", 1, false)
	done, all := int64(0), 0
	bo.Done = func(r bench.Row, total int) {
		done, all = done+1, total
		bar.resize(int64(total))
		bar.set(done, fmt.Sprintf("%dx%d, %d bits, m %d", r.N, r.K, r.Bits, r.M))
	}
	stop := bar.keepTelling(time.Second)
	defer stop()
	var rows []bench.Row
	switch {
	case gpu:
		rows, err = bench.CUDA(ctx, bench.CUDAOptions{
			Shapes: bo.Shapes, Bits: bo.Bits, Group: bo.Group, Layers: bo.Layers, M: bo.M,
			Kind: o.kind, Kernel: o.kernel, DType: o.dtype, Lookups: lookups, Sustain: o.sustain, Energy: o.energy, FP8: o.fp8(), Seed: bo.Seed, Memory: bo.Memory, Done: bo.Done,
			NoTune: o.noTune, Doing: func(what string) { bar.set(done, what) },
		})
		err = hintDoctor(err)
	case o.energy:
		err = usage("--energy is for cuda: the cpu's is not measured")
	case len(lookups) > 0:
		err = usage("--lookup is for cuda")
	case o.sustain > 0:
		err = usage("--sustain is for cuda")
	default:
		bo.Memory = availableMemory() // beside the layers
		rows, err = bench.CPU(ctx, bo)
	}
	stop()
	bar.finish()
	err = u.timeUp(err, done, all)
	if errors.Is(err, bench.ErrMismatch) {
		return checkError{err}
	}
	if err != nil {
		return err
	}
	if err := u.printRows(rows, o.format); err != nil {
		return err
	}
	if gpu && len(rows) > 0 && rows[0].DenseUs == 0 {
		fmt.Fprintln(u.stderr, "lutq: cuBLAS was not found, so that nothing is compared with it")
	}
	if o.roofline != "" {
		if err := u.roofline(ctx, model, o, gpu, rows); err != nil {
			return err
		}
	}
	for _, r := range rows {
		if bound := r.ErrorBound(); !(r.RelErr <= bound) {
			return checkError{fmt.Errorf("%dx%d, %d bits, m %d: relative error %.2g is above %.2g", r.N, r.K, r.Bits, r.M, r.RelErr, bound)}
		}
	}
	return nil
}

// timeUp tells of what was left out of a run whose time was up. It is an error where that is everything.
func (u *ui) timeUp(err error, done int64, all int) error {
	switch {
	case !errors.Is(err, bench.ErrLimit):
		return err
	case done == 0:
		return hintError{err, "--limit gives a run more time"}
	}
	u.skip("the time is up: %d of %d products are timed; --limit gives a run more", done, all)
	return nil
}

// reading says how the rate of reading is measured.
func (o *benchOptions) reading() bench.Options {
	return bench.Options{Threads: o.threads, LastCache: int(o.cache), Memory: availableMemory()}
}

// check refuses flags that are no use together.
func (o *benchOptions) check(model string) error {
	if err := o.deviceFlags.check(); err != nil {
		return err
	}
	if o.kind == lut.Name {
		o.kind = ""
	}
	switch {
	case o.kernel != "" && (o.kind == "" || o.device == "cpu" || o.dtype == "f32"):
		return usage("--kernel is for the weights of a --kind on cuda")
	case o.device == "cuda" && o.dtype == "f32":
		return usage("type f32: cuda multiplies in f16 or bf16")
	case o.kind != "" && o.kind != trellis.Name && (o.decode.on || len(o.shapes) == 0), o.kind != "" && !o.decode.on && len(o.shapes) == 0:
		return usage("--kind is for the random weights of --shapes, and %s for those of --decode", trellis.Name)
	case len(o.formats) > 0 && (len(o.shapes) == 0 || o.kind != "" || o.given("group") || o.summary):
		return usage("--formats is for --shapes of --kind lut, without --group and --summary")
	case o.fp8() && o.kind != "":
		return usage("--act fp8 is for --kind lut: %s has no kernel in E4M3", o.kind)
	case o.fp8() && len(o.lookups) > 0:
		return usage("--act fp8 and --lookup do not go together: lookups are compared in 16 bits")
	case len(o.lookups) > 0 && o.kind != "":
		return usage("--lookup is for --kind lut: kernels of %s look up in one way", o.kind)
	case o.sustain < 0:
		return usage("--sustain %v: want a time above 0", o.sustain)
	case o.least < 0 || o.given("time") && o.least == 0:
		return usage("--time %v: want a time above 0", o.least)
	case o.limit < 0 || o.given("limit") && o.limit == 0:
		return usage("--limit %v: want a time above 0", o.limit)
	case o.device == "cuda" && o.blas != "":
		return usage("--blas is for the cpu")
	case o.device == "cuda" && (o.least > 0 || o.limit > 0 || o.cache > 0):
		return usage("--time, --limit and --cache are for the cpu")
	case o.asJSON && o.given("format") && o.format != "json":
		return usage("--json and --format %s do not go together", o.format)
	case o.sums && (o.selftest.on() || o.decode.on || len(o.shapes) > 0 || model != "" || o.summary):
		return usage("--sums times nothing else")
	case len(o.devices) > 0 && o.dtype == "f32" && o.device == "auto": // which is the cpu
		return usage("--devices names GPUs, and --device cpu none")
	case len(o.devices) > 0 && !o.sums && !o.decode.on:
		return usage("--devices is for --decode and --sums")
	case !o.selftest.on() && !o.decode.on && !o.sums && len(o.shapes) == 0 && model == "":
		return usage("bench: give a model folder, a config.json or --shapes")
	case o.selftest.on() && o.fp8():
		return usage("--selftest checks products in fp8 beside the others")
	case o.selftest.on() && model != "":
		return usage("--selftest takes no model: its data is random")
	}
	for _, name := range []string{"shapes", "m", "blas", "kind", "lookup", "sustain", "energy", "formats", "time", "limit", "cache", "roofline", "no-tune"} {
		if o.selftest.on() && o.given(name) {
			return usage("--selftest and --%s do not go together", name)
		}
	}
	switch {
	case o.decode.on && o.roofline != "":
		return usage("--roofline is for products, not for --decode")
	case o.noTune && (o.decode.on || o.device == "cpu" || o.dtype == "f32"):
		return usage("--no-tune is for products on cuda, which alone are tuned")
	case o.force && o.roofline == "":
		return usage("--force is for --roofline")
	case o.given("roofline") && o.roofline == "":
		return usage("--roofline wants the name of a folder")
	}
	return o.decode.check(model, o.given)
}

// onGPU chooses the device. Asked for the GPU, it fails where there is none.
func (o *benchOptions) onGPU() (bool, error) {
	if o.device == "cpu" || o.dtype == "f32" {
		return false, nil
	}
	_, err := driver.FirstGPU()
	if o.device == "auto" && o.dtype == "" {
		return err == nil, nil
	}
	return err == nil, hintDoctor(err)
}

// hintDoctor adds a hint to the error of what CUDA needs and is not there.
func hintDoctor(err error) error {
	var missing *driver.MissingError
	if errors.Is(err, driver.ErrNoGPU) || errors.As(err, &missing) {
		return hintError{err, "lutq doctor tells what this machine has"}
	}
	return err
}

// parse reads the lists among the flags.
func (o *benchOptions) parse() (bench.Options, error) {
	b := bench.Options{Kind: o.kind, Threads: o.threads, Seed: 1, BLAS: o.blas, Time: o.least, Limit: o.limit, LastCache: int(o.cache), Memory: availableMemory()}
	for _, s := range o.shapes {
		shape, err := bench.ParseShape(s)
		if err != nil {
			return b, err
		}
		b.Shapes = append(b.Shapes, shape)
	}
	least, most := lut.MinBits, lut.MaxBits
	if o.kind != "" {
		var err error
		if least, most, err = bench.KindWidths(o.kind); err != nil {
			return b, err
		}
	}
	for _, list := range []struct {
		name        string
		text        []string
		to          *[]int
		least, most int
	}{
		{"bits", o.bits, &b.Bits, least, most},
		{"m", o.m, &b.M, 1, maxRows},
	} {
		for _, s := range list.text {
			var v int
			if err := newNumber(&v, 0, list.least, list.most).Set(s); err != nil {
				return b, fmt.Errorf("--%s %q: %w", list.name, s, err)
			}
			*list.to = append(*list.to, v)
		}
	}
	g, err := weight.ParseGroup(o.group)
	if err != nil {
		return b, err
	}
	b.Group = g
	if g == weight.RowGroup {
		b.Group = math.MaxInt32 // cut to K
	}
	return b, nil
}

// storages reads --formats.
func (o *benchOptions) storages() (all []bench.Storage, err error) {
	for _, text := range o.formats {
		group, name, ok := strings.Cut(text, ":")
		if !ok {
			return nil, fmt.Errorf("--formats %q: want GROUP:TYPE, as 32:e4m4", text)
		}
		var s bench.Storage
		if s.Group, err = weight.ParseGroup(group); err == nil {
			s.Scale, err = weight.ParseScaleType(name)
		}
		if err != nil {
			return nil, fmt.Errorf("--formats %q: %w", text, err)
		}
		if s.Group == weight.RowGroup {
			s.Group = math.MaxInt32 // cut to K
		}
		all = append(all, s)
	}
	return all, nil
}

// parseLookups reads the list of lookups.
func (o *benchOptions) parseLookups() ([]table.Lookup, error) {
	var all []table.Lookup
	for _, name := range o.lookups {
		l, err := table.ParseLookup(name)
		if err != nil {
			return nil, fmt.Errorf("--lookup: %w", err)
		}
		all = append(all, l)
	}
	return all, nil
}

// addLayers adds the layers of a container, as they are laid out for a device where they
// are, or the shapes of a model.
func (o *benchOptions) addLayers(ctx context.Context, u *ui, b *bench.Options, path, device string) error {
	dir, err := u.find.path(path, true) // shapes need no weights
	if err != nil {
		return err
	}
	from, err := source.Open(dir, source.Options{Unchecked: o.noVerify})
	if err != nil {
		return err
	}
	defer from.Close()
	container := false
	if !from.Alone() {
		if container, err = from.IsContainer(); err != nil {
			return err
		}
	}
	if container {
		if _, err := u.find.path(path, false); err != nil { // which lie in the same folder
			return err
		}
		m, err := from.Container()
		if err != nil {
			return err
		}
		if err := checkMemory(m.Checkpoint(), true); err != nil {
			return err
		}
		laid, err := o.tiles.of(m, device)
		if err != nil {
			return err
		}
		if laid != nil {
			defer laid.Close()
		}
		if err := o.tiles.unused(device); err != nil {
			return err
		}
		b.Layers, err = bench.ReadLayers(ctx, m.Linears(), m.Reader(), laid)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
	d, err := from.Outline()
	if err != nil {
		return err
	}
	b.Shapes = layerShapes(d, device == "cuda")
	return nil
}

// layerShapes returns the different shapes of a decoder's linear layers, in
// order, and where a device joins layers that read the same those that come of it.
func layerShapes(d *arch.Decoder, joins bool) []bench.Shape {
	var shapes []bench.Shape
	add := func(n, k int) {
		if s := (bench.Shape{N: n, K: k}); !slices.Contains(shapes, s) {
			shapes = append(shapes, s)
		}
	}
	for i := range d.Blocks {
		b := &d.Blocks[i]
		for _, l := range b.Linears() {
			add(l.N, l.K)
		}
		if !joins {
			continue
		}
		if a := b.Attn(); a != nil && a.K != nil && a.V != nil {
			add(a.Q.N+a.K.N+a.V.N, a.Q.K)
		}
		if b.MLP != nil && b.MLP.Gate != b.MLP.Up {
			add(b.MLP.Gate.N+b.MLP.Up.N, b.MLP.Gate.K)
		}
	}
	return shapes
}

func (u *ui) selftest(ctx context.Context, o benchOptions, bo bench.Options) error {
	cuda, err := o.onGPU()
	if err != nil {
		return err
	}
	var r struct {
		OK       bool         `json:"ok"`
		ISAs     []string     `json:"isas"`
		Checks   int          `json:"checks"`
		WorstErr float64      `json:"worst_rel_err"`
		Failures []string     `json:"failures"`
		GPU      *gpuSelftest `json:"gpu,omitempty"`
	}
	r.ISAs, r.Failures = []string{}, []string{}
	checks := 0
	if o.device != "cuda" {
		c, err := bench.Selftest(ctx, bo.Seed)
		if err != nil {
			return err
		}
		r.ISAs, r.Checks, r.WorstErr = c.ISAs, c.Checks, c.WorstErr
		r.Failures = append(r.Failures, c.Failures...)
		checks += c.Checks
	}
	if cuda {
		if r.GPU, err = u.selftestGPU(ctx, o, bo); err != nil {
			return hintDoctor(err)
		}
		checks += r.GPU.Checks
		r.Failures = append(r.Failures, r.GPU.failures...)
	}
	r.OK = len(r.Failures) == 0
	if o.format == "json" {
		if err := u.printJSON(r); err != nil {
			return err
		}
	} else {
		for _, f := range r.Failures {
			fmt.Fprintln(u.prose(), f)
		}
		if o.device != "cuda" {
			fmt.Fprintf(u.prose(), "%d checks on %s, worst relative error %.2g\n", r.Checks, strings.Join(r.ISAs, ", "), r.WorstErr)
		}
		if g := r.GPU; g != nil {
			line := fmt.Sprintf("%d checks of %d of %d kernels on %s, worst relative error", g.Checks, g.Kernels, g.Of, g.Name)
			for _, t := range slices.Sorted(maps.Keys(g.WorstErr)) {
				line += fmt.Sprintf(" %.2g (%s)", g.WorstErr[t], t)
			}
			fmt.Fprintln(u.prose(), line)
			switch {
			case g.NoSums != "":
				fmt.Fprintf(u.prose(), "no sums over several GPUs: %s\n", g.NoSums)
			case g.Sums > 0:
				fmt.Fprintf(u.prose(), "%d sums over %d GPUs\n", g.Sums, g.SumsOver)
			}
		}
	}
	if n := len(r.Failures); n > 0 {
		return checkError{fmt.Errorf("%d of %d checks failed", n, checks)}
	}
	return nil
}

// gpuSelftest is what is told of the GPU's part of the self-test.
type gpuSelftest struct {
	Name     string             `json:"name"`
	Formats  int                `json:"formats"`
	Kernels  int                `json:"kernels"`
	Of       int                `json:"kernels_in_all"`
	Checks   int                `json:"checks"`
	WorstErr map[string]float64 `json:"worst_rel_err"` // by type

	Sums     int    `json:"sums"` // that were checked over several GPUs
	SumsOver int    `json:"sums_over_gpus"`
	NoSums   string `json:"no_sums,omitempty"` // why there were none

	failures []string
}

func (u *ui) selftestGPU(ctx context.Context, o benchOptions, bo bench.Options) (*gpuSelftest, error) {
	so := bench.CUDASelftestOptions{Seed: bo.Seed, Coverage: o.selftest.of(), Share: o.selftest.share - 1, Shares: o.selftest.shares}
	if o.given("bits") {
		so.Bits = bo.Bits
	}
	if o.given("group") {
		so.Groups = []int{bo.Group}
		if bo.Group == math.MaxInt32 {
			so.Groups = []int{0}
		}
	}
	if o.dtype != "" {
		so.DTypes = []string{o.dtype}
	}
	bar := u.startProgress("testing", 1, false)
	defer bar.finish()
	so.Done = func(done, total int) {
		bar.resize(int64(total))
		bar.set(int64(done), "formats")
	}
	r, err := bench.SelftestCUDA(ctx, so)
	if err != nil {
		return nil, err
	}
	g := &gpuSelftest{Name: r.GPU, Formats: r.Formats, Kernels: r.Kernels, Of: r.Of, Checks: r.Checks, WorstErr: r.WorstErr, failures: r.Failures}
	if g.Sums, g.SumsOver, g.NoSums, err = bench.SelftestPeers(bo.Seed); err != nil {
		g.failures = append(g.failures, err.Error())
	}
	return g, nil
}

// printRows prints the measurements, all of one device, in one of the formats.
func (u *ui) printRows(rows []bench.Row, format string) error {
	cuda := len(rows) > 0 && rows[0].Device == "cuda"
	switch {
	case format == "json" && cuda:
		return u.printJSON(struct {
			GPU  string      `json:"gpu"`
			Rows []bench.Row `json:"rows"`
		}{rows[0].GPU, rows})
	case format == "json":
		isa, _ := cpuKernels(false)
		return u.printJSON(struct {
			ISA  string      `json:"isa"`
			Rows []bench.Row `json:"rows"`
		}{isa, rows})
	}
	header := []string{"layer", "n", "k", "m", "bits", "group", "kernel", "us", "read ratio", "dense ratio", "GB/s", "rel err"}
	if cuda {
		header = append(header, "max err", "table err", "dtype")
	}
	blas := slices.ContainsFunc(rows, func(r bench.Row) bool { return r.BLASUs > 0 })
	if blas {
		header = append(header, "blas ratio")
	}
	prepared := slices.ContainsFunc(rows, func(r bench.Row) bool { return r.PrepareUs > 0 })
	if prepared {
		header = append(header, "prepare us")
	}
	metered := slices.ContainsFunc(rows, func(r bench.Row) bool { return r.JoulesPerCall > 0 })
	if metered {
		header = append(header, "mJ", "dense mJ")
	}
	if format == "csv" {
		header = append(header, "noisy")
	}
	var cells [][]string
	for _, r := range rows {
		name, noisy, dense := input.Name(r.Name), "", "–"
		if len(r.Layers) > 0 {
			name = input.Printable(summarize(r.Layers))
		}
		if r.Noisy && format != "csv" { // whose numbers are read by programs
			noisy = "*"
		}
		if r.DenseUs > 0 {
			dense = fmt.Sprintf("%.2f", r.DenseRatio)
		}
		line := []string{
			name, strconv.Itoa(r.N), strconv.Itoa(r.K), strconv.Itoa(r.M), strconv.Itoa(r.Bits), strconv.Itoa(r.Group), strings.TrimSpace(r.Kernel + " " + r.Lookup),
			digits(r.Us, 4) + noisy, fmt.Sprintf("%.3f", r.ReadOnlyRatio), dense, fmt.Sprintf("%.2f", r.GBPerS), fmt.Sprintf("%.1e", r.RelErr),
		}
		if cuda {
			line = append(line, fmt.Sprintf("%.1e", r.MaxErr), fmt.Sprintf("%.1e", r.TableRelErr), r.DType)
		}
		if blas {
			line = append(line, fmt.Sprintf("%.2f", r.BLASRatio))
		}
		if prepared {
			line = append(line, digits(r.PrepareUs, 3))
		}
		if metered {
			line = append(line, joules(1e3*r.JoulesPerCall), joules(1e3*r.DenseJoulesPerCall))
		}
		if format == "csv" {
			line = append(line, strconv.FormatBool(r.Noisy))
		}
		cells = append(cells, line)
	}
	err := u.printCells(format, numbersShape("dtype", "table err", "max err", "rel err", "GB/s", "prepare us", "blas ratio", "kernel", "group", "bits", "read ratio", "dense mJ", "mJ", "layer"), header, cells)
	if err != nil || format == "csv" {
		return err
	}
	prefix := ""
	if format == "md" {
		prefix = "\n\\"
	}
	for _, r := range rows {
		if len(r.Seconds) > 0 {
			if err := u.printSeconds(format, r); err != nil {
				return err
			}
		}
	}
	if err := noteNoise(u.prose(), prefix, rows); err != nil {
		return err
	}
	return noteShort(u.prose(), prefix, rows)
}

// printSeconds prints what came of a product over and over.
func (u *ui) printSeconds(format string, r bench.Row) error {
	var cells [][]string
	for i, s := range r.Seconds {
		cells = append(cells, []string{strconv.Itoa(i + 1), digits(s.Us, 4), fmt.Sprintf("%.0f", s.MHz), fmt.Sprintf("%.3f", r.Seconds[0].Us/s.Us)})
	}
	fmt.Fprintf(u.prose(), "\n%dx%d, %d bits, m %d, over and over: rate of the last second over the first %.3f\n\n", r.N, r.K, r.Bits, r.M, r.Sustained())
	return u.printCells(format, numbersShape(), []string{"second", "us", "MHz", "of first"}, cells)
}

// numbersShape is the shape of tables of measurements.
func numbersShape(drop ...string) tableShape {
	return tableShape{right: true, names: []string{"layer", "kernel"}, drop: drop}
}

// summarize shortens a list of layers: those that differ in numbers alone are
// named once, with their count.
func summarize(layers []string) string {
	count := make(map[string]int)
	var order []string
	for _, name := range layers {
		parts := strings.Split(name, ".")
		for i, p := range parts {
			if _, err := strconv.Atoi(p); err == nil {
				parts[i] = "*"
			}
		}
		pattern := strings.Join(parts, ".")
		if count[pattern] == 0 {
			order = append(order, pattern)
		}
		count[pattern]++
	}
	for i, pattern := range order {
		order[i] = fmt.Sprintf("%s (%d)", pattern, count[pattern])
	}
	return strings.Join(order, ", ")
}

// noteNoise explains the mark of rows that other work disturbed, which a prefix
// keeps from being markup.
func noteNoise(w io.Writer, prefix string, rows []bench.Row) error {
	var noisy int
	var spread, others float64
	for _, r := range rows {
		if r.Noisy {
			noisy++
			spread, others = max(spread, r.Spread), max(others, r.OtherCPUs)
		}
	}
	if noisy == 0 {
		return nil
	}
	note := fmt.Sprintf("%s* noisy: repeated timings differ by up to %.0f %%", prefix, 100*spread)
	if others > 0 {
		note += fmt.Sprintf(", and other work kept up to %.1f processors busy", others)
	}
	_, err := fmt.Fprintln(w, note)
	return err
}

// noteShort tells which rows had less time than they take, and of copies of weights that had less memory.
func noteShort(w io.Writer, prefix string, rows []bench.Row) error {
	product := ""
	for _, r := range rows {
		name := strings.TrimSpace(fmt.Sprintf("%s %dx%d, %d bits, m %d", input.Name(r.Name), r.N, r.K, r.Bits, r.M))
		if r.Repetitions == 0 || r.Repetitions >= bench.Repetitions || name == product {
			continue
		}
		product = name
		if _, err := fmt.Fprintf(w, "%s%s: %d of %d repetitions, for more of which there was no time\n", prefix, name, r.Repetitions, bench.Repetitions); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(rows, func(r bench.Row) bool { return r.ShortRing }) {
		return nil
	}
	_, err := fmt.Fprintf(w, "%scopies of weights have a quarter of the memory that is free, less than eight times the last cache: what it keeps of them is read faster\n", prefix)
	return err
}

// cpuKernels returns the instruction set that products use here, and whether those of models are in fixed point.
func cpuKernels(exact bool) (isa string, fixed bool) {
	e, err := cpu.New(cpu.Options{Threads: 1, Exact: exact})
	if err != nil {
		return "", false
	}
	defer e.Close()
	return e.ISA(), e.Fixes()
}
