package hub

import (
	"path"
	"slices"
	"strings"
)

// Name is the name of a model on a hub: org/name, with @revision or without.
type Name struct {
	Owner, Model string
	Revision     string // a branch, a tag or a commit
	Certain      bool   // it was given as an address, and can be no path

	dataset bool // and no model
}

// mainBranch is the revision of a name without one.
const mainBranch = "main"

// Repo returns the name without its revision.
func (n Name) Repo() string { return n.Owner + "/" + n.Model }

// String returns the name as it is given on a command line.
func (n Name) String() string {
	if n.Revision == mainBranch || n.dataset {
		return n.Repo()
	}
	return n.Repo() + "@" + n.Revision
}

// folder is what the name's folder in the cache is called.
func (n Name) folder() string { return n.kind() + "--" + n.Owner + "--" + n.Model }

// kind is what a hub calls repositories like this one.
func (n Name) kind() string {
	if n.dataset {
		return "datasets"
	}
	return "models"
}

// what is what messages call it, and here what of this machine is taken in its place.
func (n Name) what() string {
	if n.dataset {
		return "data set"
	}
	return "model"
}

func (n Name) here() string {
	if n.dataset {
		return "a file with the data"
	}
	return "a folder with the model"
}

// page is the path of its files on a server.
func (n Name) page() string {
	if n.dataset {
		return "datasets/" + n.Repo()
	}
	return n.Repo()
}

// ParseName reads org/name[@revision], hf://org/name[@revision], and the address of a model's page. The rules are those of
// huggingface_hub 1.2 (validate_repo_id), for ASCII; ok is false for what is none. A file's path such as a/model.gguf is none.
func ParseName(text string) (n Name, ok bool) {
	n.Revision = mainBranch
	rest := text
	for _, site := range []string{"https://huggingface.co/", "https://hf.co/", "hf://"} {
		if after, found := strings.CutPrefix(rest, site); found {
			rest, n.Certain = strings.TrimSuffix(after, "/"), true
			break
		}
	}
	repo, revision, found := strings.Cut(rest, "@")
	if !found && n.Certain {
		repo, revision, found = strings.Cut(rest, "/tree/")
	}
	if found {
		n.Revision = revision
	}
	n.Owner, n.Model, ok = strings.Cut(repo, "/")
	if !ok || len(repo) > 96 || !plainPart(n.Owner) || !plainPart(n.Model) || strings.HasSuffix(n.Model, ".git") || !plainRevision(n.Revision) {
		return Name{}, false
	}
	files := []string{".safetensors", ".gguf", ".json"}
	if !n.Certain && slices.Contains(files, strings.ToLower(path.Ext(n.Model))) {
		return Name{}, false
	}
	return n, true
}

// plainPart reports whether an owner or a model may have a name.
func plainPart(s string) bool {
	const edge = "-."
	return s != "" && onlyOf(s, "-._") && !strings.Contains(s, "--") && !strings.Contains(s, "..") &&
		!strings.ContainsRune(edge, rune(s[0])) && !strings.ContainsRune(edge, rune(s[len(s)-1]))
}

// plainRevision reports whether a branch, a tag or a commit may have a name. It is the name of a file in the cache too.
func plainRevision(s string) bool {
	if len(s) > 200 || !onlyOf(s, "-._/+") {
		return false
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasPrefix(part, "-") || strings.HasSuffix(part, ".") || strings.HasSuffix(part, ".lock") || strings.Contains(part, "..") {
			return false
		}
	}
	return true
}

// onlyOf reports whether a text has letters, digits and some other characters alone.
func onlyOf(s, others string) bool {
	return strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(others, r))
	}) < 0
}

// isHex reports whether a text is n digits as git and the hub write hashes.
func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// isCommit reports whether a revision is a commit by its whole hash.
func isCommit(s string) bool { return isHex(s, 40) }
