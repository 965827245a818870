package main

import (
	"encoding/hex"
	"regexp"
	"strings"
	"testing"
)

// TestDots holds the bytes of instructions to those that GNU as 2.40 gives them with {vex} in front.
func TestDots(t *testing.T) {
	written := regexp.MustCompile(`LONG \$0x([0-9a-f]{8}); BYTE \$0x([0-9a-f]{2}) // (.*)`)
	for want, r := range map[string][3]string{
		"c4e26d52d9 vpdpwssd %ymm1, %ymm2, %ymm3":    {"Y1", "Y2", "Y3"},
		"c4420d52fd vpdpwssd %ymm13, %ymm14, %ymm15": {"Y13", "Y14", "Y15"},
		"c4c24552c0 vpdpwssd %ymm8, %ymm7, %ymm0":    {"Y8", "Y7", "Y0"},
		"c4623d52cf vpdpwssd %ymm7, %ymm8, %ymm9":    {"Y7", "Y8", "Y9"},
		"c4e26d50d9 vpdpbusd %ymm1, %ymm2, %ymm3":    {"Y1", "Y2", "Y3"},
		"c4424d50fd vpdpbusd %ymm13, %ymm6, %ymm15":  {"Y13", "Y6", "Y15"},
	} {
		g := new(gen)
		if strings.Contains(want, "vpdpbusd") {
			g.dotBytes(r[0], r[1], r[2])
		} else {
			g.dotWords(r[0], r[1], r[2])
		}
		m := written.FindStringSubmatch(g.buf.String())
		if m == nil {
			t.Fatalf("%q", g.buf.String())
		}
		b, err := hex.DecodeString(m[1])
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for i := range b { // the lowest byte of a word comes first
			got.WriteString(hex.EncodeToString(b[len(b)-1-i:][:1]))
		}
		got.WriteString(m[2] + " " + m[3])
		if got.String() != want {
			t.Errorf("got %s, want %s", got.String(), want)
		}
	}
}
