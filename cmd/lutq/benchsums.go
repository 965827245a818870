package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/lutq/lutq/gemm/bench"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// benchSums times sums over several GPUs.
func (u *ui) benchSums(ctx context.Context, o benchOptions) error {
	if n := len(o.devices); n == 1 {
		return usage("--sums: want two GPUs or more")
	}
	c, err := driver.OpenGPU()
	if err != nil {
		return hintDoctor(err)
	}
	if n, err := c.DeviceCount(); err != nil || n < 2 {
		return errors.Join(err, fmt.Errorf("sums over several GPUs: this machine has %d", n))
	}
	rows, err := bench.Sums(ctx, o.devices)
	if err != nil {
		return hintDoctor(err)
	}
	if o.format == "json" {
		return u.printJSON(struct {
			Rows []bench.SumRow `json:"rows"`
		}{rows})
	}
	header := []string{"GPUs", "bytes", "kernels us", "NCCL us"}
	var cells [][]string
	for _, r := range rows {
		nccl := "–"
		if r.NCCLUs > 0 {
			nccl = digits(r.NCCLUs, 3)
		}
		cells = append(cells, []string{strconv.Itoa(r.GPUs), strconv.Itoa(r.Bytes), digits(r.KernelsUs, 3), nccl})
	}
	return u.printCells(o.format, numbersShape(), header, cells)
}
