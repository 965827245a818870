package driver

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Prebuilt holds PTX of kernels that were compiled ahead of time, for machines
// without a compiler, each by its [PrebuiltName].
type Prebuilt struct {
	files func() (map[string][]byte, error)
}

// NewPrebuilt returns the PTX in an archive, which is first read when it is
// needed.
func NewPrebuilt(archive []byte) *Prebuilt {
	return &Prebuilt{sync.OnceValues(func() (map[string][]byte, error) {
		files, err := UnpackPrebuilt(archive)
		if err != nil {
			return nil, fmt.Errorf("prebuilt PTX: %w", err)
		}
		return files, nil
	})}
}

// An archive is a gzip stream of PTX in the order of their names, so many together, of each
// about so many bytes in turn. Those that follow another in the order are nearly alike, and so
// lie within the 32 KiB in which deflate looks for what it has had: that halves the archive.
const (
	prebuiltTogether = 8
	prebuiltSlice    = 4 << 10
)

// prebuiltSlices calls f with the name of the one that comes next and where in it,
// of PTX that lie together.
func prebuiltSlices(names []string, sizes []int, f func(name string, from, to int)) {
	n := (slices.Max(sizes) + prebuiltSlice - 1) / prebuiltSlice
	for i := range n {
		for j, name := range names {
			f(name, sizes[j]*i/n, sizes[j]*(i+1)/n)
		}
	}
}

// PackPrebuilt returns an archive of PTX by name.
func PackPrebuilt(files map[string][]byte) ([]byte, error) {
	var data, archive bytes.Buffer
	for names := range slices.Chunk(slices.Sorted(maps.Keys(files)), prebuiltTogether) {
		var sizes []int
		for _, name := range names {
			fmt.Fprintf(&data, "%s %d\n", name, len(files[name]))
			sizes = append(sizes, len(files[name]))
		}
		data.WriteByte('\n')
		prebuiltSlices(names, sizes, func(name string, from, to int) { data.Write(files[name][from:to]) })
	}
	w, err := gzip.NewWriterLevel(&archive, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data.Bytes()); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return archive.Bytes(), nil
}

// UnpackPrebuilt returns the PTX in an archive by name.
func UnpackPrebuilt(archive []byte) (map[string][]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for len(data) > 0 {
		head, rest, _ := bytes.Cut(data, []byte("\n\n"))
		var names []string
		var sizes []int
		left := len(rest)
		for line := range strings.Lines(string(head)) {
			var name string
			var size int
			if _, err := fmt.Sscanf(line, "%s %d", &name, &size); err != nil || size < 0 || size > left {
				return nil, errors.New("it is damaged")
			}
			names, sizes, left = append(names, name), append(sizes, size), left-size
		}
		if len(names) == 0 {
			return nil, errors.New("it is damaged")
		}
		data = rest
		prebuiltSlices(names, sizes, func(name string, from, to int) {
			files[name] = append(files[name], data[:to-from]...)
			data = data[to-from:]
		})
	}
	return files, nil
}

// PrebuiltArchs returns the architectures that PTX may be built for, newest first.
// That of the last does for all GPUs, unless the source asks for the architecture.
func PrebuiltArchs() []string { return []string{"compute_90", "compute_80"} }

// PrebuiltName returns the name of a kernel's PTX in an archive. It holds a
// digest of the source and of what the compiler is told, the architecture
// included: PTX of another source has another name, and is not found.
func PrebuiltName(k Kernel) string {
	h := sha256.New()
	digestKernel(h, k)
	return fmt.Sprintf("%s.%s.%s.ptx", strings.TrimSuffix(k.Name, ".cu"), k.Options.Arch, hex.EncodeToString(h.Sum(nil)[:8]))
}

// PTX returns a kernel's PTX for a GPU: the newest that it understands. The
// kernel's own architecture does not count.
func (p *Prebuilt) PTX(k Kernel, i DeviceInfo) ([]byte, error) {
	files, err := p.files()
	if err != nil {
		return nil, err
	}
	for _, arch := range PrebuiltArchs() {
		var capability int
		if _, err := fmt.Sscanf(arch, "compute_%d", &capability); err != nil || 10*i.Major+i.Minor < capability {
			continue
		}
		k.Options.Arch = arch
		if ptx, ok := files[PrebuiltName(k)]; ok {
			return ptx, nil
		}
	}
	return nil, fmt.Errorf("no PTX of %s has been built for %s", k.Name, i.Arch())
}
