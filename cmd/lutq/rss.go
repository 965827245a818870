package main

import (
	"runtime"
	"syscall"
)

// peakRSS returns the most memory that the process has had resident, in bytes.
func peakRSS() int64 {
	// Where the system tells it so: getrusage counts what the process was that started this one.
	if peak := kibibytes(colonFile("/proc/self/status")["VmHWM"]); peak > 0 {
		return peak
	}
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return r.Maxrss // bytes there, kilobytes elsewhere
	}
	return r.Maxrss << 10
}
