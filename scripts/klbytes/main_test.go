package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// TestPicture: the picture that is kept is the one that the numbers beside it make.
func TestPicture(t *testing.T) {
	table, err := os.Open("../../quantize/kl-by-bytes.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	var b bytes.Buffer
	if err := run(table, &b); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile("../../quantize/kl-by-bytes.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), kept) {
		t.Error("quantize/kl-by-bytes.svg is stale: go run ./scripts/klbytes <quantize/kl-by-bytes.tsv >quantize/kl-by-bytes.svg")
	}
	for d := xml.NewDecoder(&b); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestWrongTables(t *testing.T) {
	for _, c := range []struct{ name, table, want string }{
		{"fields", "exl3\t2", "want a series"},
		{"bits", "exl3\ttwo\t0.1", "invalid syntax"},
		{"divergence", "exl3\t2\tnone", "invalid syntax"},
		{"too large", "exl3\t2\t1.5", "outside"},
		{"too few bits", "exl3\t1\t0.5", "outside"},
		{"no points", "exl3\t2\t0.5", "gptqmodel: 0 points"},
		{"unknown", "gptqmodel\t4\t.1\nautoround\t4\t.1\nbnb\t4\t.1\nrounded\t4\t.1\n" + strings.Repeat("llamacpp\t4\t.1\n", 8) + strings.Repeat("fitted\t4\t.1\n", 6) + "exl3\t4\t.1\n" + strings.Repeat("rings\t4\t.1\n", 3) + "new\t4\t.1", `no series is called "new"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := run(strings.NewReader(c.table), io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
