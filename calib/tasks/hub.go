package tasks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/lutq/lutq/calib/chat/jinja"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/parquet"
)

// Split is a part of a data set on a hub.
type Split struct {
	Repo   string `json:"repo"`             // org/name
	Config string `json:"config,omitempty"` // "" is the only one
	Name   string `json:"split"`
}

// Origin says where items, or the examples before them, come from.
type Origin struct {
	Split
	Commit string `json:"commit"`
	SHA256 string `json:"sha256"` // of the files, one after the other
}

// String returns the origin in a line.
func (o Origin) String() string {
	config := ""
	if o.Config != "" {
		config = o.Config + ", "
	}
	return fmt.Sprintf("%s (%s%s) at %.12s, sha256 %.16s…", o.Repo, config, o.Name, o.Commit, o.SHA256)
}

// A Fetcher brings the files of a split, which are Parquet, and tells their commit.
type Fetcher func(ctx context.Context, s Split) (files []string, commit string, err error)

// fetch reads a split of the form's data set.
func (b *builder) fetch(ctx context.Context, split string) ([]record, error) {
	s := b.dataset
	s.Name = split
	files, commit, err := b.fetcher(ctx, s)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	var all []record
	for _, path := range files {
		if err := addFile(h, path); err != nil {
			return nil, err
		}
		some, err := readTable(path, b.columns)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no items", s.Repo)
	}
	b.origins = append(b.origins, Origin{s, commit, hex.EncodeToString(h.Sum(nil))})
	return all, nil
}

// addFile adds what a file has to a sum.
func addFile(h io.Writer, path string) error {
	f, err := input.Open(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(h, f)
	return errors.Join(err, f.Close())
}

// readTable reads a Parquet file, which has some columns and may have others.
func readTable(path string, columns []string) ([]record, error) {
	rows, err := parquet.Read(path)
	if err != nil {
		return nil, err
	}
	var records []record
	for i, row := range rows {
		for _, name := range columns {
			if _, ok := row.Get(name); i == 0 && !ok {
				var have []string
				for _, f := range row {
					have = append(have, f.Name)
				}
				return nil, fmt.Errorf("%s: there is no column %s: it has %s", filepath.Base(path), name, strings.Join(have, ", "))
			}
		}
		x := make(record, len(row))
		for _, f := range row {
			if x[f.Name], err = fromTable(f.Value); err != nil {
				return nil, fmt.Errorf("%s: row %d: %s: %w", path, i+1, f.Name, err)
			}
		}
		records = append(records, x)
	}
	return records, nil
}

// fromTable returns a value of a table as those of a record are.
func fromTable(v any) (any, error) {
	switch v := v.(type) {
	case []byte:
		if !utf8.Valid(v) {
			return nil, nil // a picture, or the like
		}
		return string(v), nil
	case []any:
		list := make([]any, len(v))
		for i, x := range v {
			y, err := fromTable(x)
			if err != nil {
				return nil, err
			}
			list[i] = y
		}
		return list, nil
	case parquet.Group:
		var pairs []any
		for _, f := range v {
			x, err := fromTable(f.Value)
			if err != nil {
				return nil, err
			}
			pairs = append(pairs, f.Name, x)
		}
		return jinja.NewDict(pairs...)
	}
	return v, nil
}

// part is items that are asked together, with the examples that they share.
type part struct{ items, pool []record }

// parts divides items of a hub where the form says so, each part with its own of the examples.
func (b *builder) parts(items []record) ([]part, error) {
	if b.divided == "" || len(b.origins) == 0 {
		return []part{{items, b.pool}}, nil
	}
	var all []part
	at := make(map[string]int)
	place := func(x record) (int, error) {
		name, ok := x[b.divided].(string)
		if !ok {
			return 0, fmt.Errorf("%s: %s is no text", b.where, b.divided)
		}
		if _, ok := at[name]; !ok {
			at[name] = len(all)
			all = append(all, part{})
		}
		return at[name], nil
	}
	for _, x := range items {
		i, err := place(x)
		if err != nil {
			return nil, err
		}
		all[i].items = append(all[i].items, x)
	}
	for _, x := range b.pool {
		i, err := place(x)
		if err != nil {
			return nil, err
		}
		all[i].pool = append(all[i].pool, x)
	}
	return all, nil
}
