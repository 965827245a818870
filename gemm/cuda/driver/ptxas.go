package driver

import (
	"regexp"
	"strconv"
	"strings"
)

// KernelInfo tells what the compiler gave a kernel, per thread where nothing
// else is said.
type KernelInfo struct {
	Name        string
	Registers   int
	Stack       int // bytes
	SpillStores int // bytes of registers that went to memory
	SpillLoads  int // bytes that came back
	Shared      int // bytes per block that are not dynamic
}

// The lines of the assembler's verbose log that are read.
var (
	ptxasEntry  = regexp.MustCompile(`Compiling entry function '([^']+)'`)
	ptxasFunc   = regexp.MustCompile(`Function properties for (\S+)`)
	ptxasSpills = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	ptxasUsed   = regexp.MustCompile(`Used (\d+) registers`)
	ptxasShared = regexp.MustCompile(`(\d+) bytes smem`)
)

// parsePTXAS takes the assembler's report about each kernel out of a log and
// returns it and the rest of the log.
func parsePTXAS(log string) (kernels []KernelInfo, rest string) {
	var others []string
	function := ""
	for line := range strings.Lines(log) {
		line = strings.TrimRight(line, "\r\n")
		last := len(kernels) - 1
		if m := ptxasEntry.FindStringSubmatch(line); m != nil {
			kernels = append(kernels, KernelInfo{Name: m[1]})
			continue
		}
		if m := ptxasFunc.FindStringSubmatch(line); m != nil {
			function = m[1]
			continue
		}
		if m := ptxasSpills.FindStringSubmatch(line); m != nil {
			if last >= 0 && kernels[last].Name == function { // functions that kernels call have a line too
				k := &kernels[last]
				k.Stack, k.SpillStores, k.SpillLoads = atoi(m[1]), atoi(m[2]), atoi(m[3])
			}
			continue
		}
		if m := ptxasUsed.FindStringSubmatch(line); m != nil && last >= 0 {
			kernels[last].Registers = atoi(m[1])
			if m := ptxasShared.FindStringSubmatch(line); m != nil {
				kernels[last].Shared = atoi(m[1])
			}
			continue
		}
		if !strings.HasPrefix(line, "ptxas info") {
			others = append(others, line)
		}
	}
	return kernels, strings.TrimSpace(strings.Join(others, "\n"))
}

// atoi converts digits; a number too large becomes the largest.
func atoi(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}
