package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

func newDoctorCommand(u *ui) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Tell what this machine has for lutq to use",
		Long: `Doctor lists what lutq finds on this machine: the processor and its instruction
sets, memory, the cache folder, CUDA libraries with their paths and versions,
and GPUs. It compiles a small kernel and runs it on each GPU.

Lutq looks for libraries in the folders of $LUTQ_CUDA_PATH, on the loader's
path, in the usual folders of CUDA, and in Python packages (nvidia-cuda-nvrtc
and nvidia-cublas are enough; several GPUs also use nvidia-nccl). On the CPU
nothing of CUDA is needed, so the exit code is 0 without it.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			d := diagnose()
			if asJSON {
				return u.printJSON(d)
			}
			return u.facts(d.print)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the findings as JSON")
	return c
}

// diagnosis is what doctor prints.
type diagnosis struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	CPU     struct {
		Name    string   `json:"name"`
		Threads int      `json:"threads"`
		ISAs    []string `json:"isas"`     // that can be used, slowest first
		ISA     string   `json:"isa"`      // the one that is
		LUTQISA string   `json:"lutq_isa"` // $LUTQ_ISA
		Error   string   `json:"error,omitempty"`
	} `json:"cpu"`
	Memory struct {
		Total     int64 `json:"total_bytes"` // 0 where the system does not say
		Available int64 `json:"available_bytes"`
	} `json:"memory"`
	Cache struct {
		Dir     string `json:"dir"`
		Bytes   int64  `json:"bytes"`
		Kernels int    `json:"kernels"`
		Error   string `json:"error,omitempty"` // why it is not used
	} `json:"cache"`
	CUDA struct {
		Error     string            `json:"error,omitempty"` // why there is nothing to list
		Libraries []libraryFindings `json:"libraries"`
		Compiler  compilerFindings  `json:"compiler"`
		GPUError  string            `json:"gpu_error,omitempty"` // why no GPU is listed
		GPUs      []gpuFindings     `json:"gpus"`
		Peers     []peerFindings    `json:"peers,omitempty"` // of several GPUs
	} `json:"cuda"`
}

type libraryFindings struct {
	Name     string   `json:"name"`
	Purpose  string   `json:"purpose"`
	Path     string   `json:"path,omitempty"`
	Version  string   `json:"version,omitempty"`
	Error    string   `json:"error,omitempty"`
	LookedIn []string `json:"looked_in,omitempty"`
}

type compilerFindings struct {
	Works bool    `json:"works"`
	Arch  string  `json:"arch,omitempty"`
	MS    float64 `json:"ms,omitempty"`
	Error string  `json:"error,omitempty"`
}

type gpuFindings struct {
	driver.DeviceInfo
	Arch  string `json:"arch"`
	Free  int64  `json:"free_bytes"`
	Works bool   `json:"works"`
	Error string `json:"error,omitempty"`
}

// peerFindings tell which other GPUs' memory a GPU reads and writes.
type peerFindings struct {
	GPU     int    `json:"gpu"`
	Reaches []int  `json:"reaches"`
	Error   string `json:"error,omitempty"`
}

// diagnose gathers the findings. What cannot be found out is left out or says
// why.
func diagnose() *diagnosis {
	d := &diagnosis{Version: version(), Go: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH}
	d.CPU.Name, d.CPU.Threads = cpuName(), runtime.GOMAXPROCS(0)
	d.CPU.ISAs, d.CPU.LUTQISA = cpu.ISAs(), os.Getenv("LUTQ_ISA")
	if e, err := cpu.New(cpu.Options{Threads: 1}); err != nil {
		d.CPU.Error = err.Error()
	} else {
		d.CPU.ISA = e.ISA()
		e.Close()
	}
	d.Memory.Total, d.Memory.Available = kibibytes(colonFile("/proc/meminfo")["MemTotal"]), availableMemory()
	d.findCache()
	d.findCUDA()
	return d
}

func (d *diagnosis) findCache() {
	kernels := driver.DefaultCacheDir()
	d.Cache.Dir = filepath.Dir(kernels)
	// What another process removes meanwhile does not count.
	_ = filepath.WalkDir(d.Cache.Dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil
		}
		if info, err := e.Info(); err == nil {
			d.Cache.Bytes += info.Size()
		}
		return nil
	})
	cache := driver.NewCache(kernels)
	d.Cache.Kernels, _, _ = cache.Size()
	if err := cache.Check(); err != nil {
		d.Cache.Error = err.Error()
	}
}

func (d *diagnosis) findCUDA() {
	d.CUDA.Libraries, d.CUDA.GPUs = []libraryFindings{}, []gpuFindings{}
	c, err := driver.Open(driver.Options{})
	if err != nil {
		d.CUDA.Error = err.Error()
		return
	}
	for _, l := range c.Libraries() {
		f := libraryFindings{Name: l.Name, Purpose: l.Purpose, Path: l.Path, Version: l.Version}
		var missing *driver.MissingError
		switch {
		case errors.As(l.Err, &missing) && len(missing.Broken) == 0:
			f.Error, f.LookedIn = missing.Library+" not found", missing.Tried
		case l.Err != nil:
			f.Error = l.Err.Error()
		}
		d.CUDA.Libraries = append(d.CUDA.Libraries, f)
	}

	arch := "sm_80" // the oldest that kernels are written for
	n, err := c.DeviceCount()
	var missing *driver.MissingError
	switch {
	case errors.As(err, &missing):
		d.CUDA.GPUError = "no NVIDIA driver found"
	case err != nil:
		d.CUDA.GPUError = err.Error()
	case n == 0:
		d.CUDA.GPUError = "the NVIDIA driver sees no GPU"
	}
	for i := range n {
		g := examineGPU(c, i)
		if i == 0 && g.Arch != "" {
			arch = g.Arch
		}
		d.CUDA.GPUs = append(d.CUDA.GPUs, g)
	}

	for i := 0; n > 1 && i < n; i++ {
		d.CUDA.Peers = append(d.CUDA.Peers, findPeers(c, i, n))
	}

	took, err := c.ProbeCompiler(arch)
	switch {
	case errors.As(err, &missing):
		d.CUDA.Compiler.Error = "no compiler found"
	case err != nil:
		d.CUDA.Compiler.Error = err.Error()
	default:
		d.CUDA.Compiler = compilerFindings{Works: true, Arch: arch, MS: took.Seconds() * 1e3}
	}
}

// findPeers tells which of n GPUs one reaches.
func findPeers(c *driver.CUDA, gpu, n int) peerFindings {
	f := peerFindings{GPU: gpu, Reaches: []int{}}
	for to := range n {
		if to == gpu {
			continue
		}
		can, err := c.CanReach(gpu, to)
		if err != nil {
			f.Error = err.Error()
			break
		}
		if can {
			f.Reaches = append(f.Reaches, to)
		}
	}
	return f
}

// line says what was found about the other n-1 GPUs.
func (f *peerFindings) line(n int) string {
	switch {
	case f.Error != "":
		return "its way to other GPUs' memory is unknown: " + f.Error
	case len(f.Reaches) == n-1:
		return "reaches the memory of all other GPUs"
	case len(f.Reaches) == 0:
		return "reaches no other GPU's memory"
	}
	return "reaches the memory of GPUs " + strings.Trim(fmt.Sprint(f.Reaches), "[]")
}

// examineGPU describes a GPU and runs a kernel on it.
func examineGPU(c *driver.CUDA, i int) gpuFindings {
	g := gpuFindings{DeviceInfo: driver.DeviceInfo{Index: i}}
	info, err := c.DeviceInfo(i)
	if err == nil {
		g.DeviceInfo, g.Arch = info, info.Arch()
		err = tryGPU(c, &g)
	}
	if err != nil {
		g.Error = err.Error()
	}
	g.Works = err == nil
	return g
}

func tryGPU(c *driver.CUDA, g *gpuFindings) error {
	dev, err := c.OpenDevice(g.Index)
	if err != nil {
		return err
	}
	err = dev.Do(func() (err error) {
		if g.Free, _, err = dev.Memory(); err != nil {
			return err
		}
		return dev.Probe()
	})
	return errors.Join(err, dev.Close())
}

// print writes the findings as lines of a name, a tab and what was found.
func (d *diagnosis) print(w io.Writer) {
	row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	row("lutq", "%s, %s", d.Version, d.Go)
	row("processor", "%s, %d threads", d.CPU.Name, d.CPU.Threads)
	isa := d.CPU.ISA
	if d.CPU.Error != "" {
		isa = d.CPU.Error
	}
	if d.CPU.LUTQISA != "" {
		isa += ", by $LUTQ_ISA"
	}
	row("kernels", "%s (of %s)", isa, strings.Join(d.CPU.ISAs, ", "))
	if d.Memory.Total > 0 {
		row("memory", "%s, %s available", formatBytes(d.Memory.Total), formatBytes(d.Memory.Available))
	}
	row("cache", "%s, %s, %d kernels", d.Cache.Dir, formatBytes(d.Cache.Bytes), d.Cache.Kernels)
	if d.Cache.Error != "" {
		row("", "not used, so that kernels are compiled each time and repack wants OUT: %s", d.Cache.Error)
	}
	if d.CUDA.Error != "" {
		row("CUDA", "%s", d.CUDA.Error)
		return
	}
	for _, l := range d.CUDA.Libraries {
		if l.Error == "" {
			row(l.Name, "%s, %s", l.Version, l.Path)
			continue
		}
		row(l.Name, "%s, which is needed to %s", l.Error, l.Purpose)
		for i, dir := range l.LookedIn {
			if i == 0 {
				row("", "looked in %s", dir)
			} else {
				row("", "          %s", dir)
			}
		}
	}
	if d.CUDA.Compiler.Works {
		row("compiling", "works: %s for %s", time.Duration(d.CUDA.Compiler.MS*1e6).Round(100*time.Microsecond), d.CUDA.Compiler.Arch)
	} else {
		row("compiling", "does not work: %s", d.CUDA.Compiler.Error)
	}
	if d.CUDA.GPUError != "" {
		row("GPU", "%s", d.CUDA.GPUError)
	}
	for i, g := range d.CUDA.GPUs {
		name := fmt.Sprintf("GPU %d", g.Index)
		if g.Name != "" {
			row(name, "%s, %s, CUDA %s", g.Name, g.Arch, g.CUDA)
			name = ""
			row("", "%d multiprocessors at %d MHz, %d KiB shared memory per block", g.SMs, g.ClockKHz/1000, g.SharedPerBlock>>10)
			row("", "%s, %s free, %d bits wide; %s L2", formatBytes(g.Memory), formatBytes(g.Free), g.MemoryBusBits, formatBytes(int64(g.L2)))
		}
		if g.Works {
			row(name, "runs kernels")
		} else {
			row(name, "does not run kernels: %s", g.Error)
		}
		if i < len(d.CUDA.Peers) {
			row("", "%s", d.CUDA.Peers[i].line(len(d.CUDA.GPUs)))
		}
	}
}

// cpuName returns the processor's brand, or its architecture where the system
// does not say.
func cpuName() string {
	info := colonFile("/proc/cpuinfo")
	for _, key := range []string{"model name", "Model", "Hardware"} {
		if name := info[key]; name != "" {
			return name
		}
	}
	return runtime.GOARCH
}

// colonFile reads a file of lines "key : value", the first of each key; of a
// file that is not there it returns nothing.
func colonFile(path string) map[string]string {
	data, err := input.ReadFile(path, input.System)
	if err != nil {
		return nil
	}
	m := make(map[string]string)
	for line := range strings.Lines(string(data)) {
		key, value, ok := strings.Cut(line, ":")
		key = strings.TrimSpace(key)
		if _, seen := m[key]; ok && !seen {
			m[key] = strings.TrimSpace(value)
		}
	}
	return m
}

// availableMemory returns the bytes of memory that programs may still take, 0
// where the system does not say.
func availableMemory() int64 { return kibibytes(colonFile("/proc/meminfo")["MemAvailable"]) }

// kibibytes converts "123 kB" of /proc/meminfo, where kB are 1024 bytes.
func kibibytes(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSuffix(s, " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}
