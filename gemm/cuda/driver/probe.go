package driver

import (
	"fmt"
	"time"
)

// The kernel of the probes, which writes a number that depends on its
// argument.
const (
	probeSource = "extern \"C\" __global__ void probe(unsigned *y, unsigned v) { y[threadIdx.x] = v * 3 + threadIdx.x; }\n"
	probeName   = "probe.cu"
)

// ProbeCompiler compiles a kernel of one line for an architecture, past the
// cache, and returns how long that took.
func (c *CUDA) ProbeCompiler(arch string) (time.Duration, error) {
	if _, _, err := c.NVRTCVersion(); err != nil { // opening it is not part of the time
		return 0, err
	}
	begin := time.Now()
	_, err := c.Compile(probeSource, probeName, CompileOptions{Arch: arch})
	return time.Since(begin), err
}

// Probe compiles a kernel of one line, runs it and checks what it wrote.
func (d *Device) Probe() error {
	m, err := d.LoadKernel(Kernel{Name: probeName, Source: probeSource})
	if err != nil {
		return err
	}
	defer m.Close()
	f, err := m.Function("probe")
	if err != nil {
		return err
	}
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	const threads, v = 64, 1234567
	y, err := d.Alloc(4 * threads)
	if err != nil {
		return err
	}
	defer d.Free(y)
	if err := f.Launch(s, Launch{Block: Dim{X: threads}}, new(Args).Ptr(y).U32(v)); err != nil {
		return err
	}
	out := make([]uint32, threads)
	if err := d.Read(Bytes(out), y); err != nil {
		return err
	}
	for i, got := range out {
		if want := uint32(v*3 + i); got != want {
			return fmt.Errorf("the kernel wrote %d where %d belongs", got, want)
		}
	}
	return nil
}
