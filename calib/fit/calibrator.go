package fit

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/gptq"
)

// calibrator runs a text through a model. It implements [quantize.Calibrator].
type calibrator struct {
	o       Options
	hessian bool // a method reads o.GPTQ
	rescale bool // and what it says of scales
	src     *model.Checkpoint
	text    *corpus.Mixture
}

func newCalibrator(m *source.Model, text *corpus.Mixture, o Options, hessian bool) (*calibrator, error) {
	src, err := model.NewCheckpoint(m)
	if err != nil {
		return nil, err
	}
	if !hessian {
		o.GPTQ = gptq.Options{}
	}
	if o.Float {
		o.GPTQ.Retarget = 0 // there are no errors before to make up for
	}
	return &calibrator{o: o, hessian: hessian, src: src, text: text}, nil
}

// Flags implements [quantize.Calibrator].
func (c *calibrator) Flags() []string {
	args := c.o.textFlags(c.text)
	if c.hessian {
		args = append(args, "--damp", number(c.o.GPTQ.Damp))
		if !c.o.Float {
			args = append(args, "--retarget", number(c.o.GPTQ.Retarget))
		}
	}
	if c.o.Float {
		args = append(args, "--stream", StreamFloat)
	}
	if c.rescale {
		args = append(args, "--rescale="+strconv.FormatBool(c.o.GPTQ.Rescale))
	}
	return append(args, c.o.whereFlags()...)
}

// Key implements [quantize.Calibrator].
func (c *calibrator) Key() string { return key(c.Flags(), c.text) }

// Record implements [quantize.Calibrator].
func (c *calibrator) Record() *lutq.Calibration {
	r := &lutq.Calibration{
		Windows: len(c.text.Windows), Context: c.text.Context, BOS: string(c.text.BOS), Tokens: c.text.Tokens(),
		Damp: c.o.GPTQ.Damp, Retarget: c.o.GPTQ.Retarget, Seed: c.o.Seed, Device: c.o.Device,
	}
	if c.o.Float {
		r.Stream = StreamFloat
	}
	for _, f := range c.text.Texts {
		r.Texts = append(r.Texts, lutq.CalibText(f))
	}
	return r
}

// Apart implements [quantize.Calibrator].
func (c *calibrator) Apart() bool { return c.o.Float }

// Block implements [quantize.Calibrator]. A GPU rounds the columns of many rows at once.
func (c *calibrator) Block() int {
	if c.o.Device == "cpu" {
		return 0
	}
	return 4 << 20
}

// Devices implements [quantize.Calibrator].
func (c *calibrator) Devices() int { return max(c.o.Devices, 1) }

// Memory implements [quantize.Calibrator].
func (c *calibrator) Memory(f quantize.Fitting) (host, device int64) {
	o, devices := c.walk(), c.Devices()
	if c.o.Device != "cpu" {
		device = model.WalkDeviceMemory(c.src.Decoder(), o, devices, f.Share, f.Beside, f.Prepared)
	}
	return model.WalkMemory(c.src, o, c.o.Device, devices), device
}

// Seconds implements [quantize.Calibrator].
func (c *calibrator) Seconds(_ context.Context, f quantize.Fitting) (seconds float64, err error) {
	devices, done, err := c.o.Open(0)
	if err != nil {
		return 0, err
	}
	ops := devices[0]
	defer func() { err = errors.Join(err, done()) }()
	d, o := c.src.Decoder(), c.walk()
	least := 0
	if c.o.Device != "cpu" {
		least = gpuTimed
	}
	perSecond, err := model.Speed(ops, d, min(c.text.Context, 512), least)
	if c.o.Device == "cpu" {
		return (model.WalkWork(d, o) + f.Products) / perSecond, err
	}
	work := (model.WalkWork(d, o)+gpuFloats*f.Products)/perSecond + gpuLaunch*model.WalkLaunches(d, o) +
		gpuMatrix*float64(f.Matrices) + gpuWeight*f.Weights
	return gpuStart + work/float64(c.Devices()), err
}

// What a GPU takes besides products of activations, in seconds but for gpuFloats: measured on an H200, see NOTES.md of package gptq.
const (
	gpuStart  = 5    // kernels that are compiled already
	gpuLaunch = 1e-5 // an operation that the host asks for
	gpuMatrix = 1e-3 // a matrix, and
	gpuWeight = 1e-8 // each of its weights, that columns are rounded of, with the copies to the host and back

	gpuFloats = 12      // products of floats take so many times as long as of activations
	gpuTimed  = 1 << 36 // multiplications of a product that takes far longer than to ask for it
)

// walk says how the text is run.
func (c *calibrator) walk() model.WalkOptions {
	o := model.WalkOptions{Windows: c.text.Windows, Original: c.o.GPTQ.Retarget > 0, Apart: c.o.Float}
	if c.o.Device != "cpu" {
		o.Together = min(tokensTogether, c.text.Tokens()/c.Devices()) // so that each device has some
	}
	return o
}

// tokensTogether is how many tokens a GPU takes through experts at a time. Of 128 experts, 8 a token, each has about a thousand, which
// fill it; and in 8192 numbers each they take 1.5 GB of its memory on the way.
const tokensTogether = 1 << 14

// Walk implements [quantize.Calibrator].
func (c *calibrator) Walk(ctx context.Context, v *quantize.Visitor) error {
	if c.o.Float {
		return c.walkApart(ctx, v)
	}
	return c.walkWith(ctx, "calibrating", v)
}

// walkWith shows v what the layers that it wants read.
func (c *calibrator) walkWith(ctx context.Context, doing string, v model.Visitor) error {
	return c.onDevices(func(devices []model.StatsOps) error { return c.walkOn(ctx, doing, devices, v, c.walk()) })
}

// onDevices calls f with the devices.
func (c *calibrator) onDevices(f func(devices []model.StatsOps) error) (err error) {
	devices, done, err := c.o.Open(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	var stats []model.StatsOps
	for _, ops := range devices {
		s, ok := ops.(model.StatsOps)
		if !ok {
			return fmt.Errorf("nothing can be calibrated on the device %s", ops.Name())
		}
		stats = append(stats, s)
	}
	return f(stats)
}

// walkOn is a walk over windows.
func (c *calibrator) walkOn(ctx context.Context, doing string, devices []model.StatsOps, v model.Visitor, o model.WalkOptions) error {
	defer c.o.Begin(doing)()
	blocks := len(c.src.Decoder().Blocks)
	o.Beside = devices[1:]
	o.Progress = func(done, all int) { c.o.Progress(done, all, min(o.From+done*(blocks-o.From)/all+1, blocks), blocks) }
	return model.Walk(ctx, c.src, devices[0], v, o)
}
