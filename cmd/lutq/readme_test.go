package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	mdLink    = regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]*))?\)`)
	mdHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	mdCommand = regexp.MustCompile("\\blutq ([a-z][a-z-]*)( [^`\n|&]*)?")
	mdFlag    = regexp.MustCompile(`(?:^| )--([a-z][a-z-]*)`)
	// Of a heading, what its address leaves out.
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// TestReadmes: what the READMEs and notes refer to is there, and commands have the flags that they are shown with.
func TestReadmes(t *testing.T) {
	root := filepath.Join("..", "..")
	commands := newRoot(nil, &bytes.Buffer{}, &bytes.Buffer{})
	links, flags := 0, 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range mdLink.FindAllSubmatch(text, -1) {
			checkLink(t, path, string(m[1]), string(m[2]))
			links++
		}
		for _, m := range mdCommand.FindAllSubmatch(text, -1) {
			command, _, err := commands.Find([]string{string(m[1])})
			if err != nil {
				continue // of a sentence about lutq
			}
			command.InitDefaultHelpFlag()
			for _, flag := range mdFlag.FindAllSubmatch(m[2], -1) {
				if command.Flag(string(flag[1])) == nil {
					t.Errorf("%s: lutq %s has no flag --%s", path, m[1], flag[1])
				}
				flags++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 20 || flags < 100 {
		t.Errorf("found %d links and %d flags: does this look where they are?", links, flags)
	}
}

// checkLink checks a link of a file to another of the repository, and to a heading of it if one is named.
func checkLink(t *testing.T, from, file, anchor string) {
	t.Helper()
	if strings.Contains(file, "://") {
		return
	}
	to := from
	if file != "" {
		to = filepath.Join(filepath.Dir(from), filepath.FromSlash(file))
	}
	text, err := os.ReadFile(to)
	if err != nil {
		t.Errorf("%s: %v", from, err)
		return
	}
	for _, m := range mdHeading.FindAllSubmatch(text, -1) {
		if anchor == strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(string(m[1])), ""), " ", "-") {
			return
		}
	}
	if anchor != "" {
		t.Errorf("%s: %s has no heading #%s", from, to, anchor)
	}
}
