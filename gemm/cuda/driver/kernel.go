package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Kernel is the source of a module, to be compiled for the GPU at hand.
type Kernel struct {
	Name    string // for messages
	Source  string
	Options CompileOptions // an empty Arch means the GPU's own

	// PTX returns what stands in where there is no compiler that knows the GPU.
	// It may be nil.
	PTX func(DeviceInfo) ([]byte, error)
}

// Cubin returns the machine code of a kernel, from the cache where it is there.
// What the cache cannot keep stays in memory. It needs no GPU; Options.Arch must be set.
func (c *CUDA) Cubin(k Kernel) (cubin []byte, cached bool, err error) {
	key, err := c.cacheKey(k)
	if err != nil {
		return nil, false, err
	}
	if cubin, ok := c.cache.Get(key); ok {
		return cubin, true, nil
	}
	if cubin, ok := c.kept.Load(key); ok {
		return cubin.([]byte), true, nil
	}
	made, err, _ := c.making.Do(key, func() (any, error) { // several GPUs ask for the same
		out, err := c.Compile(k.Source, k.Name, k.Options)
		if err != nil {
			return nil, err
		}
		if len(out.Cubin) == 0 {
			return nil, fmt.Errorf("compiling %s for %s gives no machine code", k.Name, k.Options.Arch)
		}
		if c.cache.Put(key, out.Cubin) != nil { // which is allowed
			c.kept.Store(key, out.Cubin)
		}
		return out.Cubin, nil
	})
	if err != nil {
		return nil, false, err
	}
	return made.([]byte), false, nil
}

// cacheKey digests everything that the machine code depends on.
func (c *CUDA) cacheKey(k Kernel) (string, error) {
	major, minor, err := c.NVRTCVersion()
	if err != nil {
		return "", err
	}
	driver := 0
	if api, err := c.api(); err == nil {
		driver = api.version / 1000
	}
	h := sha256.New()
	digestKernel(h, k)
	digestStrings(h, fmt.Sprintf("nvrtc %d.%d, driver %d", major, minor, driver))
	return hex.EncodeToString(h.Sum(nil)), nil
}

// digestKernel writes all that the compiler is told.
func digestKernel(h io.Writer, k Kernel) {
	digestStrings(h, k.Name, k.Source)
	digestStrings(h, k.Options.flags()...)
	for _, header := range k.Options.Headers {
		digestStrings(h, header.Name, header.Source)
	}
}

// digestStrings writes a list so that no two read the same.
func digestStrings(h io.Writer, parts ...string) {
	for _, p := range parts {
		fmt.Fprintf(h, "%d:", len(p))
		io.WriteString(h, p)
	}
	io.WriteString(h, ";")
}

// LoadKernel compiles a kernel for the device, or takes it from the cache, and
// loads it. Its PTX, which the driver compiles, stands in where NVRTC is
// missing or does not know the GPU, or the driver does not know NVRTC's
// machine code.
func (d *Device) LoadKernel(k Kernel) (*Module, error) {
	if k.Options.Arch == "" {
		k.Options.Arch = d.Info.Arch()
	}
	cubin, _, err := d.cuda.Cubin(k)
	if err == nil {
		m, loadErr := d.LoadModule(cubin)
		if loadErr == nil {
			return m, nil
		}
		err = fmt.Errorf("%s for %s: %w", k.Name, k.Options.Arch, loadErr)
	}
	if k.PTX == nil || !replaceable(err) {
		return nil, err
	}
	ptx, ptxErr := k.PTX(d.Info)
	if ptxErr != nil {
		return nil, fmt.Errorf("%w; %w", err, ptxErr)
	}
	m, ptxErr := d.LoadModule(ptx)
	if ptxErr != nil {
		return nil, fmt.Errorf("%w; its PTX: %w", err, ptxErr)
	}
	return m, nil
}

// Prepare compiles those of some kernels that the cache does not have for the device, each once, on all processors. LoadKernel says what
// is wrong with one.
func (d *Device) Prepare(kernels []Kernel) {
	if d.cuda.cache == nil {
		return // with nowhere to keep them
	}
	seen := make(map[string]bool)
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, k := range kernels {
		if k.Options.Arch == "" {
			k.Options.Arch = d.Info.Arch()
		}
		key, err := d.cuda.cacheKey(k)
		if err != nil {
			return // there is no compiler
		}
		if seen[key] {
			continue
		}
		seen[key] = true
		group.Go(func() error {
			_, _, err := d.cuda.Cubin(k)
			return err
		})
	}
	_ = group.Wait() // what is wrong is told where it is needed
}

// CanCompile returns nil where kernels can be compiled, and else why not: then
// LoadKernel loads those that have PTX.
func (d *Device) CanCompile() error {
	_, _, err := d.cuda.NVRTCVersion()
	return err
}

// replaceable reports whether an error means that the compiler or its output
// does not fit this machine, not that something is wrong with the source.
func replaceable(err error) bool {
	var missing *MissingError
	if errors.As(err, &missing) {
		return true
	}
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	if e.Op == "nvrtcCompileProgram" {
		return e.Code == codeNVRTCInvalidOption // an architecture that it does not know
	}
	return slices.Contains([]int{codeInvalidImage, codeNoBinaryForGPU, codeInvalidPTX, codeUnsupportedPTX}, e.Code)
}
