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
	return &calibrator{o: o, hessian: hessian, src: src, text: text}, nil
}

// Flags implements [quantize.Calibrator].
func (c *calibrator) Flags() []string {
	args := c.o.textFlags(c.text)
	if c.hessian {
		args = append(args, "--damp", number(c.o.GPTQ.Damp), "--retarget", number(c.o.GPTQ.Retarget))
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
	for _, f := range c.text.Texts {
		r.Texts = append(r.Texts, lutq.CalibText(f))
	}
	return r
}

// Block implements [quantize.Calibrator]. A GPU rounds the columns of many rows at once.
func (c *calibrator) Block() int {
	if c.o.Device == "cpu" {
		return 0
	}
	return 4 << 20
}

// Memory implements [quantize.Calibrator].
func (c *calibrator) Memory() int64 {
	return model.WalkMemory(c.src, c.walk(), c.o.Device)
}

// Seconds implements [quantize.Calibrator].
func (c *calibrator) Seconds(_ context.Context, products float64) (seconds float64, err error) {
	ops, done, err := c.o.Open(0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	perSecond, err := model.Speed(ops, c.src.Decoder(), min(c.text.Context, 512))
	return (model.WalkWork(c.src.Decoder(), c.walk()) + products) / perSecond, err
}

// walk says how the text is run.
func (c *calibrator) walk() model.WalkOptions {
	o := model.WalkOptions{Windows: c.text.Windows, Original: c.o.GPTQ.Retarget > 0}
	if c.o.Device != "cpu" {
		o.Together = tokensTogether
	}
	return o
}

// tokensTogether is how many tokens a GPU takes through experts at a time. Of 128 experts, 8 a token, each has about a thousand, which
// fill it; and in 8192 numbers each they take 1.5 GB of its memory on the way.
const tokensTogether = 1 << 14

// Walk implements [quantize.Calibrator].
func (c *calibrator) Walk(ctx context.Context, v *quantize.Visitor) error {
	return c.walkWith(ctx, "calibrating", v)
}

// walkWith shows v what the layers that it wants read.
func (c *calibrator) walkWith(ctx context.Context, doing string, v model.Visitor) (err error) {
	defer c.o.Begin(doing)()
	ops, done, err := c.o.Open(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	stats, ok := ops.(model.StatsOps)
	if !ok {
		return fmt.Errorf("nothing can be calibrated on the device %s", ops.Name())
	}
	o, blocks := c.walk(), len(c.src.Decoder().Blocks)
	o.Progress = func(done, all int) { c.o.Progress(done, all, min(done*blocks/all+1, blocks), blocks) }
	return model.Walk(ctx, c.src, stats, v, o)
}
