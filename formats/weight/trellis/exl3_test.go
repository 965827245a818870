package trellis_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight/trellis"
)

// TestEXL3Codebooks: the values of all windows have the digests that a re-enactment of exllamav3's functions gave.
func TestEXL3Codebooks(t *testing.T) {
	for codebook, want := range map[string]string{
		trellis.Inst3: "ad88de2dcff5bb05", trellis.MCG: "95383563929baa9d", trellis.Mul1: "bc48d02cb1c14939",
	} {
		c, err := trellis.NewCode(codebook, 8)
		if err != nil {
			t.Fatal(err)
		}
		var data []byte
		for x := range 1 << trellis.Window {
			data = binary.LittleEndian.AppendUint16(data, uint16(c.Pair(uint16(x))))
		}
		if got := short(data); got != want {
			t.Errorf("%s: digest %s: want %s", codebook, got, want)
		}
	}
}

func short(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// TestEXL3Rings: packed bytes, and the tiles [inputs, outputs] in float16 that they stand for, have the digests that a
// re-enactment of exllamav3's packing and of its windows gave.
func TestEXL3Rings(t *testing.T) {
	for _, line := range strings.Split(strings.TrimSpace(`
2 ac5fef1189723703 447e223f13f989fc 5a291c7866b56f00 f80cf18a93b15a82 332a803fe9b2b7c9
4 fe7511c0e4e76274 8cac7725b83a561d 72ceb43109122ab2 bdf8129a5d813862 ab957f494b689941
6 1f2693f6545176b9 4beb9b0ad2873885 edbdfb3ce65748ac 4efdcd12053dfb66 3743427d796bdcf9
8 0530da7a52b61c08 53d7510a7824f022 8c48f33fd2b80478 bd482cbe453038ce 28fdb15a1958c76d
10 99b83f70f37e9efb dc16aa0201bf14b3 34485eb2531971ad b11c64cedf4ee675 4543cb9ad6d604c2
12 41cc246944176124 b561a5002f097379 10aa6e9fbc70065e dd13e40193adf4e2 85ca570bfe3ac689
14 c926c4dce30ef4f8 15aa280085b3d2a5 634818b2e96658f2 0cebc8f6352cc2c4 2605768d213d5cff
16 62c01cac33462ae7 a1158a00b325972d c5c04db75d946405 4f601187d6477c81 66865107a9a3bb6f
3 ef5de1de50bf70dc 3604f5578cf698e6 cecd3e0857ac9cc1
5 8d0c720359e3d351 62b95e12a1520f98 777574bc1449d428
7 c80e97ec5df75632 34bd46158378125c efbc034ab012d052
`), "\n") {
		f := strings.Fields(line)
		rate := map[string]int{"2": 2, "3": 3, "4": 4, "5": 5, "6": 6, "7": 7, "8": 8, "10": 10, "12": 12, "14": 14, "16": 16}[f[0]]
		for i, codebook := range []string{trellis.Mul1, trellis.MCG, trellis.Inst3} {
			if len(f) <= 3+i {
				continue
			}
			c, err := trellis.NewCode(codebook, rate)
			if err != nil {
				t.Fatal(err)
			}
			l := c.Layout()
			symbols := make([]uint16, l.Steps())
			for i := range symbols {
				symbols[i] = uint16((131*i + 7*(i%5) + i*i/3) % (1 << l.Bits(i)))
			}
			ring := make([]byte, l.Bytes())
			l.Pack(ring, symbols)
			if got, first := short(ring), hex.EncodeToString(ring[:8]); got != f[1] || first != f[2] {
				t.Errorf("rate %d: packed %s, %s: want %s, %s", rate, got, first, f[1], f[2])
			}
			tile := make([]byte, 2*256)
			for step := range l.Steps() {
				row, col := l.At(step)
				h := uint16(c.Pair(l.Window(ring, step)))
				binary.LittleEndian.PutUint16(tile[2*(col*16+row):], h)
			}
			if got := short(tile); got != f[3+i] {
				t.Errorf("rate %d, %s: tile %s: want %s", rate, codebook, got, f[3+i])
			}
		}
	}
}
