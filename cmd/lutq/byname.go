package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/calib/tasks"
	"github.com/lutq/lutq/formats/hub"
	"github.com/lutq/lutq/formats/input"
)

// finder returns the path of a model that the command line names, with its weights or without. It may download it. None, for a
// command that is not run as such, takes names for paths.
type finder func(name string, besideWeights bool) (string, error)

func (f finder) path(name string, besideWeights bool) (string, error) {
	if f == nil {
		return name, nil
	}
	return f(name, besideWeights)
}

// addOffline adds --offline to a command that takes a model.
func (u *ui) addOffline(c *cobra.Command) {
	const name = "offline"
	if !strings.Contains(c.Use, "MODEL") {
		return
	}
	c.Flags().BoolVar(&u.offline, name, false, "download nothing: a MODEL by name is in the cache")
	setLater(c.Flags(), name)
}

// tell tells what is odd about a model.
func (u *ui) tell(line string) { fmt.Fprintf(u.stderr, "lutq: %s\n", input.Message(line)) }

// finder returns the finder of a command.
func (u *ui) finder(ctx context.Context) finder {
	return func(name string, besideWeights bool) (dir string, err error) {
		came := u.download(func(o hub.Options) {
			o.BesideWeights = besideWeights
			dir, err = hub.Resolve(ctx, name, o)
		})
		if came && err == nil {
			u.note("%s lies in %s now", input.Name(name), input.Name(dir))
		}
		return dir, err
	}
}

// download has do download something and shows its progress. It reports whether anything came.
func (u *ui) download(do func(o hub.Options)) (came bool) {
	o := hub.FromEnv(os.Getenv)
	o.Offline = o.Offline || u.offline
	o.Note = u.tell
	var bar *progress
	o.Progress = func(done, total int64, item string) {
		if bar == nil {
			bar = u.startProgress("downloading", total, true)
		}
		bar.set(done, item)
	}
	do(o)
	if bar != nil {
		bar.finish()
	}
	return bar != nil
}

// fetchSplit brings a split of a data set.
func (u *ui) fetchSplit(ctx context.Context, s tasks.Split) (files []string, commit string, err error) {
	var data *hub.Data
	u.download(func(o hub.Options) {
		data, err = hub.FindSplit(ctx, hub.Split{Repo: s.Repo, Config: s.Config, Name: s.Name}, o)
	})
	if err != nil {
		return nil, "", err
	}
	return data.Files, data.Commit, nil
}
