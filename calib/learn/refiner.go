package learn

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path/filepath"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/quantize/lut"
)

// RefinerOptions say what a model's scales are learned on, and how.
type RefinerOptions struct {
	Options // but for the windows and the state

	Texts []string // files, which give equal parts of the windows
	// Cut says how many windows they are cut into. Whether they have a BOS, and their
	// order, follow from the tokenizer and the mode.
	Cut WindowOptions

	Device string // cpu or cuda, which Open opens
	// Open returns the device's operations, which leave that many bytes of its memory
	// free for more than the model. done is called when the model is closed.
	Open func(reserve int64) (ops model.Ops, done func() error, err error)
	// Begin, unless nil, is called when the model is open.
	Begin func()
}

// Refiner learns the scales of a checkpoint's layers after they were quantized.
type Refiner struct {
	o       RefinerOptions
	src     *hf.Checkpoint
	decoder *arch.Decoder
	texts   []lutq.CalibText
	report  *Report
}

// NewRefiner reads the texts and cuts them into windows. The checkpoint stays the
// caller's, and open as long as the refiner is used.
func NewRefiner(src *hf.Checkpoint, o RefinerOptions) (*Refiner, error) {
	d, err := arch.Read(src.Dir(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: scales cannot be learned: %w", src.Dir(), err)
	}
	tok, err := tokenizer.Load(src.Dir())
	if err != nil {
		return nil, err
	}
	o.Cut.BOS, o.Cut.BOSToken = corpus.BOSNone, d.BOS
	if _, added := tok.BOS(); added || o.Mode == Flute {
		o.Cut.BOS = corpus.BOSWindow
	}
	o.Cut.InOrder, o.Cut.Seed = o.Mode == Flute, o.Seed
	r := &Refiner{o: o, src: src, decoder: d}
	return r, r.read(tok)
}

// read cuts the texts, and keeps their names and sums.
func (r *Refiner) read(tok corpus.Tokenizer) error {
	most := 0 // windows are drawn from all of a text
	if r.o.Cut.InOrder {
		most = r.o.Cut.Windows + r.o.Cut.Valid
	}
	var texts []Text
	var sums []hash.Hash
	for _, path := range r.o.Texts {
		f, err := corpus.Open(path, most)
		if err != nil {
			return err
		}
		defer f.Close()
		sum := sha256.New()
		sums = append(sums, sum)
		texts = append(texts, Text{Name: path, Text: io.TeeReader(f, sum)})
	}
	var err error
	if r.o.Windows, r.o.Valid, err = Windows(texts, tok, r.o.Cut); err != nil {
		return err
	}
	for i, text := range texts {
		// The sum is of the whole file, also where a part of it sufficed.
		if _, err := io.Copy(io.Discard, text.Text); err != nil {
			return fmt.Errorf("%s: %w", text.Name, err)
		}
		r.texts = append(r.texts, lutq.CalibText{Name: filepath.Base(text.Name), SHA256: hex.EncodeToString(sums[i].Sum(nil))})
	}
	return nil
}

// Texts returns the names of the texts, without their folders, and their sums.
func (r *Refiner) Texts() []lutq.CalibText { return r.texts }

// Report returns what the last Refine or WriteControl did, nil before that.
func (r *Refiner) Report() *Report { return r.report }

// Refine learns the scales of the quantized layers, as [Run] does, and returns what
// the container says of it. state is [Options] State.
func (r *Refiner) Refine(ctx context.Context, shapes map[string]*lut.Matrix, layers Layers, state string) (*lutq.Learning, error) {
	err := r.run(Memory(shapes), func(m *model.Model) (*Report, error) {
		o := r.o.Options
		o.State = state
		return Run(ctx, m, shapes, layers, o)
	})
	if err != nil {
		return nil, err
	}
	rep := r.report
	return &lutq.Learning{
		Mode: string(rep.Mode), Objective: string(rep.Objective), Texts: r.texts,
		Windows: len(r.o.Windows), Context: r.o.Cut.Context, BOS: string(r.o.Cut.BOS),
		Tokens: rep.Tokens, Steps: rep.Steps, Rate: rep.Rate, Seed: r.o.Seed, Device: rep.Device,
		ValidWindows: len(r.o.Valid), InitialLoss: rep.InitialLoss, Loss: rep.Loss, BestStep: rep.BestStep,
	}, nil
}

// WriteControl writes the control of an experiment with learned scales to a folder:
// the checkpoint itself, with as many factors learned for its weights as matrices of
// these shapes have scales. What it gains on a text is not the repair of
// quantization. Its layers are of type F32, so that the factors are exact.
func (r *Refiner) WriteControl(ctx context.Context, dir string, shapes map[string]*lut.Matrix, state string) error {
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

// run opens the model and has do learn with it, in so many bytes of the device's memory
// besides the model's.
func (r *Refiner) run(memory int64, do func(*model.Model) (*Report, error)) (err error) {
	ops, done, err := r.o.Open(memory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	m, err := model.Open(r.src.Dir(), ops)
	if err != nil {
		return err
	}
	defer m.Close()
	if r.o.Begin != nil {
		r.o.Begin()
	}
	r.report, err = do(m)
	return err
}

// Memory returns about how many bytes of the host Refine takes, see [HostMemory].
func (r *Refiner) Memory(shapes map[string]*lut.Matrix) int64 {
	var weights int64
	for _, t := range r.src.Tensors() {
		weights += t.Bytes()
	}
	return HostMemory(r.decoder, weights, shapes, r.o.Device, r.o.Options)
}

// Seconds returns about how long Refine takes, see [Seconds].
func (r *Refiner) Seconds(context.Context) (seconds float64, err error) {
	ops, done, err := r.o.Open(0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	return Seconds(ops, r.decoder, r.o.Options)
}
