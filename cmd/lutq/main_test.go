package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

func TestMain(m *testing.M) {
	if os.Getenv("HF_HUB_OFFLINE") == "" {
		os.Setenv("HF_HUB_OFFLINE", "1") // tests have no network, but for one of their own
	}
	testscript.Main(m, map[string]func(){"lutq": main})
}

func TestScripts(t *testing.T) {
	data, err := filepath.Abs("../../calib/testdata")
	if err != nil {
		t.Fatal(err)
	}
	formats, err := filepath.Abs("../../formats")
	if err != nil {
		t.Fatal(err)
	}
	sources := t.TempDir()
	for _, g := range archtest.Goldens(t) {
		if strings.HasSuffix(g.Name, "fp8") || strings.HasSuffix(g.Name, "mxfp4") {
			dir := filepath.Join(sources, g.Name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			g.Write(t, dir)
		}
	}
	shard(t, filepath.Join(data, "lutq-tiny"), filepath.Join(sources, "shards"))
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("HF_HUB_OFFLINE", "1") // scripts have no network
			e.Setenv("DATA", data)
			e.Setenv("SOURCES", sources)
			e.Setenv("FORMATS", formats)
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "gpu":
				_, err := driver.FirstGPU()
				return err == nil, nil
			case "cuda": // whether the program was built with it
				_, err := driver.Open(driver.Options{})
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
	})
}

// program returns lutq as a process of its own, which is killed where it does not end.
func program(t *testing.T, args ...string) *osexec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	c := osexec.CommandContext(ctx, "lutq", args...)
	c.WaitDelay = time.Second // for who else has its output open
	return c
}

// shard copies a model with a shard for each of its tensors.
func shard(t *testing.T, from, to string) {
	t.Helper()
	src, err := hf.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var entries []hf.Entry
	for _, x := range src.Tensors() {
		entries = append(entries, hf.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape})
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := hf.NewWriter(to, entries, hf.WriterOptions{MaxShardSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range src.Tensors() {
		if err := w.CopyTensor(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, name := range src.SideFiles() {
		if _, err := outdir.CopyFile(filepath.Join(to, name), filepath.Join(from, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHelp holds the help texts to the rules of the command line: every
// command has an example or a long text, and every flag a description.
func TestHelp(t *testing.T) {
	root := newRoot(nil, &bytes.Buffer{}, &bytes.Buffer{})
	for _, c := range root.Commands() {
		if c.Name() == "help" || c.Name() == "completion" || c.IsAdditionalHelpTopicCommand() {
			continue
		}
		if c.Short == "" || len(c.Long) < 100 {
			t.Errorf("%s has no long help", c.Name())
		}
		if c.Flags().Lookup("json") == nil {
			t.Errorf("%s has no --json", c.Name())
		}
	}
}

// TestSpellings has every command take the flags that scripts are written with.
func TestSpellings(t *testing.T) {
	root := newRoot(nil, &bytes.Buffer{}, &bytes.Buffer{})
	for command, flags := range map[string]string{
		"quantize":   "bits group codebook method scale scale-type tensor recipe calib calib-windows calib-ctx damp retarget device learn dry-run threads max-ram force eval-text json",
		"inspect":    "summary json",
		"verify":     "against quick json",
		"tokenize":   "text json",
		"repack":     "target force json",
		"bench":      "shapes bits group m dtype device act format selftest json limit cache decode tests batch against head-bits no-dense exact",
		"eval-ppl":   "text against protocol bos windows ctx device dtype act act-table format json",
		"report":     "text against to quantized protocol bos windows ctx device dtype json",
		"sweep":      "bits preset beside text against protocol bos windows ctx device dtype json",
		"doctor":     "json",
		"lmma":       "shape zeros seed format json",
		"dse":        "bits products entry-bits format json",
		"import":     "keep-dense force dry-run json",
		"chat":       "beside system ctx max-tokens temperature top-p top-k min-p seed stop device dtype act exact json",
		"generate":   "prompt file chat max-tokens temperature top-p top-k min-p seed stop device dtype act act-table exact json",
		"eval-tasks": "tasks shots limit seed agree device dtype format json",
	} {
		c, _, err := root.Find([]string{command})
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range strings.Fields(flags + " quiet") {
			if c.Flag(name) == nil {
				t.Errorf("%s has no --%s", command, name)
			}
		}
	}
}

// synthetic writes a checkpoint of random bf16 layers.
func synthetic(t *testing.T, layers, n, k int) string { return syntheticOf(t, layers, n, k, 1) }

// syntheticOf is synthetic with weights of a size.
func syntheticOf(t *testing.T, layers, n, k int, size float64) string {
	t.Helper()
	dir := t.TempDir()
	var entries []hf.Entry
	for i := range layers {
		entries = append(entries, hf.Entry{Name: fmt.Sprintf("model.layers.%d.mlp.down_proj.weight", i), DType: "BF16", Shape: []int{n, k}})
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{MaxShardSize: int64(layers) * int64(n) * int64(k)})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	values, data := make([]float32, n*k), make([]byte, 2*n*k)
	for _, e := range entries {
		for i := range values {
			values[i] = float32(size * rng.NormFloat64())
		}
		num.EncodeBF16(data, values)
		if err := w.WriteAt(e.Name, data, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestNarrowScales: scales that do not fit their type are told with the tensor's name and the type that holds them, and
// what is written holds against its source all the same.
func TestNarrowScales(t *testing.T) {
	for _, tc := range []struct {
		size float64
		args []string
		code int
		want string // of stderr
	}{
		{1e-9, nil, exitDone, "lutq: model.layers.0.mlp.down_proj: the scales of 8 of 8 rows do not fit f16\nhint: --scale-type bf16 holds such scales, or --tensor REGEX=::::bf16 for a tensor alone\n"},
		{1e-9, []string{"--scale-type", "bf16"}, exitDone, ""},
		{2e-39, nil, exitDone, "do not fit f16\nhint: --scale-type f32 holds"},
		{1e-9, []string{"--method", "bcq"}, exitDone, "hint: --scale-type bf16 holds"},
		{1e-9, []string{"--kbit-encode", "bnb"}, exitDone, "hint: no scale type holds such scales: --tensor REGEX=keep leaves"},
		{1e30, nil, exitFailed, "down_proj.weight: row 0: the scale of group 0 does not fit f16\nhint: --scale-type bf16 holds"},
		{1e30, []string{"--scale-type", "e4m3"}, exitFailed, "does not fit e4m4\nhint: --scale-type bf16 holds"},
		{1e30, []string{"--method", "bcq"}, exitFailed, "a factor of group 0 does not fit f16\nhint: --scale-type bf16 holds"},
	} {
		t.Run(fmt.Sprint(tc.size, tc.args), func(t *testing.T) {
			dir, out := syntheticOf(t, 1, 8, 64, tc.size), filepath.Join(t.TempDir(), "out")
			code, _, stderr := exec(append([]string{"quantize", "--preset", "fast", dir, out, "--quiet"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stderr, tc.want) || tc.want == "" && strings.Contains(stderr, "hint") {
				t.Errorf("exit code %d, want %d; stderr is\n%swant in it\n%s", code, tc.code, stderr, tc.want)
			}
			if strings.Contains(stderr, "more --bits") {
				t.Errorf("bits are no help here:\n%s", stderr)
			}
			if code != exitDone {
				return
			}
			if code, stdout, _ := exec("verify", out, "--against", dir, "--quiet"); code != exitDone {
				t.Errorf("verified with exit code %d: %s", code, stdout)
			}
		})
	}
}

// TestKill kills runs again and again until one finishes: its files must be
// those of a run left alone, and so must the files of one that was killed when
// they were in place. In the end nothing else may be left, and a folder of the
// user's that stands in the place of an old output must be as it was.
func TestKill(t *testing.T) {
	text, err := filepath.Abs("../../calib/testdata/harbour.txt")
	if err != nil {
		t.Fatal(err)
	}
	tiny, err := filepath.Abs("../../calib/testdata/lutq-tiny")
	if err != nil {
		t.Fatal(err)
	}
	random := synthetic(t, 24, 512, 1024)
	quantized := filepath.Join(t.TempDir(), "quantized")
	if code, _, stderr := exec("quantize", "--preset", "fast", random, quantized); code != 0 {
		t.Fatal(stderr)
	}
	h := hubServer(t, synthetic(t, 8, 256, 512))
	t.Setenv("HF_ENDPOINT", h.URL)
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	t.Setenv("HF_HUB_OFFLINE", "0")
	learning := []string{"quantize", tiny, "OUT", "--method", "nfl", "--calib", text, "--calib-windows", "12", "--calib-ctx", "64", "--valid-windows", "1", "--device", "cpu"}
	more := func(args []string, more ...string) []string { return append(args[:len(args):len(args)], more...) }
	for _, tc := range []struct {
		name string
		args []string
	}{
		{"rtn", []string{"quantize", random, "OUT", "--codebook", "jt"}},
		{"files from a hub", []string{"quantize", "org/tiny", "OUT", "--codebook", "jt", "--shards-from", "hub"}},
		{"learned", more(learning, "--bits", "3", "--learn-recode", "5")},
		{"learned as FLUTE does", more(learning, "--learn-mode", "flute")},
		{"the control of learning", more(learning, "--learn-control")},
		{"tiles", []string{"repack", quantized, "OUT", "--target", "cuda"}},
	} {
		t.Run(tc.name, func(t *testing.T) { killed(t, tc.args...) })
	}
}

// killed is TestKill for a command, which writes OUT.
func killed(t *testing.T, args ...string) {
	wantDir, dir := t.TempDir(), t.TempDir()
	want, out := filepath.Join(wantDir, "out"), filepath.Join(dir, "out")
	command := func(out string, more ...string) *osexec.Cmd {
		args := append(append([]string{}, args...), append(more, "--threads", "2", "--json")...)
		args[2] = out
		return program(t, args...)
	}
	run := func(out string, more ...string) {
		t.Helper()
		if text, err := command(out, more...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	begin := time.Now()
	run(want)
	whole := time.Since(begin)
	for _, d := range []string{wantDir, dir} {
		if err := os.WriteFile(filepath.Join(d, "out.replaced"), []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(uint64(begin.UnixNano()), 0))
	kills, finished := 0, false
	for tries := 0; !finished; tries++ {
		var more []string
		if _, err := os.Stat(out); err == nil {
			// Killed on its way out, or after it: it must be whole then, and is replaced.
			sameFolders(t, want, out)
			more = []string{"--force"}
		}
		c := command(out, more...)
		var stderr bytes.Buffer
		c.Stderr = &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		// Of a run's length a random part, which grows so that one gets through.
		limit := time.Duration(float64(whole) * (0.1 + 0.2*float64(tries)) * rng.Float64())
		timer := time.AfterFunc(limit, func() { _ = c.Process.Kill() })
		err := c.Wait()
		timer.Stop()
		switch {
		case err == nil:
			finished = true
		case !strings.Contains(err.Error(), "killed"):
			t.Fatalf("%v\n%s", err, stderr.String())
		default:
			kills++
		}
	}
	if kills == 0 {
		t.Skip("no run was slow enough to be killed")
	}
	t.Logf("killed %d times", kills)
	sameFolders(t, wantDir, dir)
	// An output that is replaced goes without a trace too.
	run(out, "--force")
	sameFolders(t, wantDir, dir)
}

// TestInterrupt sends signals to a run that would take hours: it ends with the
// code of an interrupted one and says how to go on, and the next run says that
// it does.
func TestInterrupt(t *testing.T) {
	args := []string{
		"quantize", tiny, filepath.Join(t.TempDir(), "out"), "--method", "nfl", "--calib", "../../calib/testdata/harbour.txt",
		"--calib-windows", "8", "--calib-ctx", "64", "--valid-windows", "0", "--learn-epochs", "100000", "--device", "cpu",
	}
	state := args[2] + ".partial/lutq-learning"
	for i, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		c := program(t, args...)
		var stderr bytes.Buffer
		c.Stderr = &stderr
		before, _ := os.Stat(state)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		// It has done something worth keeping when it has written that down.
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if now, err := os.Stat(state); err == nil && !os.SameFile(now, before) {
				break
			}
			if time.Now().After(deadline) {
				_ = c.Process.Kill()
				_ = c.Wait()
				t.Fatalf("nothing was learned; stderr:\n%s", stderr.String())
			}
		}
		if err := c.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait() // which fails with the code
		if code := c.ProcessState.ExitCode(); code != 130 {
			t.Errorf("%v: exit code %d, want 130", signal, code)
		}
		want := "lutq: interrupted\nhint: the same command goes on where this one stopped; " + args[2] + ".partial holds what is done\n"
		got := stderr.String()
		if !strings.HasSuffix(got, want) {
			t.Errorf("%v: stderr is\n%swant at its end\n%s", signal, got, want)
		}
		if on := "lutq: going on where learning stopped: "; i > 0 != strings.Contains(got, on) {
			t.Errorf("%v: stderr is\n%swant %q in it if something was learned before", signal, got, on)
		}
	}
}

func sameFolders(t *testing.T, want, got string) {
	t.Helper()
	if d, err := osexec.Command("diff", "-r", want, got).CombinedOutput(); err != nil {
		t.Fatalf("the folders differ: %v\n%s", err, d)
	}
}

// TestLearnMemory checks what a dry run says of learning's memory against a run
// that may take as much.
func TestLearnMemory(t *testing.T) {
	for _, tc := range []struct {
		method string
		args   []string
		most   float64 // of what is said, as a multiple of what is taken
	}{
		{"nfl", []string{"--calib-windows", "2", "--calib-ctx", "700", "--valid-windows", "1"}, 1.6},
		{"gptq", []string{"--calib-windows", "10", "--calib-ctx", "700"}, 2.2},
	} {
		t.Run(tc.method, func(t *testing.T) {
			quantize := func(args ...string) []byte {
				args = append([]string{
					"quantize", tiny, filepath.Join(t.TempDir(), "out"), "--json", "--quiet", "--method", tc.method, "--device", "cpu",
					"--calib", "../../calib/testdata/harbour.txt",
				}, append(tc.args, args...)...)
				out, err := program(t, args...).Output()
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			var said struct {
				Bytes int64 `json:"peak_ram_bytes"`
			}
			var took struct {
				Bytes int64 `json:"peak_rss_bytes"`
			}
			if err := json.Unmarshal(quantize("--dry-run"), &said); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(quantize("--max-ram", fmt.Sprint(said.Bytes)), &took); err != nil {
				t.Fatal(err)
			}
			if took.Bytes > said.Bytes || float64(said.Bytes) > tc.most*float64(took.Bytes) {
				t.Errorf("learning was to take %d bytes and took %d", said.Bytes, took.Bytes)
			}
		})
	}
}

// TestLeastMemory: the least that --max-ram may be is what a run takes, and a little.
func TestLeastMemory(t *testing.T) {
	args := []string{"quantize", "--preset", "fast", tiny, filepath.Join(t.TempDir(), "out"), "--json", "--quiet", "--max-ram"}
	code, _, stderr := exec(append(args, "30MB")...)
	said := regexp.MustCompile(`^lutq: 30.0 MB of memory are not enough: the program and a row of 384 weights take ([0-9.]+) MB\n$`).FindStringSubmatch(stderr)
	if code != exitFailed || said == nil {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	out, err := osexec.Command("lutq", append(args, said[1]+"MB")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var took struct {
		Bytes float64 `json:"peak_rss_bytes"`
	}
	if err := json.Unmarshal(out, &took); err != nil {
		t.Fatal(err)
	}
	need, err := strconv.ParseFloat(said[1], 64)
	// How much of the program's own file is in memory is the system's affair.
	if need *= 1e6; err != nil || took.Bytes > need || need > 2*took.Bytes {
		t.Errorf("a run was to take %g bytes and took %g, %v", need, took.Bytes, err)
	}
}
