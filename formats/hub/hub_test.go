package hub

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	commitA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	secret  = "hf_secret"
)

// repoFiles is a model in two shards, among files that are not needed.
func repoFiles() map[string]string {
	files := map[string]string{
		"config.json":                  `{"model_type": "llama"}`,
		"generation_config.json":       `{}`,
		"tokenizer.json":               `{"model": {}}`,
		"tokenizer_config.json":        `{}`,
		"chat_template.jinja":          `{{ messages }}`,
		"modeling_own.py":              "x = 1\n",
		"README.md":                    "---\nlicense: mit\n---\n",
		"model.safetensors.index.json": `{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}`,

		"model-00001-of-00002.safetensors": strings.Repeat("first shard ", 100_000),
		"model-00002-of-00002.safetensors": strings.Repeat("second ", 30_000),

		"additional_chat_templates/tools.jinja": `{{ tools }}`,
	}
	for _, name := range []string{
		"pytorch_model.bin", "pytorch_model.bin.index.json", "onnx/model.onnx", "original/consolidated.safetensors", "consolidated.safetensors",
		"model-q4.gguf", "tf_model.h5", "original/params.json", "training_args.bin", "model.fp16.safetensors", ".gitattributes",
	} {
		files[name] = "not needed"
	}
	return files
}

// needed are the names of those that are.
func needed(files map[string]string) map[string]string {
	all := make(map[string]string)
	for name, text := range files {
		if text != "not needed" {
			all[name] = text
		}
	}
	return all
}

func isLarge(name string) bool { return strings.HasSuffix(name, ".safetensors") }

func sumOf(name, text string) string {
	if isLarge(name) {
		s := sha256.Sum256([]byte(text))
		return hex.EncodeToString(s[:])
	}
	s := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text))
	return hex.EncodeToString(s[:])
}

// server is a hub with one model, org/name. Large files are on another host, as the hub has them.
type server struct {
	*httptest.Server
	cdn   *httptest.Server
	files map[string]string
	// The answers that are not as they should be; nil, or false, is for those that are.
	api  func(w http.ResponseWriter, r *http.Request) bool
	file func(w http.ResponseWriter, r *http.Request, name string, try int) bool // of the last server
	bare bool                                                                    // the list has neither sizes nor hashes

	mu    sync.Mutex
	calls []string
	tries map[string]int
	leaks []string // requests to the other host with a token
}

func newServer(t *testing.T) *server {
	s := &server{files: repoFiles(), tries: make(map[string]int)}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	s.cdn = httptest.NewServer(http.HandlerFunc(s.serveCDN))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.cdn.CloseClientConnections()
		s.Close()
		s.cdn.Close()
		if len(s.leaks) > 0 {
			t.Errorf("the token went to another host with %v", s.leaks)
		}
	})
	return s
}

func (s *server) list() []byte {
	var siblings []map[string]any
	for name, text := range s.files {
		f := map[string]any{"rfilename": name}
		if !s.bare {
			f["size"] = len(text)
			f["blobId"] = strings.Repeat("0", 40)
			if isLarge(name) {
				f["lfs"] = map[string]any{"sha256": sumOf(name, text), "size": len(text), "pointerSize": 134}
			} else {
				f["blobId"] = sumOf(name, text)
			}
		}
		siblings = append(siblings, f)
	}
	data, _ := json.Marshal(map[string]any{"id": "org/name", "sha": commitA, "gated": false, "siblings": siblings}) // strings and numbers
	return data
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.calls = append(s.calls, r.Method+" "+r.URL.EscapedPath())
	s.mu.Unlock()
	if strings.HasPrefix(r.URL.Path, "/api/") {
		if s.api != nil && s.api(w, r) {
			return
		}
		rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api/models/org/name/revision/")
		if !ok || rest != "main" && rest != commitA && rest != "refs%2Fpr%2F1" {
			w.Header().Set("X-Error-Code", "RepoNotFound")
			if ok {
				w.Header().Set("X-Error-Code", "RevisionNotFound")
			}
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Write(s.list())
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/org/name/resolve/"+commitA+"/")
	text, there := s.files[name]
	if !ok || !there {
		w.Header().Set("X-Error-Code", "EntryNotFound")
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if isLarge(name) {
		w.Header().Set("X-Linked-Etag", `"`+sumOf(name, text)+`"`)
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(text)))
		http.Redirect(w, r, s.cdn.URL+"/"+name+"?signature=x", http.StatusFound)
		return
	}
	s.send(w, r, name)
}

func (s *server) serveCDN(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		s.mu.Lock()
		s.leaks = append(s.leaks, r.URL.Path)
		s.mu.Unlock()
	}
	s.send(w, r, strings.TrimPrefix(r.URL.Path, "/"))
}

func (s *server) send(w http.ResponseWriter, r *http.Request, name string) {
	s.mu.Lock()
	s.tries[name]++
	try := s.tries[name]
	s.mu.Unlock()
	if s.file != nil && s.file(w, r, name, try) {
		return
	}
	w.Header().Set("ETag", `W/"`+sumOf(name, s.files[name])+`"`)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(s.files[name]))
}

// options are those of a server, with an empty cache.
func (s *server) options(t *testing.T) Options {
	return Options{
		Cache: filepath.Join(t.TempDir(), "hub"), Endpoint: s.URL + "/", Token: secret,
		Stall: 5 * time.Second, Backoff: time.Millisecond, Tries: 3,
	}
}

// tree returns the files below a folder with their text, and links with their target.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if e.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			all[rel] = "-> " + target
			return err
		}
		data, err := os.ReadFile(path)
		all[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// checkWhole checks that a folder has what is needed, and the cache nothing that is not whole.
func checkWhole(t *testing.T, s *server, o Options, dir string) {
	t.Helper()
	if want := filepath.Join(o.Cache, "models--org--name", "snapshots", commitA); dir != want {
		t.Errorf("the folder is %s, want %s", dir, want)
	}
	got := make(map[string]string)
	for name := range tree(t, dir) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		got[name] = string(data)
	}
	if d := cmp.Diff(needed(s.files), got); d != "" {
		t.Errorf("files that are not as on the server (-want +got):\n%.2000s", d)
	}
	checkNames(t, o)
	for name := range tree(t, o.Cache) {
		if strings.HasSuffix(name, incomplete) || strings.HasSuffix(name, ".tmp") {
			t.Errorf("%s is left", name)
		}
	}
}

// checkNames checks that every blob has the hash that its name says.
func checkNames(t *testing.T, o Options) {
	t.Helper()
	dir := filepath.Join(o.Cache, "models--org--name", "blobs")
	if _, err := os.Stat(dir); err != nil {
		return
	}
	for name, text := range tree(t, dir) {
		if strings.HasSuffix(name, incomplete) {
			continue
		}
		kind := "small"
		if len(name) == 64 {
			kind = "large.safetensors"
		}
		if got := sumOf(kind, text); got != name {
			t.Errorf("blob %s has the hash %s", name, got)
		}
	}
}

func TestDownload(t *testing.T) {
	for _, tc := range []struct {
		name, model string
		change      func(s *server)
		ref         string
	}{
		{name: "main", model: "org/name", ref: "main"},
		{name: "page", model: "https://huggingface.co/org/name/tree/main", ref: "main"},
		{name: "revision with a slash", model: "org/name@refs/pr/1", ref: "refs/pr/1"},
		{name: "commit", model: "org/name@" + commitA},
		{name: "list without hashes", model: "org/name", ref: "main", change: func(s *server) { s.bare = true }},
		{name: "shards without index", model: "org/name", ref: "main", change: func(s *server) { delete(s.files, indexName) }},
		{name: "one file", model: "org/name", ref: "main", change: func(s *server) {
			for _, name := range []string{indexName, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"} {
				s.files[name] = "not needed"
			}
			s.files[singleName] = "weights"
		}},
		{name: "what lutq quantized", model: "org/name", ref: "main", change: func(s *server) {
			s.files["config.json"] = `{"quantization_config": {"quant_method": "lutq", "digests": {"files": {"golden.json": "", "ORIGINAL_README.md": "", "none.json": "", "tokenizer.json": "", "model.safetensors.index.json": ""}}}}`
			s.files["golden.json"], s.files["ORIGINAL_README.md"], s.files["other.json"] = "[]", "# a", "not needed"
		}},
		{name: "what another program quantized", model: "org/name", ref: "main", change: func(s *server) {
			s.files["config.json"] = `{"quantization_config": {"quant_method": "other", "digests": {"files": {"golden.json": ""}}}}`
			s.files["golden.json"] = "not needed"
		}},
		{name: "an empty file", model: "org/name", ref: "main", change: func(s *server) { s.files["merges.txt"] = "" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t)
			if tc.change != nil {
				tc.change(s)
			}
			o := s.options(t)
			var told []int64
			total := int64(0)
			o.Progress = func(done, all int64, item string) { told, total = append(told, done), all }
			o.Note = func(line string) { t.Errorf("noted %s", line) }
			dir, err := Resolve(t.Context(), tc.model, o)
			if err != nil {
				t.Fatal(err)
			}
			checkWhole(t, s, o, dir)
			size := 0
			for _, text := range needed(s.files) {
				size += len(text)
			}
			if total != int64(size) || len(told) == 0 || told[len(told)-1] != total {
				t.Errorf("told of %d bytes, at last %v: want %d", total, told[max(len(told)-1, 0):], size)
			}
			model := filepath.Join(o.Cache, "models--org--name")
			files := tree(t, model)
			if tc.ref != "" && files["refs/"+tc.ref] != commitA {
				t.Errorf("refs/%s is %q", tc.ref, files["refs/"+tc.ref])
			}
			sum := sumOf("config.json", s.files["config.json"])
			if got, want := files["snapshots/"+commitA+"/config.json"], "-> ../../blobs/"+sum; got != want {
				t.Errorf("config.json %s, want %s", got, want)
			}
			sum = sumOf("x", "{{ tools }}")
			if got, want := files["snapshots/"+commitA+"/additional_chat_templates/tools.jinja"], "-> ../../../blobs/"+sum; got != want {
				t.Errorf("tools.jinja %s, want %s", got, want)
			}
			if _, noted := files[".no_exist/"+commitA+"/added_tokens.json"]; !noted {
				t.Error("it is not noted that there is no added_tokens.json")
			}

			// What is there is found without the server.
			s.Close()
			s.calls = nil
			for _, offline := range []bool{false, true} {
				o.Offline = offline
				again, err := Resolve(t.Context(), tc.model, o)
				if err != nil || again != dir || len(s.calls) > 0 {
					t.Errorf("offline %v: %s, %v after %v", offline, again, err, s.calls)
				}
			}
		})
	}
}

// TestTroubles has servers do what they should not, now and then: the model comes all the same.
func TestTroubles(t *testing.T) {
	const shard = "model-00001-of-00002.safetensors"
	at := func(name string, tries int, do func(s *server, w http.ResponseWriter, r *http.Request)) func(*server) {
		return func(s *server) {
			s.file = func(w http.ResponseWriter, r *http.Request, of string, try int) bool {
				if of != name || try > tries {
					return false
				}
				do(s, w, r)
				return true
			}
		}
	}
	status := func(code int) func(*server, http.ResponseWriter, *http.Request) {
		return func(_ *server, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for _, tc := range []struct {
		name   string
		change func(s *server)
		before string // what has come of the shard
	}{
		{name: "503 of a file", change: at("config.json", 2, status(503))},
		{name: "500 of a shard", change: at(shard, 2, status(500))},
		{name: "429 of the list", change: func(s *server) {
			n := 0
			s.api = func(w http.ResponseWriter, _ *http.Request) bool {
				if n++; n < 3 {
					w.Header().Set("Retry-After", "0")
					w.WriteHeader(429)
				}
				return n < 3
			}
		}},
		{name: "truncated", change: at(shard, 2, func(s *server, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(s.files[shard])))
			io.WriteString(w, s.files[shard][:1000])
		})},
		{name: "truncated without a length", change: at(shard, 2, func(s *server, w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, s.files[shard][:1000])
			w.(http.Flusher).Flush()
		})},
		{name: "connection closed", change: at(shard, 2, func(s *server, w http.ResponseWriter, r *http.Request) {
			panic(http.ErrAbortHandler)
		})},
		{name: "wrong bytes once", change: at(shard, 1, func(s *server, w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, strings.ToUpper(s.files[shard]))
		})},
		{name: "resumed", before: strings.Repeat("first shard ", 50_000)},
		{name: "resumed and all there", before: strings.Repeat("first shard ", 100_000)},
		{name: "resumed from wrong bytes", before: strings.Repeat("FIRST SHARD ", 50_000)},
		{name: "resumed from too many", before: strings.Repeat("first shard ", 100_001)},
		{name: "range ignored", before: "first shard ", change: at(shard, 1, func(s *server, w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, s.files[shard])
		})},
		{name: "another range", before: "first shard ", change: at(shard, 1, func(s *server, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 5-%d/%d", len(s.files[shard])-1, len(s.files[shard])))
			w.WriteHeader(206)
			io.WriteString(w, s.files[shard][5:])
		})},
		{name: "no such range", before: "first shard ", change: at(shard, 1, status(416))},
		{name: "redirects of the list", change: func(s *server) {
			s.api = func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, "/org/") && r.URL.Query().Get("again") == "" {
					http.Redirect(w, r, r.URL.Path+"?again=1", http.StatusTemporaryRedirect)
					return true
				}
				return false
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t)
			if tc.change != nil {
				tc.change(s)
			}
			o := s.options(t)
			p := placeOf(o.Cache, Name{Owner: "org", Model: "name", Revision: "main"})
			if tc.before != "" {
				write(t, p.blob(sumOf(shard, s.files[shard]))+incomplete, tc.before)
			}
			dir, err := Resolve(t.Context(), "org/name", o)
			if err != nil {
				t.Fatal(err)
			}
			checkWhole(t, s, o, dir)
			if tc.name == "resumed and all there" && s.tries[shard] > 0 {
				t.Error("a file that was there was asked for")
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestFailures: what cannot be had is told of in a line, and nothing that is not whole has a final name.
func TestFailures(t *testing.T) {
	const shard = "model-00001-of-00002.safetensors"
	api := func(code int, header ...string) func(*server, *Options) {
		return func(s *server, _ *Options) {
			s.api = func(w http.ResponseWriter, _ *http.Request) bool {
				for i := 0; i < len(header); i += 2 {
					w.Header().Set(header[i], header[i+1])
				}
				w.WriteHeader(code)
				io.WriteString(w, "<html>an error page</html>")
				return true
			}
		}
	}
	says := func(text string) func(*server, *Options) {
		return func(s *server, _ *Options) {
			s.api = func(w http.ResponseWriter, _ *http.Request) bool { io.WriteString(w, text); return true }
		}
	}
	file := func(name string, do func(s *server, w http.ResponseWriter, r *http.Request)) func(*server, *Options) {
		return func(s *server, _ *Options) {
			s.file = func(w http.ResponseWriter, r *http.Request, of string, try int) bool {
				if of == name {
					do(s, w, r)
				}
				return of == name
			}
		}
	}
	anonymous := func(f func(*server, *Options)) func(*server, *Options) {
		return func(s *server, o *Options) { o.Token = ""; f(s, o) }
	}
	listed := func(name string, size int) string {
		return fmt.Sprintf(`{"sha": %q, "siblings": [{"rfilename": %q, "size": %d}]}`, commitA, name, size)
	}
	only := func(names ...string) func(*server, *Options) {
		return func(s *server, _ *Options) {
			s.files = make(map[string]string)
			for _, name := range names {
				s.files[name] = "text"
			}
		}
	}
	for _, tc := range []struct {
		name, model string
		change      func(s *server, o *Options)
		want, hint  string
	}{
		{"no model", "org/other", nil, "org/other: there is no such model, or your token has no access to it", "check the name"},
		{"no model for anybody", "org/other", anonymous(api(401, "X-Error-Code", "RepoNotFound")), "org/other: there is no such model, or it is private", "set HF_TOKEN"},
		{"no revision", "org/name@v9", nil, "org/name@v9: there is no revision v9", "a branch"},
		{"gated", "org/name", anonymous(file("model.safetensors.index.json", func(_ *server, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Error-Code", "GatedRepo")
			w.WriteHeader(401)
		})), "is gated: its owner asks for consent first", "/org/name, and set HF_TOKEN"},
		{"gated for the token", "org/name", api(403, "X-Error-Code", "GatedRepo"), "is gated, and your token has no access to it", "ask for it at"},
		{"disabled", "org/name", api(403, "X-Error-Code", "DisabledRepo"), "disabled", ""},
		{"bad token", "org/name", api(401, "X-Error-Message", "Invalid credentials in Authorization header"), "the server does not take your token (Invalid credentials", "set HF_TOKEN to another"},
		{"token with a line break", "org/name", func(_ *server, o *Options) { o.Token = "a\nb" }, "the token is none", "HF_TOKEN"},
		{"forbidden", "org/name", api(403), "the server forbids it", "token"},
		{"teapot", "org/name", api(418), "the server answers 418 (I'm a teapot)", ""},
		{"429 for ever", "org/name", api(429), "its list of files: the server answers 429 (Too Many Requests)", "goes on"},
		{"429 for hours", "org/name", api(429, "Retry-After", "7200"), "asks to wait for 2h0m0s", "goes on"},
		{"502 for ever", "org/name", api(502), "the server answers 502 (Bad Gateway)", "goes on"},
		{"a page", "org/name", says("<html>log in</html>"), "the server's answer is no list of files", ""},
		{"no commit", "org/name", says(`{"sha": "../../x", "siblings": []}`), "names no commit", ""},
		{"path in the list", "org/name", says(listed("../../evil.json", 1)), `lists a file "../../evil.json"`, ""},
		{"absolute path in the list", "org/name", says(listed("/etc/passwd", 1)), "which is no name of one", ""},
		{"negative size", "org/name", says(listed("config.json", -5)), "with -5 bytes", ""},
		{"no files", "org/name", says(fmt.Sprintf(`{"sha": %q}`, commitA)), "has no safetensors files", ""},
		{"another commit", "org/name@" + strings.Repeat("b", 40), says(fmt.Sprintf(`{"sha": %q}`, commitA)), "answers with commit " + commitA, ""},
		{"gguf alone", "org/name", only("config.json", "a.gguf"), "but GGUF files such as a.gguf", "hf download org/name a.gguf"},
		{"bin alone", "org/name", only("config.json", "pytorch_model.bin"), "but pytorch_model.bin", "safetensors"},
		{"adapter", "org/name", only("adapter_config.json", "adapter_model.safetensors"), "is an adapter, not a model", "merge"},
		{"no config", "org/name", only("model.safetensors"), "has no config.json", ""},
		{"missing shard", "org/name", func(s *server, _ *Options) { delete(s.files, shard) }, "has no file " + shard + ", and model.safetensors.index.json names it", ""},
		{"listed and not there", "org/name", file("tokenizer.json", func(_ *server, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }), "tokenizer.json: the server does not have it, though it lists it", ""},
		{"wrong hash for ever", "org/name", file(shard, func(s *server, w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, strings.ToUpper(s.files[shard]))
		}), shard + ": what came is not what the server lists", ""},
		{"wrong hash of a small file", "org/name", file("tokenizer.json", func(s *server, w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, strings.ToUpper(s.files["tokenizer.json"]))
		}), "tokenizer.json: what came is not what the server lists", ""},
		{"too long", "org/name", file(shard, func(s *server, w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, s.files[shard]+"more")
			w.(http.Flusher).Flush()
			io.WriteString(w, "still more")
		}), "more than the 1200000 bytes that it lists", ""},
		{"another length", "org/name", file(shard, func(s *server, w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "<html>a page</html>")
		}), shard + ": the server sends 19 bytes, where its list leaves 1200000 of 1200000", ""},
		{"truncated for ever", "org/name", file(shard, func(s *server, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(s.files[shard])))
		}), shard + ": the server closed the connection early", "goes on"},
		{"stalls", "org/name", func(s *server, o *Options) {
			o.Stall, o.Tries = 30*time.Millisecond, 2
			file(shard, func(s *server, w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "first")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			})(s, o)
		}, shard + ": the server sent nothing for 30ms", "goes on"},
		{"never answers", "org/name", func(s *server, o *Options) {
			o.Stall, o.Tries = 30*time.Millisecond, 2
			s.api = func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }
		}, "its list of files: the server sent nothing for 30ms", "goes on"},
		{"redirects in a circle", "org/name", func(s *server, _ *Options) {
			s.api = func(w http.ResponseWriter, r *http.Request) bool {
				http.Redirect(w, r, r.URL.Path, http.StatusFound)
				return true
			}
		}, "redirects more than 10 times", ""},
		{"redirects to a file", "org/name", api(302, "Location", "file:///etc/passwd"), "file:// is no address of a server", ""},
		{"redirects to nowhere", "org/name", api(302), "redirects to nowhere", ""},
		{"nobody there", "org/name", func(s *server, _ *Options) { s.Close() }, "connection refused", "is there a network?"},
		{"endpoint", "org/name", func(_ *server, o *Options) { o.Endpoint = "nonsense" }, "is no address", ""},
		{"no room", "org/name", func(_ *server, o *Options) {
			o.free = func(string) (int64, error) { return 1000, nil }
		}, "2 MB are to come, and", "HF_HUB_CACHE"},
		{"offline", "org/name", func(_ *server, o *Options) { o.Offline = true }, "is not in the cache", "--offline"},
		{"no cache", "org/name", func(_ *server, o *Options) { o.Cache = "" }, "no folder to download it into", "HOME"},
		{"cache in a file", "org/name", func(_ *server, o *Options) { o.Cache = "/dev/null/x" }, "the cache: ", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t)
			o := s.options(t)
			if tc.change != nil {
				tc.change(s, &o)
			}
			dir, err := Resolve(t.Context(), tc.model, o)
			if err == nil {
				t.Fatalf("got %s", dir)
			}
			message, hint := err.Error(), ""
			var h interface{ Hint() string }
			if errors.As(err, &h) {
				hint = h.Hint()
			}
			if !strings.HasPrefix(message, tc.model+": ") || !strings.Contains(message, tc.want) || strings.Contains(message, "\n") || strings.Contains(message, secret) || strings.Contains(message, "signature") {
				t.Errorf("error %s\nwant %q in a line", message, tc.want)
			}
			if !strings.Contains(hint, tc.hint) || tc.hint == "" && hint != "" {
				t.Errorf("hint %q, want %q", hint, tc.hint)
			}
			checkNames(t, o)
			if _, err := os.Stat(filepath.Join(o.Cache, "models--org--name", "refs", "main")); err == nil {
				t.Error("the revision is noted as if it were there")
			}
		})
	}
}

// TestInterrupted: what is cut off goes on where it was.
func TestInterrupted(t *testing.T) {
	const shard = "model-00001-of-00002.safetensors"
	s := newServer(t)
	o := s.options(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.file = func(w http.ResponseWriter, r *http.Request, name string, _ int) bool {
		if name != shard {
			return false
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(s.files[shard])))
		io.WriteString(w, s.files[shard][:600_000])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}
	o.Progress = func(done, total int64, item string) {
		if item == shard && done > 600_000 {
			cancel()
		}
	}
	if _, err := Resolve(ctx, "org/name", o); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	checkNames(t, o)
	part, err := os.Stat(placeOf(o.Cache, Name{Owner: "org", Model: "name"}).blob(sumOf(shard, s.files[shard])) + incomplete)
	if err != nil || part.Size() < 100_000 {
		t.Fatalf("what came is not kept: %v", err)
	}
	o.Progress = nil
	var asked string
	s.file = func(w http.ResponseWriter, r *http.Request, name string, _ int) bool {
		if name == shard {
			asked = r.Header.Get("Range")
		}
		return false
	}
	dir, err := Resolve(t.Context(), "org/name", o)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("bytes=%d-", part.Size()); asked != want {
		t.Errorf("asked for %q, want %s", asked, want)
	}
	checkWhole(t, s, o, dir)
}

// TestTogether: of several at once one downloads each file.
func TestTogether(t *testing.T) {
	s := newServer(t)
	o := s.options(t)
	s.file = func(http.ResponseWriter, *http.Request, string, int) bool {
		time.Sleep(20 * time.Millisecond)
		return false
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			dir, err := Resolve(t.Context(), "org/name", o)
			if err != nil {
				t.Error(err)
				return
			}
			checkWhole(t, s, o, dir)
		})
	}
	wg.Wait()
	for name, n := range s.tries {
		if n != 1 {
			t.Errorf("%s was asked for %d times", name, n)
		}
	}
}

// TestPartOfCache: what other programs left away is brought, and what they noted is believed.
func TestPartOfCache(t *testing.T) {
	fill := func(t *testing.T, s *server, o Options, names ...string) place {
		p := placeOf(o.Cache, Name{Owner: "org", Model: "name"})
		for _, name := range names {
			write(t, p.blob(sumOf(name, s.files[name])), s.files[name])
			if err := p.link(commitA, name, sumOf(name, s.files[name])); err != nil {
				t.Fatal(err)
			}
		}
		write(t, p.ref("main"), commitA)
		return p
	}
	weights := []string{"config.json", indexName, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
	t.Run("no tokenizer", func(t *testing.T) {
		s := newServer(t)
		o := s.options(t)
		fill(t, s, o, weights...)
		dir, err := Resolve(t.Context(), "org/name", o)
		if err != nil {
			t.Fatal(err)
		}
		checkWhole(t, s, o, dir)
		if s.calls[0] != "GET /api/models/org/name/revision/"+commitA {
			t.Errorf("asked for %s first", s.calls[0])
		}
		for _, name := range weights {
			if s.tries[name] > 0 {
				t.Errorf("%s came again", name)
			}
		}
	})
	t.Run("no tokenizer and no server", func(t *testing.T) {
		s := newServer(t)
		o := s.options(t)
		p := fill(t, s, o, weights...)
		s.Close()
		noted := ""
		o.Note = func(line string) { noted += line }
		dir, err := Resolve(t.Context(), "org/name", o)
		if err != nil || dir != p.snapshot(commitA) || !strings.Contains(noted, "going on with what the cache has") {
			t.Errorf("%s, %v, noted %q", dir, err, noted)
		}
		o.Offline, noted = true, ""
		if dir, err = Resolve(t.Context(), "org/name", o); err != nil || dir != p.snapshot(commitA) || noted != "" {
			t.Errorf("offline: %s, %v, noted %q", dir, err, noted)
		}
	})
	t.Run("tokenizer alone", func(t *testing.T) {
		s := newServer(t)
		o := s.options(t)
		p := fill(t, s, o, "config.json", "tokenizer.json")
		noted := ""
		o.Note = func(line string) { noted += line }
		o.Offline = true
		dir, err := Resolve(t.Context(), "org/name", o)
		if err != nil || dir != p.snapshot(commitA) || !strings.Contains(noted, "without model.safetensors") {
			t.Errorf("offline: %s, %v, noted %q", dir, err, noted)
		}
		o.Offline, o.Note = false, nil
		if dir, err = Resolve(t.Context(), "org/name", o); err != nil {
			t.Fatal(err)
		}
		checkWhole(t, s, o, dir)
	})
	t.Run("a link to nothing", func(t *testing.T) {
		s := newServer(t)
		o := s.options(t)
		p := fill(t, s, o, weights...)
		if err := os.Remove(p.blob(sumOf(weights[2], s.files[weights[2]]))); err != nil {
			t.Fatal(err)
		}
		dir, err := Resolve(t.Context(), "org/name", o)
		if err != nil {
			t.Fatal(err)
		}
		checkWhole(t, s, o, dir)
	})
	t.Run("a ref to elsewhere", func(t *testing.T) {
		s := newServer(t)
		o := s.options(t)
		write(t, fill(t, s, o).ref("main"), "../../../../etc")
		dir, err := Resolve(t.Context(), "org/name", o)
		if err != nil {
			t.Fatal(err)
		}
		checkWhole(t, s, o, dir)
	})
	t.Run("beside weights", func(t *testing.T) {
		s := newServer(t)
		o := s.options(t)
		o.BesideWeights = true
		for range 2 {
			dir, err := Resolve(t.Context(), "org/name", o)
			if err != nil {
				t.Fatal(err)
			}
			files := tree(t, dir)
			if files["tokenizer.json"] == "" || files[indexName] != "" || s.tries[weights[2]] > 0 {
				t.Errorf("there are %v", files)
			}
		}
		o.BesideWeights = false
		dir, err := Resolve(t.Context(), "org/name", o)
		if err != nil {
			t.Fatal(err)
		}
		checkWhole(t, s, o, dir)
	})
}

// TestPaths: what is a path here stays one.
func TestPaths(t *testing.T) {
	t.Chdir(t.TempDir())
	s := newServer(t)
	o := s.options(t)
	for _, path := range []string{"none", "/a/b", "./a/b", "../a/b", "a/b/c", "a/b.gguf", "a/config.json", "", "a/", "/"} {
		if got, err := Resolve(t.Context(), path, o); err != nil || got != path {
			t.Errorf("%q becomes %q, %v", path, got, err)
		}
	}
	if err := os.Mkdir("org", 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Resolve(t.Context(), "org/name", o)
	var e *Error
	if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &e) || !strings.Contains(e.Hint(), "hf://org/name") {
		t.Errorf("in a folder that is there: %v", err)
	}
	if len(s.calls) > 0 {
		t.Errorf("the server was asked: %v", s.calls)
	}
	inCache, err := Resolve(t.Context(), "hf://org/name", o)
	if err != nil {
		t.Fatal(err)
	}
	checkWhole(t, s, o, inCache)
	if got, err := Resolve(t.Context(), "org/name", o); err != nil || got != inCache {
		t.Errorf("what the cache has: %s, %v", got, err)
	}
	if err := os.Mkdir("org/name", 0o755); err != nil {
		t.Fatal(err)
	}
	var noted []string
	o.Note = func(line string) { noted = append(noted, line) }
	if got, err := Resolve(t.Context(), "org/name", o); err != nil || got != "org/name" || len(noted) != 1 || !strings.Contains(noted[0], "is taken from here") {
		t.Errorf("a folder of the name: %s, %v, noted %q", got, err, noted)
	}
}

// TestRenamed: a model under its old name is found under it again.
func TestRenamed(t *testing.T) {
	s := newServer(t)
	o := s.options(t)
	noted := ""
	o.Note = func(line string) { noted += line }
	s.api = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/api/models/old/name/") {
			w.Header().Set("Location", strings.Replace(r.URL.RequestURI(), "/old/", "/org/", 1))
			w.WriteHeader(http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
	_, err := Resolve(t.Context(), "old/name", o)
	if noted != "old/name is called org/name now" {
		t.Errorf("noted %q", noted)
	}
	// This server redirects the list alone.
	if err == nil || !strings.Contains(err.Error(), "does not have it") {
		t.Errorf("error %v", err)
	}
}

// TestEncrypted: a server whose certificate nobody vouches for gets no token, and an encrypted connection is not left.
func TestEncrypted(t *testing.T) {
	plain := newServer(t)
	asked := 0
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		http.Redirect(w, r, plain.URL+r.URL.Path, http.StatusFound)
	}))
	defer s.Close()
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	o := plain.options(t)
	o.Endpoint = s.URL
	if _, err := Resolve(t.Context(), "org/name", o); err == nil || !strings.Contains(err.Error(), "certificate") || asked > 0 {
		t.Errorf("error %v after %d requests", err, asked)
	}
	d, err := newDownload(Name{Owner: "org", Model: "name", Revision: "main"}, placeOf(o.Cache, Name{}), o.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	d.client.Transport = s.Client().Transport
	if _, err := d.list(t.Context(), "main"); err == nil || !strings.Contains(err.Error(), "which is not encrypted") || len(plain.calls) > 0 {
		t.Errorf("error %v after %v", err, plain.calls)
	}
}

// TestFullDisk: a disk that fills up is told of.
func TestFullDisk(t *testing.T) {
	d := &download{name: Name{Owner: "org", Model: "name", Revision: "main"}}
	err := d.failed("a.safetensors", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(e.Error(), "org/name: a.safetensors: the disk of the cache is full") || !strings.Contains(e.Hint(), "goes on") {
		t.Errorf("error %v", err)
	}
}

func TestToken(t *testing.T) {
	s := newServer(t)
	var got string
	s.api = func(_ http.ResponseWriter, r *http.Request) bool { got = r.Header.Get("Authorization"); return false }
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, "from_file\n")
	for _, tc := range []struct{ token, file, want string }{
		{"from_env", path, "Bearer from_env"}, {"", path, "Bearer from_file"}, {"", path + "x", ""}, {"", "", ""},
	} {
		o := s.options(t)
		o.Token, o.TokenFile = tc.token, tc.file
		if _, err := Resolve(t.Context(), "org/name", o); err != nil || got != tc.want {
			t.Errorf("%+v: %v, token %q", tc, err, got)
		}
	}
}

func TestFromEnv(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  map[string]string
		want Options
	}{
		{"home", map[string]string{"HOME": "/h"}, Options{Cache: "/h/.cache/huggingface/hub", TokenFile: "/h/.cache/huggingface/token"}},
		{"nothing", nil, Options{}},
		{"xdg", map[string]string{"HOME": "/h", "XDG_CACHE_HOME": "/x"}, Options{Cache: "/x/huggingface/hub", TokenFile: "/x/huggingface/token"}},
		{"hf home", map[string]string{"HOME": "/h", "XDG_CACHE_HOME": "/x", "HF_HOME": "~/hf"}, Options{Cache: "/h/hf/hub", TokenFile: "/h/hf/token"}},
		{"cache", map[string]string{"HF_HOME": "/hf", "HF_HUB_CACHE": "$BIG/hub", "BIG": "/big"}, Options{Cache: "/big/hub", TokenFile: "/hf/token"}},
		{"old names", map[string]string{"HUGGINGFACE_HUB_CACHE": "/c", "HUGGING_FACE_HUB_TOKEN": "t", "TRANSFORMERS_OFFLINE": "yes"}, Options{Cache: "/c", Token: "t", Offline: true}},
		{"all", map[string]string{"HF_HUB_CACHE": "/c", "HF_ENDPOINT": "http://m", "HF_TOKEN": "t", "HF_TOKEN_PATH": "/t", "HF_HUB_OFFLINE": "1"}, Options{Cache: "/c", Endpoint: "http://m", Token: "t", TokenFile: "/t", Offline: true}},
		{"no token", map[string]string{"HF_HOME": "/hf", "HF_TOKEN": "t", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HF_HUB_OFFLINE": "0"}, Options{Cache: "/hf/hub"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := FromEnv(func(name string) string { return tc.env[name] })
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(Options{})); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestParseName(t *testing.T) {
	for _, tc := range []struct {
		in, want string // as String; "": none
	}{
		{"Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"},
		{"Qwen/Qwen3-0.6B@main", "Qwen/Qwen3-0.6B"},
		{"a/b@v1.0", "a/b@v1.0"},
		{"a/b@refs/pr/3", "a/b@refs/pr/3"},
		{"hf://a/b@x", "a/b@x"},
		{"https://huggingface.co/a/b", "a/b"},
		{"https://huggingface.co/a/b/", "a/b"},
		{"https://hf.co/a/b/tree/refs/pr/1", "a/b@refs/pr/1"},
		{"hf://a/b.gguf", "a/b.gguf"},
		{"a_/_b", "a_/_b"},
		{"a", ""},
		{"a/", ""},
		{"/a", ""},
		{"a/b/c", ""},
		{"./a", ""},
		{"../a", ""},
		{"a/..", ""},
		{"~/a", ""},
		{"a/b.gguf", ""},
		{"a/model.safetensors", ""},
		{"a/config.json", ""},
		{"a/b.git", ""},
		{"-a/b", ""},
		{"a./b", ""},
		{"a/b-", ""},
		{"a--b/c", ""},
		{"a/b..c", ""},
		{"ä/b", ""},
		{"a/b c", ""},
		{"a\\b/c", ""},
		{"a/b@", ""},
		{"a/b@../../x", ""},
		{"a/b@/x", ""},
		{"a/b@x/", ""},
		{"a/b@x//y", ""},
		{"a/b@.x", ""},
		{"a/b@x.lock", ""},
		{"a/b@x@y", ""},
		{"a/b@-x", ""},
		{"a/" + strings.Repeat("b", 95), ""},
		{"a/b@" + strings.Repeat("b", 201), ""},
		{"https://huggingface.co/datasets/a/b", ""},
		{"https://example.com/a/b", ""},
	} {
		n, ok := ParseName(tc.in)
		if ok != (tc.want != "") || ok && n.String() != tc.want {
			t.Errorf("%q becomes %q, %v", tc.in, n, ok)
		}
	}
}

func TestAt(t *testing.T) {
	for _, tc := range []struct{ path, repo, commit string }{
		{"/c/hub/models--Qwen--Qwen3-0.6B/snapshots/" + commitA, "Qwen/Qwen3-0.6B", commitA},
		{"/c/hub/models--Qwen--Qwen3-0.6B/snapshots/../snapshots/" + commitA + "/", "Qwen/Qwen3-0.6B", commitA},
		{"/c/hub/models--a--b--c/snapshots/" + commitA, "", ""},
		{"/c/hub/datasets--a--b/snapshots/" + commitA, "", ""},
		{"/c/hub/models--Qwen--Qwen3-0.6B/snapshots/main", "", ""},
		{"/c/hub/models--Qwen--Qwen3-0.6B/blobs/" + commitA, "", ""},
		{"/models/" + commitA, "", ""},
		{"/", "", ""},
	} {
		if repo, commit := At(tc.path); repo != tc.repo || commit != tc.commit {
			t.Errorf("%s is %q at %q, want %q at %q", tc.path, repo, commit, tc.repo, tc.commit)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-7": 0, "soon": 0, "99999999999": 24 * time.Hour,
		now.Add(time.Minute).Format(http.TimeFormat): time.Minute, now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{"a/b", "a/b@c/d", "hf://a/b", "https://hf.co/a/b/tree/c", "../a", "a/b@..", "a--b/c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, ok := ParseName(text)
		if !ok {
			return
		}
		again, ok := ParseName("hf://" + n.String())
		if again.Certain = n.Certain; !ok || again != n {
			t.Errorf("%q becomes %+v, and that %+v", text, n, again)
		}
		const cache = "/cache"
		p := placeOf(cache, n)
		if filepath.Dir(p.dir) != cache || filepath.Base(p.dir) != n.folder() || !strings.HasPrefix(p.ref(n.Revision), p.dir+"/refs/") {
			t.Errorf("%q lies in %s, its revision in %s", text, p.dir, p.ref(n.Revision))
		}
	})
}

func FuzzListing(f *testing.F) {
	s := &server{files: repoFiles()}
	f.Add(s.list())
	f.Add([]byte(`{"sha": "` + commitA + `", "siblings": [{"rfilename": "../x", "size": -1, "blobId": "/", "lfs": {}}]}`))
	f.Add([]byte(`{"sha": 1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseListing(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %v", err)
			}
			return
		}
		p := place{"/cache", "/cache/model"}
		for name, file := range l.files {
			path := filepath.Join(p.snapshot(l.commit), filepath.FromSlash(name))
			if name != file.name || !strings.HasPrefix(path, "/cache/model/snapshots/"+l.commit+"/") || file.size < -1 {
				t.Errorf("%+v lies at %s", file, path)
			}
			if file.sum != "" && filepath.Dir(p.blob(file.sum)) != "/cache/model/blobs" {
				t.Errorf("%+v has the blob %s", file, p.blob(file.sum))
			}
		}
		for _, f := range l.beside() {
			if !isBeside(f.name) {
				t.Errorf("%s is needed", f.name)
			}
		}
		if err := l.noWeights(Name{Owner: "a", Model: "b"}); err == nil {
			t.Error("no error")
		}
	})
}

func FuzzShards(f *testing.F) {
	f.Add([]byte(`{"weight_map": {"a": "b.safetensors"}}`))
	f.Add([]byte(`{"weight_map": {"a": "../b"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		shards, err := parseShards(data)
		for _, name := range shards {
			if err == nil && !filepath.IsLocal(name) {
				t.Errorf("%q", name)
			}
		}
		if err == nil && (len(shards) == 0 || bytes.Equal(data, nil)) {
			t.Error("no shards and no error")
		}
	})
}
