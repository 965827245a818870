package kerneltest

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

//go:embed host.h
var hostSource string

// Host is a kernel's module, compiled for the machine that runs the test: what the GPU
// would compile, but for asm statements, which become calls of functions named like
// the instruction.
type Host struct {
	program string
	arch    int
}

// OnHost compiles the named kernels of a module as for a GPU of compute capability
// arch/100, 8.0 as 800. Where there is no C++ compiler the test is skipped.
func OnHost(t testing.TB, k driver.Kernel, arch int, names ...string) *Host {
	t.Helper()
	if testing.Short() {
		t.Skip("kernels are compiled for the host where tests may be long")
	}
	compiler := ""
	for _, name := range []string{"c++", "g++", "clang++"} {
		if path, err := exec.LookPath(name); err == nil {
			compiler = path
			break
		}
	}
	if compiler == "" {
		t.Skip("no C++ compiler")
	}
	source, err := withoutAssembly(k.Source)
	if err != nil {
		t.Fatalf("%s: %v", k.Name, err)
	}
	// In a namespace without a name, functions that no kernel calls are not compiled.
	var text strings.Builder
	fmt.Fprintf(&text, "%s\nnamespace {\nconstexpr auto& shared = host::dynamic_shared;\n#line 1 %q\n%s\n}\n", hostSource, k.Name,
		dynamicShared.ReplaceAllString(source, ""))
	text.WriteString("int main() {\n    return host::serve({")
	for _, name := range names {
		fmt.Fprintf(&text, "{%q, host::kernel(%s)}, ", name, name)
	}
	text.WriteString("});\n}\n")

	h := &Host{program: filepath.Join(t.TempDir(), "kernels"), arch: arch}
	args := []string{"-std=c++17", "-O1", "-w", "-ffp-contract=off", "-fno-strict-aliasing", fmt.Sprintf("-D__CUDA_ARCH__=%d", arch)}
	for _, d := range k.Options.Defines {
		args = append(args, "-D"+d)
	}
	c := exec.Command(compiler, append(args, "-x", "c++", "-", "-o", h.program)...)
	c.Stdin = strings.NewReader(text.String())
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", k.Name, err, out)
	}
	return h
}

// dynamicShared is how a kernel declares the shared memory whose size the launch sets.
var dynamicShared = regexp.MustCompile(`extern __shared__ __align__\(128\) u8 shared\[\];`)

var (
	assembly    = regexp.MustCompile(`\basm\s*(volatile\s*)?\(`)
	operand     = regexp.MustCompile(`%\d+`)
	notInNames  = regexp.MustCompile(`\W+`)
	constrained = regexp.MustCompile(`^\s*,?\s*"[^"]*"\s*\(`)
)

// withoutAssembly replaces asm("instruction %0, [%1+%2];" : "=r"(a) : "r"(b), "n"(C)) by
// instruction((a), ((b)+(C))).
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
	parts := strings.SplitN(asm, `"`, 3)
	if len(parts) != 3 || strings.TrimSpace(parts[0]) != "" {
		return "", fmt.Errorf("asm(%s): want one string", asm)
	}
	var operands []string
	for rest := parts[2]; ; {
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
	instruction, rest, _ := strings.Cut(strings.TrimSuffix(parts[1], ";"), " ")
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
// address a multiple of 16.
const (
	firstAddress = 1 << 36
	spacing      = 1 << 32
	pages        = 64 << 10
)

// Upload returns the address of a copy of data.
func (m *Memory) Upload(data []byte) driver.Ptr {
	size := max(len(data), 1)
	at := firstAddress + spacing*len(m.buffers) + ((size+pages-1)/pages*pages-size)&^15
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

// Struct is an argument that is a struct: its memory.
type Struct []byte

// Launch runs a kernel, the threads of a block forward or in reverse. Arguments are
// addresses, int (32 bits), int64, float32, or one Struct.
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
	u32(max(l.Grid.X, 1))
	u32(max(l.Grid.Y, 1))
	u32(max(l.Grid.Z, 1))
	u32(l.Block.X)
	u32(uint32(l.Shared))
	truth(l.Programmatic && h.arch >= 900)
	truth(reverse)
	a, err := arguments(args)
	if err != nil {
		return err
	}
	u32(uint32(len(a)))
	in = append(in, a...)
	u32(uint32(len(m.buffers)))
	total := 0
	for _, b := range m.buffers {
		u64(uint64(b.at))
		u64(uint64(len(b.data)))
		in = append(in, b.data...)
		total += len(b.data)
	}
	c := exec.Command(h.program)
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

// arguments lays arguments out, each at a multiple of its size.
func arguments(args []any) ([]byte, error) {
	var b []byte
	put := func(v any, size int) {
		for len(b)%size != 0 {
			b = append(b, 0)
		}
		b, _ = binary.Append(b, binary.LittleEndian, v) // of fixed size
	}
	for _, v := range args {
		switch v := v.(type) {
		case driver.Ptr:
			put(uint64(v), 8)
		case int64:
			put(v, 8)
		case int:
			if v < math.MinInt32 || v > math.MaxUint32 {
				return nil, fmt.Errorf("argument %d has more than 32 bits", v)
			}
			put(uint32(v), 4)
		case float32:
			put(v, 4)
		case Struct:
			b = append(b, v...)
		default:
			return nil, fmt.Errorf("an argument of type %T", v)
		}
	}
	return b, nil
}
