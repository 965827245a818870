package quantize

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/card"
	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
)

// origin returns what the source is for a card, and the name that the source's own card gets beside it: "" where there is
// none, or where lutq wrote it of the same model, and the new one takes its place.
func (p *Plan) origin() (o card.Origin, original string, err error) {
	side := p.Source.SideFiles()
	if slices.Contains(side, card.FileName) {
		text, err := p.Source.File(card.FileName, input.Text)
		if err != nil {
			return o, "", err
		}
		var ours bool
		if o, ours = card.Read(text); !ours {
			for original = card.OriginalName; slices.Contains(side, original); {
				original = "ORIGINAL_" + original
			}
		}
	}
	if p.Repo != "" && o.Repo == "" {
		o.Repo, o.Commit = p.Repo, p.Commit
		_, o.Name, _ = strings.Cut(p.Repo, "/")
	}
	if o.Name == "" {
		path, err := filepath.Abs(p.Source.Dir())
		if err != nil {
			path = p.Source.Dir()
		}
		o.Name = filepath.Base(path)
		if strings.EqualFold(filepath.Ext(o.Name), ".gguf") {
			o.Name = o.Name[:len(o.Name)-len(".gguf")]
		}
	}
	return o, original, nil
}

// writeCard writes the card of a container whose other files are written.
func writeCard(dir string, o card.Origin, measured *card.Measured) error {
	m, err := lutq.Open(dir)
	if err != nil {
		return err
	}
	defer m.Close()
	opens, err := export.OpensIn(m)
	if err != nil {
		return err
	}
	text, err := card.Of(m, o, opens, measured)
	if err != nil {
		return err
	}
	// In one step, as it may be there already. What a kill leaves of the first is replaced when the same is done again.
	path, fresh := filepath.Join(dir, card.FileName), filepath.Join(dir, "."+card.FileName+".partial")
	if err := os.WriteFile(fresh, text, 0o644); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return os.Rename(fresh, path)
}

// Measured adds to the card of a container how close it is to its original. A card that lutq did not write stays.
func Measured(dir string, measured card.Measured) error {
	o, ours, err := readCard(dir)
	if err != nil || !ours {
		return err
	}
	return writeCard(dir, o, &measured)
}

// readCard reads the card in a folder.
func readCard(dir string) (o card.Origin, ours bool, err error) {
	text, err := input.ReadFile(filepath.Join(dir, card.FileName), input.Text)
	if errors.Is(err, fs.ErrNotExist) {
		return o, false, nil
	}
	if err == nil {
		o, ours = card.Read(text)
	}
	return o, ours, err
}
