package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/tasks"
)

// TestTaskNames: the help of eval-tasks names the tasks that the program knows.
func TestTaskNames(t *testing.T) {
	code, help, stderr := exec("help", "eval-tasks", "--all")
	if code != 0 {
		t.Fatal(stderr)
	}
	for _, name := range tasks.Names() {
		if !strings.Contains(help, name) {
			t.Errorf("the help does not name %s", name)
		}
	}
}

// datasetHub serves data sets as the hub converts them, of folders org/name/CONFIG/SPLIT.
func datasetHub(t *testing.T, root string) string {
	t.Helper()
	const commit = "dddddddddddddddddddddddddddddddddddddddd"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, "/api")
		parts := strings.Split(strings.TrimPrefix(path, "/datasets/"), "/")
		if len(parts) < 3 {
			http.NotFound(w, r)
			return
		}
		repo := filepath.Join(root, parts[0], parts[1])
		switch rest := strings.Join(parts[2:], "/"); {
		case rest == "revision/refs/convert/parquet" || rest == "revision/"+commit:
			files, err := filepath.Glob(filepath.Join(repo, "*", "*", "*.parquet"))
			if err != nil || files == nil {
				http.NotFound(w, r)
				return
			}
			var siblings []map[string]any
			for _, file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					t.Error(err)
				}
				name, err := filepath.Rel(repo, file)
				if err != nil {
					t.Error(err)
				}
				siblings = append(siblings, map[string]any{"rfilename": filepath.ToSlash(name), "size": len(data), "lfs": map[string]any{"sha256": fmt.Sprintf("%x", sha256.Sum256(data)), "size": len(data)}})
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"id": parts[0] + "/" + parts[1], "sha": commit, "siblings": siblings}) // an error shows in the test
		case strings.HasPrefix(rest, "resolve/"+commit+"/"):
			http.ServeFile(w, r, filepath.Join(repo, strings.TrimPrefix(rest, "resolve/"+commit+"/")))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestTasksByName: data comes by a task's name, once, is told in the report, and gives what the same file gives.
func TestTasksByName(t *testing.T) {
	const root = "../../calib/tasks/testdata/hub"
	t.Setenv("HF_ENDPOINT", datasetHub(t, root))
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	t.Setenv("HF_HUB_OFFLINE", "0")
	t.Setenv("HF_TOKEN", "")
	ask := func(args ...string) (rep struct {
		Data    []map[string]string
		Results []map[string]any
	},
	) {
		t.Helper()
		code, stdout, stderr := exec(append([]string{"eval-tasks", tiny, "--device", "cpu", "--json"}, args...)...)
		if code != exitDone {
			t.Fatal(stderr)
		}
		if err := json.Unmarshal([]byte(stdout), &rep); err != nil {
			t.Fatal(err)
		}
		return rep
	}
	rep := ask("--tasks", "arc_easy,mmlu,mmlu_anatomy", "--shots", "1", "--limit", "2")
	file := filepath.Join(root, "allenai/ai2_arc/ARC-Easy/test/0000.parquet")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Data) != 6 || rep.Data[0]["repo"] != "allenai/ai2_arc" || rep.Data[0]["config"] != "ARC-Easy" || rep.Data[0]["split"] != "test" || rep.Data[1]["split"] != "train" ||
		rep.Data[0]["sha256"] != fmt.Sprintf("%x", sha256.Sum256(data)) || rep.Data[0]["commit"] != strings.Repeat("d", 40) {
		t.Errorf("the data is said to be %v", rep.Data)
	}
	if len(rep.Results) != 3 || rep.Results[1]["items"] != 6. || rep.Results[2]["items"] != 2. {
		t.Errorf("results are %v", rep.Results)
	}
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	again := ask("--tasks", "arc_easy", "--shots", "1", "--limit", "2", "--offline")
	local := ask("--tasks", "arc_easy="+file, "--shots", "1", "--limit", "2", "--shots-from", filepath.Join(root, "allenai/ai2_arc/ARC-Easy/train/0000.parquet"))
	if len(local.Data) > 0 {
		t.Errorf("a file is said to be %v", local.Data)
	}
	for _, key := range []string{"accuracy", "accuracy_norm", "items", "shots"} {
		if a, b, c := rep.Results[0][key], again.Results[0][key], local.Results[0][key]; a != b || a != c || a == nil {
			t.Errorf("%s: %v by name, %v offline, %v from the file", key, a, b, c)
		}
	}
	_, stdout, _ := exec("eval-tasks", tiny, "--device", "cpu", "--tasks", "arc_easy", "--offline")
	if want := "arc_easy: allenai/ai2_arc (ARC-Easy, test) at dddddddddddd, sha256 "; !strings.Contains(stdout, want) {
		t.Errorf("the report does not tell %q:\n%s", want, stdout)
	}
	for args, want := range map[string]string{
		"piqa":           "lutq: baber/piqa: its list of files: dial tcp 127.0.0.1:1",
		"piqa --offline": "lutq: baber/piqa (default, validation): is not in the cache, and nothing is downloaded offline\nhint: ",
		"arc_hard":       "lutq: task arc_hard: it is no file, and none of arc_challenge, arc_easy",
	} {
		code, _, stderr := exec(append([]string{"eval-tasks", tiny, "--tasks"}, strings.Fields(args)...)...)
		if code != exitFailed || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") > 2 {
			t.Errorf("%s: exit code %d\n%swant %q", args, code, stderr, want)
		}
	}
}
