package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// listing is what a hub says of a model's revision.
type listing struct {
	id     string // its name now
	commit string
	files  map[string]file
}

// file is one of a repository.
type file struct {
	name string
	size int64  // -1: not told
	sum  string // SHA-256 in 64 digits, or git's SHA-1 of a blob in 40; "": not told
}

// parseListing reads the answer of /api/models/ORG/NAME/revision/REV?blobs=true.
func parseListing(data []byte) (*listing, error) {
	var answer struct {
		ID       string `json:"id"`
		SHA      string `json:"sha"`
		Disabled bool   `json:"disabled"`
		Siblings []struct {
			Name   string `json:"rfilename"`
			Size   *int64 `json:"size"`
			BlobID string `json:"blobId"`
			LFS    *struct {
				SHA256 string `json:"sha256"`
				Size   *int64 `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, errors.New("the server's answer is no list of files")
	}
	if answer.Disabled {
		return nil, errors.New("is disabled on the hub")
	}
	if !isCommit(answer.SHA) {
		return nil, fmt.Errorf("the server names no commit: sha is %.60q", answer.SHA)
	}
	l := &listing{id: answer.ID, commit: answer.SHA, files: make(map[string]file, len(answer.Siblings))}
	for _, s := range answer.Siblings {
		if !plainFile(s.Name) {
			return nil, fmt.Errorf("the server lists a file %.80q, which is no name of one", s.Name)
		}
		if _, twice := l.files[s.Name]; twice {
			return nil, fmt.Errorf("the server lists %s twice", s.Name)
		}
		f := file{name: s.Name, size: -1}
		if isHex(s.BlobID, 40) {
			f.sum = s.BlobID
		}
		if s.LFS != nil {
			if f.sum = ""; isHex(s.LFS.SHA256, 64) {
				f.sum = s.LFS.SHA256
			}
			if s.LFS.Size != nil {
				s.Size = s.LFS.Size
			}
		}
		if s.Size != nil {
			if f.size = *s.Size; f.size < 0 || f.size > 1<<50 {
				return nil, fmt.Errorf("the server lists %s with %d bytes", s.Name, f.size)
			}
		}
		l.files[s.Name] = f
	}
	return l, nil
}

// plainFile reports whether a file of a repository may lie in a folder under its name.
func plainFile(name string) bool {
	return name != "" && len(name) < 1000 && utf8.ValidString(name) && path.Clean(name) == name && !path.IsAbs(name) && name != "." && name != ".." &&
		!strings.HasPrefix(name, "../") && !strings.ContainsAny(name, "\\:") && strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}

// The files of weights.
const (
	configName = "config.json"
	singleName = "model.safetensors"
	indexName  = "model.safetensors.index.json"
)

// besideNames are the files that a model may have beside its weights, and that lutq or who opens its output reads.
func besideNames() []string {
	return []string{
		configName, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
		"chat_template.jinja", "chat_template.json", "README.md",
	}
}

// isBeside reports whether a file is one of those, or of those that older tokenizers, other programs' formats or a model's own
// code have.
func isBeside(name string) bool {
	others := []string{
		"vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "tiktoken.model",
		"quantize_config.json", "quant_config.json", "hf_quant_config.json", "quantization_config.json",
		"LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE",
	}
	switch folder, base := path.Split(name); {
	case folder == "additional_chat_templates/":
		return path.Ext(base) == ".jinja"
	case folder != "":
		return false
	case path.Ext(base) == ".py" || path.Ext(base) == ".tiktoken":
		return true
	}
	return slices.Contains(besideNames(), name) || slices.Contains(others, name)
}

// beside returns the files of a model other than its weights, in the order of their names, config.json in front.
func (l *listing) beside() []file {
	var all []file
	for name, f := range l.files {
		if isBeside(name) {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b file) int {
		switch {
		case a.name == configName:
			return -1
		case b.name == configName:
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	return all
}

// parseShards returns the shards that an index names, sorted.
func parseShards(data []byte) ([]string, error) {
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("%s is no index: %w", indexName, err)
	}
	var shards []string
	for _, name := range index.WeightMap {
		shards = append(shards, name)
	}
	slices.Sort(shards)
	if shards = slices.Compact(shards); len(shards) == 0 {
		return nil, fmt.Errorf("%s names no files", indexName)
	}
	for _, name := range shards {
		if !plainFile(name) {
			return nil, fmt.Errorf("%s names a file %.80q, which is no name of one", indexName, name)
		}
	}
	return shards, nil
}

// numberedShards returns the shards of a model without an index of which one was found, nil where it is not of that kind.
func numberedShards(name string) []string {
	m := regexp.MustCompile(`^model-\d{5}-of-(\d{5})\.safetensors$`).FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	n, _ := strconv.Atoi(m[1]) // five digits
	var shards []string
	for i := range n {
		shards = append(shards, fmt.Sprintf("model-%05d-of-%s.safetensors", i+1, m[1]))
	}
	return shards
}

// noWeights says what a repository without weights that lutq reads has in their place.
func (l *listing) noWeights(n Name) error {
	e := &Error{Model: n.String(), Reason: "has no safetensors files of a model"}
	found := make(map[string]string) // by suffix, the first
	for name := range l.files {
		ext := path.Ext(name)
		if first, ok := found[ext]; !ok || name < first {
			found[ext] = name
		}
	}
	switch {
	case l.files["adapter_model.safetensors"].name != "":
		e.Reason = "is an adapter, not a model"
		e.hint = "merge it into the model that it was trained for, and name the folder"
	case found[".gguf"] != "":
		e.Reason += ", but GGUF files such as " + found[".gguf"]
		e.hint = fmt.Sprintf("download one of them, and name the file: hf download %s %s --local-dir .", n.Repo(), found[".gguf"])
	case found[".bin"] != "":
		e.Reason += ", but " + found[".bin"]
		e.hint = "take a revision with safetensors, such as " + n.Repo() + "@refs/pr/1 where the hub has converted it"
	default:
		for _, f := range l.files {
			if path.Ext(f.name) == ".safetensors" && path.Dir(f.name) == "." {
				e.Reason += " by their names, but such as " + f.name
				break
			}
		}
	}
	return e
}
