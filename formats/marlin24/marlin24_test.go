package marlin24

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/marlin"
	"github.com/lutq/lutq/formats/source/sourcetest"
	"github.com/lutq/lutq/formats/weight/lut24"
)

// TestBits holds the place of every bit against the digests of a packer written from the original's
// permutations and PyTorch's order of metadata.
func TestBits(t *testing.T) {
	codes := marlin.Pack(256, 128, place, func(dst []uint8, n int) {
		for k := range dst {
			dst[k] = uint8((131*k + 7*n + k*n%5) % 16)
		}
	})
	meta := packMeta(256, 128, func(n int) []byte {
		pattern := make([]byte, lut24.PatternBytes(128))
		for c := range 32 {
			a := uint8((7*n + 5*c) % 4)
			b := (a + 1 + uint8((n+c)%3)) % 4
			lut24.SetNibble(pattern, c, min(a, b)|max(a, b)<<2)
		}
		return pattern
	})
	for _, tc := range []struct {
		name, want string
		data       []byte
	}{{"codes", "3071e732b7f97c0e", codes}, {"pattern", "29bfc8fd67a7c746", meta}} {
		if sum := sha256.Sum256(tc.data); hex.EncodeToString(sum[:8]) != tc.want {
			t.Errorf("digest of %s is %x", tc.name, sum[:8])
		}
	}
}

func TestUnpack(t *testing.T) {
	want := make([]uint8, marlin.TileRows*marlin.TileCols)
	for i := range want {
		want[i] = uint8((i*i/7 + i) % 16)
	}
	got := make([]uint8, len(want))
	marlin.Unpack(got, marlin.Pack(marlin.TileRows, marlin.TileCols, place, func(dst []uint8, n int) { copy(dst, want[n*marlin.TileCols:]) }), place)
	if !slices.Equal(got, want) {
		t.Errorf("codes come back as %v", got)
	}
}

func TestGolden(t *testing.T) { sourcetest.Golden(t, Layout{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Layout{}) }

const config = `{"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin_24"}}`

func TestRefuses(t *testing.T) {
	codes := sourcetest.Of[int32]("a.B_24", "I32", []int{4, 512})
	meta := sourcetest.Of[uint16]("a.B_meta", "I16", []int{4, 512})
	scales := sourcetest.Of[uint16]("a.s", "F16", []int{1, 256})
	for _, tt := range []struct {
		name, want, config string
		tensors            []sourcetest.Tensor
	}{
		{"bits", "has bits as a number, 4", `{"quantization_config": {"quant_method": "gptq", "bits": 8, "checkpoint_format": "marlin_24"}}`, []sourcetest.Tensor{codes, meta, scales}},
		{"no scales", `no scales: want a tensor "a.s"`, config, []sourcetest.Tensor{codes, meta}},
		{"no pattern", `no pattern: want a tensor "a.B_meta"`, config, []sourcetest.Tensor{codes, scales}},
		{"rows", "n a multiple of 256", config, []sourcetest.Tensor{sourcetest.Of[int32]("a.B_24", "I32", []int{4, 256}), meta, scales}},
		{"columns", "k of 128", config, []sourcetest.Tensor{sourcetest.Of[int32]("a.B_24", "I32", []int{2, 512}), meta, scales}},
		{"shape of the pattern", "is I16 [8 256]: want [I16] [4 512]", config, []sourcetest.Tensor{codes, sourcetest.Of[uint16]("a.B_meta", "I16", []int{8, 256}), scales}},
		{"type of scales", "is F32 [1 256]: want [F16]", config, []sourcetest.Tensor{codes, meta, sourcetest.Of[float32]("a.s", "F32", []int{1, 256})}},
	} {
		t.Run(tt.name, func(t *testing.T) { sourcetest.Refuses(t, Layout{}, tt.want, tt.config, tt.tensors...) })
	}
}
