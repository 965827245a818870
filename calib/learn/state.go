package learn

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
)

// The state file is
//
//	magic, 8 bytes
//	length of the header, 4 bytes, little-endian
//	header: JSON
//	arrays of float32, little-endian: p, m, v, then as the header says
//	the codes' parameters, the best ones, and those of the best one's codes
//	SHA-256 of all that
const (
	stateMagic = "lutqlrn1"
)

// header describes a state.
type header struct {
	Key         string `json:"key"` // of the run that it belongs to
	Parameters  int    `json:"parameters"`
	Recoded     bool   `json:"recoded"`
	HasBest     bool   `json:"has_best"`
	BestRecoded bool   `json:"best_recoded"`
	progress
}

// count is the number of arrays that follow.
func (h *header) count() int {
	n := 3
	for _, has := range []bool{h.Recoded, h.HasBest, h.HasBest && h.BestRecoded} {
		if has {
			n++
		}
	}
	return n
}

// The reasons why a state is of no use.
var (
	errCorrupt  = errors.New("is damaged")
	errOtherRun = errors.New("belongs to a run with other options")
)

// writeState writes a state whose arrays read gives one after the other.
func writeState(w io.Writer, h *header, read func(i int, dst []float32)) error {
	head, err := json.Marshal(h)
	if err != nil {
		return err
	}
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<16)
	_, _ = out.WriteString(stateMagic) // errors stay until Flush
	_, _ = out.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(head))))
	_, _ = out.Write(head)
	values := make([]float32, h.Parameters)
	data := make([]byte, 4*min(len(values), 1<<16))
	for i := range h.count() {
		read(i, values)
		for part := range slices.Chunk(values, 1<<16) {
			num.EncodeF32(data[:4*len(part)], part)
			_, _ = out.Write(data[:4*len(part)])
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err = w.Write(sum.Sum(nil))
	return err
}

// readState reads a state with the given key and number of parameters. Nothing
// in it is to be trusted before its sum is found to be right, at the end.
func readState(r io.Reader, key string, parameters int) (*header, [][]float32, error) {
	sum := sha256.New()
	in := &summed{bufio.NewReaderSize(r, 1<<16), sum}
	start := make([]byte, len(stateMagic)+4)
	if err := in.fill(start); err != nil {
		return nil, nil, err
	}
	size := binary.LittleEndian.Uint32(start[len(stateMagic):])
	if string(start[:len(stateMagic)]) != stateMagic || int64(size) > input.State.Limit() {
		return nil, nil, errCorrupt
	}
	// The length may be anything: no more is held than there is.
	head, err := io.ReadAll(io.LimitReader(in.r, int64(size)))
	if err != nil || len(head) != int(size) {
		return nil, nil, errors.Join(errCorrupt, err)
	}
	sum.Write(head)
	var h header
	if json.Unmarshal(head, &h) != nil {
		return nil, nil, errCorrupt
	}
	if h.Key != key || h.Parameters != parameters {
		return nil, nil, errOtherRun
	}
	arrays := make([][]float32, h.count())
	data := make([]byte, 4*min(parameters, 1<<16))
	for i := range arrays {
		arrays[i] = make([]float32, parameters)
		for part := range slices.Chunk(arrays[i], 1<<16) {
			if err := in.fill(data[:4*len(part)]); err != nil {
				return nil, nil, err
			}
			num.DecodeF32(part, data[:4*len(part)])
		}
	}
	want := sum.Sum(nil)
	got := make([]byte, len(want))
	if err := in.fill(got); err != nil {
		return nil, nil, err
	}
	if _, err := in.r.ReadByte(); err != io.EOF || !slices.Equal(got, want) {
		return nil, nil, errCorrupt
	}
	return &h, arrays, nil
}

// summed reads what it also adds to a sum.
type summed struct {
	r   *bufio.Reader
	sum hash.Hash
}

func (s *summed) fill(p []byte) error {
	_, err := io.ReadFull(s.r, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errCorrupt
	}
	s.sum.Write(p)
	return err
}

// arrays are the state's, in the order of the file.
func (t *trainer) arrays(h *header) []model.Array {
	a := []model.Array{t.now.p, t.m, t.v}
	if h.Recoded {
		a = append(a, t.now.coded)
	}
	if h.HasBest {
		a = append(a, t.best.p)
		if h.BestRecoded {
			a = append(a, t.best.coded)
		}
	}
	return a
}

// save writes the state beside its place and moves it there.
func (t *trainer) save() error {
	if t.State == "" {
		return nil
	}
	if err := t.ops.Err(); err != nil {
		return err
	}
	h := &header{
		Key: t.key, Parameters: t.scaleCount + t.tableCount, Recoded: t.now.recoded,
		HasBest: t.keepsBest(), BestRecoded: t.best.recoded, progress: t.progress,
	}
	begin, arrays := time.Now(), t.arrays(h)
	next := t.State + ".next"
	f, err := os.Create(next)
	if err != nil {
		return err
	}
	err = writeState(f, h, func(i int, dst []float32) { t.ops.Read(dst, arrays[i]) })
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	t.saved, t.saving = time.Now(), time.Since(begin)
	return os.Rename(next, t.State)
}

// resume goes on from the state file, if there is one that can be used.
func (t *trainer) resume() error {
	if t.State == "" {
		return nil
	}
	f, err := input.Open(t.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	h, arrays, err := readState(f, t.key, t.scaleCount+t.tableCount)
	if errors.Is(err, errCorrupt) || errors.Is(err, errOtherRun) {
		if t.Warn != nil {
			t.Warn(fmt.Sprintf("what an earlier run has learned %v, so learning starts anew", err))
		}
		return nil
	}
	if err != nil {
		return err
	}
	if h.HasBest != t.keepsBest() || (h.Recoded || h.BestRecoded) && t.Recode == 0 || h.Step > t.steps || len(h.Losses) != h.Step {
		return fmt.Errorf("%s: the state does not fit its key", t.State)
	}
	t.progress, t.now.recoded, t.best.recoded = h.progress, h.Recoded, h.BestRecoded
	for i, a := range t.arrays(h) {
		t.ops.Write(a, arrays[i])
	}
	t.restore()
	return t.ops.Err()
}

// digest begins a sum of all that the result depends on, to which [addMatrix] adds what is
// learned from.
func (t *trainer) digest(m *model.Model) hash.Hash {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s control %v recode %d rate %v epochs %d batch %d seed %d bf16 %v lsq %v table %v device %s\n",
		t.Mode, t.Objective, t.control, t.Recode, t.Rate, t.Epochs, t.Batch, t.Seed, t.BF16, t.LSQ, t.Table, m.Ops().Name())
	for _, set := range [][][]int{t.Windows, t.Valid} {
		fmt.Fprintln(h, len(set))
		for _, w := range set {
			fmt.Fprintln(h, w)
		}
	}
	for i := range t.layers {
		x := &t.layers[i].shape
		fmt.Fprintf(h, "%s %d %d %d %d %v\n", t.layers[i].name, x.n, x.k, x.bits, x.group, x.scaleType)
	}
	return h
}

// addMatrix adds what is stored to a sum.
func addMatrix(h hash.Hash, m weight.Matrix) {
	fmt.Fprintln(h, m.Kind())
	for _, part := range m.Parts() {
		fmt.Fprintln(h, len(part))
		h.Write(part)
	}
}
