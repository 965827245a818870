package driver

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Library tells what became of one of the libraries that this package opens.
type Library struct {
	Name    string // what it is, such as "NVRTC"
	Purpose string // what it is needed for
	Path    string // the file that was opened; empty where none was
	Version string // such as "13.0"
	Err     error  // why it cannot be used, a *[MissingError] as a rule
}

// An opened library.
type library struct {
	handle uintptr
	path   string
}

// symbol is a function to be looked up and where its address goes.
type symbol struct {
	name string
	fn   *uintptr
}

// resolve looks up functions that must all be there.
func (l *library) resolve(purpose string, symbols []symbol) error {
	for _, s := range symbols {
		fn, err := dlsym(l.handle, s.name)
		if err != nil {
			return &MissingError{Library: s.name, Purpose: purpose, Broken: []string{l.path + " does not have it: a newer one is needed"}}
		}
		*s.fn = fn
	}
	return nil
}

// places is where libraries are looked for.
type places struct {
	first  []string // folders that come before the loader's own path
	behind []string // folders that come after it
}

// searchPlaces lists the folders that may hold CUDA libraries: those of
// $LUTQ_CUDA_PATH, then, after the loader's own path, the system's and those of
// Python packages.
func searchPlaces(extra []string) places {
	p := places{first: slices.Clone(extra)}
	p.first = append(p.first, filepath.SplitList(os.Getenv("LUTQ_CUDA_PATH"))...)

	triplet := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	target := map[string]string{"amd64": "x86_64-linux", "arm64": "sbsa-linux"}[runtime.GOARCH]
	globs := []string{
		"/usr/local/cuda/lib64",
		"/usr/local/cuda*/lib64",
		"/usr/local/cuda*/targets/" + target + "/lib",
		"/opt/cuda/lib64",
		"/usr/lib/" + triplet + "-linux-gnu",
		"/usr/local/nvidia/lib64",
		"/usr/lib64",
		"/usr/lib/wsl/lib",
	}
	for _, g := range globs {
		p.behind = append(p.behind, existing(g)...)
	}
	for _, site := range pythonSites() {
		for _, sub := range []string{"cu13/lib", "cuda_nvrtc/lib", "cublas/lib", "nccl/lib"} {
			p.behind = append(p.behind, existing(filepath.Join(site, "nvidia", sub))...)
		}
	}
	p.first = unique(p.first)
	p.behind = unique(p.behind)
	return p
}

// pythonSites returns patterns of the folders that Python packages are
// installed to: the active environment's, one beside the working directory,
// the interpreter's on $PATH, the user's and the system's.
func pythonSites() []string {
	var prefixes []string
	for _, env := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if dir := os.Getenv(env); dir != "" {
			prefixes = append(prefixes, dir)
		}
	}
	prefixes = append(prefixes, ".venv")
	if python, err := exec.LookPath("python3"); err == nil {
		prefixes = append(prefixes, filepath.Dir(filepath.Dir(python)))
		if real, err := filepath.EvalSymlinks(python); err == nil {
			prefixes = append(prefixes, filepath.Dir(filepath.Dir(real)))
		}
	}
	if home, err := os.UserHomeDir(); err == nil {
		prefixes = append(prefixes, filepath.Join(home, ".local"))
	}
	prefixes = append(prefixes, "/usr/local", "/usr")
	var sites []string
	for _, p := range prefixes {
		sites = append(sites, filepath.Join(p, "lib/python3*/site-packages"), filepath.Join(p, "lib/python3*/dist-packages"))
	}
	return sites
}

// existing returns the folders that a pattern matches, newest version first.
func existing(pattern string) []string {
	dirs, _ := filepath.Glob(pattern) // the only error is a malformed pattern
	slices.Reverse(dirs)
	return slices.DeleteFunc(dirs, func(d string) bool {
		info, err := os.Stat(d)
		return err != nil || !info.IsDir()
	})
}

// unique drops empty and repeated folders, and keeps the first of each.
func unique(dirs []string) []string {
	seen := make(map[string]bool)
	var out []string
	for _, d := range dirs {
		real, err := filepath.EvalSymlinks(d)
		if err != nil {
			real = d
		}
		if d != "" && !seen[real] {
			seen[real] = true
			out = append(out, d)
		}
	}
	return out
}

// find opens the first library that has one of the names, place by place, and
// in each place the names in order. Libraries that match one of the patterns
// in with and lie in the same folder are opened first, because the loader
// would not look for them there.
func (p places) find(purpose string, names, with []string) (*library, error) {
	missing := &MissingError{Library: strings.Join(names, " or "), Purpose: purpose}
	inFolder := func(dir string) *library {
		missing.Tried = append(missing.Tried, dir)
		for _, name := range names {
			path := filepath.Join(dir, name)
			if _, err := os.Stat(path); err != nil {
				continue
			}
			for _, pattern := range with {
				files, _ := filepath.Glob(filepath.Join(dir, pattern))
				for _, f := range files {
					_, _ = dlopen(f) // where it matters, the library itself says so
				}
			}
			handle, err := dlopen(path)
			if err == nil {
				return &library{handle, path}
			}
			missing.Broken = append(missing.Broken, err.Error())
		}
		return nil
	}
	for _, dir := range p.first {
		if l := inFolder(dir); l != nil {
			return l, nil
		}
	}
	missing.Tried = append(missing.Tried, "the loader's path")
	for _, name := range names {
		if handle, err := dlopen(name); err == nil {
			return &library{handle, name}, nil
		}
	}
	for _, dir := range p.behind {
		if l := inFolder(dir); l != nil {
			return l, nil
		}
	}
	return nil, missing
}
