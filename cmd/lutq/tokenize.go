package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/input"
)

func newTokenizeCommand(u *ui) *cobra.Command {
	var text string
	var special, asJSON bool
	c := &cobra.Command{
		Use:   "tokenize MODEL",
		Short: "Print the token ids of a text",
		Long: `Tokenize prints the ids that MODEL's tokenizer.json gives a text, separated by
spaces. The text is the file given by --text, byte for byte, or the standard
input. MODEL may also be a tokenizer.json itself.`,
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

func (u *ui) tokenize(ctx context.Context, model, file string, special, asJSON bool) error {
	tok, err := tokenizer.Load(model)
	if err != nil {
		return err
	}
	var text []byte
	if file == "" {
		text, err = u.readStdin(ctx, input.Text)
	} else {
		text, err = input.ReadFile(file, input.Text)
	}
	if err != nil {
		return err
	}
	ids, err := tok.Encode(string(text), special)
	if err != nil {
		return err
	}
	if asJSON {
		return u.printJSON(struct {
			IDs []int `json:"ids"`
		}{append([]int{}, ids...)})
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
