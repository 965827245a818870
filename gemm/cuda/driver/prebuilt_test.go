package driver

import (
	"archive/zip"
	"bytes"
	"strings"
	"testing"
)

func TestPrebuilt(t *testing.T) {
	kernel := func(name, source string) Kernel {
		return Kernel{Name: name, Source: source, Options: CompileOptions{Arch: "sm_1", Defines: []string{"A=1"}}}
	}
	both, old, stale := kernel("both.cu", "x"), kernel("old.cu", "x"), kernel("stale.cu", "before")
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	add := func(k Kernel, arch string) {
		k.Options.Arch = arch
		f, err := w.Create(PrebuiltName(k))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(k.Name + " " + arch)); err != nil {
			t.Fatal(err)
		}
	}
	add(both, "compute_80")
	add(both, "compute_90")
	add(old, "compute_80")
	add(stale, "compute_90")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	other := both
	other.Options.Defines = []string{"A=2"}
	p := NewPrebuilt(archive.Bytes())
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
	for name, archive := range map[string][]byte{"none": nil, "cut": archive.Bytes()[:50]} {
		if _, err := NewPrebuilt(archive).PTX(both, DeviceInfo{Major: 9}); err == nil {
			t.Errorf("archive %s: no error", name)
		}
	}
}
