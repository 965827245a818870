package tiles

import (
	"fmt"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/repack"
)

// Target is a layout that layers are kept in.
type Target struct {
	Name string // of the device
	Unit string // what a matrix is cut into

	format string // in the files' metadata

	// parts returns what holds a matrix of the shape and format of m, whose data does
	// not matter.
	parts func(m *lut.Matrix) [2]part
	// pack lays m out.
	pack func(m *lut.Matrix) (lut.Layout, error)
	// data returns codes and scales.
	data func(l lut.Layout) [2][]byte
	// layout returns what was written of a matrix of the shape and format of m.
	layout func(m *lut.Matrix, codes, scales []byte) layout
}

// layout is a layout that can be held against its own fields.
type layout interface {
	lut.Layout
	Validate() error
}

// part is a tensor of a layer: so many rows of bytes.
type part struct {
	suffix      string
	rows, bytes int
}

// Targets returns all targets, by name.
func Targets() []*Target {
	return []*Target{
		{
			Name: "cpu", Unit: "panels", format: "lutq-panels",
			parts: func(m *lut.Matrix) [2]part {
				p := panels(m, nil, nil)
				return [2]part{{".panels", p.PanelCount(), p.PanelBytes()}, {".panel_scales", p.PanelCount(), p.PanelScaleBytes()}}
			},
			pack: func(m *lut.Matrix) (lut.Layout, error) { return repack.CPU(m) },
			data: func(l lut.Layout) [2][]byte {
				p := l.(*repack.CPUPanels)
				return [2][]byte{p.Panels, p.Scales}
			},
			layout: func(m *lut.Matrix, codes, scales []byte) layout { return panels(m, codes, scales) },
		},
		{
			Name: "cuda", Unit: "tiles", format: "lutq-tiles",
			parts: func(m *lut.Matrix) [2]part {
				p := tiles(m, nil, nil)
				return [2]part{{".tiles", p.Tiles(), p.TileBytes()}, {".tile_scales", p.Tiles(), p.TileScaleBytes()}}
			},
			pack: func(m *lut.Matrix) (lut.Layout, error) { return repack.CUDA(m) },
			data: func(l lut.Layout) [2][]byte {
				p := l.(*repack.CUDATiles)
				return [2][]byte{p.Codes, p.Scales}
			},
			layout: func(m *lut.Matrix, codes, scales []byte) layout { return tiles(m, codes, scales) },
		},
	}
}

func panels(m *lut.Matrix, codes, scales []byte) *repack.CPUPanels {
	return &repack.CPUPanels{
		N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType,
		Panels: codes, Scales: scales, Codebook: m.Codebook,
	}
}

func tiles(m *lut.Matrix, codes, scales []byte) *repack.CUDATiles {
	return &repack.CUDATiles{
		N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType,
		Codes: codes, Scales: scales, Codebook: m.Codebook,
	}
}

// For returns the target of a device's name, or nil.
func For(device string) *Target {
	for _, t := range Targets() {
		if t.Name == device {
			return t
		}
	}
	return nil
}

// Names returns the names of all targets.
func Names() []string {
	var names []string
	for _, t := range Targets() {
		names = append(names, t.Name)
	}
	return names
}

// entries returns the tensors that hold a layer: codes, scales, table, checksum.
func (t *Target) entries(layer string, m *lut.Matrix) []hf.Entry {
	var all []hf.Entry
	for _, p := range t.parts(m) {
		all = append(all, hf.Entry{Name: layer + p.suffix, DType: "U8", Shape: []int{p.rows, p.bytes}})
	}
	return append(all,
		hf.Entry{Name: layer + codebookSuffix, DType: "F32", Shape: []int{1 << m.Bits}},
		hf.Entry{Name: layer + checksumSuffix, DType: "U32", Shape: []int{1}})
}

// shape returns a layer's matrix without its data. It fails on one of another kind than lut, which
// alone has layouts.
func shape(m *lutq.Model, layer string) (*lut.Matrix, error) {
	tc, s := m.Config().Tensors[layer], m.Spec(layer)
	if s.Kind != lut.Name {
		return nil, fmt.Errorf("%s: no layout for weights of kind %s: they are read as they are stored", layer, s.Kind)
	}
	return &lut.Matrix{N: tc.Shape[0], K: tc.Shape[1], Bits: s.Bits, Group: s.Columns(tc.Shape[1]), ScaleType: s.ScaleType}, nil
}
