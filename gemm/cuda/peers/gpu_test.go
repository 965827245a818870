package peers

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// onTeam runs a test on all GPUs, and skips it where they are no team.
func onTeam(t testing.TB, test func(team *Team)) {
	t.Helper()
	c, err := driver.OpenGPU()
	if err != nil {
		t.Skip(err)
	}
	n, err := c.DeviceCount()
	if err != nil || n < 2 {
		t.Skipf("%d GPUs, error %v", n, err)
	}
	indices := make([]int, min(n, MaxRanks))
	for i := range indices {
		indices[i] = i
	}
	devs, err := c.OpenDevices(indices)
	if err != nil {
		t.Fatal(err)
	}
	team, err := NewTeam(c, devs)
	if errors.Is(err, driver.ErrNoPeers) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	test(team)
	if err := errors.Join(team.Close(), driver.CloseDevices(devs)); err != nil {
		t.Error(err)
	}
}

func TestGPUSelfTest(t *testing.T) {
	onTeam(t, func(team *Team) {
		sums, err := team.SelfTest(3)
		if err != nil || sums == 0 {
			t.Errorf("%d sums, error %v", sums, err)
		}
	})
}

// TestGPUFails: a GPU that has failed leaves none waiting.
func TestGPUFails(t *testing.T) {
	onTeam(t, func(team *Team) {
		failure := errors.New("failure")
		err := team.Each(func(s *Seat) error {
			if s.Rank == 1 {
				return failure
			}
			stream, err := s.dev.NewStream()
			if err != nil {
				return err
			}
			x, err := s.dev.Alloc(64)
			if err != nil {
				return err
			}
			return errors.Join(s.SumSmall(stream, x, x, 16, driver.F32), stream.Sync(), stream.Close())
		})
		if !errors.Is(err, failure) {
			t.Errorf("got error %v", err)
		}
	})
}

func BenchmarkGPUSum(b *testing.B) {
	onTeam(b, func(team *Team) {
		for _, by := range []Way{ByKernels, ByNCCL} {
			for _, kib := range []int{4, 16, 64, 256, 1024} {
				b.Run(fmt.Sprintf("%s/%dKiB", by, kib), func(b *testing.B) {
					for b.Loop() {
						took, err := team.Time(by, kib<<10)
						if err != nil {
							b.Skip(err)
						}
						b.ReportMetric(took.Seconds()*1e6, "us/sum")
					}
				})
			}
		}
	})
}
