package kerneltest

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

//go:embed host.h
var hostSource string

//go:embed host_numbers.h
var hostNumbersSource string

//go:embed host_run.h
var hostRunSource string

//go:embed host_watch.h
var hostWatchSource string

//go:embed host_main.h
var hostMainSource string

// Host is a kernel's module, compiled for the machine that runs the test: what the GPU
// would compile, but for asm statements, which become calls of functions named like
// the instruction.
type Host struct {
	program string
	arch    int
}

// OnHost compiles a module as for a GPU of compute capability arch/100, 8.0 as 800.
// The test is skipped where there is no Linux or no C++ compiler, and with
// -short.
func OnHost(t testing.TB, k driver.Kernel, arch int) *Host {
	t.Helper()
	return NewHosts(t).OnHost(t, k, arch)
}

// Hosts compiles each module once, for tests that run at the same time as well.
type Hosts struct {
	dir     string
	mu      sync.Mutex
	modules map[string]func() (*Host, error)
}

// NewHosts returns modules that are there until the test ends.
func NewHosts(t testing.TB) *Hosts {
	return &Hosts{dir: t.TempDir(), modules: make(map[string]func() (*Host, error))}
}

// OnHost is the function of that name.
func (hs *Hosts) OnHost(t testing.TB, k driver.Kernel, arch int) *Host {
	t.Helper()
	compiler, defines := cpp(t), hostDefines(arch, k.Options.Defines)
	hs.mu.Lock()
	key := strings.Join(append(defines, k.Source), "\n")
	compile := hs.modules[key]
	if compile == nil {
		h := &Host{program: filepath.Join(hs.dir, strconv.Itoa(len(hs.modules))), arch: arch}
		compile = sync.OnceValues(func() (*Host, error) { return h, compileModule(compiler, k.Source, defines, h.program) })
		hs.modules[key] = compile
	}
	hs.mu.Unlock()
	h, err := compile()
	if err != nil {
		t.Fatalf("%s: %v", k.Name, err)
	}
	return h
}

// cpp returns the C++ compiler.
func cpp(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("kernels are compiled for the host where tests may be long")
	}
	if runtime.GOOS != "linux" {
		t.Skip("shared memory has a section of its own, as Linux's linkers make it")
	}
	compiler, err := findCompiler()
	if err != nil {
		t.Skip(err)
	}
	return compiler
}

func findCompiler() (string, error) {
	for _, name := range []string{"c++", "g++", "clang++"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no C++ compiler")
}

// hostRun returns what runs kernels, compiled.
var hostRun = sync.OnceValues(func() ([]byte, error) {
	return compiled(hostNumbersSource+hostSource+strings.Replace(hostRunSource, "WATCH\n", hostWatchSource, 1)+hostMainSource, "-O2", "-c")
})

// compiled returns what the compiler makes of a source.
func compiled(source string, options ...string) ([]byte, error) {
	compiler, err := findCompiler()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "lutq-host-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	to := filepath.Join(dir, "out")
	if err := compileHost(compiler, source, to, options...); err != nil {
		return nil, err
	}
	return os.ReadFile(to)
}

// compileModule compiles a module's source to a program, or with -shared among the options to a library.
func compileModule(compiler, source string, defines []string, to string, options ...string) error {
	kernels, err := hostKernels(compiler, source, defines)
	if err != nil {
		return err
	}
	run, err := hostRun()
	if err != nil {
		return err
	}
	object := to + ".o"
	if err := os.WriteFile(object, run, 0o600); err != nil {
		return err
	}
	defer os.Remove(object)
	// The detector of races of the compiler is not linked: host_watch.h takes its place.
	watched := to + ".watched.o"
	defer os.Remove(watched)
	if err := compileHost(compiler, hostSource+kernels, watched, "-O1", "-c", "-fsanitize=thread"); err != nil {
		return err
	}
	c := exec.Command(compiler, append([]string{watched, object, "-static-libstdc++", "-static-libgcc", "-o", to}, options...)...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

func hostDefines(arch int, defines []string) []string {
	args := []string{fmt.Sprintf("-D__CUDA_ARCH__=%d", arch)}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	return args
}

// kernelName is how a kernel begins once its macros are expanded.
var kernelName = regexp.MustCompile(`__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(`)

// hostKernels returns a module's source for the host: with what the preprocessor makes
// of it, and its kernels by name.
func hostKernels(compiler, source string, defines []string) (string, error) {
	c := exec.Command(compiler, append(defines, "-std=c++17", "-E", "-x", "c++", "-")...)
	c.Stdin = strings.NewReader(source)
	var messages bytes.Buffer
	c.Stderr = &messages
	expanded, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, messages.String())
	}
	text, err := withoutAssembly(dynamicShared.ReplaceAllString(string(expanded), ""))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	// In a namespace without a name, functions that nothing calls are not compiled.
	fmt.Fprintf(&out, "\nnamespace {\nconstexpr auto& shared = host::dynamic_shared;\n%s\n}\n", text)
	out.WriteString("const host::Kernel host::kernels[] = {")
	for _, m := range kernelName.FindAllStringSubmatch(text, -1) {
		fmt.Fprintf(&out, "{%q, host::Called<%s>::sizes, host::Called<%s>::call}, ", m[1], m[1], m[1])
	}
	out.WriteString("{}};\n")
	return out.String(), nil
}

// compileHost compiles C++. A shift by too much, on which processors differ, an index
// beyond an array and an address that a type's alignment does not divide end the
// program. What FORTIFY_SOURCE checks forbids to jump from stack to stack.
func compileHost(compiler, source, to string, options ...string) error {
	args := append([]string{
		"-std=c++17", "-w", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE",
		"-fsanitize=shift,bounds,alignment", "-fsanitize-undefined-trap-on-error",
	}, options...)
	c := exec.Command(compiler, append(args, "-x", "c++", "-", "-o", to)...)
	c.Stdin = strings.NewReader(source)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// dynamicShared is how a kernel declares the shared memory whose size the launch sets.
var dynamicShared = regexp.MustCompile(`extern __shared__ __align__\(128\) u8 shared\[\];`)

var (
	assembly    = regexp.MustCompile(`\basm\s*(volatile\s*)?\(`)
	operand     = regexp.MustCompile(`%\d+`)
	notInNames  = regexp.MustCompile(`\W+`)
	constrained = regexp.MustCompile(`^\s*,?\s*"[^"]*"\s*\(`)
	predicate   = regexp.MustCompile(`^\{ \.reg \.pred p; (\S+) p, (.*); selp\.u32 (%\d+), 1, 0, p; \}$`)
)

// withoutAssembly replaces asm("instruction %0, [%1+%2];" : "=r"(a) : "r"(b), "n"(C)) by
// instruction((a), ((b)+(C))), and so where the result is a predicate that a second
// instruction makes a number of.
func withoutAssembly(source string) (string, error) {
	var out strings.Builder
	for {
		at := assembly.FindStringIndex(source)
		if at == nil {
			out.WriteString(source)
			return out.String(), nil
		}
		out.WriteString(source[:at[0]])
		source = source[at[1]:]
		end := closing(source)
		if end < 0 {
			return "", fmt.Errorf("an asm statement without end")
		}
		call, err := callOf(source[:end])
		if err != nil {
			return "", err
		}
		out.WriteString(call + strings.Repeat("\n", strings.Count(source[:end], "\n")))
		source = source[end+1:]
	}
}

// closing returns where the parenthesis closes that was open before s, or −1.
func closing(s string) int {
	depth, quoted := 1, false
	for i, c := range s {
		switch {
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// callOf translates what is between the parentheses of an asm statement.
func callOf(asm string) (string, error) {
	text, after := "", asm
	for { // strings beside each other are one
		parts := strings.SplitN(after, `"`, 3)
		if len(parts) != 3 || strings.TrimSpace(parts[0]) != "" {
			break
		}
		text, after = text+parts[1], parts[2]
	}
	if after == asm {
		return "", fmt.Errorf("asm(%s): want a string", asm)
	}
	var operands []string
	for rest := after; ; {
		rest = strings.TrimLeft(rest, " \n:")
		open := constrained.FindStringIndex(rest)
		if open == nil {
			break // at the end, or at what is clobbered
		}
		rest = rest[open[1]:]
		end := closing(rest)
		operands = append(operands, "("+rest[:end]+")")
		rest = rest[end+1:]
	}
	instruction, rest, _ := strings.Cut(strings.TrimSuffix(predicate.ReplaceAllString(text, "$1 $3, $2"), ";"), " ")
	if instruction == "" {
		return "", nil
	}
	var err error
	rest = strings.NewReplacer("{", "", "}", "", "[", "(", "]", ")").Replace(rest)
	rest = operand.ReplaceAllStringFunc(rest, func(o string) string {
		i, convErr := strconv.Atoi(o[1:])
		if convErr != nil || i >= len(operands) {
			err = fmt.Errorf("asm(%s): there is no operand %s", asm, o)
			return ""
		}
		return operands[i]
	})
	return notInNames.ReplaceAllString(instruction, "_") + "(" + rest + ")", err
}

// Memory is what kernels on the host read and write.
type Memory struct {
	buffers []buffer
}

type buffer struct {
	at   driver.Ptr
	data []byte
}

// The addresses of memory: a buffer ends where its pages do, but for what makes its
// address as aligned as it has to be.
const (
	firstAddress = 1 << 36
	spacing      = 1 << 32
	pages        = 64 << 10
	alignment    = 16
)

// Upload returns the address of a copy of data, a multiple of 16.
func (m *Memory) Upload(data []byte) driver.Ptr { return m.UploadAligned(data, alignment) }

// UploadAligned is Upload to a multiple of some power of two.
func (m *Memory) UploadAligned(data []byte, alignment int) driver.Ptr {
	size := max(len(data), 1)
	at := firstAddress + spacing*len(m.buffers) + ((size+pages-1)/pages*pages-size)&^(alignment-1)
	m.buffers = append(m.buffers, buffer{driver.Ptr(at), bytes.Clone(data)})
	return driver.Ptr(at)
}

// Read returns what lies at an address that Upload returned.
func (m *Memory) Read(at driver.Ptr) []byte {
	for _, b := range m.buffers {
		if b.at == at {
			return b.data
		}
	}
	return nil
}

// mostTime ends a kernel that does not end.
const mostTime = 5 * time.Minute

// Struct is an argument that is a struct: its memory.
type Struct []byte

// Launch runs a kernel, the threads of a block forward or in reverse. Arguments are
// addresses, int (32 bits), int64, float32 and Struct.
func (h *Host) Launch(t testing.TB, m *Memory, kernel string, l driver.Launch, reverse bool, args ...any) {
	t.Helper()
	if err := h.launch(m, kernel, l, reverse, args); err != nil {
		t.Fatal(err)
	}
}

func (h *Host) launch(m *Memory, kernel string, l driver.Launch, reverse bool, args []any) error {
	var in []byte
	u32 := func(v uint32) { in = binary.LittleEndian.AppendUint32(in, v) }
	u64 := func(v uint64) { in = binary.LittleEndian.AppendUint64(in, v) }
	truth := func(v bool) {
		if v {
			u32(1)
		} else {
			u32(0)
		}
	}
	u32(uint32(len(kernel)))
	in = append(in, kernel...)
	for _, d := range []driver.Dim{l.Grid, l.Block} {
		u32(max(d.X, 1))
		u32(max(d.Y, 1))
		u32(max(d.Z, 1))
	}
	u32(uint32(l.Shared))
	truth(l.Programmatic && h.arch >= 900)
	u32(uint32(h.arch))
	truth(reverse)
	u32(uint32(len(args)))
	for _, a := range args {
		b, err := argument(a)
		if err != nil {
			return err
		}
		u32(uint32(len(b)))
		in = append(in, b...)
	}
	u32(uint32(len(m.buffers)))
	total := 0
	for _, b := range m.buffers {
		u64(uint64(b.at))
		u64(uint64(len(b.data)))
		in = append(in, b.data...)
		total += len(b.data)
	}
	ctx, cancel := context.WithTimeout(context.Background(), mostTime)
	defer cancel()
	c := exec.CommandContext(ctx, h.program)
	c.Stdin = bytes.NewReader(in)
	var messages bytes.Buffer
	c.Stderr = &messages
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", kernel, err, messages.String())
	}
	if len(out) != total {
		return fmt.Errorf("%s: %d bytes of memory of %d", kernel, len(out), total)
	}
	for _, b := range m.buffers {
		out = out[copy(b.data, out):]
	}
	return nil
}

// argument returns the memory of an argument.
func argument(v any) ([]byte, error) {
	switch v := v.(type) {
	case driver.Ptr, int64, float32:
		return binary.Append(nil, binary.LittleEndian, v)
	case int:
		if v < math.MinInt32 || v > math.MaxUint32 {
			return nil, fmt.Errorf("argument %d has more than 32 bits", v)
		}
		return binary.LittleEndian.AppendUint32(nil, uint32(v)), nil
	case Struct:
		return v, nil
	}
	return nil, fmt.Errorf("an argument of type %T", v)
}
