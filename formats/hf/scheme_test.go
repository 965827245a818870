package hf

import (
	"errors"
	"strings"
	"testing"
)

// fakeScheme stores what its function says.
type fakeScheme func(s *Stored) ([]Encoded, bool, error)

func (f fakeScheme) Decode(s *Stored) ([]Encoded, bool, error) { return f(s) }

// ones is a codec of nothing but ones.
type ones struct{}

func (ones) ReadFloat32(dst []float32, _ int64) error {
	for i := range dst {
		dst[i] = 1
	}
	return nil
}

// TestScheme: what a scheme finds takes the place of its parts, under conditions.
func TestScheme(t *testing.T) {
	entry := func(name string) Entry { return Entry{name, U8, []int{2}} }
	dir := checkpoint(t, `{"text_config": {"quantization_config": {"quant_method": "NEW"}}, "quantization": 4}`,
		entry("a.codes"), entry("a.scales"), entry("b"), entry("c.codes")).Dir()
	encoded := func(s *Stored, name string, parts ...string) Encoded {
		e := Encoded{Name: name, DType: F32, Shape: []int{3, 5}, Encoding: &Encoding{Type: "NEW", Rows: 1, Cols: 5, N: 3, K: 5, Codec: ones{}}}
		for _, p := range parts {
			e.Parts = append(e.Parts, s.Tensor(p))
		}
		return e
	}
	for _, tt := range []struct {
		name, want string
		found      func(s *Stored) []Encoded
	}{
		{"two of one part", `tensor "a.scales" in model.safetensors: is a part of "a" and of "c"`, func(s *Stored) []Encoded {
			return []Encoded{encoded(s, "a", "a.codes", "a.scales"), encoded(s, "c", "c.codes", "a.scales")}
		}},
		{"one that is there", `stores "b", which is there as well`, func(s *Stored) []Encoded {
			return []Encoded{encoded(s, "b", "a.codes")}
		}},
		{"a shape that overflows", `tensor "a.codes" in model.safetensors: `, func(s *Stored) []Encoded {
			e := encoded(s, "a", "a.codes")
			e.Shape = []int{1 << 40, 1 << 40}
			return []Encoded{e}
		}},
		{"sound", "", func(s *Stored) []Encoded { return []Encoded{encoded(s, "a", "a.codes", "a.scales")} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := 0
			c, err := Open(dir, fakeScheme(func(s *Stored) ([]Encoded, bool, error) {
				asked++
				return nil, false, nil // of another scheme
			}), fakeScheme(func(s *Stored) ([]Encoded, bool, error) {
				if s.Key != "quantization" || s.Method != "" || string(s.Quantization) != "4" || len(s.Tensors) != 4 || s.Dir != dir {
					t.Errorf("it is asked about %+v", s)
				}
				return tt.found(s), true, nil
			}), fakeScheme(func(s *Stored) ([]Encoded, bool, error) {
				return nil, false, errors.New("the scheme before it was the one")
			}))
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got error %v: want %q in it", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			x, ok := c.Tensor("a")
			if !ok || len(c.Tensors()) != 3 || asked != 1 || x.StoredAs() != "NEW, a scale per row" || x.StoredBytes() != 4 || x.Bytes() != 60 {
				t.Fatalf("there are %d tensors, and a is %+v", len(c.Tensors()), x)
			}
			if err := c.CheckPlain(); err != nil {
				t.Error(err)
			}
			v := make([]float32, 4)
			if err := x.ReadFloat32(v, 11); err != nil || v[3] != 1 {
				t.Errorf("it is read as %v, %v", v, err)
			}
			if err := x.ReadFloat32(v, 12); err == nil {
				t.Error("what is outside of it is read")
			}
		})
	}
}
