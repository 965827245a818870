package bench

import (
	"math"
	"os"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	for name, tc := range map[string]struct {
		us   []float64
		want float64
	}{
		"one":              {[]float64{3}, 0},
		"all alike":        {[]float64{2, 2, 2, 2, 2}, 0},
		"one odd":          {[]float64{10, 10, 10, 10, 90}, 0},
		"middle half":      {[]float64{14, 8, 10, 9, 12}, 0.3},
		"two":              {[]float64{10, 20}, 0.5},
		"many in disorder": {[]float64{5, 1, 8, 3, 7, 2, 6, 4, 9}, 0.8},
	} {
		if got := spread(tc.us); math.Abs(got-tc.want) > 1e-12 {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}

func TestNoisy(t *testing.T) {
	quiet, shaken := []float64{100, 101, 100, 102, 103}, []float64{100, 120, 100, 140, 130}
	for name, tc := range map[string]struct {
		others float64
		series [][]float64
		want   bool
	}{
		"quiet":                     {0, [][]float64{quiet, quiet}, false},
		"daemons":                   {0.05, [][]float64{quiet}, false},
		"the product shaken":        {0, [][]float64{shaken, quiet}, true},
		"what it is compared with":  {0, [][]float64{quiet, shaken}, true},
		"as slow all the time":      {1e3, [][]float64{quiet, quiet}, true},
		"known by the spread alone": {0, [][]float64{shaken}, true},
	} {
		var r Row
		r.setNoise(tc.others, tc.series...)
		if r.Noisy != tc.want || r.OtherCPUs != tc.others {
			t.Errorf("%s: got %+v", name, r)
		}
	}
}

func TestOthers(t *testing.T) {
	start := time.Now()
	before := cpuTime{at: start, all: 100, own: 10}
	for name, tc := range map[string]struct {
		after cpuTime
		want  float64
	}{
		"alone":          {cpuTime{start.Add(2 * time.Second), 104, 14}, 0},
		"one other":      {cpuTime{start.Add(2 * time.Second), 106, 14}, 1},
		"ticks too late": {cpuTime{start.Add(2 * time.Second), 103.9, 14}, 0},
		"no time":        {cpuTime{start, 106, 14}, 0},
	} {
		if got := tc.after.others(before); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}

// procStat is of a machine with three processors, of which 1 has worked for 3.15 s,
// in each way that counts.
const procStat = `cpu  1000 2 3 4 5 6 7 8 9 10
cpu0 100 0 0 5000 0 0 0 0 0 0
cpu1 200 50 40 5000 300 10 5 10 50 50
cpu10 0 0 700 5000 0 0 0 0 0 0
intr 12345 0 0 0 0 0 0 0 0 0
ctxt 99
`

func TestBusySeconds(t *testing.T) {
	for name, tc := range map[string]struct {
		status string
		want   float64
	}{
		"all":       {"Name:\tlutq\n", 11.15},
		"one":       {"Cpus_allowed_list:\t1\n", 3.15},
		"a list":    {"Cpus_allowed:\tff\nCpus_allowed_list:\t0,10-12\n", 8},
		"a range":   {"Cpus_allowed_list:\t0-3\n", 4.15},
		"all again": {"Cpus_allowed_list:\t0-1,2-63\n", 11.15},
	} {
		got, ok := busySeconds(procStat, allowedCPUs(tc.status))
		if !ok || math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%s: got %v, %v, want %v", name, got, ok, tc.want)
		}
	}
	for _, text := range []string{"", "cpu 1 2\n", "cpu0 a b c d e f g h\n", "cpu0\n"} {
		if s, ok := busySeconds(text, allowedCPUs("")); ok {
			t.Errorf("%q: got %v", text, s)
		}
	}
}

// TestCPUTimeNow: where the system counts, this process's work is not others'.
func TestCPUTimeNow(t *testing.T) {
	before, ok := cpuTimeNow()
	if _, err := os.Stat("/proc/stat"); err != nil {
		if ok {
			t.Error("counters of a system that has none")
		}
		return
	}
	if !ok {
		t.Fatal("no counters")
	}
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
	}
	after, ok := cpuTimeNow()
	if !ok || after.own <= before.own || after.all < before.all || !after.at.After(before.at) {
		t.Errorf("from %+v to %+v", before, after)
	}
}
