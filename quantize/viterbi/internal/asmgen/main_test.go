package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestFile compares the committed assembly with what the generator writes.
func TestFile(t *testing.T) {
	got, err := os.ReadFile(filepath.Join("..", "..", fileName))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, file()) {
		t.Errorf("%s is not what asmgen writes: run go generate", fileName)
	}
}
