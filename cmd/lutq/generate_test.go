package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/gemm/cpu"
)

// TestGenerateInterrupted: what was written stays, as a text of whole characters that ends its line.
func TestGenerateInterrupted(t *testing.T) {
	tiny, err := filepath.Abs("../../calib/testdata/lutq-tiny")
	if err != nil {
		t.Fatal(err)
	}
	c := program(t, "generate", tiny, "--prompt", "Once upon a time", "--max-tokens", "2000", "--device", "cpu")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	begin := make([]byte, 20)
	if _, err := io.ReadFull(out, begin); err != nil {
		t.Fatal(err, stderr.String())
	}
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	var exit *osexec.ExitError
	if err := c.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
		t.Errorf("ended with %v, want exit code %d\n%s", err, exitInterrupted, stderr.String())
	}
	if text := string(begin) + string(rest); !strings.HasPrefix(text, ", I was a very") || !strings.HasSuffix(text, "\n") {
		t.Errorf("wrote %q", text)
	}
	if said := stderr.String(); !strings.Contains(said, "(interrupted)") || !strings.HasSuffix(said, "lutq: interrupted\n") {
		t.Errorf("said %q", said)
	}
}

// TestVisibleText: a terminal shows no escapes.
func TestVisibleText(t *testing.T) {
	for text, want := range map[string]string{
		"a\tb\nc é": "a\tb\nc é", "\x1b[31mred\n": `\x1b[31mred` + "\n", "": "", "\n\n": "\n\n", "\u202eback": `\u202eback`,
	} {
		if got := visibleText(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestTextMemory: a text larger than memory is an error of one line.
func TestTextMemory(t *testing.T) {
	engine, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	m, err := model.Open(modeltest.Open(t, "../../calib/testdata/lutq-tiny"), modelcpu.New(engine), model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, free := range []int64{0, 1 << 50} {
		if err := checkTextMemory(m, 100, 2000, free); err != nil {
			t.Errorf("%d bytes are free: %v", free, err)
		}
	}
	err = checkTextMemory(m, 100, 2000, 4*m.CacheElements(1, 2000))
	if err == nil || !strings.HasPrefix(err.Error(), "a text of 2000 tokens needs ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("what the cache takes is free: %v", err)
	}
}
