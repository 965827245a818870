package gguf

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/num"
)

// goldenBlocks reads testdata/blocks.json, which scripts/gguf_golden.py makes.
func goldenBlocks(t *testing.T) map[string]struct{ Blocks, SHA256 string } {
	t.Helper()
	text, err := os.ReadFile("testdata/blocks.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string]struct{ Blocks, SHA256 string }
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	return golden
}

// TestDecodeGolden holds every type to the values of gguf-py 0.19.0, bit for bit.
func TestDecodeGolden(t *testing.T) {
	golden := goldenBlocks(t)
	for _, typ := range []Type{F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K} {
		t.Run(typ.String(), func(t *testing.T) {
			g, ok := golden[strings.ToUpper(typ.String())]
			if !ok {
				t.Fatal("no golden blocks")
			}
			blocks, err := base64.StdEncoding.DecodeString(g.Blocks)
			if err != nil {
				t.Fatal(err)
			}
			n, size := typ.Block()
			values := make([]float32, len(blocks)/size*n)
			if !typ.Decode(values, blocks) {
				t.Fatal("not decoded")
			}
			raw := make([]byte, 4*len(values))
			num.EncodeF32(raw, values)
			if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != g.SHA256 {
				t.Errorf("values begin %v: SHA-256 %x, want %s", values[:8], sum, g.SHA256)
			}
		})
	}
}

// TestDecodeUnknown holds types without a decoder to saying so.
func TestDecodeUnknown(t *testing.T) {
	for _, typ := range []Type{9, 99} {
		if typ.Decode(make([]float32, 32), make([]byte, 64)) {
			t.Errorf("type %d was decoded", typ)
		}
	}
}

// FuzzDecode decodes any bytes: nothing may panic, and blocks are independent.
func FuzzDecode(f *testing.F) {
	f.Add(uint32(Q4_K), make([]byte, 144))
	f.Fuzz(func(t *testing.T, id uint32, b []byte) {
		typ := Type(id)
		n, size := typ.Block()
		if size == 0 || len(b) < size {
			return
		}
		count := min(len(b)/size, 4)
		all := make([]float32, count*n)
		if !typ.Decode(all, b) {
			return
		}
		one := make([]float32, n)
		typ.Decode(one, b[(count-1)*size:])
		if !slices.EqualFunc(one, all[(count-1)*n:], func(x, y float32) bool { return x == y || x != x && y != y }) {
			t.Errorf("%v: a block alone is %v, behind others %v", typ, one[:8], all[(count-1)*n:][:8])
		}
	})
}
