package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestFiles compares the committed assembly with what the generator writes.
func TestFiles(t *testing.T) {
	for name, want := range files() {
		got, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what asmgen writes: run go generate", name)
		}
	}
}

// TestNeonWords holds the bits of instructions that Go's assembler does not know to those that GNU as 2.40 gives them.
func TestNeonWords(t *testing.T) {
	g := new(gen)
	for _, r := range [][3]int{{1, 2, 3}, {31, 30, 29}} {
		for _, name := range slices.Sorted(maps.Keys(neonOps)) {
			g.op(name, r[0], r[1], r[2])
		}
		g.uminv(r[0], r[1])
	}
	const want = `
	WORD $0x4e630c41 // sqadd v1.8h, v2.8h, v3.8h
	WORD $0x6e63b441 // sqrdmulh v1.8h, v2.8h, v3.8h
	WORD $0x4e632c41 // sqsub v1.8h, v2.8h, v3.8h
	WORD $0x6e630c41 // uqadd v1.8h, v2.8h, v3.8h
	WORD $0x6e71a841 // uminv h1, v2.8h
	WORD $0x4e7d0fdf // sqadd v31.8h, v30.8h, v29.8h
	WORD $0x6e7db7df // sqrdmulh v31.8h, v30.8h, v29.8h
	WORD $0x4e7d2fdf // sqsub v31.8h, v30.8h, v29.8h
	WORD $0x6e7d0fdf // uqadd v31.8h, v30.8h, v29.8h
	WORD $0x6e71abdf // uminv h31, v30.8h
`
	if got := g.buf.String(); got != want[1:] {
		t.Errorf("got\n%s, want%s", got, want)
	}
}
