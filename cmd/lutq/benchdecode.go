package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/decodebench"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/bench"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// decodeFlags are those of bench --decode.
type decodeFlags struct {
	on           bool
	tests, batch []string
	against      string
	headBits     int
	noDense      bool
	exact        bool
}

func (d *decodeFlags) register(f *pflag.FlagSet) {
	f.BoolVar(&d.on, "decode", false, "time how fast MODEL reads prompts and writes")
	f.StringSliceVar(&d.tests, "tests", nil, "`TESTS`, a list (default pp512,tg128; more on cuda)")
	f.StringSliceVar(&d.batch, "batch", nil, "`TEXTS` side by side, a list (default 1; cuda 1,4,16,64)")
	f.StringVar(&d.against, "against", "", "`FOLDER` of dense weights: MODEL's original (default random)")
	addHeadBits(f, &d.headBits)
	f.BoolVar(&d.noDense, "no-dense", false, "leave dense weights out")
	f.BoolVar(&d.exact, "exact", false, "compute in float32 where the cpu would in fixed point")
	setGroup(f, "Whole models", d.names()...)
	setLater(f, "prefill-cache", "no-dense", "exact")
}

func (d *decodeFlags) names() []string {
	return []string{"decode", "tests", "batch", "against", "head-bits", "prefill-cache", "no-dense", "exact"}
}

// check refuses flags that are no use together.
func (d *decodeFlags) check(model string, given func(flag string) bool) error {
	if !d.on {
		for _, name := range d.names() {
			if given(name) {
				return usage("--%s is for --decode", name)
			}
		}
		return nil
	}
	for _, name := range []string{"shapes", "m", "blas", "time", "limit", "selftest"} {
		if given(name) {
			return usage("--decode and --%s do not go together", name)
		}
	}
	switch {
	case model == "":
		return usage("bench: --decode takes a model folder or a config.json")
	case d.noDense && d.against != "":
		return usage("--no-dense and --against do not go together")
	}
	return checkHeadBits(d.headBits)
}

// addHeadBits adds the flag for the width of the output head.
func addHeadBits(f *pflag.FlagSet, bits *int) {
	f.Var(newNumber(bits, 16, lut.MinBits, 16), "head-bits", "`BITS` of the output head: 2 to 5, or 16")
}

func checkHeadBits(bits int) error {
	if bits > lut.MaxBits && bits != 16 {
		return usage(`--head-bits "%d": want 2 to 5, or 16`, bits)
	}
	return nil
}

// quantizedHead returns the width that the output head of a folder is quantized to, 0 where it stays as it is.
func quantizedHead(bits int) int {
	if bits > lut.MaxBits {
		return 0
	}
	return bits
}

// parse reads the lists, for a device.
func (d *decodeFlags) parse(device string) (o decodebench.Options, err error) {
	tests, batch := d.tests, d.batch
	if len(tests) == 0 {
		tests = []string{"pp512", "tg128"}
		if device == "cuda" {
			tests = []string{"pp512", "pp2048", "tg128", "tg128@d4096"}
		}
	}
	if len(batch) == 0 {
		batch = []string{"1"}
		if device == "cuda" {
			batch = []string{"1", "4", "16", "64"}
		}
	}
	for _, s := range tests {
		t, err := decodebench.ParseTest(s)
		if err != nil {
			return o, usage("--tests: %w", err)
		}
		o.Tests = append(o.Tests, t)
	}
	for _, s := range batch {
		var n int
		if err := newNumber(&n, 0, 1, maxBatch).Set(s); err != nil {
			return o, usage("--batch %q: %w", s, err)
		}
		o.Batch = append(o.Batch, n)
	}
	return o, nil
}

// maxBatch is the most texts side by side.
const maxBatch = 1 << 12

// decodeDevice is a device that a model is timed on.
type decodeDevice struct {
	ops      model.Ops
	gpus     int            // that have a part of a model each; 0: the cpu
	gpu      *driver.Device // nil: the cpu
	actBytes int
	close    func() error
}

// openDecodeDevice opens a device anew, so that nothing of a model before takes its memory.
func openDecodeDevice(device string, devices gpuList, dtype string, onCPU cpu.Options) (*decodeDevice, error) {
	if len(devices) > 1 {
		t, done, err := openTeam(devices, dtype)
		if err != nil {
			return nil, err
		}
		return &decodeDevice{ops: t, gpus: len(devices), gpu: t.devs[0], actBytes: 2, close: done}, nil
	}
	if device == "cuda" {
		first := 0
		if len(devices) > 0 {
			first = devices[0]
		}
		ops, dev, done, err := openGPU(first, dtype, 0)
		if err != nil {
			return nil, hintDoctor(err)
		}
		return &decodeDevice{ops: ops, gpus: 1, gpu: dev, actBytes: 2, close: done}, nil
	}
	engine, err := cpu.New(onCPU)
	if err != nil {
		return nil, err
	}
	return &decodeDevice{ops: modelcpu.New(engine), actBytes: 4, close: func() error { engine.Close(); return nil }}, nil
}

// memory returns what is free and what there is, zeros where that is not known.
func (d *decodeDevice) memory() (free, total int64, err error) {
	if d.gpu == nil {
		debug.FreeOSMemory() // what was closed
		free = availableMemory()
		return free, free, nil
	}
	err = d.gpu.Do(func() (err error) {
		free, total, err = d.gpu.Memory()
		return err
	})
	return free, total, err
}

// heldBy says how a device with activations of some bytes holds weights.
func heldBy(ops model.Ops, actBytes int) decodebench.Held {
	h := decodebench.Held{
		Dense:      func(t hf.DType) int { return min(t.Bits()/8, 4) }, // F64 is held as F32
		Multiplies: ops.Multiplies, Unpacked: actBytes,
	}
	if ops.Name() == "cuda" { // which converts them
		h.Dense = func(hf.DType) int { return actBytes }
	}
	return h
}

// timedModel is a model to time.
type timedModel struct {
	name        string
	bits, group int  // of codes; 0 where there are none
	dense       bool // stands beside the others
	// prepare returns what the weights take, and how to read them.
	prepare func(d *decodeDevice) (decodebench.Sizes, func() (*model.Model, error), error)
}

// timedModels returns what there is to time of a path.
func (o *benchOptions) timedModels(u *ui, path, dtype string) ([]timedModel, error) {
	m, err := u.open(path, source.Options{Unchecked: o.noVerify})
	if err != nil {
		return nil, err
	}
	container, weights := false, false
	if !m.Alone() {
		if container, err = m.IsContainer(); err == nil {
			weights, err = m.HasWeights()
		}
		if err != nil {
			return nil, err
		}
	}
	if container || weights {
		for _, name := range []string{"bits", "group", "kind"} {
			if o.given(name) {
				return nil, usage("--%s is for a config.json: %s has weights", name, path)
			}
		}
	}
	if !container && o.decode.against != "" {
		return nil, usage("--against is for a quantized MODEL")
	}
	if weights && !container {
		return []timedModel{{name: path, prepare: o.stored(u, m, o.decode.headBits)}}, nil
	}
	d, err := m.Outline()
	if err != nil {
		return nil, err
	}
	if err := divides(path, d, len(o.devices)); err != nil {
		return nil, err
	}
	var all []timedModel
	if container {
		packed, err := m.Container()
		if err != nil {
			return nil, hintDiffers(err)
		}
		spec := packed.Config().Spec
		all = append(all, timedModel{name: path, bits: spec.Bits, group: spec.Group, prepare: o.stored(u, m, o.decode.headBits)})
	} else {
		group := defaultDecodeGroup
		if o.given("group") {
			if group, err = weight.ParseGroup(o.group); err != nil {
				return nil, err
			}
		}
		for _, text := range o.bits {
			bits, err := strconv.Atoi(text) // parsed before
			if err != nil {
				return nil, err
			}
			ro := decodebench.RandomOptions{Kind: o.kind, Bits: bits, Group: group, HeadBits: quantizedHead(o.decode.headBits), DType: denseType(dtype)}
			all = append(all, timedModel{name: path, bits: bits, group: group, prepare: randomModel(path, d, ro)})
		}
	}
	switch {
	case o.decode.noDense:
	case o.decode.against != "":
		original, err := u.open(o.decode.against, source.Options{Unchecked: o.noVerify})
		if err != nil {
			return nil, err
		}
		all = append(all, timedModel{name: o.decode.against, dense: true, prepare: o.stored(u, original, 16)})
	default:
		all = append(all, timedModel{name: path, dense: true, prepare: randomModel(path, d, decodebench.RandomOptions{DType: denseType(dtype)})})
	}
	return all, nil
}

// defaultDecodeGroup is that of quantize.
const defaultDecodeGroup = 64

// denseType is the type of random dense weights where activations have one.
func denseType(dtype string) hf.DType {
	if dtype == "f16" {
		return hf.F16
	}
	return hf.BF16
}

// stored prepares the weights of a model, with an output head of some bits.
func (o *benchOptions) stored(u *ui, m *source.Model, headBits int) func(*decodeDevice) (decodebench.Sizes, func() (*model.Model, error), error) {
	return func(d *decodeDevice) (decodebench.Sizes, func() (*model.Model, error), error) {
		sizes, err := sizesOf(m, heldBy(d.ops, d.actBytes), headBits)
		if err != nil {
			return nil, nil, hintDiffers(err)
		}
		return sizes, func() (*model.Model, error) {
			return u.loadOn(m, d.ops, model.OpenOptions{
				HeadBits: quantizedHead(headBits),
				Layouts:  func(m *lutq.Model) (model.Layouts, error) { return o.tiles.of(m, d.ops.Name()) },
			})
		}, nil
	}
}

// sizesOf returns what the weights of a model take, with an output head of some bits.
func sizesOf(m *source.Model, h decodebench.Held, headBits int) (decodebench.Sizes, error) {
	sizes, err := decodebench.SizesOf(m, h)
	if err != nil {
		return nil, err
	}
	if bits := quantizedHead(headBits); bits > 0 {
		d, err := m.Decoder()
		if err != nil {
			return nil, err
		}
		sizes.QuantizeHead(d, bits)
	}
	return sizes, nil
}

// randomModel prepares random weights.
func randomModel(name string, desc *arch.Decoder, ro decodebench.RandomOptions) func(*decodeDevice) (decodebench.Sizes, func() (*model.Model, error), error) {
	return func(d *decodeDevice) (decodebench.Sizes, func() (*model.Model, error), error) {
		ro.Upload = d.gpu != nil
		r, err := decodebench.NewRandom(name, desc, ro)
		if err != nil {
			return nil, nil, err
		}
		return r.Sizes(), func() (*model.Model, error) {
			if need, free := r.HostBytes(), availableMemory(); free > 0 && need > free {
				return nil, fmt.Errorf("%s: random weights need %s of the host's memory: %s are available", name, formatBytes(need), formatBytes(free))
			}
			if t, ok := d.ops.(*teamOps); ok {
				return t.dividedRandom(name, desc, ro)
			}
			return model.New(r, d.ops)
		}, nil
	}
}

// decodeReport is what bench --decode prints.
type decodeReport struct {
	Model      string      `json:"model"`
	GPU        string      `json:"gpu,omitempty"`
	ISA        string      `json:"isa,omitempty"`
	Fixed      bool        `json:"fixed,omitempty"` // products by quantized weights are in fixed point
	DType      string      `json:"dtype"`           // of activations
	Repeat     int         `json:"repeat"`
	ReadGBPerS float64     `json:"read_gb_per_s"` // 0: not measured
	PeakRSS    int64       `json:"peak_rss_bytes"`
	Rows       []decodeRow `json:"rows"`
}

// decodeRow is one test. Bytes are those that are read for a token at least, and ratios the part of the device's read
// rate that this is; dense is the same with dense weights. What was not timed is 0.
type decodeRow struct {
	Device  string `json:"device"`
	Test    string `json:"test"`
	Batch   int    `json:"batch"`
	Depth   int    `json:"depth"`
	Context int    `json:"context"` // tokens of a text in the end
	Bits    int    `json:"bits"`
	Group   int    `json:"group"` // 0: not quantized; -1: a row

	decodeTiming
	DenseTokensPerSecond float64       `json:"dense_tokens_per_second"`
	Dense                *decodeTiming `json:"dense,omitempty"`
}

// decodeTiming is what a test took with some weights.
type decodeTiming struct {
	TokensPerSecond float64 `json:"tokens_per_second"`
	BytesPerToken   float64 `json:"bytes_per_token"`
	ReadRatio       float64 `json:"read_ratio"`
	HeadBits        int     `json:"head_bits"`
	Spread          float64 `json:"spread"` // of repetitions
	WeightBytes     int64   `json:"weight_bytes"`
	GPUBytes        int64   `json:"gpu_bytes,omitempty"` // that the model and its tests have taken so far
	JoulesPerToken  float64 `json:"joules_per_token,omitempty"`
	Watts           float64 `json:"watts,omitempty"`
}

// maxDecodeSpread is how far repetitions may be apart before a row is marked.
const maxDecodeSpread = 0.1

func (t *decodeTiming) noisy() bool { return t.Spread > maxDecodeSpread }

// benchDecode times whole models.
func (u *ui) benchDecode(ctx context.Context, path string, o benchOptions) error {
	cuda, err := o.onGPU()
	if err != nil {
		return err
	}
	switch {
	case o.energy && !cuda:
		return usage("--energy is for cuda: the cpu's is not measured")
	case o.energy && len(o.devices) > 1:
		return usage("--energy is for one GPU")
	}
	device, dtype := "cpu", "f32"
	if cuda {
		device = "cuda"
		if dtype = o.dtype; dtype == "" {
			dtype = "f16"
		}
	}
	do, err := o.decode.parse(device)
	if err != nil {
		return err
	}
	if len(o.devices) > 1 && o.fp8() {
		return usage("--act fp8 is for one GPU")
	}
	models, err := o.timedModels(u, path, dtype)
	if err != nil {
		return err
	}
	rep := &decodeReport{Model: filepath.Base(path), DType: dtype, Repeat: 3}
	do.Repeat = rep.Repeat
	readRate := func(ctx context.Context) (float64, error) { return bench.ReadRate(ctx, o.reading()) }
	if cuda {
		readRate = bench.ReadRateCUDA
		gpu, err := driver.FirstGPU()
		if err != nil {
			return hintDoctor(err)
		}
		rep.GPU = gpu.Name
		if n := len(o.devices); n > 1 {
			rep.GPU = fmt.Sprintf("%d × %s", n, gpu.Name)
			one := readRate
			readRate = func(ctx context.Context) (float64, error) {
				rate, err := one(ctx)
				return float64(n) * rate, err
			}
		}
	} else {
		rep.ISA, rep.Fixed = cpuKernels(o.decode.exact)
	}
	rate, err := readRate(ctx)
	if err != nil {
		return hintDoctor(err)
	}

	bar := u.startProgress("timing", int64(len(models)*do.Count()), false)
	defer bar.finish()
	done := int64(0)
	step := func(item string) {
		done++
		bar.set(done, item)
	}
	for _, m := range models {
		err := unlessDone(ctx, func() error {
			return u.timeModel(ctx, rep, m, device, o.devices, cpu.Options{Threads: o.threads, Exact: o.decode.exact}, do, o.actFlag, o.energy, step)
		})
		if err != nil {
			return hintDecode(err)
		}
	}
	if err := o.tiles.unused(device); err != nil {
		return err
	}
	if len(rep.Rows) == 0 {
		return fmt.Errorf("%s: nothing was timed", path)
	}
	if !cuda { // others may have been at work before
		again, err := readRate(ctx)
		if err != nil {
			return err
		}
		rate = max(rate, again)
	}
	rep.finish(rate)
	bar.finish()
	return u.printDecode(rep, o.format)
}

// hintDecode adds what to do about an error.
func hintDecode(err error) error {
	if driver.IsOutOfMemory(err) {
		return hintError{err, "fewer of --batch, or --no-dense, need less"}
	}
	return err
}

// timeModel times a model and adds its rows to the report, or to the rows that are there what dense weights take.
func (u *ui) timeModel(ctx context.Context, rep *decodeReport, tm timedModel, device string, devices gpuList, onCPU cpu.Options, do decodebench.Options, act actFlag, energy bool, step func(item string)) (err error) {
	d, err := openDecodeDevice(device, devices, rep.DType, onCPU)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if d.ops, err = act.rounding(d.ops); err != nil {
		return err
	}
	sizes, open, err := tm.prepare(d)
	if err != nil {
		return err
	}
	free, total, err := d.memory()
	if err != nil {
		return err
	}
	const freePart = 8 // of all is left free, so that no dense weight has to stay on the host
	if need := sizes.Part(d.gpus) + total/freePart; free > 0 && need > free {
		u.skip("%s: %s are not timed: with an eighth of the memory left for the rest they need %s: %s are free", tm.name, tm.weights(), formatBytes(need), formatBytes(free))
		for range do.Count() {
			step(tm.weights())
		}
		return nil
	}
	before := free
	m, err := open()
	if err != nil {
		return err
	}
	defer m.Close()
	head := sizes.Head(m.Decoder()).Bits
	var left int64 // on a GPU, whose memory stays taken between sessions
	if d.gpu != nil {
		if left, total, err = d.memory(); err != nil {
			return err
		}
		left = max(left-total/64, 1)
	}
	do.Sizes, do.ActBytes = sizes, d.actBytes
	do.Free = func() int64 {
		if d.gpu != nil {
			return left
		}
		free, _, _ := d.memory() // which does not fail there
		return free
	}
	if do.Energy, err = energyOf(d.gpu, energy); err != nil {
		return hintDoctor(err)
	}
	do.Skip = func(t decodebench.Test, batch int, reason error) {
		u.skip("%v, %d side by side, %s: not timed: %v", t, batch, tm.weights(), reason)
		step(t.String())
	}
	bits, group := tm.bits, tm.group
	if bits == 0 {
		bits = sizes[m.Decoder().Stored()[0].Path].Bits
	}
	var failed error
	do.Done = func(r decodebench.Result) {
		timing := decodeTiming{
			TokensPerSecond: r.TokensPerSecond(), BytesPerToken: r.BytesPerToken, HeadBits: head, Spread: r.Spread(), WeightBytes: sizes.Sum(),
			JoulesPerToken: r.Energy.JoulesPerToken, Watts: r.Energy.Watts,
		}
		if d.gpu != nil {
			now, _, err := d.memory()
			failed = errors.Join(failed, err)
			timing.GPUBytes = before - now
		}
		row := decodeRow{
			Device: device, Test: r.Name(), Batch: r.Batch, Depth: r.Depth, Context: r.Context(), Bits: bits, Group: group, decodeTiming: timing,
		}
		if tm.dense {
			rep.addDense(&row)
		} else {
			rep.Rows = append(rep.Rows, row)
		}
		step(fmt.Sprintf("%v, %d side by side, %s: %s tokens/s", r.Test, r.Batch, tm.weights(), digits(timing.TokensPerSecond, 3)))
	}
	_, err = decodebench.Run(ctx, m, do)
	u.noteKept(d.ops)
	return errors.Join(err, failed)
}

// decodeEnergy is how long the energy of a test is measured at least: its repetitions are longer than a product.
const decodeEnergy = 2 * time.Second

// energyOf returns how the energy of a GPU is measured, or nil where it is not asked for.
func energyOf(gpu *driver.Device, asked bool) (func(context.Context, func() (int, error)) (decodebench.Energy, error), error) {
	if !asked {
		return nil, nil
	}
	meter, err := gpu.Meter()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, work func() (int, error)) (decodebench.Energy, error) {
		e, err := meter.Over(ctx, decodeEnergy, work)
		if err != nil {
			return decodebench.Energy{}, err
		}
		return decodebench.Energy{JoulesPerToken: e.EachJoules(), Watts: e.Watts}, nil
	}, nil
}

// weights names what a model is timed with.
func (t *timedModel) weights() string {
	switch {
	case t.dense:
		return "dense weights"
	case t.bits > 0:
		return fmt.Sprintf("weights of %d bits", t.bits)
	}
	return "the model's weights"
}

// skip says what is left out.
func (u *ui) skip(format string, args ...any) {
	fmt.Fprintf(u.stderr, "lutq: "+format+"\n", args...)
}

// addDense adds to all rows of a test what dense weights take.
func (r *decodeReport) addDense(dense *decodeRow) {
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Test == dense.Test && row.Depth == dense.Depth && row.Batch == dense.Batch {
			row.Dense, row.DenseTokensPerSecond = &dense.decodeTiming, dense.TokensPerSecond
		}
	}
}

// finish fills in what the read rate says, and the memory.
func (r *decodeReport) finish(rate float64) {
	r.ReadGBPerS, r.PeakRSS = rate/1e9, peakRSS()
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, t := range []*decodeTiming{&row.decodeTiming, row.Dense} {
			if t != nil {
				t.ReadRatio = t.TokensPerSecond * t.BytesPerToken / rate
			}
		}
	}
}

// printDecode prints a report in one of the formats.
func (u *ui) printDecode(rep *decodeReport, format string) error {
	if format == "json" {
		return u.printJSON(rep)
	}
	header := []string{"test", "batch", "bits", "group", "head bits", "context", "tokens/s", "MB/token", "read ratio", "dense tokens/s", "dense ratio"}
	if rep.GPU != "" {
		header = append(header, "GPU GB", "dense GB")
	}
	metered := slices.ContainsFunc(rep.Rows, func(r decodeRow) bool { return r.JoulesPerToken > 0 })
	if metered {
		header = append(header, "J/token", "dense J/token")
	}
	if format == "csv" {
		header = append(header, "noisy")
	}
	cells := make([][]string, len(rep.Rows))
	for i, r := range rep.Rows {
		test, group := r.Test, "–"
		if r.Depth > 0 {
			test += "@d" + strconv.Itoa(r.Depth)
		}
		if r.Group != 0 {
			group = weight.GroupName(r.Group)
		}
		mark := func(t *decodeTiming) string {
			if t.noisy() && format != "csv" {
				return "*"
			}
			return ""
		}
		dense, ratio, denseGB, denseJoules := "–", "–", "–", "–"
		if r.Dense != nil {
			dense, ratio = digits(r.DenseTokensPerSecond, 4)+mark(r.Dense), fmt.Sprintf("%.2f", r.TokensPerSecond/r.DenseTokensPerSecond)
			denseGB = digits(float64(r.Dense.GPUBytes)/1e9, 3)
			denseJoules = joules(r.Dense.JoulesPerToken)
		}
		cells[i] = []string{
			test, strconv.Itoa(r.Batch), strconv.Itoa(r.Bits), group, strconv.Itoa(r.HeadBits), strconv.Itoa(r.Context),
			digits(r.TokensPerSecond, 4) + mark(&r.decodeTiming), digits(r.BytesPerToken/1e6, 3), fmt.Sprintf("%.3f", r.ReadRatio), dense, ratio,
		}
		if rep.GPU != "" {
			cells[i] = append(cells[i], digits(float64(r.GPUBytes)/1e9, 3), denseGB)
		}
		if metered {
			cells[i] = append(cells[i], joules(r.JoulesPerToken), denseJoules)
		}
		if format == "csv" {
			cells[i] = append(cells[i], strconv.FormatBool(r.noisy() || r.Dense != nil && r.Dense.noisy()))
		}
	}
	if err := u.printCells(format, numbersShape("dense GB", "GPU GB", "MB/token", "dense tokens/s", "context", "head bits", "group", "bits", "read ratio", "dense J/token", "J/token"), header, cells); err != nil || format == "csv" {
		return err
	}
	return rep.printBelow(u.prose(), format)
}

// joules prints an energy, where it was measured.
func joules(j float64) string {
	if j == 0 {
		return "–"
	}
	return digits(j, 3)
}

// printBelow says what holds for all rows.
func (r *decodeReport) printBelow(w io.Writer, format string) error {
	on := "cpu (" + r.ISA + ")"
	if r.Fixed {
		on = "cpu (" + r.ISA + " in fixed point)"
	}
	if r.GPU != "" {
		on = r.GPU
	}
	line := fmt.Sprintf("On %s, activations %s, greedy, the median of %d; read rate %s GB/s; host memory at most %s.", on, r.DType, r.Repeat, digits(r.ReadGBPerS, 3), formatBytes(r.PeakRSS))
	if _, err := fmt.Fprintf(w, "\n%s\n", line); err != nil {
		return err
	}
	var spread float64
	for _, row := range r.Rows {
		spread = max(spread, row.Spread)
		if row.Dense != nil {
			spread = max(spread, row.Dense.Spread)
		}
	}
	if spread <= maxDecodeSpread {
		return nil
	}
	prefix := ""
	if format == "md" {
		prefix = "\n\\"
	}
	_, err := fmt.Fprintf(w, "%s* noisy: repetitions differ by up to %.0f %%\n", prefix, 100*spread)
	return err
}
