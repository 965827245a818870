package exl3

import (
	"cmp"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
)

// fused is a matrix of a model that exllamav3 has as several layers, such as qkv_proj of Phi-3.
type fused struct {
	as    *arch.Stored
	parts []part // in the order of their rows
}

// part is a layer of exllamav3's: some rows of a matrix.
type part struct {
	name   string
	row, n int
}

// fusedIn returns those of a model.
func fusedIn(d *arch.Decoder) []*fused {
	var all []*fused
	of := make(map[*arch.Stored]*fused)
	for l := range d.Linears() {
		s := l.Stored
		if l.Whole() || s.Experts > 0 || l.Step != 1 {
			continue
		}
		if of[s] == nil {
			of[s] = &fused{as: s}
			all = append(all, of[s])
		}
		place := s.Path[:strings.LastIndexByte(s.Path, '.')+1]
		of[s].parts = append(of[s].parts, part{place + strings.TrimPrefix(l.Name, s.Path+".") + "_proj", l.Row, l.N})
	}
	for _, f := range all {
		slices.SortFunc(f.parts, func(a, b part) int { return cmp.Compare(a.row, b.row) })
	}
	return all
}

// Stack is a matrix of several layers, one below the other. It implements [hf.Codec].
type Stack struct {
	k      int
	layers []*Layer
}

// ReadFloat32 implements [hf.Codec].
func (s *Stack) ReadFloat32(dst []float32, start int64) error {
	for _, l := range s.layers {
		size := int64(l.N) * int64(s.k)
		if start < size && len(dst) > 0 {
			n := min(int64(len(dst)), size-start)
			if err := l.ReadFloat32(dst[:n], start); err != nil {
				return err
			}
			dst, start = dst[n:], size
		}
		start -= size
	}
	return nil
}

// encoded returns the matrix, which is stored as its parts.
func (f *fused) encoded(s *hf.Stored) (hf.Encoded, error) {
	stack, e := &Stack{k: f.as.K}, &hf.Encoding{Rows: 1, Cols: f.as.K, N: f.as.N, K: f.as.K}
	for _, p := range f.parts {
		t := s.Tensor(p.name + tilesSuffix)
		l, parts, err := open(s, p.name, t)
		if err != nil {
			return hf.Encoded{}, err
		}
		if padded(p.n) != l.rows || padded(f.as.K) != l.cols {
			return hf.Encoded{}, t.Errorf("tiles of %d×%d weights: %s in config.json has %d×%d there", l.rows, l.cols, f.as.Tensor, p.n, f.as.K)
		}
		l.N, l.K = p.n, f.as.K
		stack.layers, e.Parts, e.Type = append(stack.layers, l), append(e.Parts, parts...), name(l)
	}
	e.Codec = stack
	return hf.Encoded{Name: f.as.Tensor, DType: hf.F32, Shape: []int{f.as.N, f.as.K}, Encoding: e}, nil
}
