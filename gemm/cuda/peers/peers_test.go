package peers

import (
	"errors"
	"sync"
	"testing"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestMessage divides messages among blocks, none of which has more than it has room for.
func TestMessage(t *testing.T) {
	for _, words := range []int{1, 31, 32, 33, 511, 512, 513, 4096, 65536, 100_001, blocks*boxWords - 1, blocks * boxWords} {
		grid, each := message(words)
		if grid < 1 || grid > blocks || each > boxWords || grid*each < words || (grid-1)*each >= words {
			t.Errorf("%d words: %d blocks of %d", words, grid, each)
		}
	}
}

func TestTeamRefused(t *testing.T) {
	for _, n := range []int{0, 1, MaxRanks + 1} {
		if _, err := NewTeam(nil, make([]*driver.Device, n)); err == nil {
			t.Errorf("%d devices: no error", n)
		}
	}
}

// TestMeet has some meet again and again, and one fail.
func TestMeet(t *testing.T) {
	const n, times = 3, 200
	team := &Team{devs: make([]*driver.Device, n), open: make(chan struct{})}
	var mu sync.Mutex
	came := make([]int, times)
	var wait sync.WaitGroup
	for range n {
		wait.Go(func() {
			for i := range times {
				mu.Lock()
				came[i]++
				mu.Unlock()
				if err := team.Meet(); err != nil {
					t.Error(err)
				}
				mu.Lock()
				if came[i] != n {
					t.Errorf("meeting %d ended when %d had come", i, came[i])
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	errs := make(chan error)
	for range n - 1 {
		go func() { errs <- team.Meet() }()
	}
	team.fail()
	for range n - 1 {
		if err := <-errs; !errors.Is(err, ErrFailed) {
			t.Errorf("who waits for one that has failed: %v", err)
		}
	}
	if err := team.Meet(); !errors.Is(err, ErrFailed) {
		t.Errorf("who comes later: %v", err)
	}
}
