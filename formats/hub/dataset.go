package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Split is a part of a data set on a hub, as the library datasets divides them.
type Split struct {
	Repo   string // org/name
	Config string // such as ARC-Easy; "" is the only one, which the hub calls default
	Name   string // such as test
}

func (s Split) String() string { return fmt.Sprintf("%s (%s, %s)", s.Repo, s.Config, s.Name) }

// Data are the files of a split, which lie in the cache.
type Data struct {
	Files  []string // paths of Parquet files, in their order
	Commit string
}

// converted is the branch in which the hub keeps each data set as Parquet, whatever its own files are: CONFIG/SPLIT/0000.parquet.
const converted = "refs/convert/parquet"

// FindSplit finds the files of a split, which are Parquet, in the cache, or downloads them into it: those that the hub has made of the
// data set, or where it has not those of its main branch.
func FindSplit(ctx context.Context, s Split, o Options) (*Data, error) {
	s.Config = cmp.Or(s.Config, "default")
	n, ok := ParseName("hf://" + s.Repo)
	if !ok || n.Revision != mainBranch {
		return nil, &Error{Model: s.Repo, Reason: "is no name of a data set on a hub", hint: "org/name"}
	}
	n.dataset = true
	o = o.withDefaults()
	p := placeOf(o.Cache, n)
	branches := []string{converted, mainBranch}
	commits := make(map[string]string)
	for _, b := range branches {
		if o.Cache == "" {
			break
		}
		commit, err := p.commit(b)
		if err != nil {
			return nil, &Error{Model: n.String(), Reason: "the cache", Err: err}
		}
		if commit == "" {
			continue
		}
		commits[b] = commit
		if files := p.split(commit, s); files != nil {
			return &Data{files, commit}, nil
		}
	}
	switch {
	case o.Offline:
		return nil, &Error{Model: s.String(), Reason: "is not in the cache, and nothing is downloaded offline", Err: fs.ErrNotExist, hint: "leave out --offline and HF_HUB_OFFLINE once"}
	case o.Cache == "":
		return nil, &Error{Model: n.String(), Reason: "there is no folder to download it into", hint: "set HF_HUB_CACHE or HOME"}
	}
	var last error
	for _, b := range branches {
		n.Revision = b
		d, err := newDownload(n, p, o)
		if err != nil {
			return nil, err
		}
		data, err := d.split(ctx, cmp.Or(commits[b], b), s)
		if err == nil {
			return data, nil
		}
		known, ok := errors.AsType[*Error](err)
		if !ok || !known.absent {
			return nil, err
		}
		if last == nil || known.Model == s.String() {
			last = err // what a branch has instead tells more than that there is none
		}
	}
	return nil, last
}

// split downloads a split of a revision.
func (d *download) split(ctx context.Context, revision string, s Split) (*Data, error) {
	l, err := d.list(ctx, revision)
	if err != nil {
		return nil, err
	}
	names := splitFiles(slices.Sorted(maps.Keys(l.files)), s)
	if names == nil {
		return nil, d.noSplit(l, s)
	}
	var files []file
	for _, name := range names {
		files = append(files, l.files[name])
	}
	if files, err = d.measure(ctx, l.commit, files); err != nil {
		return nil, err
	}
	// Who finds the first has all.
	for _, f := range slices.Backward(files) {
		if err := d.file(ctx, l.commit, f); err != nil {
			return nil, err
		}
	}
	if err := d.place.writeRef(d.name.Revision, l.commit); err != nil {
		return nil, d.failed("the cache", err)
	}
	data := &Data{Commit: l.commit}
	for _, name := range names {
		data.Files = append(data.Files, filepath.Join(d.place.snapshot(l.commit), filepath.FromSlash(name)))
	}
	return data, nil
}

// noSplit says what a data set has in the place of a split.
func (d *download) noSplit(l *listing, s Split) error {
	e := &Error{Model: s.String(), Reason: "there are no Parquet files of it", absent: true}
	var tables []string
	for name := range l.files {
		if path.Ext(name) == ".parquet" {
			tables = append(tables, name)
		}
	}
	if len(tables) > 0 {
		e.Reason += fmt.Sprintf(" among %d, such as %s", len(tables), slices.Min(tables))
	}
	return e
}

// split returns the paths of a split's files in a commit, nil where they are not all there.
func (p place) split(commit string, s Split) []string {
	dir := p.snapshot(commit)
	var names []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		names = append(names, filepath.ToSlash(rel))
		return err
	})
	if err != nil { // such as that there is no folder
		return nil
	}
	names = splitFiles(names, s)
	if !allThere(names) {
		return nil
	}
	var files []string
	for _, name := range names {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
			return nil
		}
		files = append(files, file)
	}
	return files
}

// allThere reports whether files of a split are as many as their names say. Numbered ones do not say so, but the first comes last.
func allThere(names []string) bool {
	if len(names) == 0 {
		return false
	}
	if m := regexp.MustCompile(`-of-(\d{1,5})\b`).FindStringSubmatch(names[0]); m != nil {
		n, _ := strconv.Atoi(m[1]) // five digits
		return n == len(names)
	}
	base := strings.TrimSuffix(path.Base(names[0]), ".parquet")
	return base == "" || strings.Trim(base, "0123456789") != "" || strings.Trim(base, "0") == ""
}

// splitFiles returns those of a repository's files that a split is in, sorted; nil where there are none. They are laid out as by the
// hub's converter, CONFIG/SPLIT/0000.parquet, as by the library's push_to_hub, CONFIG/SPLIT-00000-of-00001.parquet and
// data/SPLIT-00000-of-00001.parquet, or are one for each split of the only configuration, *_SPLIT.parquet.
func splitFiles(names []string, s Split) []string {
	folders := []string{s.Config}
	if s.Config == "default" {
		folders = append(folders, "data", ".")
	}
	inFolder, tail, head := regexp.MustCompile(`^\w[\w.-]*$`), regexp.MustCompile(`^([-.][\w.-]*)?$`), regexp.MustCompile(`^\w[\w.-]*[-_]$`)
	begins := func(stem string) bool {
		rest, ok := strings.CutPrefix(stem, s.Name)
		return ok && tail.MatchString(rest)
	}
	ends := func(stem string) bool {
		rest, ok := strings.CutSuffix(stem, s.Name)
		return ok && head.MatchString(rest)
	}
	for _, folder := range folders {
		for _, like := range []struct {
			dir  string
			stem func(string) bool
		}{{path.Join(folder, s.Name), inFolder.MatchString}, {folder, begins}, {folder, ends}} {
			var found []string
			for _, n := range names {
				if stem, ok := strings.CutSuffix(path.Base(n), ".parquet"); ok && path.Dir(n) == like.dir && like.stem(stem) {
					found = append(found, n)
				}
			}
			if found != nil {
				slices.Sort(found)
				return found
			}
		}
	}
	if s.Config != "default" {
		return nil
	}
	// The only one may have another name.
	only := ""
	for _, n := range names {
		dir := path.Dir(n)
		config := path.Dir(dir)
		if path.Base(dir) != s.Name || config == "." || strings.Contains(config, "/") {
			continue
		}
		if stem, ok := strings.CutSuffix(path.Base(n), ".parquet"); !ok || !inFolder.MatchString(stem) {
			continue
		}
		if only != "" && only != config {
			return nil
		}
		only = config
	}
	if only == "" {
		return nil
	}
	return splitFiles(names, Split{Config: only, Name: s.Name})
}
