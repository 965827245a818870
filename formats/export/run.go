package export

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Options say how a plan is carried out.
type Options struct {
	// Requantize has layers quantized anew that do not fit the target. Without it one such is an
	// error.
	Requantize bool
	Force      bool // replace an output that lutq wrote
	// NewRounder returns what rounds rows of weights to a table, as package quantize/rtn does.
	NewRounder func(f lut.Format) (foreign.Round, error)
	// Progress, if set, is told of bytes that are written. It is called from several goroutines, one
	// at a time.
	Progress func(done int64, name string)
}

// UnfitError means that layers do not fit the target.
type UnfitError struct {
	Target string
	Unfit  []Unfit

	hint string
}

func (e *UnfitError) Error() string {
	n := 0
	for _, u := range e.Unfit {
		n += u.Layers
	}
	return fmt.Sprintf("%d layers do not fit %s, such as %s: %s", n, e.Target, e.Unfit[0].Names[0], e.Unfit[0].Why)
}

// Hint says how to export the model nevertheless.
func (e *UnfitError) Hint() string { return e.hint }

// Check returns the error with which [Plan.Run] would refuse the plan.
func (p *Plan) Check(o Options) error {
	if u := p.Unfit(); len(u) > 0 && !o.Requantize {
		hint := fmt.Sprintf("--requantize quantizes them anew; quantize --for %s makes a model whose layers fit", p.Target.Name())
		if h, ok := p.Target.(foreign.Hinter); ok {
			hint = h.Hint()
		}
		return &UnfitError{p.Target.Name(), u, hint}
	}
	return nil
}

// Run writes the model and moves the finished folder to out, as [outdir.Create] allows. After an
// error nothing is left. It returns the bytes of weights that were written.
func (p *Plan) Run(ctx context.Context, out string, o Options) (written int64, err error) {
	if err := p.Check(o); err != nil {
		return 0, err
	}
	work, err := outdir.Create(out, outdir.Options{Inputs: []string{p.ckpt.Dir()}, Force: o.Force, Plan: "export"})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, work.Discard()) }() // nothing after Install
	s := &reader{Plan: p, newRounder: o.NewRounder, progress: o.Progress}
	if err := p.format.Write(ctx, work.Dir(), s); err != nil {
		return 0, err
	}
	if err := p.writeCard(work.Dir(), o); err != nil {
		return 0, err
	}
	return s.written, work.Install()
}

// reader implements [foreign.Source].
type reader struct {
	*Plan
	newRounder func(f lut.Format) (foreign.Round, error)
	progress   func(done int64, name string)

	mu      sync.Mutex
	written int64
}

func (s *reader) Model() *foreign.Model { return s.Plan.Model }

func (s *reader) Rounder(f lut.Format) (foreign.Round, error) {
	if s.newRounder == nil {
		return nil, errors.New("nothing rounds weights to tables here")
	}
	return s.newRounder(f)
}

func (s *reader) Weights(l *foreign.Layer) (weight.Matrix, error) { return s.input.Linear(l.Name) }

func (s *reader) Matrix(l *foreign.Layer) (*lut.Matrix, error) {
	m, err := s.Weights(l)
	if err != nil {
		return nil, err
	}
	switch l.As {
	case foreign.AsIs:
		return asTable(m)
	case foreign.Anew:
		return s.anew(l, m)
	}
	return nil, fmt.Errorf("%s is not written in codes", l.Name)
}

// anewRows is how many weights are quantized at a time.
const anewRows = 1 << 16

// anew quantizes the weights that a layer stands for once more.
func (s *reader) anew(l *foreign.Layer, m weight.Matrix) (*lut.Matrix, error) {
	o := s.items[l].anew
	o.Group = l.Group
	round, err := s.Rounder(o)
	if err != nil {
		return nil, err
	}
	w := &lut.Matrix{N: l.N, K: l.K, Bits: l.Bits, Group: l.Group, ScaleType: o.ScaleType, Codebook: o.Codebook.Values}
	rowBytes, scaleBytes := w.RowBytes(), w.Groups()*o.ScaleType.Size()
	w.Codes, w.Scales = make([]byte, l.N*rowBytes), make([]byte, l.N*scaleBytes)
	step := max(1, anewRows/l.K)
	values, read := make([]float32, step*l.K), weight.NewReader(m)
	parts := make([][]byte, lut.CodesPart+1)
	for n := 0; n < l.N; n += step {
		rows := min(step, l.N-n)
		for i := range rows {
			copy(values[i*l.K:], read.Row(n+i))
		}
		parts[lut.CodesPart] = w.Codes[n*rowBytes : (n+rows)*rowBytes]
		parts[lut.ScalesPart] = w.Scales[n*scaleBytes : (n+rows)*scaleBytes]
		if err := round(parts, values[:rows*l.K], rows); err != nil {
			return nil, err
		}
	}
	return w, w.Validate()
}

func (s *reader) Copy(t *hf.Tensor, write func(p []byte, off int64) error) error {
	sum, err := lutq.SumOf(t.Bytes(), func(p []byte, off int64) error {
		if _, err := t.ReadAt(p, off); err != nil {
			return err
		}
		return write(p, off)
	})
	if err != nil || s.input == nil {
		return err
	}
	return s.input.CheckSum(t, sum)
}

func (s *reader) Wrote(bytes int64, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written += bytes
	if s.progress != nil {
		s.progress(s.written, name)
	}
}

// Size returns about how many bytes will be written: what is kept, and of layers what they take
// now.
func (p *Plan) Size() int64 {
	var sum int64
	for _, t := range p.ckpt.Tensors() {
		sum += t.Bytes()
	}
	return sum
}
