package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// refusedUsage runs a command line in an empty folder, where no model is: that a
// mistake in it is told before anything is read. It returns the message.
func refusedUsage(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := exec(args...)
	checkRefused(t, exitUsage, code, stderr)
	if stdout != "" {
		t.Errorf("printed:\n%s", stdout)
	}
	if files := tree(t, "."); len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
	return stderr
}

// TestFlagValues gives every flag of every command values that its kind has no use
// for.
func TestFlagValues(t *testing.T) {
	t.Chdir(t.TempDir())
	nonsense := map[string][]string{
		"bool":        {"maybe", ""},
		"int":         {"x", "-3", "1e3", ""},
		"width":       {"x", "-3", "1e3", "0", "8.5", "2.x", ".5", ""},
		"part":        {"x", "3", "3/2", "-1/2", "1/0", "1/x", "1/2/3", "1/99999", ""},
		"uint64":      {"x", "-3", ""},
		"float64":     {"x", "-3", ""},
		"SIZE":        {"lots", "-3", "0", "1 XB", ""},
		"NAME":        {"nosuch", "file:", ""},
		"duration":    {"nosuch", "30", "-1s", ""},
		"string":      {""},
		"stringArray": {""},
		"stringSlice": {""},
		"LIST":        {"x", "-1", "0,0", "0,", ""},
	}
	root := newRoot(nil, &bytes.Buffer{}, &bytes.Buffer{})
	for _, c := range root.Commands() {
		positional := map[string][]string{
			"quantize": {"none", "out"}, "doctor": nil, "dse": nil, "help": nil, "completion": {"bash"}, "environment": nil, "formats": nil, "learning": nil, "timing": nil,
		}
		args, ok := positional[c.Name()]
		if !ok {
			args = []string{"none"}
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			values, ok := nonsense[f.Value.Type()]
			if !ok {
				t.Errorf("%s --%s takes values of type %s, of which there are none here", c.Name(), f.Name, f.Value.Type())
			}
			for _, v := range values {
				line := append([]string{c.Name(), "--" + f.Name + "=" + v}, args...)
				t.Run(strings.Join(line[:2], " "), func(t *testing.T) { refusedUsage(t, line...) })
			}
		})
	}
}

func TestUsageErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, tc := range []struct{ line, want string }{
		{"quantise none out", `lutq: unknown command "quantise"` + "\nhint: did you mean quantize?\n"},
		{"xyzzy", "hint: lutq help lists the commands"},
		{"help quantise", "did you mean quantize?"},
		{"help nosuch", `unknown command "nosuch"`},
		{"help quantize bench", "usage: lutq help"},
		{"help quantize --man man", "--man writes all pages"},
		{"quantize none out --all", "lutq: --all goes with --help\n"},
		{"completion bsh", "did you mean bash?"},
		{"completion", "accepts 1 arg"},
		{"doctor now", "doctor"},
		{"--color", "unknown flag --color"},
		{"-x", "unknown shorthand flag"},

		{"quantize none", "usage: lutq quantize MODEL OUT"},
		{"quantize none out third", "accepts 2 arg"},
		{"quantize EMPTY out", "quantize: an argument is empty"},
		{"quantize none EMPTY", "quantize: an argument is empty"},
		{"quantize none out --bit 3", "lutq: unknown flag --bit\nhint: did you mean --bits?\n"},
		{"quantize none out --bits 9", `lutq: --bits "9": want a number, 1 to 8, or half a bit more`},
		{"quantize none out --bits 2.5 --mix=false", "--bits 2.5 is a mean of widths, which --mix=false leaves alike: name a width"},
		{"quantize none out --bits 3.5 --method bcq", "3.5 bits: weights of kind bcq have whole ones"},
		{"quantize none out --bits 7 --codebook trellis", "7 bits a weight: codebook trellis has 1 to 6"},
		{"quantize none out --codebook trellis --group 64", "weights of kind trellis have one scale a row: no group of 64"},
		{"quantize none out --codebook trellis --scale mse", "--scale is not read by method rtn: it is for weights of kind lut or weights of kind lut24"},
		{"quantize none out --codebook trellis --method bcq", "method bcq makes no weights of kind trellis"},
		{"quantize none out --codebook trellis --scale-type e4m4", "scale type is e4m4: want f16, bf16, f32"},
		{"quantize none out --codebook trellis --for gguf", "--for gguf: it has no place for rings"},
		{"quantize none out --tensor down_proj=2.5:::::lut", "2.5 bits: weights of kind lut have whole ones"},
		{"quantize none out --tensor down_proj=2.5", "2.5 bits: weights of kind lut have whole ones"},
		{"quantize none out --bits 0", "1 to 8"},
		{"quantize none out --embed-bits 7", `lutq: --embed-bits "7": want 2 to 6, or 16, which leaves them as they are`},
		{"quantize none out --bits 7", "preset good has no codes of 7 bits"},
		{"quantize none out --bits 6 --method rtn", "bits is 6: want 2 to 5"},
		{"quantize none out --kbit-encode bnb --method rtn", "lutq: --kbit-encode is a method of its own: without --method and --learn\n"},
		{"quantize none out --kbit-encode bnb --learn --calib none", "lutq: --kbit-encode is a method of its own: without --method and --learn\n"},
		{"quantize none out --kbit-encode bnb --group 64", "lutq: method bnb-kbit makes 4:32:kbit:absmax:e4m4:lut:bnb-kbit: not 4:64:kbit:absmax:e4m4:lut:bnb-kbit\n"},
		{"quantize none out --bits 3 --method bcq --scale-type e4m4", "scale type is e4m4: want f16, bf16, f32"},
		{"quantize none out --method bcq --codebook nf", "--codebook is not read by method bcq: it is for weights of kind lut, weights of kind lut24 or weights of kind trellis"},
		{"quantize none out --method bcq --tensor down=3:64:nf", "weights of kind bcq have neither"},
		{"quantize none out --tensor down=:::mse::bcq", "weights of kind bcq have neither"},
		{"quantize none out --tensor down=:::::zip", `unknown kind "zip" of weights: want lut, bcq, lut24 or trellis`},
		{"quantize none out --bcq-rounds 3", "--bcq-rounds is not read by method rtn: it is for weights of kind bcq"},
		{"quantize none out --bits", "flag needs an argument: --bits"},
		{"quantize none out --codebook nf5", "lutq: --codebook \"nf5\": want auto, trellis, mul1, mcg, 3inst, nf, int, fp, kbit, jt, js, q2, q3, q4, q5, sym, iq4nl, e2m1 or file:…\nhint: did you mean nf?\n"},
		{"quantize none out --codebook q4 --bits 3", "lutq: codebook q4 has 4 bits, not 3\n"},
		{"quantize none out --codebook e2m1 --bits 5", "codebook e2m1 has 4 bits, not 5"},
		{"quantize none out --codebook q6", "did you mean q2?"},
		{"quantize none out --tensor down=5::q4", `rule "down=5::q4": codebook q4 has 4 bits, not 5`},
		{"quantize none out --method bcq --scale-type e8m0", "scale type is e8m0: want f16, bf16, f32"},
		{"quantize none out --scale mes", "did you mean mse?"},
		{"quantize none out --method ntl", "did you mean nfl?"},
		{"quantize none out --scale-type f8", "want f16, bf16"},
		{"quantize none out --group 48", "32, 64, 128, 256 or row"},
		{"quantize none out --max-ram lots", "want a number with kB"},
		{"quantize none out --tensor down", "want REGEX="},
		{"quantize none out --tensor (=3", "missing closing"},
		{"quantize none out --tensor down=6", `rule "down=6": bits is 6: want 2 to 5`},
		{"quantize none out --tensor down=0", `bits "0"`},
		{"quantize none out --tensor down=4:64:nf4", `unknown codebook "nf4"`},
		{"quantize none out --tensor down=4:64:nf:max", `unknown scale method "max"`},
		{"quantize none out --tensor down=4:64:nf:mse:f8", `unknown scale type "f8"`},
		{"quantize none out --tensor down=3 --recipe none.json --tensor up=9", "9 bits"},
		{"quantize none out --method nfl --codebook js --calib none", "method nfl is for the codebook nf"},
		{"quantize none out --method rtn --calib none", "--calib is not read by method rtn: it is for gptq, wanda, sparsegpt, nfl, --learn or --transform"},
		{"quantize none out --learn --calib none --learn-params bf16", "--learn-mode flute"},
		{"quantize none out --learn --calib none --learn-table --learn-mode flute", "--learn-mode lutq"},
		{"quantize none out --learn --calib none --learn-rate 1", "--learn-rate"},
		{"quantize none out --learn --calib a --calib b --calib-windows 1", "2 texts need as many windows"},
		{"quantize none out --learn --calib none --learn-control --eval-text t", "do not go together"},
		{"quantize none out --learn --calib none --learn-mode flote", "did you mean flute?"},

		{"inspect", "accepts 1 arg"},
		{"inspect EMPTY", "an argument is empty"},
		{"verify EMPTY", "an argument is empty"},
		{"verify none --against", "needs an argument"},
		{"tokenize EMPTY", "an argument is empty"},
		{"generate none", "generate: want one of --prompt, --file and - for the prompt"},
		{"generate none - --prompt x", "want one of"},
		{"generate none now", `"now" behind MODEL: want -`},
		{"generate none --prompt EMPTY", "--prompt is empty"},
		{"generate none --prompt x --top-k 3", "--top-k is for drawing tokens"},
		{"generate none --prompt x --temperature -1", "a temperature of -1: want 0 or more"},
		{"generate none --prompt x --temperature 1 --top-p 2", "top-p of 2: want 0 to 1"},
		{"generate none --prompt x --stop EMPTY", "--stop is empty"},
		{"generate none --prompt x --max-tokens 0", "--max-tokens"},
		{"chat", "usage: lutq chat MODEL"},
		{"chat none now", "accepts 1 arg"},
		{"chat none --beside EMPTY", "--beside is empty"},
		{"chat none --ctx 1", "2 to 16777216"},
		{"chat none --top-p .5", "chat: --top-p is for drawing tokens"},
		{"chat none --temperature -1", "a temperature of -1: want 0 or more"},
		{"chat none --head-bits 8", `--head-bits "8": want 2 to 5, or 16`},
		{"repack none EMPTY", "an argument is empty"},
		{"repack none --target cud", "did you mean cuda?"},
		{"eval-ppl none", "eval-ppl: --text names"},
		{"eval-ppl none EMPTY --text none", "an argument is empty"},
		{"eval-ppl none --text none --protocol rav", "did you mean raw?"},
		{"eval-ppl none --text none --bos middle", "want none, start or window"},
		{"eval-ppl none --text none --device cud", "did you mean cuda?"},
		{"eval-ppl none --text none --device cpu --dtype f16", "the cpu computes in f32"},
		{"eval-ppl none --text none --ctx 1", "3 to 16777216"},
		{"eval-tasks none", "eval-tasks: --tasks names what to ask"},
		{"eval-tasks none --agree none", "--agree is for two models and more"},
		{"eval-tasks none --tasks none --shots 5000", "want a whole number, 0 to 1000"},
		{"eval-tasks none --tasks none --json --format md", "do not go together"},
		{"bench", "give a model folder"},
		{"bench EMPTY", "an argument is empty"},
		{"dse --bits 9", `--bits "9": want a whole number, 1 to 8`},
		{"dse --bits 2,x", "want a whole number, 1 to 8"},
		{"dse --products 500", "tiles of 500 products: want a power of two"},
		{"dse --entry-bits 64", "want a whole number, 1 to 32"},
		{"dse --json --format csv", "do not go together"},
		{"lmma", "usage: lutq lmma INSTRUCTION"},
		{"lmma lmma.m2n64k3.f16.i2.f32.f16", "K is 3: want 2, 4 or 8"},
		{"lmma lmma.m2n64k4.f16.i2.f32.f16 --shape 4x4", "want MxNxK"},
		{"lmma lmma.m2n64k4.f16.i2.f32.f16 --shape 4x4x0", "whole numbers from 1"},
		{"lmma lmma.m2n64k4.f16.i2.f32.f16 --shape 4096x4096x4096", "want 1 to 16777216 multiplications"},
		{"lmma lmma.m2n64k4.f16.i2.f32.f16 --json --format csv", "do not go together"},
		{"eval-ppl none --text none --act-table int8:0", "--act-table: tables \"int8:0\": want fp16, or int8:T"},
		{"eval-ppl none --text none --act-table int8", "want none, fp16 or int8:…"},
		{"eval-ppl none --text none --act-table fp16 --device cuda", "--act-table is for the cpu"},
		{"generate none --prompt a --act-table fp16 --act fp8", "--act-table and --act fp8 do not go together"},
		{"eval-ppl none --text none --device cpu --prefill-cache on", "--prefill-cache on is for models on cuda"},
		{"eval-ppl none --text none --prefill-cache some", `want auto, on or off`},
		{"bench --shapes 64x64 --prefill-cache off", "--prefill-cache is for --decode"},
		{"generate none --prompt a --act-table int8:8 --head-bits 4", "--act-table takes equal steps"},
		{"dse none", "usage: lutq dse"},
		{"bench --shapes 64", "want NxK"},
		{"bench --shapes 64x-64", "want NxK"},
		{"bench --shapes 64x64 --bits 6", `--bits "6": want a whole number, 2 to 5`},
		{"bench --shapes 64x64 --m 0", "1 to 65536"},
		{"bench --shapes 64x64 --device cuda --dtype f32", "cuda multiplies in"},
		{"bench --shapes 64x64 --device cuda --blas lib", "--blas is for the cpu"},
		{"bench --shapes 64x64 --device cpu --dtype f16", "the cpu computes in f32"},
		{"bench --shapes 64x64 --json --format csv", "do not go together"},
		{"bench none --selftest", "--selftest takes no model"},
		{"bench --decode", "--decode takes a model folder or a config.json"},
		{"bench none --decode --tests tg", `--tests: test "tg": want ppN, tgN or evalN`},
		{"bench none --decode --batch 0", `--batch "0": want a whole number, 1 to 4096`},
		{"bench none --decode --head-bits 8", `--head-bits "8": want 2 to 5, or 16`},
		{"bench none --decode --m 3", "--decode and --m do not go together"},
		{"bench none --decode --shapes 64x64", "do not go together"},
		{"bench none --decode --no-dense --against none", "--no-dense and --against do not go together"},
		{"bench none --batch 3", "--batch is for --decode"},
		{"bench --shapes 64x64 --kind bcq --bits 9", `--bits "9": want a whole number, 1 to 8`},
		{"bench none --kind bcq", "--kind is for the random weights of --shapes, and trellis for those of --decode"},
		{"bench --selftest --shapes 64x64", "--selftest and --shapes"},
		{"bench --selftest=half", "want all, sources or a share as 3/4"},
		{"bench --selftest=5/4", "want all, sources or a share as 3/4"},
		{"bench --selftest=1/4x", "want all, sources or a share as 3/4"},
		{"bench --summary", "give model folders, config.json files or --shapes"},
		{"bench --summary --shapes 64x64 --sustain 1s", "--summary and --sustain"},
		{"bench --summary --shapes 64x64 --energy", "--summary and --energy"},
		{"bench --selftest --energy", "--selftest and --energy"},
		{"bench --shapes 64x64 --device cpu --energy", "--energy is for cuda"},
		{"bench none --decode --device cpu --energy", "--energy is for cuda"},
	} {
		t.Run(tc.line, func(t *testing.T) {
			args := strings.Fields(tc.line)
			for i := range args {
				if args[i] == "EMPTY" {
					args[i] = ""
				}
			}
			if got := refusedUsage(t, args...); !strings.Contains(got, tc.want) {
				t.Errorf("the message does not say %q:\n%s", tc.want, got)
			}
		})
	}
}

func TestSuggestion(t *testing.T) {
	names := []string{"bench", "completion", "quantize", "eval-ppl", "js", "nf", "raw", "--bits", "--threads"}
	for _, tc := range []struct{ given, want string }{
		{"quantise", "quantize"},
		{"QUANTIZE", "quantize"},
		{"qunatize", "quantize"},
		{"quant", "quantize"},
		{"eval", "eval-ppl"},
		{"nf4", "nf"},
		{"rwa", "raw"},
		{"--bit", "--bits"},
		{"--thread", "--threads"},
		{"--nthreads", "--threads"},
		{"xyz", ""},
		{"q", ""},
		{"--x", ""},
		{"", ""},
		{"--", ""},
		{"completely other", ""},
	} {
		want := tc.want
		if want != "" {
			want = "did you mean " + want + "?"
		}
		if got := suggestion(tc.given, names); got != want {
			t.Errorf("%q: got %q, want %q", tc.given, got, want)
		}
	}
	for _, tc := range []struct {
		a, b string
		want int
	}{{"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"Same", "same", 0}} {
		if got := distance(tc.a, tc.b); got != tc.want {
			t.Errorf("%q to %q: got %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}

// TestComplete asks for completions as a shell's script does, which then takes those
// that begin like the word.
func TestComplete(t *testing.T) {
	for _, tc := range []struct {
		line string // the last word is begun
		want []string
		then cobra.ShellCompDirective
	}{
		{"quantize --codebook ", []string{"auto", "trellis", "mul1", "mcg", "3inst", "nf", "int", "fp", "kbit", "jt", "js", "q2", "q3", "q4", "q5", "sym", "iq4nl", "e2m1"}, cobra.ShellCompDirectiveNoFileComp},
		{"quantize --scale ", []string{"absmax", "mse"}, cobra.ShellCompDirectiveNoFileComp},
		{"quantize --scale-type ", []string{"f16", "bf16", "f32", "e4m4", "s1e4m3", "e8m0", "e4m3"}, cobra.ShellCompDirectiveNoFileComp},
		{"quantize --method ", []string{"rtn", "nfl", "gptq", "bcq", "bnb-kbit", "magnitude", "wanda", "sparsegpt"}, cobra.ShellCompDirectiveNoFileComp},
		{"quantize --bits ", nil, cobra.ShellCompDirectiveNoFileComp},
		{"quantize --recipe ", nil, cobra.ShellCompDirectiveDefault},
		{"quantize --calib ", nil, cobra.ShellCompDirectiveDefault},
		{"quantize ", nil, cobra.ShellCompDirectiveFilterDirs},
		{"quantize in ", nil, cobra.ShellCompDirectiveFilterDirs},
		{"quantize in out ", nil, cobra.ShellCompDirectiveNoFileComp},
		{"eval-ppl --text ", nil, cobra.ShellCompDirectiveDefault},
		{"eval-ppl --against ", nil, cobra.ShellCompDirectiveFilterDirs},
		{"eval-ppl --protocol ", []string{"raw", "gptq", "llama.cpp"}, cobra.ShellCompDirectiveNoFileComp},
		{"eval-ppl a b ", nil, cobra.ShellCompDirectiveFilterDirs},
		{"bench --device ", []string{"auto", "cpu", "cuda"}, cobra.ShellCompDirectiveNoFileComp},
		{"bench --format ", []string{"table", "md", "json", "csv"}, cobra.ShellCompDirectiveNoFileComp},
		{"bench ", nil, cobra.ShellCompDirectiveDefault},
		{"chat ", nil, cobra.ShellCompDirectiveFilterDirs},
		{"chat --beside ", nil, cobra.ShellCompDirectiveFilterDirs},
		{"generate ", nil, cobra.ShellCompDirectiveFilterDirs},
		{"generate --file ", nil, cobra.ShellCompDirectiveDefault},
		{"repack --target ", []string{"cpu", "cuda", "torch", "marlin", "marlin24", "kbit", "kbit-tiled", "lutgemm"}, cobra.ShellCompDirectiveNoFileComp},
		{"tokenize ", nil, cobra.ShellCompDirectiveDefault},
		{"completion ", []string{"bash", "zsh", "fish", "powershell"}, cobra.ShellCompDirectiveNoFileComp},
		{"help ", []string{"bench", "chat", "cluster", "completion", "decode", "doctor", "dse", "environment", "eval-ppl", "eval-tasks", "export", "formats", "fp8", "generate", "help", "import", "inspect", "layouts", "learning", "lmma", "methods", "mixing", "names", "presets", "quantize", "repack", "report", "research", "sparse", "sweep", "tables", "timing", "tokenize", "verify"}, cobra.ShellCompDirectiveNoFileComp},
		{"help --man ", nil, cobra.ShellCompDirectiveFilterDirs},
		{"ver", []string{"verify"}, cobra.ShellCompDirectiveNoFileComp},
	} {
		t.Run(tc.line, func(t *testing.T) {
			code, stdout, _ := exec(append([]string{"__completeNoDesc"}, strings.Split(tc.line, " ")...)...)
			lines := strings.Fields(stdout)
			if code != 0 || len(lines) == 0 {
				t.Fatalf("exit code %d, %q", code, stdout)
			}
			last := len(lines) - 1
			if got := lines[:last]; !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if got, want := lines[last], ":"+string('0'+rune(tc.then)); tc.then < 10 && got != want || tc.then >= 10 && got != ":16" {
				t.Errorf("then %s, want %d", got, tc.then)
			}
		})
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, stderr := exec("completion", shell); code != 0 || !strings.Contains(stdout, "__complete") {
			t.Errorf("%s: exit code %d\n%s%s", shell, code, stdout, stderr)
		}
	}
}

// full is a device that has no room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, os.ErrClosed }

// TestFullOutput: whatever prints and cannot fails, with a line.
func TestFullOutput(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	if code, _, stderr := exec("quantize", "--preset", "fast", tiny, out); code != 0 {
		t.Fatal(stderr)
	}
	text := "testdata/script/usage.txt"
	for _, args := range [][]string{
		{},
		{"--help"},
		{"help"},
		{"help", "environment"},
		{"help", "learning"},
		{"help", "timing"},
		{"quantize", "--help"},
		{"quantize", "--help", "--all"},
		{"--version"},
		{"completion", "bash"},
		{"completion", "fish"},
		{"inspect", out},
		{"inspect", out, "--json"},
		{"verify", out},
		{"verify", out, "--json"},
		{"quantize", "--preset", "fast", tiny, out + "2", "--dry-run"},
		{"quantize", "--preset", "fast", tiny, out + "3"},
		{"quantize", "--preset", "fast", tiny, out + "4", "--json"},
		{"tokenize", tiny, "--text", text},
		{"tokenize", tiny, "--text", text, "--json"},
		{"generate", tiny, "--prompt", "Once", "--max-tokens", "4", "--device", "cpu", "--quiet"},
		{"generate", tiny, "--prompt", "Once", "--max-tokens", "4", "--device", "cpu", "--json"},
		{"inspect", out, "--summary"},
		{"eval-ppl", tiny, "--text", "../../calib/testdata/harbour.txt", "--ctx", "64", "--windows", "1", "--device", "cpu", "--format", "csv"},
		{"doctor"},
		{"dse"},
		{"lmma", "lmma.m2n64k4.f16.i2.f32.f16", "--shape", "1x2x3"},
		{"lmma", "lmma.m2n64k4.f16.i2.f32.f16", "--shape", "1x2x3", "--format", "csv"},
		{"dse", "--format", "csv"},
		{"dse", "--format", "svg"},
		{"repack", out, filepath.Join(t.TempDir(), "tiles")},
		{"eval-ppl", tiny, "--text", "../../calib/testdata/harbour.txt", "--ctx", "64", "--windows", "1", "--device", "cpu"},
		{"bench", "--device", "cpu", "--shapes", "16x32", "--m", "1", "--format", "md", "--quiet", "--cache", "1MB", "--time", "10ms"},
		{"bench", tiny, "--decode", "--device", "cpu", "--tests", "tg2", "--quiet", "--cache", "1MB"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			var stderr bytes.Buffer
			code := run(args, strings.NewReader(""), full{}, &stderr)
			checkRefused(t, exitFailed, code, stderr.String())
		})
	}
}
