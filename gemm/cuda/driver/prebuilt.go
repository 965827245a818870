package driver

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"sync"
)

// Prebuilt holds PTX of kernels that were compiled ahead of time, for machines
// without a compiler: a zip archive with an entry [PrebuiltName] for each.
type Prebuilt struct {
	files func() (map[string]*zip.File, error)
}

// NewPrebuilt returns the PTX in an archive, which is first read when it is
// needed.
func NewPrebuilt(archive []byte) *Prebuilt {
	return &Prebuilt{sync.OnceValues(func() (map[string]*zip.File, error) {
		r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
		if err != nil {
			return nil, fmt.Errorf("prebuilt PTX: %w", err)
		}
		files := make(map[string]*zip.File, len(r.File))
		for _, f := range r.File {
			files[f.Name] = f
		}
		return files, nil
	})}
}

// PrebuiltArchs returns the architectures that PTX may be built for, newest first.
// That of the last does for all GPUs, unless the source asks for the architecture.
func PrebuiltArchs() []string { return []string{"compute_90", "compute_80"} }

// PrebuiltName returns the name of a kernel's entry in an archive. It holds a
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
		f, ok := files[PrebuiltName(k)]
		if !ok {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, fmt.Errorf("prebuilt PTX %s: %w", f.Name, err)
		}
		ptx, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("prebuilt PTX %s: %w", f.Name, err)
		}
		return ptx, r.Close()
	}
	return nil, fmt.Errorf("no PTX of %s has been built for %s", k.Name, i.Arch())
}
