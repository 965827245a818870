package decode_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/rtn"
)

// packed is a checkpoint whose linear layers are quantized while they are read.
type packed struct {
	*model.Checkpoint
	o lut.Format
}

func (p packed) Quantized(layer string) (weight.Matrix, error) {
	tensor, ok := p.Checkpoint.Tensor(layer + ".weight")
	if !ok || !strings.HasSuffix(layer, "_proj") {
		return nil, nil
	}
	n, k := tensor.Shape[0], tensor.Shape[1]
	w := make([]float32, n*k)
	if err := tensor.ReadFloat32(w, 0); err != nil {
		return nil, err
	}
	return rtn.Quantize(w, n, k, p.o)
}

func (p packed) Tensor(name string) (*hf.Tensor, bool) {
	if strings.HasSuffix(name, "_proj.weight") {
		return nil, false
	}
	return p.Checkpoint.Tensor(name)
}

// openPacked opens a folder with its linear layers in so many bits, for products in fixed point or not.
func openPacked(t *testing.T, dir string, bits int, exact bool) *model.Model {
	t.Helper()
	src, err := model.NewCheckpoint(modeltest.Open(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	book, err := lut.NewCodebook("nf", bits, 32)
	if err != nil {
		t.Fatal(err)
	}
	e, err := cpu.New(cpu.Options{Threads: 2, Exact: exact})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	if !exact && !e.Fixes() {
		t.Skipf("%s has no fixed point", e.ISA())
	}
	m, err := model.New(packed{src, lut.Format{Codebook: book, Group: 32, Scale: weight.Absmax, ScaleType: weight.F16}}, modelcpu.New(e))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// TestFixed holds what is said token by token, with products in fixed point, against the window, whose are in float32,
// and greedy tokens against those of exact products.
func TestFixed(t *testing.T) {
	racetest.Skip(t)
	dirs := []string{tiny}
	if more := "../../../shared/models/lutq-11m"; !testing.Short() {
		if _, err := os.Stat(more); err == nil {
			dirs = append(dirs, more)
		}
	}
	for _, dir := range dirs {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			if dir != tiny && bits != 4 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d bits", dir[strings.LastIndex(dir, "/")+1:], bits), func(t *testing.T) {
				m, exact := openPacked(t, dir, bits, false), openPacked(t, dir, bits, true)
				tokens := make([]int, 60)
				for i := range tokens {
					tokens[i] = (i*i*31 + 7*i) % m.Vocab()
				}
				for _, test := range []struct {
					m        *model.Model
					at, most float64
				}{{m, 1e-6, 1e-3}, {exact, 0, 1e-5}} {
					want := opstest.Logits(t, test.m, tokens)
					s := session(t, test.m, decode.Options{Context: len(tokens)})
					worst := 0.0
					for i, got := range forced(t, s, 0, tokens, 20) {
						at := (19 + i) * m.Vocab()
						worst = max(worst, apart(got, want[at:at+m.Vocab()]))
					}
					if !(worst >= test.at && worst <= test.most) {
						t.Errorf("logits are up to %.2g from the window's: want %g to %g", worst, test.at, test.most)
					}
				}
				prompts := [][]int{{0, 300, 17}, {5}, {9, 9, 9, 9}}
				write := func(m *model.Model, slots int) [][]int {
					var all [][]int
					texts, err := decode.Write(context.Background(), session(t, m, decode.Options{Slots: slots, Context: 256}), prompts[:slots], decode.WriteOptions{MaxTokens: 100}, func(int, int) bool { return true })
					if err != nil {
						t.Fatal(err)
					}
					for _, text := range texts {
						all = append(all, text.Tokens)
					}
					return all
				}
				got := write(m, len(prompts))
				for i, want := range write(exact, len(prompts)) {
					if !slices.Equal(got[i], want) {
						t.Errorf("after %v: got %v, exactly %v", prompts[i], got[i], want)
					}
				}
				if alone := write(m, 1); !slices.Equal(alone[0], got[0]) {
					t.Errorf("got %v alone and %v among others", alone[0], got[0])
				}
			})
		}
	}
}
