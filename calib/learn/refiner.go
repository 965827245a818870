package learn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
)

// RefinerOptions say what a model's scales are learned on, and how.
type RefinerOptions struct {
	Options // but for the windows and the state
	Text    *corpus.Mixture

	Device string // cpu or cuda, which Open opens
	// Open returns the devices' operations, which leave that many bytes of their memory
	// free for more than the model. done is called when the model is closed.
	Open func(reserve int64) (devices []model.Ops, done func() error, err error)
	// Begin, unless nil, is called when the model is open.
	Begin func()
}

// Refiner learns the scales of a model's layers after they were quantized.
type Refiner struct {
	o       RefinerOptions
	model   *source.Model
	src     *hf.Checkpoint // its weights
	decoder *arch.Decoder
	report  *Report
}

// NewRefiner returns what learns the scales of a model, which stays the
// caller's, and open as long as the refiner is used.
func NewRefiner(m *source.Model, o RefinerOptions) (*Refiner, error) {
	src, err := m.Weights()
	if err != nil {
		return nil, err
	}
	d, err := m.Decoder()
	if err != nil {
		return nil, fmt.Errorf("%s: scales cannot be learned: %w", m.Dir(), err)
	}
	longest := 0
	for _, w := range o.Text.Windows {
		longest = max(longest, len(w))
	}
	if err := model.Learnable(d, longest); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Dir(), err)
	}
	o.Windows, o.Valid = o.Text.Windows, o.Text.Valid
	return &Refiner{o: o, model: m, src: src, decoder: d}, nil
}

// Report returns what the last Refine or WriteControl did, nil before that.
func (r *Refiner) Report() *Report { return r.report }

// Recodes reports whether Refine may write other codes as well.
func (r *Refiner) Recodes() bool { return r.o.Recode > 0 || r.o.Mode == Flute }

// Refine learns the scales of the quantized layers, as [Run] does, and returns what
// the container says of it. state is [Options] State.
func (r *Refiner) Refine(ctx context.Context, shapes map[string]weight.Matrix, layers Layers, state string) (*lutq.Learning, error) {
	err := r.run(Memory(shapes), func(m *model.Model) (*Report, error) {
		o := r.o.Options
		o.State = state
		return Run(ctx, m, shapes, layers, o)
	})
	if err != nil {
		return nil, err
	}
	rep := r.report
	var texts []lutq.CalibText
	for _, f := range r.o.Text.Texts {
		texts = append(texts, lutq.CalibText(f))
	}
	return &lutq.Learning{
		Mode: string(rep.Mode), Objective: string(rep.Objective), Texts: texts,
		Windows: len(r.o.Windows), Context: r.o.Text.Context, BOS: string(r.o.Text.BOS),
		Tokens: rep.Tokens, Steps: rep.Steps, Rate: rep.Rate, Seed: r.o.Seed, Device: rep.Device,
		ValidWindows: len(r.o.Valid), InitialLoss: rep.InitialLoss, Loss: rep.Loss, BestStep: rep.BestStep,
	}, nil
}

// WriteControl writes the control of an experiment with learned scales to a folder:
// the checkpoint itself, with as many factors learned for its weights as matrices of
// these shapes have scales. What it gains on a text is not the repair of
// quantization. Its layers are of type F32, so that the factors are exact.
func (r *Refiner) WriteControl(ctx context.Context, dir string, shapes map[string]weight.Matrix, state string) error {
	var factors map[string]Factors
	err := r.run(Memory(shapes), func(m *model.Model) (rep *Report, err error) {
		o := r.o.Options
		o.State = state
		factors, rep, err = Control(ctx, m, shapes, o)
		return rep, err
	})
	if err != nil {
		return err
	}
	return writeMultiplied(ctx, r.src, dir, factors)
}

// Check reports what cannot be learned of layers of these shapes.
func (r *Refiner) Check(shapes map[string]weight.Matrix) error {
	for _, path := range slices.Sorted(maps.Keys(shapes)) {
		s, err := storedOf(shapes[path])
		if err == nil {
			err = r.o.check(s.shape())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// run opens the model and has do learn with it, in so many bytes of the device's memory
// besides the model's.
func (r *Refiner) run(memory int64, do func(*model.Model) (*Report, error)) (err error) {
	devices, done, err := r.o.Open(memory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	var all []*model.Model
	for _, ops := range devices {
		m, err := model.Open(r.model, ops, model.OpenOptions{})
		if err != nil {
			if len(devices) > 1 {
				err = model.On(ops, err)
			}
			return err
		}
		defer m.Close()
		all = append(all, m)
	}
	r.o.Beside = all[1:]
	if r.o.Begin != nil {
		r.o.Begin()
	}
	r.report, err = do(all[0])
	return err
}

// Memory returns about how many bytes of the host Refine takes, see [HostMemory].
func (r *Refiner) Memory(shapes map[string]weight.Matrix) int64 {
	var weights int64
	for _, t := range r.src.Tensors() {
		weights += t.Bytes()
	}
	return HostMemory(r.decoder, weights, shapes, r.o.Device, r.o.Options)
}

// Seconds returns about how long Refine takes, see [Seconds].
func (r *Refiner) Seconds(context.Context) (seconds float64, err error) {
	devices, done, err := r.o.Open(0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	seconds, err = Seconds(devices[0], r.decoder, r.o.Options)
	return seconds / float64(min(max(r.o.Batch, 1), len(devices))), err
}
