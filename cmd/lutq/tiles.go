package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/repack/tiles"
)

// tileFolders finds the tiles of models: in folders that the command line names, which must
// serve, or in the cache, where what cannot be used is left alone.
type tileFolders struct {
	ui    *ui
	named []string
	used  map[string]bool // of those
}

func (f *tileFolders) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.named, "tiles", nil, "`FOLDER` of tiles that repack wrote; repeatable (default the cache folder)")
}

// of returns the layers of a container as a device reads them, or nil.
func (f *tileFolders) of(m *lutq.Model, device string) (model.Layouts, error) {
	target := tiles.For(device)
	for _, dir := range f.named {
		t, err := tiles.Open(dir, m, target)
		if errors.Is(err, tiles.ErrOther) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if f.used == nil {
			f.used = make(map[string]bool)
		}
		f.used[dir] = true
		return t, nil
	}
	dir := tiles.CacheDir(m, target)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	err := input.Private(filepath.Dir(dir))
	if err == nil {
		var t *tiles.Folder
		if t, err = tiles.Open(dir, m, target); err == nil {
			return &cachedTiles{Folder: t, ui: f.ui}, nil
		}
	}
	f.ui.leaveTiles(err)
	return nil, nil
}

// unused fails where a folder was named that no model took its tiles from.
func (f *tileFolders) unused(device string) error {
	for _, dir := range f.named {
		if !f.used[dir] {
			return hintError{
				fmt.Errorf("%s: tiles of another model, or for another device than %s", dir, device),
				"lutq repack MODEL FOLDER --target " + device + " makes them",
			}
		}
	}
	return nil
}

func (u *ui) leaveTiles(err error) {
	fmt.Fprintf(u.stderr, "lutq: tiles in the cache are left alone: %v\n", err)
}

// cachedTiles are the tiles in the cache. A layer that is damaged there is laid out anew.
type cachedTiles struct {
	*tiles.Folder
	ui  *ui
	say sync.Once
}

// Layer implements [model.Layouts].
func (c *cachedTiles) Layer(name string) (lut.Layout, error) {
	l, err := c.Folder.Layer(name)
	if err != nil {
		c.say.Do(func() { c.ui.leaveTiles(err) })
		return nil, nil
	}
	return l, nil
}
