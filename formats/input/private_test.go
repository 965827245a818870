package input_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/input"
)

func TestPrivate(t *testing.T) {
	base := t.TempDir()
	mkdir := func(name string, mode os.FileMode) string {
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil { // whatever the umask says
			t.Fatal(err)
		}
		return dir
	}
	mkdir("own", 0o700)
	mkdir("readable", 0o755)
	mkdir("group", 0o775)
	mkdir("all", 0o777)
	mkdir("all/within", 0o700)
	mkdir("sticky", 0o777|os.ModeSticky)
	mkdir("sticky/within", 0o700)
	mkdir("foreign", 0o755)
	mkdir("foreign/within", 0o700)
	if err := os.Symlink(filepath.Join(base, "all"), filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(base, "gone"), filepath.Join(base, "dangling")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(base, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := "another user"
	if os.Geteuid() != 0 || os.Chown(filepath.Join(base, "foreign"), 12345, -1) != nil {
		foreign = "" // only the superuser can give folders away
	}
	for _, tc := range []struct{ dir, want string }{
		{"own", ""},
		{"own/new/folder", ""},
		{"readable", ""},
		{"group", "other users"},
		{"all", "other users"},
		{"all/new", "other users"},
		{"all/within", "other users"},
		{"all/within/new/folder", "other users"},
		{"sticky", "other users"},
		{"sticky/new/folder", ""},
		{"sticky/within", ""},
		{"link", "other users"},
		{"link/within", "other users"},
		{"link/new", "other users"},
		{"dangling", "link to nothing"},
		{"file", "not a folder"},
		{"foreign", foreign},
		{"foreign/within", foreign},
		{"foreign/new", foreign},
	} {
		t.Run(tc.dir, func(t *testing.T) {
			err := input.Private(filepath.Join(base, tc.dir))
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v: want %q", err, tc.want)
			}
		})
	}
}
