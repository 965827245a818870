package kerneltest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// emulator is what the host runs kernels by.
//
//go:embed host.go standin.go host*.h
var emulator embed.FS

// Shares is the number of parts that tests of unchanged kernels are run in, one at a time.
const Shares = 8

// shareEnv names the part that is run, 0 to [Shares] - 1. Without it, it is the day's.
const shareEnv = "LUTQ_SHARE"

// Stamps are the tests that have passed on the host, each with a hash of the kernels that it ran, by what they were compiled
// from, and of the emulator. As running them takes long, a test whose kernels are as they were is left to its turn.
type Stamps struct {
	path        string
	update, all bool
	share       int

	hosts *Hosts

	kept map[string]string // hash by test, of the file
	mu   sync.Mutex
	seen map[string]string // of today, "" where something else has skipped the test
	told map[string]bool   // "test hash": the modules of tests
}

// StampOptions say which tests run.
type StampOptions struct {
	Update bool // write the stamps of tests that pass: -update
	All    bool // run all, which may run more than stamps are of, and look at none: -long
}

// NewStamps returns the stamps of a test and its subtests, which lie in testdata/NAME.stamps. When all have ended it holds the file
// to be theirs, or writes it.
func NewStamps(t *testing.T, o StampOptions) *Stamps {
	t.Helper()
	s := &Stamps{path: filepath.Join("testdata", t.Name()+".stamps"), update: o.Update, all: o.All, hosts: NewHosts(t), seen: make(map[string]string), told: make(map[string]bool)}
	var err error
	if s.share, err = share(os.Getenv(shareEnv), time.Now()); err != nil {
		t.Fatal(err)
	}
	if s.kept, err = readStamps(s.path); err != nil {
		t.Fatal(err)
	}
	if s.all {
		return s
	}
	t.Cleanup(func() {
		filtered := strings.Contains(flag.Lookup("test.run").Value.String(), "/") // so that some did not get here
		switch {
		case t.Failed() || t.Skipped():
		case s.update:
			if err := s.write(filtered); err != nil {
				t.Error(err)
			}
		case !filtered:
			for _, name := range slices.Sorted(maps.Keys(s.kept)) {
				if _, ok := s.seen[name]; !ok {
					t.Errorf("%s has a stamp of %s, which is no more: %s", s.path, name, s.hint(t.Name()))
				}
			}
		}
	})
	return s
}

// share returns the part of the tests that runs.
func share(env string, now time.Time) (int, error) {
	if env == "" {
		return int(now.Unix()/(24*60*60)) % Shares, nil
	}
	n, err := strconv.Atoi(env)
	if err != nil || n < 0 || n >= Shares {
		return 0, fmt.Errorf("%s %q: want 0 to %d", shareEnv, env, Shares-1)
	}
	return n, nil
}

// Module is a kernel with what [OnHost] compiles it for.
type Module struct {
	Kernel driver.Kernel
	Arch   int
}

// Modules are kernels for one compute capability.
func Modules(arch int, kernels ...driver.Kernel) []Module {
	var all []Module
	for _, k := range kernels {
		all = append(all, Module{k, arch})
	}
	return all
}

// Due goes on with a test where its kernels have changed since it passed, or where it is its turn, and else skips it. It fails a
// test that has no stamp of its kernels as they are, and runs it all the same.
func (s *Stamps) Due(t testing.TB, modules ...Module) {
	t.Helper()
	if s.all {
		return
	}
	hash, err := stamp(modules)
	if err != nil {
		t.Fatal(err)
	}
	s.see(t.Name(), hash)
	for _, m := range modules {
		s.tell(t, m)
	}
	switch {
	case s.kept[t.Name()] == hash:
		if shareOf(t.Name()) != s.share {
			t.Skipf("its kernels are as they were when it passed, and it is in part %d of %d: today's is %d, and -long runs all", shareOf(t.Name()), Shares, s.share)
		}
	case s.update:
		t.Cleanup(func() {
			if t.Skipped() { // for want of a compiler
				s.see(t.Name(), "")
			}
		})
	default:
		t.Errorf("its kernels are not those that it passed with: %s", s.hint(t.Name()))
	}
}

// OnHost compiles a module as [Hosts.OnHost] does. It is to be among those that the stamp of the test is of.
func (s *Stamps) OnHost(t testing.TB, k driver.Kernel, arch int) *Host {
	t.Helper()
	if !s.all && !s.isTold(t, Module{k, arch}) {
		t.Errorf("%s for %d with %q is none of the kernels that the stamp is of", k.Name, arch, k.Options.Defines)
	}
	return s.hosts.OnHost(t, k, arch)
}

// told is what a module of a test is known by.
func told(t testing.TB, m Module) string {
	return fmt.Sprintf("%s %d %q %x", t.Name(), m.Arch, m.Kernel.Options.Defines, sha256.Sum256([]byte(m.Kernel.Source)))
}

func (s *Stamps) tell(t testing.TB, m Module) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told[told(t, m)] = true
}

func (s *Stamps) isTold(t testing.TB, m Module) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told[told(t, m)]
}

// see keeps today's hash of a test, or none where there is none to keep.
func (s *Stamps) see(test, hash string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[test] = hash
}

func (s *Stamps) hint(test string) string {
	test, _, _ = strings.Cut(test, "/")
	return fmt.Sprintf("go test -run '^%s$' -update runs it and writes %s", test, s.path)
}

// shareOf returns the part that a test is in.
func shareOf(test string) int {
	sum := sha256.Sum256([]byte(test))
	return int(sum[0]) % Shares
}

// stamp returns a hash of what kernels are compiled from for the host, and of what runs them.
func stamp(modules []Module) (string, error) {
	h := sha256.New()
	names, err := fs.Glob(emulator, "*")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		text, err := emulator.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%d %s", len(text), text)
	}
	for _, m := range modules {
		fmt.Fprintf(h, "%d %q %d %s", m.Arch, m.Kernel.Options.Defines, len(m.Kernel.Source), m.Kernel.Source)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// readStamps reads lines of a hash and a test. Where there is no file, no test has passed.
func readStamps(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	kept := make(map[string]string)
	for in := bufio.NewScanner(bytes.NewReader(text)); in.Scan(); {
		hash, test, ok := strings.Cut(in.Text(), " ")
		if !ok {
			return nil, fmt.Errorf("%s: line %q: want a hash and a test", path, in.Text())
		}
		kept[test] = hash
	}
	return kept, nil
}

// write writes the stamps of the tests that have run, and of others where some were left out.
func (s *Stamps) write(others bool) error {
	all := s.seen
	if others {
		all = maps.Clone(s.kept)
		maps.Copy(all, s.seen)
	}
	var text strings.Builder
	for _, test := range slices.Sorted(maps.Keys(all)) {
		if all[test] == "" {
			continue
		}
		fmt.Fprintf(&text, "%s %s\n", all[test], test)
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(s.path, []byte(text.String()), 0o644)
}
