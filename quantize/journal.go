package quantize

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/quantize/rounding"
)

// journalName is the file beside an output being built that lists finished
// tensors.
const journalName = "lutq-journal"

// A record says that a tensor is finished, and what its run found out.
type record struct {
	Tensor string     `json:"tensor,omitempty"`
	Sums   []lutq.Sum `json:"sums,omitempty"` // of the stored tensors
	rowSums
	// The table that was chosen for a layer by what it reads on a text.
	Codebook string   `json:"codebook,omitempty"`
	Remarks  []Remark `json:"remarks,omitempty"`
	Routed   []int    `json:"routed,omitempty"`  // tokens of each expert of a stack, or of the one
	Refined  bool     `json:"refined,omitempty"` // and in its place
}

// rowSums are sums over rows.
type rowSums struct {
	Energy  float64 `json:"energy,omitempty"`
	Squared float64 `json:"squared,omitempty"`
	Fit
	Narrow
	Outputs
}

// add takes in a row.
func (s *rowSums) add(e rounding.RowError) {
	s.Energy += e.Energy
	s.Squared += e.Squared
	s.Fit.add(e)
	s.Output += e.Output
	s.OutputSquared += e.OutputSquared
	if e.Wants != 0 {
		s.Narrow.Rows++
		s.Wants = max(s.Wants, e.Wants)
	}
}

// addAll takes in the sums of other rows.
func (s *rowSums) addAll(of rowSums) {
	s.Energy += of.Energy
	s.Squared += of.Squared
	s.Fit.addAll(of.Fit)
	s.Output += of.Output
	s.OutputSquared += of.OutputSquared
	s.Narrow.Rows += of.Narrow.Rows
	s.Wants = max(s.Wants, of.Wants)
}

// entry is a line of a journal: a record, or what came of a refiner.
type entry struct {
	record
	Refinement *refinement `json:"refinement,omitempty"`
}

// journal is the list of finished tensors of a run, a JSON object a line. A
// line is trusted only after the stored data is found to have its sums, so
// nothing needs to reach the disk in a particular order.
type journal struct {
	// By earlier runs: records of tensors as they were quantized, what came of a
	// refiner, and records of tensors that are as it left them.
	done       map[string]record
	refinement *refinement
	refined    map[string]record

	mu   sync.Mutex
	file *os.File
}

// openJournal opens or starts a journal.
func openJournal(path string) (*journal, error) {
	f, err := input.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	j := &journal{file: f, done: make(map[string]record), refined: make(map[string]record)}
	if err := j.load(); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return j, nil
}

func (j *journal) load() error {
	data, err := input.ReadOpen(j.file, input.Journal)
	if err != nil {
		return err
	}
	// A line that a kill cut short counts as not written.
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	if err := j.file.Truncate(int64(len(data))); err != nil {
		return err
	}
	if _, err := j.file.Seek(int64(len(data)), io.SeekStart); err != nil {
		return err
	}
	for line := range bytes.Lines(data) {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			continue // not finished, then
		}
		switch {
		case e.Refinement != nil:
			j.refinement = e.Refinement
			clear(j.refined)
		case e.Refined:
			j.refined[e.Tensor] = e.record
		default:
			j.done[e.Tensor] = e.record
		}
	}
	return nil
}

// add notes what is finished.
func (j *journal) add(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	_, err = j.file.Write(append(line, '\n'))
	return err
}

func (j *journal) close() { j.file.Close() }

// fingerprint names a plan: its recipe with every codebook, and the source's
// files as far as they can be told apart without reading them.
func (p *Plan) fingerprint(maxShard int64) string {
	h := sha256.New()
	p.write(h)
	fmt.Fprintf(h, "shard %d\n", maxShard)
	for _, shard := range p.Source.Shards() {
		version, err := p.Source.Version(shard)
		if err != nil {
			continue // reading it will fail with a better message
		}
		fmt.Fprintf(h, "%s %s\n", shard, version)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// allocated returns the bytes that a file takes on disk, which for one that
// was only truncated to its length is less than that.
func allocated(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}
