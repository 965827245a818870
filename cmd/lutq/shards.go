package main

import (
	"context"
	"fmt"
	"os"

	"github.com/lutq/lutq/formats/hub"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/quantize"
)

// streamedShards opens a model whose files of weights come from a hub, one at a time.
type streamedShards struct {
	*ui
	model  string
	remote *hub.Remote // once it is open
}

// checkShards refuses what reads weights more than once, or in another order than their files'.
func (o *quantizeOptions) checkShards(r quantize.Recipe, after evaluation) error {
	if o.shardsFrom == "" {
		return nil
	}
	var err error
	switch {
	case o.learned(r) || o.transform.name != "" || o.learn.control:
		err = fmt.Errorf("learning and transforms run a text through the whole model")
	case o.mixed():
		err = fmt.Errorf("bits that differ by layer are chosen by the whole model: name a whole number, or exceptions with --tensor")
	case after.wanted():
		err = fmt.Errorf("--eval-text runs the whole model")
	default:
		err = r.CheckStreamed()
	}
	if err != nil {
		return usageError{fmt.Errorf("--shards-from hub reads each layer as it comes: %w", err)}
	}
	return nil
}

// open opens the model by the headers of its files.
func (s *streamedShards) open(ctx context.Context) (*source.Model, error) {
	if m := s.models[s.model]; m != nil {
		return m, nil
	}
	o := hub.FromEnv(os.Getenv)
	o.Offline = o.Offline || s.offline
	o.Note = s.tell
	o.Progress = func(done, total int64, item string) {
		if s.fetching != nil {
			s.fetching(fmt.Sprintf("%s, %s of %s fetched", item, formatBytes(done), formatBytes(total)))
		}
	}
	remote, err := hub.OpenRemote(ctx, s.model, o)
	if err != nil {
		return nil, err
	}
	m, err := source.Open(remote.Dir, source.Options{Note: s.tell, Shards: remote.Shards()})
	if err != nil {
		return nil, err
	}
	if s.models == nil {
		s.models = make(map[string]*source.Model)
	}
	s.models[s.model], s.remote = m, remote
	return m, nil
}
