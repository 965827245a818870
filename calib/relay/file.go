package relay

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/lutq/lutq/formats/input"
)

// magic begins a file. The SHA-256 of what it is of comes next.
const magic = "lutq states 1\n"

const headerSize = len(magic) + sha256.Size

func (r *Relay) fileName(at [2]int) string {
	return fmt.Sprintf("states-%s-%d-%d", r.id, at[0], at[1])
}

// parseName returns the block and the group of a file's name.
func (r *Relay) parseName(name string) (at [2]int, ok bool) {
	rest, ok := strings.CutPrefix(name, "states-"+r.id+"-")
	block, g, ok2 := strings.Cut(rest, "-")
	var err, err2 error
	at[0], err = strconv.Atoi(block)
	at[1], err2 = strconv.Atoi(g)
	return at, ok && ok2 && err == nil && err2 == nil && at[1] >= 0 && at[1] < len(r.groups) && r.fileName(at) == name
}

func (r *Relay) own() string { return fmt.Sprintf("%dof%d", r.Part, r.Parts) }

// claim names the folder of a process that is on its way with a group.
func (r *Relay) claim(g int) string { return fmt.Sprintf("walk-%s-%d-%s", r.id, g, r.own()) }

// parseClaim returns the group of such a folder, and whether it is of the same part.
func (r *Relay) parseClaim(name string) (g int, own, ok bool) {
	rest, ok := strings.CutPrefix(name, "walk-"+r.id+"-")
	group, part, ok2 := strings.Cut(rest, "-")
	g, err := strconv.Atoi(group)
	return g, part == r.own(), ok && ok2 && err == nil && g >= 0 && g < len(r.groups)
}

// header says what a file is of.
func (r *Relay) header(at [2]int) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%d %v\n%v", r.Key, at[0], r.groups[at[1]], r.Sizes))
	return append([]byte(magic), sum[:]...)
}

// windowSize is what a window takes of a file.
func (r *Relay) windowSize(window int) int64 { return 4*int64(r.Sizes[window]) + sha256.Size }

// fileSize returns the bytes of a group's file.
func (r *Relay) fileSize(g int) int64 { return r.place(g, r.groups[g].to) }

// place returns where a window begins in its group's file.
func (r *Relay) place(g, window int) int64 {
	at := int64(headerSize)
	for w := r.groups[g].from; w < window; w++ {
		at += r.windowSize(w)
	}
	return at
}

// groupOf returns the group of a window.
func (r *Relay) groupOf(window int) int {
	for g, of := range r.groups {
		if window < of.to {
			return g
		}
	}
	panic(fmt.Sprintf("window %d of %d", window, len(r.Sizes)))
}

// damagedError means that a file was not as it had been written. It is removed.
type damagedError struct{ file string }

func (e *damagedError) Error() string { return e.file + " is not as it was written" }

// Damaged reports whether an error is that of a file which is removed, so that [Relay.Run] makes it again.
func Damaged(err error) bool {
	var damaged *damagedError
	return errors.As(err, &damaged)
}

// encode writes a window as files have it.
func encode(state []float32) []byte {
	data := make([]byte, 0, 4*len(state)+sha256.Size)
	for _, v := range state {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	sum := sha256.Sum256(data)
	return append(data, sum[:]...)
}

// decode fills a window, and reports whether it is as it was written.
func decode(state []float32, data []byte) bool {
	if len(data) != 4*len(state)+sha256.Size {
		return false
	}
	for i := range state {
		state[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return sha256.Sum256(data[:4*len(state)]) == [sha256.Size]byte(data[4*len(state):])
}

// load reads what a window is before a block.
func (r *Relay) load(block, window int, state []float32) error {
	at := [2]int{block, r.groupOf(window)}
	path := r.Folder.Path(r.fileName(at))
	head, data := make([]byte, headerSize), make([]byte, r.windowSize(window))
	f, err := input.Open(path)
	if err == nil {
		_, err = f.ReadAt(head, 0)
		if err == nil {
			_, err = f.ReadAt(data, r.place(at[1], window))
		}
		err = errors.Join(err, f.Close())
	}
	if err == nil && bytes.Equal(head, r.header(at)) && decode(state, data) {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return &damagedError{path}
}

// Whole gives the states of all windows to a walk. It keeps none.
func (r *Relay) Whole() *Whole { return &Whole{r} }

// Whole implements [model.States].
type Whole struct{ r *Relay }

// Keeps is false.
func (w *Whole) Keeps(int) bool { return false }

// Save is never called.
func (w *Whole) Save(int, int, []float32) error { return nil }

// Load reads what a window is before a block. An error may be [Damaged].
func (w *Whole) Load(block, window int, state []float32) error { return w.r.load(block, window, state) }

// states are those of some windows, on their way. It implements [model.States].
type states struct {
	*Relay
	windows group
	first   int      // group
	dirs    []string // of the groups

	mu     sync.Mutex
	making map[[2]int]*making
	failed error // to write
}

// making is a file in the making; nil once it is in its place.
type making struct {
	file *os.File
	left int // windows
	lost bool
}

// Keeps implements [model.States].
func (s *states) Keeps(block int) bool {
	for at := range s.making {
		if at[0] == block {
			return true
		}
	}
	return false
}

// Load implements [model.States].
func (s *states) Load(block, window int, state []float32) error {
	return s.load(block, s.windows.from+window, state)
}

// Save implements [model.States].
func (s *states) Save(block, window int, state []float32) error {
	window += s.windows.from
	at := [2]int{block, s.groupOf(window)}
	data := encode(state)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.making[at]
	if m == nil || m.lost {
		return s.failed
	}
	err := s.write(at, m, window, data)
	if errors.Is(err, fs.ErrNotExist) { // who has made the same, or merged, removed what is in the making
		m.lost, err = true, nil
	}
	if err != nil && s.failed == nil {
		s.failed = err
	}
	return err
}

// write writes a window, and puts the file in its place after the last.
func (s *states) write(at [2]int, m *making, window int, data []byte) (err error) {
	if m.file == nil {
		if m.file, err = os.Create(filepath.Join(s.dirs[at[1]-s.first], s.fileName(at))); err != nil {
			return err
		}
		m.left = s.groups[at[1]].to - s.groups[at[1]].from
		if _, err := m.file.WriteAt(s.header(at), 0); err != nil {
			return err
		}
	}
	if _, err := m.file.WriteAt(data, s.place(at[1], window)); err != nil {
		return err
	}
	if m.left--; m.left > 0 {
		return nil
	}
	name := m.file.Name()
	err = m.file.Close()
	m.file = nil
	if err != nil {
		return err
	}
	return os.Rename(name, s.Folder.Path(s.fileName(at)))
}

// close removes what is in the making.
func (s *states) close() (err error) {
	for _, m := range s.making {
		if m.file != nil {
			m.file.Close() // which is of no use any more
		}
	}
	for _, dir := range s.dirs {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}
