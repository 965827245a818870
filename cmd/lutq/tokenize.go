package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/source"
)

func newTokenizeCommand(u *ui) *cobra.Command {
	var text string
	var special, asJSON bool
	c := &cobra.Command{
		Use:   "tokenize MODEL",
		Short: "Print the token ids of a text",
		Long: withLimits(`Tokenize prints the ids that MODEL's tokenizer.json gives a text, separated by
spaces. The text is the file given by --text, byte for byte, or the standard
input; it must be UTF-8. MODEL may also be a tokenizer.json itself, or a GGUF
file, whose tokenizer is made into one.`, input.Tokenizer, input.GGUF, input.Text),
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return u.tokenize(c.Context(), args[0], text, special, asJSON)
		},
	}
	c.Flags().StringVar(&text, "text", "", "text `FILE` (default the standard input)")
	c.Flags().BoolVar(&special, "special", false, "add what the tokenizer puts around a text, such as a BOS token")
	c.Flags().BoolVar(&asJSON, "json", false, "print the ids as JSON")
	return c
}

// loadTokenizer reads the tokenizer of a model, or a tokenizer.json itself.
func loadTokenizer(model string) (*tokenizer.Tokenizer, error) {
	file, err := source.GGUF(model)
	if err != nil {
		return nil, err
	}
	if file == "" {
		return tokenizer.Load(model)
	}
	const name = "tokenizer.json"
	data, err := source.File(file, name, input.Tokenizer)
	if err != nil {
		return nil, err
	}
	return tokenizer.Parse(filepath.Join(file, name), data)
}

func (u *ui) tokenize(ctx context.Context, model, file string, special, asJSON bool) error {
	tok, err := loadTokenizer(model)
	if err != nil {
		return err
	}
	name, text := "standard input", u.stdinOf(ctx, input.Text)
	if file != "" {
		f, err := corpus.Open(file, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		name, text = file, f
	}
	ids := []int{}
	for some, err := range tok.Stream(input.UTF8(text)) {
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		ids = append(ids, some...)
	}
	if special {
		before, behind := tok.Special()
		ids = slices.Concat(before, ids, behind)
	}
	if asJSON {
		return u.printJSON(struct {
			IDs []int `json:"ids"`
		}{ids})
	}
	var line []byte
	for i, id := range ids {
		if i > 0 {
			line = append(line, ' ')
		}
		line = strconv.AppendInt(line, int64(id), 10)
	}
	_, err = fmt.Fprintf(u.stdout, "%s\n", line)
	return err
}
