package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
)

func newInspectCommand(u *ui) *cobra.Command {
	var asJSON, summary bool
	c := &cobra.Command{
		Use:   "inspect MODEL",
		Short: "List what a model folder stores, and how",
		Long: withLimits(`Inspect lists the tensors of a model: name, shape, type and bytes. For quantized
layers it adds bits, group, codebook, scales, and the relative error ‖W-Ŵ‖/‖W‖
that was noted when they were made (W is the original, Ŵ what is stored). It
reads no weights; verify does. The tensors of a GGUF file get the names that
they have in the model's own folder.

With --summary it tells in ten lines where the bytes are: one for each kind of
tensor, as the down projections of all blocks, the largest first. Bits are those
of a weight with its scales, errors the mean over weights; +1 stands for another
way in which some are stored.

  lutq inspect OUT --summary`, input.Config, input.Index, input.Header, input.GGUF),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: folders(1),
		RunE:              func(_ *cobra.Command, args []string) error { return u.inspect(args[0], summary, asJSON) },
	}
	c.Flags().BoolVar(&summary, "summary", false, "sum up the tensors by their kinds, in ten lines")
	c.Flags().BoolVar(&asJSON, "json", false, "print the list as JSON")
	return c
}

// inspection is what inspect prints.
type inspection struct {
	Format        string  `json:"format"` // "lutq" or "hf"
	Tensors       int     `json:"tensors"`
	Quantized     int     `json:"quantized"`
	Parameters    int64   `json:"parameters"`
	Bytes         int64   `json:"bytes"`
	BitsPerWeight float64 `json:"bits_per_weight"`
	SHA256        string  `json:"sha256,omitempty"`
	QuantizedBy   string  `json:"quantized_by,omitempty"` // another program, in a format of its own
	Digests       bool    `json:"digests,omitempty"`      // whether there are those of everything else
	Command       string  `json:"command,omitempty"`

	Transform *lutq.Transform   `json:"transform,omitempty"` // what was done to the model before
	Calib     *lutq.Calibration `json:"calib,omitempty"`     // the text that layers were quantized for

	// Encodings counts what other programs quantized, by how it is stored.
	Encodings map[string]int `json:"encodings,omitempty"`

	Layers []layerJSON `json:"layers,omitempty"`
	Kinds  []*kindJSON `json:"kinds,omitempty"` // of a summary, instead
}

// inspectShape: how a tensor is stored matters more than how large it is.
func inspectShape() tableShape {
	return tableShape{names: []string{"tensor", "stored as"}, drop: []string{"shape", "bytes", "error"}}
}

func (u *ui) inspect(dir string, summary, asJSON bool) error {
	in, err := u.inspectModel(dir)
	if err != nil {
		return err
	}
	switch {
	case asJSON && summary:
		in.Kinds, _ = in.kinds(0)
		in.Layers = nil
		return u.printJSON(in)
	case asJSON:
		return u.printJSON(in)
	case summary:
		err = u.printSummary(in)
	default:
		err = u.printLayers(in)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(u.stdout)
	return u.printFacts(in)
}

// printLayers lists the tensors.
func (u *ui) printLayers(in *inspection) error {
	return u.table(inspectShape(), func(w io.Writer) {
		fmt.Fprintln(w, "tensor\tshape\tstored as\tbytes\terror")
		for _, l := range in.Layers {
			e := ""
			if l.DType == "" {
				e = fmt.Sprintf("%.3f %%", 100*l.Error)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", input.Name(l.Name), shapeName(l.Shape), input.Name(l.storedAs()), formatBytes(l.BytesOut), e)
		}
	})
}

// printFacts prints what there is to say of all tensors.
func (u *ui) printFacts(in *inspection) error {
	return u.facts(func(w io.Writer) {
		fmt.Fprintf(w, "tensors\t%d, %d of them quantized%s\n", in.Tensors, in.Quantized, in.encodings())
		fmt.Fprintf(w, "size\t%s\n", formatBytes(in.Bytes))
		fmt.Fprintf(w, "bits per weight\t%.3f over all %d parameters\n", in.BitsPerWeight, in.Parameters)
		if in.QuantizedBy != "" {
			fmt.Fprintf(w, "quantized by\t%s\n", input.Name(in.QuantizedBy))
		}
		if in.SHA256 != "" {
			fmt.Fprintf(w, "sha256\t%s\n", input.Name(in.SHA256))
			digests := "of every tensor and file: lutq verify checks them"
			if !in.Digests {
				digests = "of the quantized tensors alone"
			}
			fmt.Fprintf(w, "digests\t%s\n", digests)
			printTransform(w, in.Transform)
			if c := in.Calib; c != nil {
				fmt.Fprintf(w, "fitted to\t%s\n", calibName(c))
			}
			fmt.Fprintf(w, "made by\t%s\n", input.Printable(in.Command))
		}
	})
}

// calibName says on what text layers were quantized, and how closely they follow it.
func calibName(c *lutq.Calibration) string {
	closely := ""
	if c.Damp != 0 || c.Retarget != 0 { // which not all methods read
		closely = fmt.Sprintf(", damped by %v, retargeted by %v", c.Damp, c.Retarget)
	}
	return fmt.Sprintf("%s: %s%s, on %s", textNames(c.Texts), windowsName(c), closely, input.Name(c.Device))
}

// textNames lists texts by their names.
func textNames(texts []lutq.CalibText) string {
	var names []string
	for _, t := range texts {
		names = append(names, input.Name(t.Name))
	}
	return strings.Join(names, ", ")
}

// windowsName says how many windows layers were quantized on, and how long they are.
func windowsName(c *lutq.Calibration) string {
	of, without := "", 0
	if c.BOS == string(corpus.BOSHalf) {
		without = c.Windows / 2 // have a token less, which is BOS
	}
	if c.Tokens < c.Windows*c.Context-without {
		of = "up to "
	}
	return fmt.Sprintf("%d windows of %s%d tokens", c.Windows, of, c.Context)
}

// inspectModel gathers what there is to say about a folder.
func (u *ui) inspectModel(dir string) (*inspection, error) {
	in := &inspection{Format: "hf"}
	model, err := u.open(dir, source.Options{Unchecked: true})
	if err != nil {
		return nil, err
	}
	entries, err := model.Entries()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Layer == nil {
			in.addTensor(e.Tensor)
			continue
		}
		in.Quantized++
		in.Parameters += int64(e.Layer.Shape[0]) * int64(e.Layer.Shape[1])
		in.Layers = append(in.Layers, layerJSON{Name: e.Name, Shape: e.Layer.Shape[:], BytesOut: e.Bytes, Error: e.Layer.Error, Spec: e.Layer.Spec})
	}
	in.sum()
	return in, in.addOrigin(model)
}

// addOrigin adds what made a model that is quantized.
func (in *inspection) addOrigin(m *source.Model) error {
	container, err := m.IsContainer()
	if err != nil {
		return err
	}
	if container {
		c, err := m.Container()
		if err != nil {
			return err
		}
		config := c.Config()
		in.Format, in.SHA256, in.Command, in.Digests, in.Calib = lutq.Method, config.SHA256, config.Command, config.Digests != nil, config.Calib
		in.Transform = config.Transform
		return nil
	}
	ckpt, err := m.Stored()
	if err != nil {
		return err
	}
	if quantized, ok := errors.AsType[*hf.QuantizedError](ckpt.CheckUnquantized()); ok {
		in.QuantizedBy = quantized.By
	}
	return nil
}

func (in *inspection) addTensor(t *hf.Tensor) {
	in.Parameters += t.Elements()
	l := layerJSON{Name: t.Name, Shape: t.Shape, BytesOut: t.StoredBytes()}
	if l.DType, l.encodingJSON = storedAs(t); l.encodingJSON != nil {
		in.Quantized++
		if in.Encodings == nil {
			in.Encodings = make(map[string]int)
		}
		in.Encodings[l.DType]++
	}
	in.Layers = append(in.Layers, l)
}

// encodings lists them, the most frequent first.
func (in *inspection) encodings() string {
	names := slices.SortedFunc(maps.Keys(in.Encodings), func(a, b string) int {
		return cmp.Or(cmp.Compare(in.Encodings[b], in.Encodings[a]), cmp.Compare(a, b))
	})
	list := ""
	for i, name := range names {
		list += fmt.Sprintf("%s %d %s", []string{":", ","}[min(i, 1)], in.Encodings[name], input.Name(name))
	}
	return list
}

func (in *inspection) sum() {
	in.Tensors = len(in.Layers)
	for _, l := range in.Layers {
		in.Bytes += l.BytesOut
	}
	in.BitsPerWeight = 8 * float64(in.Bytes) / float64(max(in.Parameters, 1))
}
