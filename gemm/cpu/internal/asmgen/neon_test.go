package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var neonWord = regexp.MustCompile(`WORD \$0x([0-9a-f]{8}) // (.*)`)

// neonWords returns the bits of instructions that are written by them, by what they are.
func neonWords(t *testing.T, text []byte) map[string]string {
	t.Helper()
	words := map[string]string{}
	for _, m := range neonWord.FindAllSubmatch(text, -1) {
		what, bits := string(m[2]), string(m[1])
		if old, ok := words[what]; ok && old != bits {
			t.Fatalf("%s: both %s and %s", what, old, bits)
		}
		words[what] = bits
	}
	return words
}

// neonForms has every form of instruction that is written by its bits, with registers of all their bits.
func neonForms() []byte {
	g := new(gen)
	for _, r := range [][3]int{{1, 2, 3}, {31, 30, 29}} {
		for _, name := range slices.Sorted(maps.Keys(neonOps)) {
			if neonOps[name].m == "" {
				g.op(name, r[0], r[1])
			} else {
				g.op(name, r[0], r[1], r[2])
			}
		}
		for i := range 4 {
			g.fmlaBy(r[0], r[1], r[2], i)
			g.fmulBy(r[0], r[1], r[2], i)
			g.sdotBy(r[0], r[1], r[2], i)
		}
		g.shll(r[0], r[1], false)
		g.shll(r[0], r[1], true)
		g.umaxv(r[0], r[1])
		g.sshr(r[0], r[1], 1)
		g.sshr(r[0], r[1], 3)
	}
	return g.buf.Bytes()
}

// TestNeonWords holds the bits of instructions to those that GNU as 2.40 gives them, in testdata/neon.txt:
//
//	cut -d' ' -f2- neon.txt | aarch64-linux-gnu-as -march=armv8.2-a+dotprod -o neon.o - && aarch64-linux-gnu-objdump -d neon.o
func TestNeonWords(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join("testdata", "neon.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(golden)) {
		bits, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[what] = bits
	}
	got := neonWords(t, neonForms())
	if !maps.Equal(got, want) {
		for what, bits := range got {
			if want[what] != bits {
				t.Errorf("%s: got %s, want %q", what, bits, want[what])
			}
		}
		t.Errorf("%d forms, want %d", len(got), len(want))
	}
	// No kernel has others.
	known := map[string]bool{}
	form := func(what string) string {
		name, _, _ := strings.Cut(what, " ")
		return fmt.Sprint(name, strings.Contains(what, "["))
	}
	for what := range want {
		known[form(what)] = true
	}
	for name, text := range Files() {
		for what := range neonWords(t, text) {
			if !known[form(what)] {
				t.Errorf("%s has %s, which testdata/neon.txt has no form of", name, what)
			}
		}
	}
}

// TestNeonAssembler assembles all that kernels write by its bits where there is an assembler.
func TestNeonAssembler(t *testing.T) {
	as, err := exec.LookPath("aarch64-linux-gnu-as")
	if err != nil {
		t.Skip(err)
	}
	var all []byte
	for _, text := range Files() {
		all = append(all, text...)
	}
	words := neonWords(t, all)
	names := slices.Sorted(maps.Keys(words))
	object := filepath.Join(t.TempDir(), "words.o")
	cmd := exec.Command(as, "-march=armv8.2-a+dotprod", "-al", "-o", object, "-")
	cmd.Stdin = strings.NewReader(strings.Join(names, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	// A line of the listing: its number, an offset, the bytes, and the text.
	line := regexp.MustCompile(`(?m)^ +\d+ [0-9a-f]{4,} ([0-9A-F]{8})\s+(.*)$`)
	found := 0
	for _, m := range line.FindAllSubmatch(out, -1) {
		b := bytes.ToLower(m[1])
		bits := string(slices.Concat(b[6:8], b[4:6], b[2:4], b[:2]))
		found++
		if what := strings.ReplaceAll(string(m[2]), ",", ", "); words[what] != bits {
			t.Errorf("%s: got %s, the assembler has %s", what, words[what], bits)
		}
	}
	if found != len(words) {
		t.Errorf("the assembler's listing has %d instructions of %d", found, len(words))
	}
}
