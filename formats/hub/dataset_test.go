package hub

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// datasetServer is a hub with one data set, org/set, whose branches have files. It notes what is asked for.
type datasetServer struct {
	*httptest.Server
	branches map[string]map[string]string
	asked    []string
}

// commitOf is the commit of a branch.
func commitOf(branch string) string { return fmt.Sprintf("%040x", len(branch)) }

func newDatasetServer(t *testing.T, branches map[string]map[string]string) *datasetServer {
	s := &datasetServer{branches: branches}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked = append(s.asked, r.URL.EscapedPath())
		if rest, ok := strings.CutPrefix(r.URL.Path, "/api/datasets/org/set/revision/"); ok {
			for branch, files := range s.branches {
				if rest != branch && rest != commitOf(branch) {
					continue
				}
				var siblings []map[string]any
				for name, text := range files {
					siblings = append(siblings, map[string]any{"rfilename": name, "size": len(text), "lfs": map[string]any{"sha256": fmt.Sprintf("%x", sha256.Sum256([]byte(text))), "size": len(text)}})
				}
				_ = json.NewEncoder(w).Encode(map[string]any{"id": "org/set", "sha": commitOf(branch), "siblings": siblings}) // an error shows in the test
				return
			}
			w.Header().Set("X-Error-Code", codeNoRevision)
		}
		for branch, files := range s.branches {
			if name, ok := strings.CutPrefix(r.URL.Path, "/datasets/org/set/resolve/"+commitOf(branch)+"/"); ok && files[name] != "" {
				fmt.Fprint(w, files[name])
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *datasetServer) options(t *testing.T) Options {
	return Options{Cache: filepath.Join(t.TempDir(), "hub"), Endpoint: s.URL, Stall: 5 * time.Second, Backoff: time.Millisecond, Tries: 2}
}

// TestFindSplit: a split is found in what the hub made of a data set, or in the files that it has itself, and once it is here nobody
// is asked.
func TestFindSplit(t *testing.T) {
	for _, tc := range []struct {
		name     string
		branches map[string]map[string]string
		split    Split
		branch   string
		want     []string
	}{
		{
			"converted",
			map[string]map[string]string{
				converted: {"ARC-Easy/test/0000.parquet": "a", "ARC-Easy/test/0001.parquet": "b", "ARC-Easy/train/0000.parquet": "c", "ARC-Challenge/test/0000.parquet": "d"},
				"main":    {"ARC-Easy/test-00000-of-00001.parquet": "e", "README.md": "f"},
			},
			Split{"org/set", "ARC-Easy", "test"},
			converted,
			[]string{"ARC-Easy/test/0000.parquet", "ARC-Easy/test/0001.parquet"},
		},
		{
			"default, converted",
			map[string]map[string]string{converted: {"default/validation/0000.parquet": "a", "default/train/0000.parquet": "b"}},
			Split{"org/set", "", "validation"},
			converted,
			[]string{"default/validation/0000.parquet"},
		},
		{
			"the only one has a name",
			map[string]map[string]string{converted: {"plain_text/test/0000.parquet": "a", "plain_text/train/0000.parquet": "b"}},
			Split{"org/set", "", "test"},
			converted,
			[]string{"plain_text/test/0000.parquet"},
		},
		{
			"not converted",
			map[string]map[string]string{"main": {"main/test-00000-of-00002.parquet": "a", "main/test-00001-of-00002.parquet": "b", "additional/test-00000-of-00001.parquet": "c", "main/train-00000-of-00001.parquet": "d"}},
			Split{"org/set", "main", "test"},
			"main",
			[]string{"main/test-00000-of-00002.parquet", "main/test-00001-of-00002.parquet"},
		},
		{
			"in data",
			map[string]map[string]string{"main": {"data/auxiliary_train-00000-of-00001.parquet": "b", "data/train-00000-of-00001-0123abc.parquet": "a"}},
			Split{"org/set", "", "train"},
			"main",
			[]string{"data/train-00000-of-00001-0123abc.parquet"},
		},
		{
			"one file each",
			map[string]map[string]string{"main": {"piqa_train.parquet": "b", "piqa_validation.parquet": "a"}},
			Split{"org/set", "", "validation"},
			"main",
			[]string{"piqa_validation.parquet"},
		},
		{
			"converted without it",
			map[string]map[string]string{converted: {"default/train/0000.parquet": "b"}, "main": {"test.parquet": "a"}},
			Split{"org/set", "", "test"},
			"main",
			[]string{"test.parquet"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newDatasetServer(t, tc.branches)
			o := s.options(t)
			data, err := FindSplit(t.Context(), tc.split, o)
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(o.Cache, "datasets--org--set")
			got := make(map[string]string)
			for _, path := range data.Files {
				rel, err := filepath.Rel(filepath.Join(dir, "snapshots", commitOf(tc.branch)), path)
				if err != nil {
					t.Fatal(err)
				}
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				got[filepath.ToSlash(rel)] = string(text)
			}
			want := make(map[string]string)
			for _, name := range tc.want {
				want[name] = tc.branches[tc.branch][name]
			}
			if d := cmp.Diff(want, got); d != "" || data.Commit != commitOf(tc.branch) || !slices.IsSorted(data.Files) {
				t.Errorf("%v\n%s", data, d)
			}
			if ref, err := os.ReadFile(filepath.Join(dir, "refs", filepath.FromSlash(tc.branch))); string(ref) != data.Commit {
				t.Errorf("the branch is noted as %q, %v", ref, err)
			}
			s.asked = nil
			again, err := FindSplit(t.Context(), tc.split, o)
			o.Offline = true
			offline, errOffline := FindSplit(t.Context(), tc.split, o)
			if err != nil || errOffline != nil || len(s.asked) > 0 || !cmp.Equal(again, data) || !cmp.Equal(offline, data) {
				t.Errorf("again %v, %v; offline %v, %v; asked for %v", again, err, offline, errOffline, s.asked)
			}
		})
	}
}

// TestSplitStays: another split is taken from the commit that the cache has of the branch, whatever the branch is now, and a split of
// which a file is missing is completed.
func TestSplitStays(t *testing.T) {
	files := map[string]string{"c/test/0000.parquet": "a", "c/test/0001.parquet": "b", "c/train/0000.parquet": "c"}
	s := newDatasetServer(t, map[string]map[string]string{converted: files})
	o := s.options(t)
	data, err := FindSplit(t.Context(), Split{"org/set", "c", "test"}, o)
	if err != nil {
		t.Fatal(err)
	}
	old := commitOf(converted)
	s.branches[old] = files // by its commit
	delete(s.branches, converted)
	s.asked = nil
	if err := os.Remove(data.Files[0]); err != nil {
		t.Fatal(err)
	}
	for _, split := range []string{"train", "test"} {
		if _, err := FindSplit(t.Context(), Split{"org/set", "c", split}, o); err == nil {
			t.Error("a server that lies about a commit is believed")
		}
	}
	if !slices.Contains(s.asked, "/api/datasets/org/set/revision/"+old) {
		t.Errorf("asked for %v", s.asked)
	}
	s.branches = map[string]map[string]string{converted: files}
	for _, split := range []string{"train", "test"} {
		d, err := FindSplit(t.Context(), Split{"org/set", "c", split}, o)
		if err != nil || d.Commit != old {
			t.Errorf("%s: %v, %v", split, d, err)
		}
	}
}

// TestSplitErrors: what is wrong is one line, with a hint.
func TestSplitErrors(t *testing.T) {
	s := newDatasetServer(t, map[string]map[string]string{"main": {"data/train-00000-of-00001.parquet": "a", "data/train.csv": "b"}})
	for _, tc := range []struct {
		split  Split
		change func(o *Options)
		want   string
	}{
		{Split{"org/set", "", "test"}, nil, "org/set (default, test): there are no Parquet files of it among 1, such as data/train-00000-of-00001.parquet"},
		{Split{"org/other", "", "test"}, nil, "org/other: there is no such data set, or it is private"},
		{Split{"other", "", "test"}, nil, "other: is no name of a data set on a hub"},
		{Split{"org/set", "", "train"}, func(o *Options) { o.Offline = true }, "org/set (default, train): is not in the cache, and nothing is downloaded offline"},
		{Split{"org/set", "", "train"}, func(o *Options) { o.Cache = "" }, "there is no folder to download it into"},
		{Split{"org/set", "", "train"}, func(o *Options) { o.Endpoint = "http://127.0.0.1:1" }, "its list of files: "},
	} {
		o := s.options(t)
		if tc.change != nil {
			tc.change(&o)
		}
		_, err := FindSplit(t.Context(), tc.split, o)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: error %v, want %q", tc.split, err, tc.want)
		}
	}
}

// TestSplitFiles: of several configurations none is taken for the one without a name.
func TestSplitFiles(t *testing.T) {
	names := []string{"a/test/0000.parquet", "b/test/0000.parquet"}
	if found := splitFiles(names, Split{"org/set", "default", "test"}); found != nil {
		t.Errorf("%v is taken", found)
	}
	if found := splitFiles(names, Split{"org/set", "b", "test"}); len(found) != 1 || found[0] != names[1] {
		t.Errorf("%v is taken", found)
	}
}

// FuzzSplitFiles: what is taken for a split's files are some of those that there are, in one folder.
func FuzzSplitFiles(f *testing.F) {
	f.Add("c/test/0000.parquet\nc/test-00000-of-00001.parquet\ndata/test.parquet\nx_test.parquet", "c", "test")
	f.Add("data/test-0.parquet", "default", "test")
	f.Add("c/\x85-0.parquet", "c", "\x85")
	f.Fuzz(func(t *testing.T, list, config, split string) {
		names := strings.Split(list, "\n")
		found := splitFiles(names, Split{"org/set", config, split})
		folders := make(map[string]bool)
		for _, name := range found {
			folders[filepath.Dir(name)] = true
			if !slices.Contains(names, name) {
				t.Fatalf("%q is none of the files", name)
			}
		}
		if len(folders) > 1 {
			t.Fatalf("folders %v", slices.Collect(maps.Keys(folders)))
		}
		allThere(found)
	})
}
