package tiles

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/quantizetest"
)

// container returns the tiny model quantized by a recipe, open.
func container(t testing.TB, recipe string) *lutq.Model {
	t.Helper()
	m, err := lutq.Open(quantizetest.Container(t, "../../calib/testdata/lutq-tiny", quantizetest.Recipe(t, recipe)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// write returns a folder that a container is laid out in.
func write(t testing.TB, m *lutq.Model, target *Target) string {
	t.Helper()
	dir := t.TempDir()
	var last int64
	size, err := Write(t.Context(), dir, m, target, func(done, total int64, _ string) { last = max(last, done) })
	if err != nil {
		t.Fatal(err)
	}
	if last != size {
		t.Errorf("progress went to %d of %d bytes", last, size)
	}
	return dir
}

func TestRoundTrip(t *testing.T) {
	m := container(t, `{"bits": 3, "group": 64}`)
	for _, target := range Targets() {
		t.Run(target.Name, func(t *testing.T) {
			if target.Name == "cuda" {
				racetest.Skip(t)
			}
			f, err := Open(write(t, m, target), m, target)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for _, layer := range m.Linears() {
				mat, err := m.Linear(layer)
				if err != nil {
					t.Fatal(err)
				}
				want, err := target.pack(mat.(*lut.Matrix))
				if err != nil {
					t.Fatal(err)
				}
				got, err := f.Layer(layer)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", layer, diff)
				}
			}
			if _, err := f.Layer("absent"); err == nil || !strings.Contains(err.Error(), "not a quantized layer") {
				t.Errorf("a layer that is not there: got error %v", err)
			}
		})
	}
}

func TestBadFolders(t *testing.T) {
	m := container(t, `{"bits": 3, "group": 64}`)
	cpu, cuda := For("cpu"), For("cuda")
	good := write(t, m, cpu)
	file, err := os.ReadFile(filepath.Join(good, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	edited := func(old, new string) string {
		t.Helper()
		if len(old) != len(new) || !bytes.Contains(file, []byte(old)) {
			t.Fatalf("the file has no %q", old)
		}
		return folder(t, bytes.Replace(file, []byte(old), []byte(new), 1))
	}
	layer := m.Linears()[0]
	for _, tc := range []struct {
		name, dir, want string
		target          *Target
		other           bool
	}{
		{"another target", good, "lutq-panels: not of this model and device", cuda, true},
		{"another model", write(t, container(t, `{"bits": 2, "group": 64}`), cpu), "not of this model and device", cpu, true},
		{"a model", "../../calib/testdata/lutq-tiny", "not a folder that lutq repack has written", cpu, false},
		{"version", edited(`"version":"2"`, `"version":"1"`), `panels of version "1": this lutq knows version 2`, cpu, false},
		{"no layer", edited(layer+".panels", layer+".pamels"), layer + ".panels is missing", cpu, false},
		{"another type", edited(`"dtype":"U32"`, `"dtype":"I32"`), "is I32 [1]: want U32 [1]", cpu, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Open(tc.dir, m, tc.target)
			if err == nil || !strings.Contains(err.Error(), tc.want) || errors.Is(err, ErrOther) != tc.other {
				t.Errorf("got error %v: want one with %q", err, tc.want)
			}
		})
	}

	t.Run("damage", func(t *testing.T) {
		start := len(file) - 100 // in the last layer's data
		last := m.Linears()[len(m.Linears())-1]
		f, err := Open(folder(t, append(append(bytes.Clone(file[:start]), file[start]^4), file[start+1:]...)), m, cpu)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Layer(last); err == nil || !strings.Contains(err.Error(), last+": damaged") {
			t.Errorf("got error %v: want one of damage", err)
		}
		if _, err := f.Layer(layer); err != nil {
			t.Errorf("another layer: %v", err)
		}
	})
}

// folder returns a folder with one file of tensors.
func folder(t testing.TB, file []byte) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), file, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// FuzzOpen changes bytes of a folder's header. What is accepted gives layers of the
// container's shapes, that have the checksum that they were written with.
func FuzzOpen(f *testing.F) {
	m := container(f, `{"bits": 3, "group": 64}`)
	target := For("cuda")
	file, err := os.ReadFile(filepath.Join(write(f, m, target), "model.safetensors"))
	if err != nil {
		f.Fatal(err)
	}
	header := 8 + int(file[0]) + int(file[1])<<8 + int(file[2])<<16
	f.Add(uint32(0), []byte{})
	f.Add(uint32(bytes.Index(file, []byte(`"version"`))), []byte(`"version":"3"`))
	f.Add(uint32(bytes.Index(file, []byte(`"shape"`))), []byte(`"shape":[1`))
	f.Add(uint32(header), []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, at uint32, change []byte) {
		changed := bytes.Clone(file)
		copy(changed[int(at)%len(file):], change)
		open, err := Open(folder(t, changed), m, target)
		if err != nil {
			return
		}
		defer open.Close()
		for _, layer := range m.Linears() {
			l, err := open.Layer(layer)
			if err != nil {
				continue
			}
			got, err := l.Matrix()
			if err != nil {
				t.Fatalf("%s: %v", layer, err)
			}
			want, err := m.Linear(layer)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", layer, diff)
			}
		}
	})
}
