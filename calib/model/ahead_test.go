package model

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// countingSource has matrices without data, and counts how often each is read.
type countingSource struct {
	Source
	desc   *arch.Decoder
	broken string // a path that cannot be read

	mu    sync.Mutex
	sizes map[string]*arch.Stored
	reads map[string]int
}

func (s *countingSource) Name() string           { return "source" }
func (s *countingSource) Decoder() *arch.Decoder { return s.desc }

func (s *countingSource) Quantized(path string) (weight.Matrix, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.sizes[path]
	s.reads[path]++
	if path == s.broken {
		return nil, errors.New("broken " + path)
	}
	return &lut.Matrix{N: of.Matrices() * of.N, K: of.K}, nil
}

// TestAhead: every matrix is read once and comes to the one that asks for it, and no more
// is read ahead than is said.
func TestAhead(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	rapid.Check(t, func(t *rapid.T) {
		src := &countingSource{sizes: make(map[string]*arch.Stored), reads: make(map[string]int)}
		src.desc = &arch.Decoder{Tied: rapid.Bool().Draw(t, "tied")}
		linear := func(path string) *arch.Linear {
			s := &arch.Stored{Path: path, N: 1 << 10, K: rapid.IntRange(1, readAhead>>9).Draw(t, "k")}
			src.sizes[path] = s
			return &arch.Linear{Stored: s}
		}
		src.desc.Head = linear("head")
		blocks := rapid.IntRange(0, 4).Draw(t, "blocks")
		for i := range blocks {
			var of [7]*arch.Linear
			for j := range of {
				of[j] = linear(fmt.Sprint(i, ".", j))
			}
			src.desc.Blocks = append(src.desc.Blocks, arch.Block{
				Mixer: &arch.Attention{Q: of[0], K: of[1], V: of[2], O: of[3]},
				MLP:   &arch.MLP{Gate: of[4], Up: of[5], Down: of[6]},
			})
		}
		all := src.desc.Stored()
		if len(all) > 0 {
			src.broken = rapid.SampledFrom(append(all, &arch.Stored{})).Draw(t, "broken").Path
		}

		a := newAhead(src, src.Decoder().Stored())
		first := linear("embedding").Stored // which the description does not list
		for _, s := range append([]*arch.Stored{first}, rapid.Permutation(all).Draw(t, "order")...) {
			r, err := a.take(s)
			if s.Path == src.broken {
				if err == nil || err.Error() != "source: broken "+s.Path {
					t.Fatalf("%s: got error %v", s.Path, err)
				}
			} else if err != nil {
				t.Fatal(err)
			} else if n, k := r.packed.Shape(); n != s.N || k != s.K {
				t.Fatalf("%s: got %+v, %v: want %d×%d", s.Path, r.packed, err, s.N, s.K)
			}
			held := 0
			for b := range a.begun {
				held += weights(b)
			}
			if held > readAhead && len(a.begun) > 1 || len(a.begun) > 4 {
				t.Fatalf("%d matrices of %d weights are read ahead", len(a.begun), held)
			}
			if left := len(a.next); left > 0 && len(a.begun) == 0 {
				t.Fatalf("nothing is read ahead with %d matrices left", left)
			}
		}
		a.wait()
		for path, n := range src.reads {
			if n != 1 {
				t.Errorf("%s was read %d times", path, n)
			}
		}
		if len(src.reads) != len(all)+1 {
			t.Errorf("%d matrices were read: want %d", len(src.reads), len(all)+1)
		}
	})
}
