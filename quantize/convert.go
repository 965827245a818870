package quantize

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/card"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
)

// ConvertOptions say how [Convert] works.
type ConvertOptions struct {
	Force        bool  // replace an output that lutq wrote
	MaxShardSize int64 // bytes; 0: 5 GB
	// Progress, if set, is told of the bytes read so far, of all that are read, and of the layer or
	// tensor at hand. It is called from several goroutines, one at a time.
	Progress func(done, total int64, tensor string)
}

// Converted is what [Convert] did.
type Converted struct {
	Kind     string `json:"kind"`
	Layers   int    `json:"layers"`
	Changed  int    `json:"changed"` // of them, which were of another kind
	BytesIn  int64  `json:"bytes_in"`
	BytesOut int64  `json:"bytes_out"`
	SHA256   string `json:"sha256"` // of the quantized tensors
}

// Convert writes a container to out whose layers are all of one kind and stand for the same
// weights to the bit. Where that cannot be it writes nothing and fails with an [InexactError].
// The output appears as that of [Plan.Run] does.
func Convert(ctx context.Context, m *lutq.Model, kind, out string, o ConvertOptions) (res *Converted, err error) {
	to, err := lutq.KindOf(kind)
	if err != nil {
		return nil, err
	}
	c := &conversion{model: m, to: to, progress: o.Progress, specs: make(map[string]weight.Spec), entries: make(map[string][]hf.Entry)}
	for _, t := range m.Checkpoint().Tensors() {
		c.total += t.Bytes()
		if m.LayerOf(t.Name) != "" {
			c.total += t.Bytes() // read once to plan, and again to write
		}
	}
	c.res = Converted{Kind: to.Name(), Layers: len(m.Linears())}
	if err := c.plan(ctx); err != nil {
		return nil, err
	}
	work, err := outdir.Create(out, outdir.Options{Inputs: []string{m.Checkpoint().Dir()}, Force: o.Force, Plan: "convert"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, work.Discard()) }() // nothing after Install
	sums, err := c.write(ctx, work.Dir(), o.MaxShardSize)
	if err != nil {
		return nil, err
	}
	if err := c.sideFiles(work.Dir(), sums); err != nil {
		return nil, err
	}
	return &c.res, work.Install()
}

// InexactError means that layers of a model cannot be of a kind with the same weights.
type InexactError struct {
	Kind   string
	Layers []string // sorted
	All    int      // layers of the model
	Why    error    // of the first
}

func (e *InexactError) Error() string {
	return fmt.Sprintf("%d of %d layers cannot be of kind %s with the same weights: %s: %v", len(e.Layers), e.All, e.Kind, e.Layers[0], e.Why)
}

func (e *InexactError) Unwrap() error { return e.Why }

// conversion is a container that is being converted.
type conversion struct {
	model   *lutq.Model
	to      weight.Kind
	specs   map[string]weight.Spec // of layers, as they become
	entries map[string][]hf.Entry
	res     Converted

	progress    func(done, total int64, tensor string)
	mu          sync.Mutex // for what layers that are read at once change
	done, total int64
}

// each reads every layer and calls f for it, for several at a time.
func (c *conversion) each(ctx context.Context, f func(layer string, m weight.Matrix) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, layer := range c.model.Linears() {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			m, err := c.model.Linear(layer)
			if err != nil {
				return err
			}
			if err := f(layer, m); err != nil {
				return fmt.Errorf("%s: %w", layer, err)
			}
			c.advance(m.Bytes(), layer)
			return nil
		})
	}
	return group.Wait()
}

func (c *conversion) advance(n int64, tensor string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += n
	if c.progress != nil {
		c.progress(c.done, c.total, tensor)
	}
}

// plan finds what every layer becomes.
func (c *conversion) plan(ctx context.Context) error {
	fails := make(map[string]error)
	err := c.each(ctx, func(layer string, from weight.Matrix) error {
		old := c.model.Spec(layer)
		m, spec, err := convert(from, old, c.to.Name())
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil {
			fails[layer] = err
			return nil
		}
		n, k := m.Shape()
		parts, err := c.to.Parts(spec, n, k)
		if err != nil {
			return err
		}
		for i, data := range m.Parts() {
			if data != nil {
				c.entries[layer] = append(c.entries[layer], lutq.Entries(layer, parts[i:i+1])...)
			}
		}
		c.specs[layer] = spec
		if old.Kind != spec.Kind {
			c.res.Changed++
		}
		c.res.BytesIn += from.Bytes()
		c.res.BytesOut += m.Bytes()
		return nil
	})
	if err != nil {
		return err
	}
	if len(fails) > 0 {
		layers := slices.Sorted(maps.Keys(fails))
		return &InexactError{Kind: c.to.Name(), Layers: layers, All: c.res.Layers, Why: fails[layers[0]]}
	}
	return nil
}

// write writes the tensors to a folder and returns their sums.
func (c *conversion) write(ctx context.Context, dir string, maxShard int64) (map[string]lutq.Sum, error) {
	var all []hf.Entry
	placed := make(map[string]bool)
	for _, t := range c.model.Checkpoint().Tensors() {
		layer := c.model.LayerOf(t.Name)
		switch {
		case layer == "":
			all = append(all, hf.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape})
		case !placed[layer]:
			all, placed[layer] = append(all, c.entries[layer]...), true
		}
	}
	w, err := hf.NewWriter(dir, all, hf.WriterOptions{MaxShardSize: maxShard})
	if err != nil {
		return nil, err
	}
	defer w.Abort() // does nothing after Commit
	for _, t := range c.model.Checkpoint().Tensors() {
		if c.model.LayerOf(t.Name) == "" {
			if err := w.CopyTensor(ctx, t); err != nil {
				return nil, err
			}
			c.advance(t.Bytes(), t.Name)
		}
	}
	err = c.each(ctx, func(layer string, from weight.Matrix) error {
		m, _, err := convert(from, c.model.Spec(layer), c.to.Name())
		if err != nil {
			return err
		}
		i := 0
		for _, data := range m.Parts() {
			if data == nil {
				continue
			}
			if err := w.WriteAt(c.entries[layer][i].Name, data, 0); err != nil {
				return err
			}
			i++
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	sums := make(map[string]lutq.Sum)
	for _, e := range all {
		size, err := e.Bytes()
		if err != nil {
			return nil, err
		}
		if sums[e.Name], err = lutq.SumOf(size, func(p []byte, off int64) error { return w.ReadAt(e.Name, p, off) }); err != nil {
			return nil, err
		}
	}
	return sums, w.Commit()
}

// sideFiles copies what is no tensor and writes the new config.json. What was copied is held
// against the digests of what it was copied from.
func (c *conversion) sideFiles(dir string, sums map[string]lutq.Sum) error {
	from := c.model.Checkpoint()
	digests, err := frameDigests(dir)
	if err != nil {
		return err
	}
	digests.Tensors = sums
	origin, ours, err := readCard(from.Dir())
	if err != nil {
		return err
	}
	for _, name := range from.SideFiles() {
		if name == configName || name == card.FileName && ours {
			continue
		}
		sum, err := outdir.CopyFile(filepath.Join(dir, name), filepath.Join(from.Dir(), name))
		if err != nil {
			return err
		}
		if name != card.FileName {
			digests.Files[name] = sum
		}
	}
	config := *c.model.Config()
	if old := config.Digests; old != nil {
		for _, t := range from.Tensors() {
			if c.model.LayerOf(t.Name) == "" && sums[t.Name] != old.Tensors[t.Name] {
				return fmt.Errorf("%s: %s %w", t.Shard, t.Name, lutq.ErrDiffers)
			}
		}
		for name, sum := range old.Files {
			if got, ok := digests.Files[name]; ok && name != from.Index() && got != sum {
				return fmt.Errorf("%s %w", name, lutq.ErrDiffers)
			}
		}
	}
	var stored []lutq.TensorSum
	for _, layer := range c.model.Linears() {
		for _, e := range c.entries[layer] {
			stored = append(stored, lutq.TensorSum{Entry: e, Sum: sums[e.Name]})
		}
	}
	c.res.SHA256 = lutq.Digest(stored)
	config.SHA256, config.Digests = c.res.SHA256, digests
	if config.Command != "" {
		config.Command += "; lutq repack --to " + c.to.Name() + " OUT OTHER"
	}
	config.Spec = c.specs[c.model.Linears()[0]]
	for _, s := range c.specs {
		if s.Scale == 0 { // which a default would hide
			config.Scale = 0
		}
	}
	config.Tensors = maps.Clone(config.Tensors)
	for layer, t := range config.Tensors {
		t.Spec = c.specs[layer].Without(config.Spec)
		config.Tensors[layer] = t
	}
	text, err := from.ConfigJSON()
	if err != nil {
		return err
	}
	if text, err = hf.WithoutQuantization(text); err != nil {
		return err
	}
	if text, err = config.AddTo(text); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, configName), text, 0o644); err != nil || !ours {
		return err
	}
	return writeCard(dir, origin, nil)
}

// convert returns the matrix of a kind that stands for the same weights as m, and its spec.
func convert(m weight.Matrix, s weight.Spec, kind string) (weight.Matrix, weight.Spec, error) {
	switch from := m.(type) {
	case *lut.Matrix:
		if kind == bcq.Name {
			return toBinary(from, s)
		}
		if kind == lut24.Name {
			sparse, err := lut24.FromLUT(from)
			s.Kind = kind
			return sparse, s, err
		}
	case *bcq.Matrix:
		if kind == lut.Name {
			return toTable(from, s)
		}
	case *lut24.Matrix:
		if kind == lut.Name {
			dense, err := from.LUT()
			s.Kind = kind
			return dense, s, err
		}
	}
	if m.Kind() != kind {
		return nil, s, fmt.Errorf("weights of kind %s are not those of kind %s", m.Kind(), kind)
	}
	return m, s, nil
}

// toBinary keeps the type of scales where it holds the factors exactly, and takes the least that does
// where not.
func toBinary(m *lut.Matrix, s weight.Spec) (weight.Matrix, weight.Spec, error) {
	s.Kind = bcq.Name
	s = bcq.Kind{}.Fit(s)
	types := []weight.ScaleType{weight.F16, weight.BF16, weight.F32}
	if slices.Contains(types, m.ScaleType) {
		types = []weight.ScaleType{m.ScaleType, weight.F32}
	}
	why := errors.New("sums of float32 factors round")
	for _, t := range types {
		b, err := bcq.FromLUT(m, t)
		if err != nil {
			why = err
			continue
		}
		if bcq.Equal(m, b) {
			s.ScaleType = t
			return b, s, nil
		}
	}
	return nil, s, why
}

// toTable names the table where it is a built-in one.
func toTable(m *bcq.Matrix, s weight.Spec) (weight.Matrix, weight.Spec, error) {
	l, err := m.LUT()
	if err != nil {
		return nil, s, err
	}
	s.Kind, s.Codebook = lut.Name, "steps"
	for _, name := range lut.CodebookNames() {
		if c, err := lut.NewCodebook(name, m.Bits, m.Group); err == nil && slices.Equal(c.Values, l.Codebook) {
			s.Codebook = name
			break
		}
	}
	return l, s, nil
}
