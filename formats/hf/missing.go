package hf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// NotFoundError means that there is no model folder of a name.
type NotFoundError struct {
	Model string
	File  bool // it is a file
}

func (e *NotFoundError) Error() string {
	if e.File {
		return fmt.Sprintf("open model folder: %s is not a folder", e.Model)
	}
	return fmt.Sprintf("open model folder: %s: no such file or folder", e.Model)
}

// Unwrap returns [fs.ErrNotExist] for what is not there.
func (e *NotFoundError) Unwrap() error {
	if e.File {
		return nil
	}
	return fs.ErrNotExist
}

// Hint says how to come by a model of the Hugging Face hub, where the name may be that of one.
func (e *NotFoundError) Hint() string {
	switch repo, revision, ok := hubName(e.Model); {
	case ok && revision == "":
		return fmt.Sprintf("if it is a model of huggingface.co, download it first: hf download %s --local-dir %s", repo, path.Base(repo))
	case ok:
		return fmt.Sprintf("if it is a model of huggingface.co, download it first: hf download %s --revision %s --local-dir %s", repo, revision, path.Base(repo))
	case e.File:
		return "name the folder with config.json and the weights, or a GGUF file"
	}
	return "a model is a folder with config.json and safetensors files, or a GGUF file"
}

// hubName reports whether a path that does not exist looks like owner/name of the Hugging Face hub, be it
// with @revision or as an address.
func hubName(model string) (repo, revision string, ok bool) {
	for _, site := range []string{"https://huggingface.co/", "https://hf.co/", "hf://"} {
		model = strings.TrimPrefix(model, site)
	}
	m := regexp.MustCompile(`^(\w[\w.-]*/\w[\w.-]*)(?:@([\w./-]+)|/tree/([\w./-]+))?/?$`).FindStringSubmatch(model)
	if m == nil || strings.HasSuffix(m[1], suffix) {
		return "", "", false
	}
	// Where the owner is a folder here, the path is one of this machine's with a mistake in it.
	if info, err := os.Stat(path.Dir(m[1])); err == nil && info.IsDir() {
		return "", "", false
	}
	return m[1], m[2] + m[3], true
}

// NoWeightsError means that a folder has none of the files that weights are read from.
type NoWeightsError struct {
	Dir   string
	Found []string // files of safetensors by other names, or their indexes
	hint  string
}

func (e *NoWeightsError) Error() string {
	there := ""
	switch n := len(e.Found); {
	case n > 4:
		there = fmt.Sprintf(": there are %s and %d more", strings.Join(e.Found[:3], ", "), n-3)
	case n > 1:
		there = fmt.Sprintf(": there are %s and %s", strings.Join(e.Found[:n-1], ", "), e.Found[n-1])
	case n == 1:
		there = ": there is " + e.Found[0]
	}
	return fmt.Sprintf("%s: no %s or %s%s", e.Dir, singleName, indexName, there)
}

// Hint says what to do with what is there.
func (e *NoWeightsError) Hint() string { return e.hint }

// weightFile is a file of weights in a folder.
type weightFile struct {
	name string
	size int64
}

// weightFiles lists the folder's files of weights and their indexes, in any format, sorted by name.
func weightFiles(dir string) ([]weightFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open model folder: %w", err)
	}
	var found []weightFile
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || !isWeights(name) && !strings.Contains(name, ".safetensors.") {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			found = append(found, weightFile{name, info.Size()})
		}
	}
	return found, nil
}

// numberedName is how shards are named.
func numberedName() *regexp.Regexp {
	return regexp.MustCompile(`^model-(\d{5})-of-(\d{5})\.safetensors$`)
}

// numbered returns the names of all shards of a set, of which a folder has at least one and which are numbered from
// 1; nil where there is none or more than one such set.
func numbered(found []weightFile) []string {
	count := ""
	for _, f := range found {
		m := numberedName().FindStringSubmatch(f.name)
		if m == nil {
			continue
		}
		if count != "" && count != m[2] {
			return nil
		}
		count = m[2]
	}
	n, _ := strconv.Atoi(count) // five digits, or none
	var shards []string
	for i := range n {
		shards = append(shards, fmt.Sprintf("model-%05d-of-%s%s", i+1, count, suffix))
	}
	return shards
}

// noWeights returns the error for a folder that has no file, or no complete set of them, to read weights from.
func noWeights(dir string, found []weightFile) error {
	e := &NoWeightsError{Dir: dir}
	// Of other formats the largest file counts: optimizer states and the like are smaller, or beside them.
	other := weightFile{size: -1}
	for _, f := range found {
		switch {
		case strings.Contains(f.name, suffix):
			e.Found = append(e.Found, f.name)
		case !strings.HasSuffix(f.name, ".index.json") && f.size > other.size:
			other = f
		}
	}
	has := func(prefix string) bool {
		return slices.ContainsFunc(found, func(f weightFile) bool { return strings.HasPrefix(f.name, prefix) })
	}
	switch {
	case has("adapter_model.") && (other.size < 0 || strings.HasPrefix(other.name, "adapter_model.")):
		e.Found = []string{"the weights of an adapter"}
		e.hint = "merge them into the model that they were trained for, as merge_and_unload of the Python package peft does, and take the result"
	case len(e.Found) == 0 && other.size >= 0:
		return &UnreadableError{Dir: dir, File: other.name}
	case slices.ContainsFunc(e.Found, unfinished):
		e.hint = "the download did not come to its end: go on with it, or start it again"
	case has("consolidated."):
		e.hint = "consolidated.safetensors has other tensor names than transformers' models: take the model's files named model*.safetensors"
	case len(e.Found) == 1:
		e.hint = fmt.Sprintf("if that is the model, name it so: mv %s %s", filepath.Join(dir, e.Found[0]), filepath.Join(dir, singleName))
	case len(e.Found) > 1:
		e.hint = "the model's weights go by these names alone; more shards than one are model-0000x-of-0000y.safetensors"
	default:
		if err := CheckSnapshots(dir); err != nil {
			return err
		}
		e.hint = "a model is a folder with config.json and safetensors files, or a GGUF file"
	}
	return e
}

// unfinished reports whether a file is named as programs name downloads that are not done.
func unfinished(name string) bool {
	return slices.Contains([]string{".incomplete", ".part", ".partial", ".aria2", ".crdownload", ".download", ".tmp"}, filepath.Ext(name))
}

// SnapshotsError means that a folder is one of the Hugging Face cache, which has models in it.
type SnapshotsError struct {
	Dir    string
	Models []string // their folders, the main branch's in front
}

func (e *SnapshotsError) Error() string {
	return e.Dir + ": a folder of the Hugging Face cache, and none of a model"
}

// Hint says which folder to name.
func (e *SnapshotsError) Hint() string {
	if n := len(e.Models); n > 1 {
		return fmt.Sprintf("name one of its %d snapshots, such as %s", n, e.Models[0])
	}
	return "name its snapshot, " + e.Models[0]
}

// CheckSnapshots returns a [SnapshotsError] for a folder of the Hugging Face cache, such as models--a--b.
func CheckSnapshots(dir string) error {
	if there, err := exists(filepath.Join(dir, configName)); there || err != nil {
		return nil
	}
	if found := snapshots(dir); len(found) > 0 {
		return &SnapshotsError{Dir: dir, Models: found}
	}
	return nil
}

// snapshots returns the model folders within a folder of the Hugging Face cache, with that of its main branch in front;
// nil for any other folder.
func snapshots(dir string) []string {
	entries, err := os.ReadDir(filepath.Join(dir, "snapshots"))
	if err != nil {
		return nil
	}
	head, err := input.ReadFile(filepath.Join(dir, "refs", "main"), input.Mark)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var found []string
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		snapshot := filepath.Join(dir, "snapshots", e.Name())
		if e.Name() == strings.TrimSpace(string(head)) {
			found = slices.Insert(found, 0, snapshot)
		} else {
			found = append(found, snapshot)
		}
	}
	return found
}
