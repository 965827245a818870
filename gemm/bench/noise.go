package bench

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lutq/lutq/formats/input"
)

// maxSpread is the spread of a measurement's repetitions above which it is noisy. On
// a GPU that works for nobody else it stays below a quarter of that.
const maxSpread = 0.1

// spread is how much repetitions of one measurement differ: the range of their
// middle half over their median.
func spread(us []float64) float64 {
	s := slices.Sorted(slices.Values(us))
	last := len(s) - 1
	return (s[last-last/4] - s[last/4]) / s[len(s)/2]
}

// setNoise notes how far the row's measurements can be trusted: by the repetitions
// of each, and by the processors that other processes kept busy meanwhile.
func (r *Row) setNoise(otherCPUs float64, series ...[]float64) {
	for _, us := range series {
		r.Spread = max(r.Spread, spread(us))
	}
	r.OtherCPUs = otherCPUs
	// What a system does by itself grows with its size.
	r.Noisy = r.Spread > maxSpread || otherCPUs > max(0.1, 0.02*float64(runtime.NumCPU()))
}

// cpuTime is what processors have worked up to a moment, in seconds.
type cpuTime struct {
	at  time.Time
	all float64 // of the processors that this process may use, for whomever
	own float64 // for this process
}

// cpuTimeNow reads the system's counters. Where it has none, ok is false.
func cpuTimeNow() (c cpuTime, ok bool) {
	status, err := input.ReadFile("/proc/self/status", input.System)
	if err != nil {
		return c, false
	}
	stat, err := input.ReadFile("/proc/stat", input.System)
	if err != nil {
		return c, false
	}
	var own syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &own) != nil {
		return c, false
	}
	c.at = time.Now()
	c.own = time.Duration(own.Utime.Nano() + own.Stime.Nano()).Seconds()
	c.all, ok = busySeconds(string(stat), allowedCPUs(string(status)))
	return c, ok
}

// others returns how many processors worked for other processes since before, or
// was taken away from this machine by a host.
func (c cpuTime) others(before cpuTime) float64 {
	elapsed := c.at.Sub(before.at).Seconds()
	if elapsed <= 0 {
		return 0
	}
	return max(0, ((c.all-before.all)-(c.own-before.own))/elapsed)
}

// busySeconds sums the time that some processors have worked, or been taken away,
// from the text of /proc/stat, which counts hundredths of a second.
func busySeconds(stat string, cpus func(n int) bool) (seconds float64, ok bool) {
	for line := range strings.Lines(stat) {
		fields := strings.Fields(line)
		if len(fields) < 9 {
			continue
		}
		number, isCPU := strings.CutPrefix(fields[0], "cpu")
		n, err := strconv.Atoi(number) // the line without a number has the sum of all
		if !isCPU || err != nil || !cpus(n) {
			continue
		}
		for i, f := range fields[1:9] {
			const idle, waiting = 3, 4 // beside user, nice, system, two of interrupts, stolen
			v, err := strconv.ParseUint(f, 10, 63)
			if err != nil {
				return 0, false
			}
			if i != idle && i != waiting {
				seconds += float64(v) / 100
			}
		}
		ok = true
	}
	return seconds, ok
}

// allowedCPUs reads which processors a process may use from the text of
// /proc/self/status: a list such as 0-3,8. Where it has none, that is all.
func allowedCPUs(status string) func(n int) bool {
	for line := range strings.Lines(status) {
		list, ok := strings.CutPrefix(line, "Cpus_allowed_list:")
		if !ok {
			continue
		}
		return func(n int) bool {
			for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
				first, last, isRange := strings.Cut(part, "-")
				if !isRange {
					last = first
				}
				a, errA := strconv.Atoi(first)
				b, errB := strconv.Atoi(last)
				if errA == nil && errB == nil && a <= n && n <= b {
					return true
				}
			}
			return false
		}
	}
	return func(int) bool { return true }
}
