package hub

import (
	"encoding/binary"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lutq/lutq/formats/hf"
)

// weightsFile is a file of two tensors of bytes, a and b, with a header of some length.
func weightsFile(a, b string, header int) string {
	offsets := func(from, size int) string {
		return `{"dtype":"U8","shape":[` + strconv.Itoa(size) + `],"data_offsets":[` + strconv.Itoa(from) + `,` + strconv.Itoa(from+size) + `]}`
	}
	text := `{"a` + a[:1] + `":` + offsets(0, len(a)) + `,"b` + a[:1] + `":` + offsets(len(a), len(b)) + `}`
	text += strings.Repeat(" ", max(header-len(text), 0))
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(text)))) + text + a + b
}

const first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"

// remoteServer is a server of a model of two files: of 1 MB and of 200 KB, whose header is longer than what is asked for at first.
func remoteServer(t *testing.T) *server {
	s := newServer(t)
	s.files[first] = weightsFile(strings.Repeat("first shard ", 50_000), strings.Repeat("x", 400_000), 0)
	s.files[second] = weightsFile(strings.Repeat("second ", 10_000), "yz", firstBytes+1000)
	return s
}

// openRemote opens it, and its tensors.
func openRemote(t *testing.T, o Options) (*Remote, *hf.Checkpoint) {
	t.Helper()
	r, err := OpenRemote(t.Context(), "org/name", o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := hf.OpenShards(r.Dir, r.Shards())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return r, c
}

// read reads a tensor.
func read(t *testing.T, c *hf.Checkpoint, name string) string {
	t.Helper()
	x, ok := c.Tensor(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	data, err := io.ReadAll(io.NewSectionReader(x, 0, x.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestRemote: files come one at a time, and go; what is kept of them, and what is not here, is read all the same.
func TestRemote(t *testing.T) {
	s := remoteServer(t)
	dir := filepath.Join(t.TempDir(), "shards")
	r, c := openRemote(t, s.options(t))
	if n := len(c.Tensors()); n != 4 || r.Size(first) != int64(len(s.files[first])) || r.Size("other") != 0 {
		t.Errorf("%d tensors, %d bytes", n, r.Size(first))
	}
	gets := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.tries[first]
	}
	before := gets()
	check := func(what string, requests bool) {
		t.Helper()
		whole := strings.Repeat("first shard ", 50_000) == read(t, c, "af") && strings.Repeat("x", 400_000) == read(t, c, "bf")
		if now := gets(); !whole || requests != (now > before) {
			t.Errorf("%s: tensors are whole: %t; %d requests", what, whole, now-before)
		}
		before = gets()
	}
	check("not here", true)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, stray := range []string{sumOf(second, s.files[second]), sumOf(first, s.files[first]) + keptSuffix} {
		if err := os.WriteFile(filepath.Join(dir, stray), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Begin(dir, []string{first}); err != nil {
		t.Fatal(err)
	}
	if left := tree(t, dir); len(left) > 0 {
		t.Errorf("%d files are left of an earlier run", len(left))
	}
	if err := r.Fetch(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	before = gets()
	check("here", false)
	a, _ := c.Tensor("af")
	b, _ := c.Tensor("bf")
	if err := r.Drop(first, []*hf.Tensor{b, a}); err != nil {
		t.Fatal(err)
	}
	check("kept", false)
	if left := tree(t, dir); len(left) != 1 || len(left[sumOf(first, s.files[first])+keptSuffix]) != 1_000_000 {
		t.Errorf("the folder has %d files", len(left))
	}
	if err := r.Drop(first, nil); err != nil {
		t.Fatal(err)
	}
	if left := tree(t, dir); len(left) > 0 {
		t.Errorf("%d files are left", len(left))
	}
	check("gone", true)
	if err := r.Fetch(t.Context(), "other"); err == nil || !strings.Contains(err.Error(), "has no weights in other") {
		t.Errorf("error %v", err)
	}
}

// TestRemoteAhead: two tensors of a file that is not here are read beside each other, by few requests.
func TestRemoteAhead(t *testing.T) {
	s := newServer(t)
	a, b := strings.Repeat("a234567890", 300_000), strings.Repeat("b234567890", 300_000)
	s.files[first], s.files[second] = weightsFile(a, b, 0), weightsFile("x", "y", 0)
	_, c := openRemote(t, s.options(t))
	before := s.tries[first]
	var got [2][]byte
	for i, name := range []string{"aa", "ba"} {
		x, _ := c.Tensor(name)
		got[i] = make([]byte, x.Bytes())
	}
	for at := 0; at < len(a); at += 10_000 {
		for i, name := range []string{"aa", "ba"} {
			x, _ := c.Tensor(name)
			if _, err := x.ReadAt(got[i][at:at+10_000], int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if string(got[0]) != a || string(got[1]) != b {
		t.Error("what was read is not what is there")
	}
	if n := s.tries[first] - before; n > 24 {
		t.Errorf("%d requests for 600 reads", n)
	}
}

// TestRemoteCached: a file that the cache has is read there, and stays.
func TestRemoteCached(t *testing.T) {
	s := remoteServer(t)
	o := s.options(t)
	if _, err := Resolve(t.Context(), "org/name", o); err != nil {
		t.Fatal(err)
	}
	r, c := openRemote(t, o)
	dir := t.TempDir()
	if err := r.Begin(dir, []string{first}); err != nil {
		t.Fatal(err)
	}
	s.file = func(w http.ResponseWriter, _ *http.Request, name string, _ int) bool {
		t.Errorf("%s is asked for", name)
		return false
	}
	if err := r.Fetch(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if got := read(t, c, "bf"); len(got) != 400_000 {
		t.Errorf("the tensor has %d bytes", len(got))
	}
	if err := r.Drop(first, nil); err != nil {
		t.Fatal(err)
	}
	if len(tree(t, dir)) > 0 {
		t.Error("the file came once more")
	}
	checkNames(t, o)
	if _, err := os.Stat(filepath.Join(r.Dir, first)); err != nil {
		t.Error(err)
	}
}

// TestRemoteTroubles: servers that answer otherwise than they should.
func TestRemoteTroubles(t *testing.T) {
	for _, tc := range []struct {
		name string
		file func(s *server, w http.ResponseWriter, r *http.Request, try int) bool
		want string // of the error; "": none
	}{
		{"no parts", func(s *server, w http.ResponseWriter, _ *http.Request, _ int) bool {
			io.WriteString(w, s.files[first])
			return true
		}, ""},
		{"ended early, once", func(s *server, w http.ResponseWriter, _ *http.Request, try int) bool {
			if try%2 == 1 {
				return false
			}
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "x")
			panic(http.ErrAbortHandler)
		}, ""},
		{"another part", func(s *server, w http.ResponseWriter, _ *http.Request, _ int) bool {
			w.Header().Set("Content-Range", "bytes 17-99/1000")
			w.WriteHeader(http.StatusPartialContent)
			return true
		}, "the server sends another part than was asked for"},
		{"other bytes behind the header", func(s *server, w http.ResponseWriter, r *http.Request, _ int) bool {
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(s.files[first][:len(s.files[first])-1]+"!"))
			return true
		}, "what came is not what the server lists"},
		{"another header first", func(s *server, w http.ResponseWriter, r *http.Request, try int) bool {
			text := s.files[first]
			if try == 1 {
				text = strings.Replace(text, `"bf"`, `"zf"`, 1)
			}
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
			return true
		}, "its header is another than the one that came first"},
		{"forbidden", func(_ *server, w http.ResponseWriter, _ *http.Request, _ int) bool {
			w.WriteHeader(http.StatusForbidden)
			return true
		}, "the server forbids it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := remoteServer(t)
			s.file = func(w http.ResponseWriter, r *http.Request, name string, try int) bool {
				return name == first && tc.file(s, w, r, try)
			}
			r, err := OpenRemote(t.Context(), "org/name", s.options(t))
			if err == nil {
				if err = r.Begin(t.TempDir(), []string{first}); err == nil {
					err = r.Fetch(t.Context(), first)
				}
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v: want %q", err, tc.want)
			}
		})
	}
}

// TestRemoteNames: what is no name of a model on a hub has no files to come.
func TestRemoteNames(t *testing.T) {
	s := newServer(t)
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("org/name", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"./folder": "is no name of a model on a hub",
		"org/name": "is a folder here, whose weights need not come from the hub",
	} {
		if _, err := OpenRemote(t.Context(), name, s.options(t)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	o := s.options(t)
	o.Offline = true
	if _, err := OpenRemote(t.Context(), "hf://org/name", o); err == nil || !strings.Contains(err.Error(), "nothing is downloaded offline") {
		t.Errorf("error %v", err)
	}
}
