// Package hub finds a model by its name on the Hugging Face hub: in the cache that huggingface_hub keeps, or else by
// downloading it into that cache.
//
// What is there is what transformers finds there, and the other way round: folders, locks and half-done files are those of
// huggingface_hub (see [place]). A file has its name only when it is whole and its hash is right.
package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
)

// Options say where models are looked up and come from. The zero value of a field is its default.
type Options struct {
	Cache     string // the folder with models--ORG--NAME
	Endpoint  string // the server, default https://huggingface.co
	Token     string // of the user; "": what TokenFile has
	TokenFile string // may be missing

	// Offline takes what the cache has.
	Offline bool
	// BesideWeights takes config.json, tokenizer and the like, without the weights.
	BesideWeights bool

	// Progress, unless nil, is told how many bytes of all that are needed are there, and what is at hand. It is called by one
	// goroutine at a time.
	Progress func(done, total int64, item string)
	// Note, unless nil, is told what is worth knowing, a line each.
	Note func(line string)

	Parallel int           // files at once, default 4
	Stall    time.Duration // after which a server that sends nothing has failed, default 30 s
	Tries    int           // of a request until one brings something new, default 6
	Backoff  time.Duration // between the first and the second, doubled for each that follows, default 1 s

	free func(dir string) (int64, error) // bytes of a disk, for tests
}

// FromEnv returns the options that environment variables give, which are those of huggingface_hub.
func FromEnv(getenv func(string) string) Options {
	first := func(names ...string) string {
		for _, name := range names {
			if v := getenv(name); v != "" {
				return v
			}
		}
		return ""
	}
	on := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			return slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(getenv(name)))
		})
	}
	folder := func(path string) string {
		path = os.Expand(path, getenv)
		if rest, ok := strings.CutPrefix(path, "~/"); ok {
			path = filepath.Join(getenv("HOME"), rest)
		}
		return path
	}
	base := first("XDG_CACHE_HOME")
	if base == "" && getenv("HOME") != "" {
		base = "~/.cache"
	}
	home := first("HF_HOME")
	if home == "" && base != "" {
		home = base + "/huggingface"
	}
	o := Options{
		Cache:     first("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"),
		Endpoint:  first("HF_ENDPOINT"),
		TokenFile: first("HF_TOKEN_PATH"),
		Offline:   on("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
	}
	if o.Cache == "" && home != "" {
		o.Cache = home + "/hub"
	}
	if o.TokenFile == "" && home != "" {
		o.TokenFile = home + "/token"
	}
	o.Token = first("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
	if on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
		o.Token, o.TokenFile = "", ""
	}
	o.Cache, o.TokenFile = folder(o.Cache), folder(o.TokenFile)
	return o
}

func (o Options) withDefaults() Options {
	o.Endpoint = strings.TrimRight(cmp.Or(o.Endpoint, "https://huggingface.co"), "/")
	o.Parallel = cmp.Or(o.Parallel, 4)
	o.Stall = cmp.Or(o.Stall, 30*time.Second)
	o.Tries = cmp.Or(o.Tries, 6)
	o.Backoff = cmp.Or(o.Backoff, time.Second)
	if o.Progress == nil {
		o.Progress = func(int64, int64, string) {}
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
	if o.free == nil {
		o.free = hf.FreeSpace
	}
	return o
}

// Resolve returns the path of a model that a user names: the name itself where it is a path, or no name of a hub's model, and
// else the folder in the cache, into which it is downloaded where it is not there.
func Resolve(ctx context.Context, name string, o Options) (dir string, err error) {
	n, ok := ParseName(name)
	if !ok {
		return name, nil
	}
	o = o.withDefaults()
	var h held
	p := placeOf(o.Cache, n)
	if o.Cache != "" {
		if h, err = p.find(n.Revision); err != nil {
			return "", &Error{Model: n.String(), Reason: "the cache", Err: err}
		}
	}
	if !n.Certain {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			if h.dir != "" {
				o.Note(fmt.Sprintf("%s is taken from here: hf://%s is the one of that name in the Hugging Face cache", name, name))
			}
			return name, nil
		}
		// Where the owner is a folder, the path is one of this machine's with a mistake in it, unless the cache says otherwise.
		if info, err := os.Stat(n.Owner); h.dir == "" && err == nil && info.IsDir() {
			return "", &Error{
				Model: name, Err: fs.ErrNotExist,
				hint: fmt.Sprintf("%s is a folder here; a model of that name on the Hugging Face hub is hf://%s", n.Owner, name),
			}
		}
	}
	have := h.dir != "" && h.missing == ""
	if o.BesideWeights {
		have = h.dir != "" && isFile(filepath.Join(h.dir, configName))
	}
	switch {
	case have && (h.settled || o.Offline):
		return h.dir, nil
	case o.Offline && h.dir != "":
		o.Note(fmt.Sprintf("the cache has a part of %s alone, without %s, and no more comes offline", n, h.missing))
		return h.dir, nil
	case o.Offline:
		return "", &Error{Model: n.String(), Reason: "is not in the cache, and nothing is downloaded offline", Err: fs.ErrNotExist, hint: "leave out --offline and HF_HUB_OFFLINE once, or name a folder"}
	case o.Cache == "":
		return "", &Error{Model: n.String(), Reason: "there is no folder to download it into", hint: "set HF_HUB_CACHE or HOME"}
	}
	revision := n.Revision
	if have { // what may be missing beside it is that of the same commit, and not worth waiting for
		revision = h.commit
		o.Tries, o.Stall = min(o.Tries, 2), min(o.Stall, 5*time.Second)
	}
	d, err := newDownload(n, p, o)
	if err != nil {
		return "", err
	}
	dir, err = d.run(ctx, revision)
	if err != nil && have && ctx.Err() == nil {
		o.Note(fmt.Sprintf("%v: going on with what the cache has", err))
		return h.dir, nil
	}
	return dir, err
}

// newDownload prepares to download a model.
func newDownload(n Name, p place, o Options) (*download, error) {
	d := &download{name: n, place: p, o: o, token: o.Token, done: make(map[string]int64)}
	d.client = &http.Client{
		Transport:     http.DefaultTransport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if d.token == "" && o.TokenFile != "" {
		text, err := input.ReadFile(o.TokenFile, input.Mark)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, &Error{Model: n.String(), Reason: "the token", Err: err}
		}
		d.token = string(text)
	}
	d.token = strings.TrimSpace(d.token)
	if strings.IndexFunc(d.token, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
		return nil, &Error{Model: n.String(), Reason: "the token is none: it has characters that no token has", hint: "see HF_TOKEN, and the file " + o.TokenFile}
	}
	return d, nil
}

// pause waits.
func pause(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// wait returns how long to wait before a try, from the second, number 1, on: a bit more or less, so that many do not come at once.
func (o *Options) wait(try int, asked time.Duration) time.Duration {
	t := o.Backoff << min(try-1, 5)
	return max(t+time.Duration(rand.Int64N(int64(t)/4+1)), asked)
}
