package driver

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/racetest"
)

func TestPrebuilt(t *testing.T) {
	racetest.Skip(t)
	kernel := func(name, source string) Kernel {
		return Kernel{Name: name, Source: source, Options: CompileOptions{Arch: "sm_1", Defines: []string{"A=1"}}}
	}
	both, old, stale := kernel("both.cu", "x"), kernel("old.cu", "x"), kernel("stale.cu", "before")
	files := map[string][]byte{}
	add := func(k Kernel, arch string) {
		k.Options.Arch = arch
		files[PrebuiltName(k)] = []byte(k.Name + " " + arch)
	}
	add(both, "compute_80")
	add(both, "compute_90")
	add(old, "compute_80")
	add(stale, "compute_90")
	archive, err := PackPrebuilt(files)
	if err != nil {
		t.Fatal(err)
	}
	other := both
	other.Options.Defines = []string{"A=2"}
	p := NewPrebuilt(archive)
	for _, tc := range []struct {
		name         string
		kernel       Kernel
		major, minor int
		want         string // "" for none
	}{
		{"its own", both, 9, 0, "both.cu compute_90"},
		{"a newer GPU", both, 12, 0, "both.cu compute_90"},
		{"an older GPU", both, 8, 9, "both.cu compute_80"},
		{"for older GPUs alone", old, 9, 0, "old.cu compute_80"},
		{"too old a GPU", both, 7, 5, ""},
		{"for newer GPUs alone", stale, 8, 0, ""},
		{"of another source", kernel("stale.cu", "after"), 9, 0, ""},
		{"of other definitions", other, 9, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := p.PTX(tc.kernel, DeviceInfo{Major: tc.major, Minor: tc.minor})
			if string(got) != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("got %q, error %v: want %q", got, err, tc.want)
			}
			if err != nil && !strings.Contains(err.Error(), tc.kernel.Name) {
				t.Errorf("got error %v, want one that names %s", err, tc.kernel.Name)
			}
		})
	}
	for name, archive := range map[string][]byte{"none": nil, "cut": archive[:50]} {
		if _, err := NewPrebuilt(archive).PTX(both, DeviceInfo{Major: 9}); err == nil {
			t.Errorf("archive %s: no error", name)
		}
	}
}

// TestPackPrebuilt packs texts of all lengths, and many that are nearly alike in little.
func TestPackPrebuilt(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	same := make([]byte, 100<<10)
	for i := range same {
		same[i] = byte(r.Uint32())
	}
	files := map[string][]byte{}
	for i := range 3 * prebuiltTogether {
		files[fmt.Sprintf("alike.%d", i)] = append(bytes.Clone(same[i:]), byte(i))
	}
	alike, err := PackPrebuilt(files)
	if err != nil {
		t.Fatal(err)
	}
	if most := 4 * len(same); len(alike) > most {
		t.Errorf("%d that are alike take %d bytes, want at most %d", len(files), len(alike), most)
	}
	for i, n := range []int{0, 1, 7, prebuiltSlice, prebuiltSlice + 1, 9*prebuiltSlice + 5, 50} {
		files[fmt.Sprintf("other.%d", i)] = same[n/2 : n/2+n]
	}
	archive, err := PackPrebuilt(files)
	if err != nil {
		t.Fatal(err)
	}
	got, err := UnpackPrebuilt(archive)
	if err != nil || !maps.EqualFunc(got, files, bytes.Equal) {
		t.Errorf("got %d files, error %v: want the %d packed", len(got), err, len(files))
	}
}
