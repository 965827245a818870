package main

import (
	"context"
	"fmt"
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
		Long: withLimits(`Tokenize prints the token ids of a text, separated by spaces. They are those of
transformers' AutoTokenizer without padding and truncation. The tokens that
tokenizer_config.json, special_tokens_map.json and added_tokens.json add are
known too. The text is the file --text, byte for byte, or the standard input. It
must be UTF-8. MODEL is a model folder, a GGUF file, or a tokenizer.json or
tekken.json, which is then read alone. A folder without tokenizer.json may have
a tekken.json (Mistral) or tiktoken.model (Kimi): the ids are mistral-common's,
tiktoken's.`, input.Tokenizer, input.GGUF, input.Text),
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return u.tokenize(c.Context(), args[0], text, special, asJSON)
		},
	}
	c.Flags().StringVar(&text, "text", "", "text `FILE` (default the standard input)")
	c.Flags().BoolVar(&special, "special", false, "add the tokens that the tokenizer puts around a text, as BOS")
	c.Flags().BoolVar(&asJSON, "json", false, "print the ids as JSON")
	return c
}

// readTokenizer reads the tokenizer of a model, or a file of one itself.
func readTokenizer(m *source.Model) (*tokenizer.Tokenizer, error) {
	if m.Alone() {
		return tokenizer.Load(m.Path())
	}
	return tokenizer.Read(m)
}

func (u *ui) tokenize(ctx context.Context, model, file string, special, asJSON bool) error {
	m, err := u.openParts(model, source.Options{}, true)
	if err != nil {
		return err
	}
	tok, err := readTokenizer(m)
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
