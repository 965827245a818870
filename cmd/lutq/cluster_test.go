package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"
)

// clusterFlags make lutq-tiny's layers fast.
var clusterFlags = []string{"--bits", "4", "--preset", "fast", "--quiet"}

// checkSame holds an output made of parts against one process's, and what lies beside it against nothing.
func checkSame(t *testing.T, out string) {
	t.Helper()
	one := filepath.Join(t.TempDir(), "one")
	if code, _, stderr := exec(append([]string{"quantize", tiny, one}, clusterFlags...)...); code != 0 {
		t.Fatal(stderr)
	}
	files, err := os.ReadDir(one)
	if err != nil || len(files) < 5 {
		t.Fatalf("one process made %v, error %v", files, err)
	}
	for _, f := range files {
		want, err := os.ReadFile(filepath.Join(one, f.Name()))
		got, err2 := os.ReadFile(filepath.Join(out, f.Name()))
		if err != nil || err2 != nil || !bytes.Equal(want, got) {
			t.Errorf("%s is not one process's: errors %v, %v", f.Name(), err, err2)
		}
	}
	left, err := filepath.Glob(out + ".*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
}

// TestKubernetes runs what the containers of scripts/cluster/kubernetes.yaml would: the merge before the parts and after them,
// and parts in another order than that of their numbers.
func TestKubernetes(t *testing.T) {
	type job struct {
		Metadata struct{ Name string }
		Spec     struct {
			Completions, Parallelism int
			Template                 struct {
				Spec struct{ Containers []struct{ Args []string } }
			}
			PodFailurePolicy struct {
				Rules []struct {
					Action      string
					OnExitCodes struct {
						Operator string
						Values   []int
					} `yaml:"onExitCodes"`
				}
			} `yaml:"podFailurePolicy"`
		}
	}
	data, err := os.ReadFile(filepath.Join("..", "..", "scripts", "cluster", "kubernetes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	jobs := make(map[string]job)
	for d := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var j job
		if err := d.Decode(&j); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		jobs[j.Metadata.Name] = j
	}
	part, merge := jobs["lutq-part"], jobs["lutq-merge"]
	out := filepath.Join(t.TempDir(), "out")
	run := func(j job, index int) (code int, stderr string) {
		args := strings.Split(strings.NewReplacer("/data/model", tiny, "/data/out", out, "$(JOB_COMPLETION_INDEX)", strconv.Itoa(index)).
			Replace(strings.Join(j.Spec.Template.Spec.Containers[0].Args, "\n")), "\n")
		code, _, stderr = exec(args...)
		return code, stderr
	}
	if part.Spec.Completions != part.Spec.Parallelism || part.Spec.Completions < 2 {
		t.Fatalf("%d parts, %d at once", part.Spec.Completions, part.Spec.Parallelism)
	}
	ignored := merge.Spec.PodFailurePolicy.Rules[0]
	if code, stderr := run(merge, 0); ignored.Action != "Ignore" || ignored.OnExitCodes.Values[0] != code {
		t.Errorf("a merge of no parts has exit code %d, the Job ignores %v:\n%s", code, ignored, stderr)
	}
	for i := part.Spec.Completions - 1; i >= 0; i-- {
		if code, stderr := run(part, i); code != 0 {
			t.Fatalf("part %d: exit code %d\n%s", i, code, stderr)
		}
	}
	if code, stderr := run(merge, 0); code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	checkSame(t, out)
}

// TestPartsMixed: parts take the widths that a dry run mixes, and make what one process does that mixes them itself.
func TestPartsMixed(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join("..", "..", "calib", "testdata", "harbour.txt")
	fitted := []string{"--stream", "float", "--device", "cpu", "--calib", text, "--calib-windows", "4", "--calib-ctx", "64", "--quiet"}
	for name, flags := range map[string][]string{
		"rounded": {"--preset", "fast", "--quiet"},
		"fitted":  append([]string{"--preset", "good"}, fitted...),
	} {
		t.Run(name, func(t *testing.T) {
			at := func(file string) string { return filepath.Join(dir, name+"-"+file) }
			mix := append([]string{"quantize", tiny, at("one"), "--bits", "3.4"}, flags...)
			code, stdout, stderr := exec(append(mix, "--dry-run", "--json")...)
			var planned struct{ Recipe json.RawMessage }
			if err := json.Unmarshal([]byte(stdout), &planned); code != 0 || err != nil {
				t.Fatalf("%v\n%s", err, stderr)
			}
			if err := os.WriteFile(at("recipe"), planned.Recipe, 0o644); err != nil {
				t.Fatal(err)
			}
			if code, _, stderr := exec(mix...); code != 0 {
				t.Fatal(stderr)
			}
			for _, step := range []string{"--part 2/2", "--part 1/2", "--merge"} {
				args := append([]string{"quantize", tiny, at("out"), "--recipe", at("recipe")}, strings.Fields(step)...)
				if name == "fitted" {
					args = append(args, fitted...)
				}
				if code, _, stderr := exec(args...); code != 0 {
					t.Fatalf("%s: %s", step, stderr)
				}
			}
			sameFolders(t, at("one"), at("out"))
		})
	}
}

// fakeSbatch stands in for Slurm: it runs the tasks of an array, the last first, and what depends on them, at once.
const fakeSbatch = `#!/usr/bin/env bash
set -eu
array= depends= args=()
for a in "$@"; do
    case ${#args[@]}$a in
    0--array=1-*) array=${a#--array=1-} ;;
    0--dependency=afterany:7) depends=7 ;;
    0--parsable | 0--export=ALL | 0--output=* | 0--cpus-per-task=2) ;;
    0-*) echo "sbatch: $a" >&2; exit 1 ;;
    *) args+=("$a") ;;
    esac
done
export SLURM_CPUS_PER_TASK=2
if [ -n "$array" ]; then
    for ((i = array; i > 0; i--)); do SLURM_ARRAY_TASK_ID=$i bash "${args[@]}" >/dev/null; done
    echo 7
else
    [ -n "$depends" ]
    bash "${args[@]}" >/dev/null
    echo '8;cluster'
fi
`

// TestSlurm runs scripts/cluster/slurm.sh with a stand-in for sbatch.
func TestSlurm(t *testing.T) {
	if _, err := osexec.LookPath("bash"); err != nil {
		t.Skip("there is no bash")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sbatch"), []byte(fakeSbatch), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	t.Setenv("PARTS", "3")
	t.Setenv("SBATCH_ARGS", "--cpus-per-task=2")
	out := filepath.Join(dir, "out")
	script := filepath.Join("..", "..", "scripts", "cluster", "slurm.sh")
	said, err := osexec.CommandContext(t.Context(), "bash", append([]string{script, tiny, out}, clusterFlags...)...).CombinedOutput()
	if err != nil || string(said) != "array 7, merge 8\n" {
		t.Fatalf("%v:\n%s", err, said)
	}
	checkSame(t, out)
	if err := osexec.CommandContext(t.Context(), "bash", script, tiny, out).Run(); err == nil {
		t.Error("without flags there is no error")
	}
}

// TestKilledParts: processes that make parts of an output, one of them with a full disk, are killed at random and begun again,
// until all is there. What merges is killed too. scripts/soak.py does the same for longer.
func TestKilledParts(t *testing.T) {
	const workers, kills = 4, 6 // of each
	out := filepath.Join(t.TempDir(), "out")
	args := append([]string{"quantize", tiny, out, "--threads", "1"}, clusterFlags...)
	var killed atomic.Int32
	var group errgroup.Group
	for n := range workers {
		rng := rand.New(rand.NewPCG(uint64(n), 1))
		group.Go(func() error {
			for i := 0; ; i++ {
				c := program(t, append(args, "--part", strconv.Itoa(n)+"/"+strconv.Itoa(workers))...)
				if n == 0 && i < kills { // and is made when there is room
					c = osexec.CommandContext(t.Context(), "sh", append([]string{"-c", `ulimit -f 4 && exec lutq "$@"`, "lutq"}, append(args, "--part", "0/4")...)...)
				}
				var stderr bytes.Buffer
				c.Stderr = &stderr
				if err := c.Start(); err != nil {
					return err
				}
				if i < kills {
					time.AfterFunc(time.Duration(rng.IntN(150))*time.Millisecond, func() { c.Process.Kill() })
				}
				err := c.Wait()
				switch {
				case err == nil:
					return nil
				case c.ProcessState.ExitCode() == -1:
					killed.Add(1)
				case n > 0 || !strings.Contains(stderr.String(), "file too large"):
					return errors.New(stderr.String())
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if killed.Load() == 0 {
		t.Error("nothing was killed")
	}
	merge := program(t, append(args, "--merge")...)
	if err := merge.Start(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(60*time.Millisecond, func() { merge.Process.Kill() })
	if merge.Wait() != nil { // else it was quick
		if code, _, stderr := exec(append(args, "--merge")...); code != 0 {
			t.Fatal(stderr)
		}
	}
	checkSame(t, out)
}
