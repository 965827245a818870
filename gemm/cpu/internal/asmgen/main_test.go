package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestFiles compares the committed assembly with what the generator writes.
func TestFiles(t *testing.T) {
	for name, want := range Files() {
		got, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what asmgen writes: run go generate", name)
		}
	}
}
