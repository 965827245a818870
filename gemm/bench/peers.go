package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/peers"
)

// SumRow is what adding up an array over several GPUs took, in microseconds, as one of many in a graph.
type SumRow struct {
	GPUs      int     `json:"gpus"`
	Bytes     int     `json:"bytes"` // of an array of float16
	KernelsUs float64 `json:"kernels_us"`
	NCCLUs    float64 `json:"nccl_us"` // 0 where it is not there
}

// OnPeers runs f on some GPUs that reach each other's memory, all where none is named.
func OnPeers(devices []int, f func(t *peers.Team) error) error {
	c, err := driver.OpenGPU()
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		n, err := c.DeviceCount()
		if err != nil {
			return err
		}
		for i := range min(n, peers.MaxRanks) {
			devices = append(devices, i)
		}
	}
	devs, err := c.OpenDevices(devices)
	if err != nil {
		return err
	}
	t, err := peers.NewTeam(c, devs)
	if err == nil {
		err = errors.Join(f(t), t.Close())
	}
	return errors.Join(err, driver.CloseDevices(devs))
}

// SumSizes are the bytes of the arrays that [Sums] adds up.
var SumSizes = []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20}

// Sums times sums of arrays over some GPUs, all where none is named, by kernels and by NCCL.
func Sums(ctx context.Context, devices []int) (rows []SumRow, err error) {
	err = OnPeers(devices, func(t *peers.Team) error {
		for _, bytes := range SumSizes {
			if err := ctx.Err(); err != nil {
				return err
			}
			own, err := t.Time(peers.ByKernels, bytes)
			if err != nil {
				return err
			}
			row := SumRow{GPUs: t.Size(), Bytes: bytes, KernelsUs: own.Seconds() * 1e6}
			nccl, err := t.Time(peers.ByNCCL, bytes)
			var missing *driver.MissingError
			if err != nil && !errors.As(err, &missing) {
				return err
			}
			row.NCCLUs = nccl.Seconds() * 1e6
			rows = append(rows, row)
		}
		return nil
	})
	return rows, err
}

// SelftestPeers checks sums over all GPUs of this machine, and returns how many: none where there is one GPU, or where GPUs do not
// reach each other's memory, for which it returns the reason.
func SelftestPeers(seed uint64) (sums, gpus int, without string, err error) {
	c, err := driver.OpenGPU()
	if err != nil {
		return 0, 0, "", err
	}
	n, err := c.DeviceCount()
	if err != nil || n < 2 {
		return 0, n, "", err
	}
	err = OnPeers(nil, func(t *peers.Team) error {
		gpus = t.Size()
		sums, err = t.SelfTest(seed)
		return err
	})
	if errors.Is(err, driver.ErrNoPeers) {
		return 0, n, err.Error(), nil
	}
	if err != nil {
		err = fmt.Errorf("sums over %d GPUs: %w", gpus, err)
	}
	return sums, gpus, "", err
}
