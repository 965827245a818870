package tasks

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	diff "github.com/google/go-cmp/cmp"
)

// fromTestdata fetches splits of data sets in the layout of the hub that scripts/tasks_hub.py wrote.
func fromTestdata(_ context.Context, s Split) ([]string, string, error) {
	dir := filepath.Join("testdata", "hub", filepath.FromSlash(s.Repo), cmp.Or(s.Config, "default"), s.Name)
	files, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
	if err == nil && files == nil {
		err = &fs.PathError{Op: "find", Path: dir, Err: fs.ErrNotExist}
	}
	return files, strings.Repeat("c", 40), err
}

// requestsOf returns the requests of a task.
func requestsOf(t *Task) (all [][][2]string) {
	for _, item := range t.Items {
		var requests [][2]string
		for _, r := range item.Requests {
			requests = append(requests, [2]string{r.Context, r.Continuation})
		}
		all = append(all, requests)
	}
	return all
}

func readAsked(t *testing.T) (golden map[string]map[string][][][2]string) {
	t.Helper()
	data, err := os.ReadFile("testdata/hub/asked.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	return golden
}

// TestHub: of data by its name a known task asks what lm-evaluation-harness asks of the same files, with examples and without.
func TestHub(t *testing.T) {
	golden := readAsked(t)
	joined := make(map[string][][][2]string)
	subjects := 0
	for name, byShots := range golden {
		for shots, want := range byShots {
			n, err := strconv.Atoi(shots)
			if err != nil {
				t.Fatal(err)
			}
			task, err := Load(t.Context(), Source{Spec: name}, Options{Seed: 1234, Shots: &n, Fetch: fromTestdata})
			if err != nil {
				t.Fatal(err)
			}
			if d := diff.Diff(want, requestsOf(task)); d != "" {
				t.Errorf("%s with %s examples (-lm_eval +here):\n%.2000s", name, shots, d)
			}
			if len(task.Origins) != 1+min(n, 1) {
				t.Errorf("%s is of %v", name, task.Origins)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(golden)) {
		if strings.HasPrefix(name, mmlu+"_") {
			subjects++
			for shots, want := range golden[name] {
				joined[shots] = append(joined[shots], want...)
			}
		}
	}
	for _, name := range Names() {
		if name != mmlu && golden[name] == nil {
			t.Errorf("%s is not held against anything", name)
		}
	}
	for shots, want := range joined { // the subjects, each with its own examples
		n, _ := strconv.Atoi(shots)
		task, err := Load(t.Context(), Source{Spec: mmlu}, Options{Seed: 1234, Shots: &n, Fetch: fromTestdata})
		if err != nil {
			t.Fatal(err)
		}
		if d := diff.Diff(want, requestsOf(task)); d != "" {
			t.Errorf("mmlu with %s examples (-lm_eval +here):\n%.2000s", shots, d)
		}
		some, err := Load(t.Context(), Source{Spec: mmlu}, Options{Seed: 1234, Shots: &n, Limit: 1, Fetch: fromTestdata})
		if err != nil || len(some.Items) != subjects {
			t.Errorf("one of each of %d subjects are %d, %v", subjects, len(some.Items), err)
		}
	}
}

// TestHubOrigin: a task says which data it is of, and a task file that names a data set has its data from there too.
func TestHubOrigin(t *testing.T) {
	form := write(t, "mine.yaml", "task: mine\ndataset_path: baber/piqa\noutput_type: multiple_choice\nvalidation_split: validation\ndoc_to_text: goal\ndoc_to_choice: \"{{[sol1, sol2]}}\"\ndoc_to_target: label\n")
	task, err := Load(t.Context(), Source{Spec: form}, Options{Fetch: fromTestdata})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("testdata/hub/baber/piqa/default/validation/0000.parquet")
	if err != nil {
		t.Fatal(err)
	}
	want := []Origin{{Split{Repo: "baber/piqa", Name: "validation"}, strings.Repeat("c", 40), sha256Of(data)}}
	if d := diff.Diff(want, task.Origins); d != "" || len(task.Items) == 0 {
		t.Error(d)
	}
	if got, want := task.Origins[0].String(), "baber/piqa (validation) at cccccccccccc, sha256 "+sha256Of(data)[:16]+"…"; got != want {
		t.Errorf("it is told as %q, want %q", got, want)
	}
	// The same file by its path, as data of the user's own.
	local, err := Load(t.Context(), Source{Spec: "piqa", Data: "testdata/hub/baber/piqa/default/validation/0000.parquet"}, Options{Fetch: fromTestdata})
	if err != nil || local.Origins != nil || len(local.Items) != len(task.Items) {
		t.Errorf("%v, %v", local, err)
	}
}

// TestHubErrors: what is wrong with data from a hub is one line.
func TestHubErrors(t *testing.T) {
	other := func(path string) Fetcher {
		return func(context.Context, Split) ([]string, string, error) { return []string{path}, "", nil }
	}
	failed := errors.New("no network")
	for _, tc := range []struct {
		task, want string
		fetch      Fetcher
	}{
		{"arc_easy", "this program has its form and not its data: give it as arc_easy=FILE.jsonl", nil},
		{"arc_easy", "no network", func(context.Context, Split) ([]string, string, error) { return nil, "", failed }},
		{"arc_easy", "0000.parquet: there is no column question: it has goal, sol1, sol2, label", other("testdata/hub/baber/piqa/default/train/0000.parquet")},
		{"arc_easy", "it is no Parquet file", other(write(t, "x.parquet", "not a table at all"))},
		{"arc_other", "task arc_other: it is no file, and none of arc_challenge, arc_easy, boolq", fromTestdata},
		{"mmlu_witchcraft", "file does not exist", fromTestdata},
	} {
		_, err := Load(t.Context(), Source{Spec: tc.task}, Options{Fetch: tc.fetch})
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", tc.task, err, tc.want)
		}
	}
}

func sha256Of(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
