package main

import (
	"debug/elf"
	"os"
	osexec "os/exec"
	"path/filepath"
	"testing"
)

// TestStatic holds the tag nocuda to its promise of a binary that runs on any
// Linux: it asks for no loader and no library.
func TestStatic(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "lutq")
	build := osexec.Command("go", "build", "-tags", "nocuda", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := elf.Open(bin)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("a build with the tag nocuda is linked dynamically: it has %v", p.Type)
		}
	}
}
