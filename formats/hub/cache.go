package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// place is where a model lies in the cache, in the layout of huggingface_hub:
//
//	models--ORG--NAME/refs/REVISION           the commit of a branch or tag
//	models--ORG--NAME/snapshots/COMMIT/FILE   links to
//	models--ORG--NAME/blobs/SUM               SHA-256 of large files, git's SHA-1 of others
//	models--ORG--NAME/blobs/SUM.incomplete    what has come of one
//	models--ORG--NAME/.no_exist/COMMIT/FILE   empty: the commit has no such file
//	.locks/models--ORG--NAME/SUM.lock         held while one is downloaded
type place struct{ cache, dir string }

func placeOf(cache string, n Name) place {
	return place{cache, filepath.Join(cache, n.folder())}
}

func (p place) snapshot(commit string) string { return filepath.Join(p.dir, "snapshots", commit) }
func (p place) blob(sum string) string        { return filepath.Join(p.dir, "blobs", sum) }
func (p place) lockFile(sum string) string {
	return filepath.Join(p.cache, ".locks", filepath.Base(p.dir), sum+".lock")
}

func (p place) ref(revision string) string {
	return filepath.Join(p.dir, "refs", filepath.FromSlash(revision))
}

func (p place) absent(commit, name string) string {
	return filepath.Join(p.dir, ".no_exist", commit, filepath.FromSlash(name))
}

// At names the model, and its commit, whose folder in a cache a path is; "" where it is no such folder.
func At(path string) (repo, commit string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", ""
	}
	parts := strings.Split(filepath.ToSlash(path), "/")
	if len(parts) < 3 || parts[len(parts)-2] != "snapshots" || !isCommit(parts[len(parts)-1]) {
		return "", ""
	}
	name, ok := strings.CutPrefix(parts[len(parts)-3], "models--")
	n, isName := ParseName("hf://" + strings.Replace(name, "--", "/", 1))
	if !ok || !isName {
		return "", ""
	}
	return n.Repo(), parts[len(parts)-1]
}

// commit returns the commit that the cache has of a revision, "" where it has none.
func (p place) commit(revision string) (string, error) {
	if isCommit(revision) {
		return revision, nil
	}
	text, err := input.ReadFile(p.ref(revision), input.Mark)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if commit := strings.TrimSpace(string(text)); isCommit(commit) {
		return commit, nil
	}
	return "", nil // it is written anew
}

// held is what the cache has of a model's commit.
type held struct {
	dir     string // of the commit; "": there is none
	commit  string
	missing string // a file that is known to be missing for its weights; "": none
	settled bool   // of each file beside the weights it is known whether it exists
}

// find finds a revision in the cache.
func (p place) find(revision string) (held, error) {
	commit, err := p.commit(revision)
	if err != nil || commit == "" {
		return held{missing: configName}, err
	}
	h := held{dir: p.snapshot(commit), commit: commit, settled: true}
	if info, err := os.Stat(h.dir); err != nil || !info.IsDir() {
		return held{commit: commit, missing: configName}, nil
	}
	for _, name := range besideNames() {
		if !isFile(filepath.Join(h.dir, name)) && !isFile(p.absent(commit, name)) {
			h.settled = false
		}
	}
	if found, _ := filepath.Glob(filepath.Join(h.dir, "*.gguf")); len(found) > 0 { // which another program brought, and which have all
		h.settled = true
		return h, nil
	}
	h.missing, err = missingWeights(h.dir)
	return h, err
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// missingWeights names a file that a folder lacks to have all weights of a model, "" where it has them.
func missingWeights(dir string) (string, error) {
	if !isFile(filepath.Join(dir, configName)) {
		return configName, nil
	}
	shards, err := shardsIn(dir)
	if err != nil {
		return "", err
	}
	for _, name := range shards {
		if !isFile(filepath.Join(dir, filepath.FromSlash(name))) {
			return name, nil
		}
	}
	return "", nil
}

// shardsIn names the files that a folder's weights are in, as far as it tells.
func shardsIn(dir string) ([]string, error) {
	if isFile(filepath.Join(dir, singleName)) {
		return nil, nil
	}
	data, err := input.ReadFile(filepath.Join(dir, indexName), input.Index)
	if err == nil {
		return parseShards(data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if shards := numberedShards(e.Name()); shards != nil {
			return shards, nil
		}
	}
	return []string{singleName}, nil
}

// beside returns a name for what gets another when it is whole.
func beside(path string) string { return fmt.Sprintf("%s.%016x.tmp", path, rand.Uint64()) }

// link gives a file of a commit its name, in one step.
func (p place) link(commit, name, sum string) error {
	path := filepath.Join(p.snapshot(commit), filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	target, err := filepath.Rel(filepath.Dir(path), p.blob(sum))
	if err != nil {
		return err
	}
	if now, err := os.Readlink(path); err == nil && now == target {
		return nil
	}
	fresh := beside(path)
	if err := os.Symlink(target, fresh); err != nil {
		// A file system without links of this kind may have the other.
		if hard := os.Link(p.blob(sum), fresh); hard != nil {
			return err
		}
	}
	if err := os.Rename(fresh, path); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return nil
}

// writeRef notes the commit of a revision.
func (p place) writeRef(revision, commit string) error {
	if isCommit(revision) {
		return nil
	}
	if now, err := p.commit(revision); err == nil && now == commit {
		return nil
	}
	path := p.ref(revision)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	fresh := beside(path)
	err := os.WriteFile(fresh, []byte(commit), 0o666)
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		os.Remove(fresh) // the first error tells more
	}
	return err
}

// noteAbsent notes which files a commit has not, so that nobody asks again.
func (p place) noteAbsent(l *listing) error {
	for _, name := range besideNames() {
		path := p.absent(l.commit, name)
		if _, there := l.files[name]; there || isFile(path) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			return err
		}
	}
	return nil
}
