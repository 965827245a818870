package archtest

import (
	"math"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source/modeltest"
)

// TestWrite shows that checkpoints are written bit for bit as transformers read
// them, by the sums in the golden files, and can be opened.
func TestWrite(t *testing.T) {
	goldens := Goldens(t)
	if len(goldens) == 0 {
		t.Fatal("there are no golden files")
	}
	for _, g := range goldens {
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			c, err := modeltest.Open(t, dir).Weights()
			if err != nil {
				t.Fatal(err)
			}
			var bytes, want int64
			for _, list := range g.tensors {
				for _, name := range expand(list.Names) {
					size, err := hf.Entry{Name: name, DType: list.DType, Shape: list.Shape}.Bytes()
					if err != nil {
						t.Fatal(err)
					}
					want += size
					got, ok := c.Tensor(name)
					switch {
					case !c.Stores(name):
						t.Errorf("there is no tensor %q", name)
					case ok && got.Encoding() == nil && (got.DType != list.DType || !slices.Equal(got.Shape, list.Shape)):
						t.Errorf("tensor %q is %+v: want %s %v", name, got, list.DType, list.Shape)
					}
				}
			}
			for _, x := range c.Tensors() {
				bytes += x.StoredBytes()
			}
			if bytes != want {
				t.Errorf("checkpoint has %d bytes of tensors: want %d", bytes, want)
			}
		})
	}
}

// TestGoldens holds the files to themselves: what is recorded twice agrees.
func TestGoldens(t *testing.T) {
	for _, g := range Goldens(t) {
		t.Run(g.Name, func(t *testing.T) {
			if len(g.NLL) != len(g.Tokens)-1 {
				t.Fatalf("%d tokens have %d likelihoods", len(g.Tokens), len(g.NLL))
			}
			var sum float64
			for _, v := range g.NLL {
				sum += float64(v)
			}
			if mean := sum / float64(len(g.NLL)); math.Abs(mean-g.Loss) > 1e-6*g.Loss {
				t.Errorf("mean likelihood is %v: want the loss, %v", mean, g.Loss)
			}
			for i, pos := range g.Positions {
				if pos+1 == len(g.Tokens) {
					continue
				}
				var total float64
				for _, l := range g.Logits[i] {
					total += math.Exp(float64(l))
				}
				got := math.Log(total) - float64(g.Logits[i][g.Tokens[pos+1]])
				if want := float64(g.NLL[pos]); math.Abs(got-want) > 1e-6*g.Loss {
					t.Errorf("logits of position %d give the next token %v nats: want %v", pos, got, want)
				}
			}
			if len(g.Gradients) == 0 {
				t.Error("there are no gradients")
			}
			for _, d := range g.Gradients {
				if math.IsNaN(d.Norm) || d.Norm < 0 || math.IsNaN(d.Alternating) {
					t.Errorf("gradient of %s, expert %d, is %v, norm %v", d.Layer, d.Expert, d.Alternating, d.Norm)
				}
			}
		})
	}
}

func TestExpand(t *testing.T) {
	for _, test := range []struct {
		names string
		want  []string
	}{
		{"a.0.b", []string{"a.0.b"}},
		{"a.{0,2}.b", []string{"a.0.b", "a.2.b"}},
		{"a.{0,1}.b.{3,4}", []string{"a.0.b.3", "a.0.b.4", "a.1.b.3", "a.1.b.4"}},
	} {
		if got := expand(test.names); !slices.Equal(got, test.want) {
			t.Errorf("%q is %q: want %q", test.names, got, test.want)
		}
	}
}
