// Command pack packs the folder pieces into the file that is embedded. It is run in the folder of package bundled.
package main

import (
	"fmt"
	"os"

	"github.com/lutq/lutq/calib/corpus/bundled/internal/pieces"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run() error {
	all, err := pieces.Read(os.DirFS("pieces"))
	if err != nil {
		return err
	}
	lines, err := pieces.Lines(all)
	if err != nil {
		return err
	}
	packed, err := pieces.Pack(lines)
	if err != nil {
		return err
	}
	fmt.Printf("%d pieces, %d bytes, %d packed\n", len(all), len(lines), len(packed))
	return os.WriteFile("pieces.jsonl.gz", packed, 0o644)
}
