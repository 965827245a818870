package decode_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
	modelcuda "github.com/lutq/lutq/calib/model/cuda"
	"github.com/lutq/lutq/formats/source/modeltest"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

func TestExplore(t *testing.T) {
	dir := os.Getenv("LUTQ_MODEL")
	if dir == "" {
		t.Skip("no model")
	}
	c, err := driver.Open(driver.Options{CacheDir: driver.DefaultCacheDir()})
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.OpenDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	var e *gemmcuda.Engine
	if err := d.Do(func() (err error) { e, err = gemmcuda.New(d, c.Cache()); return err }); err != nil {
		t.Fatal(err)
	}
	ops, err := modelcuda.New(d, e, modelcuda.Options{Type: driver.F16})
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Open(modeltest.Open(t, dir), ops, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for _, batch := range []int{1, 2, 4, 8} {
		s, err := decode.NewSession(m, decode.Options{Slots: batch, Context: 1100})
		if err != nil {
			t.Fatal(err)
		}
		slots, tokens := make([]int, batch), make([]int, batch)
		for i := range slots {
			slots[i] = i
			n, err := s.Prompt(ctx, i, []int{1, 2, 3, 4 + i})
			if err != nil {
				t.Fatal(err)
			}
			b, err := n.Best()
			if err != nil {
				t.Fatal(err)
			}
			tokens[i] = b[0]
		}
		step := func(n int) time.Duration {
			from := time.Now()
			for range n {
				next, err := s.Step(ctx, slots, tokens)
				if err != nil {
					t.Fatal(err)
				}
				if tokens, err = next.Best(); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(from)
		}
		step(16)
		for _, n := range []int{128, 256, 512} {
			took := step(n)
			fmt.Printf("batch %d at %d: %.1f tokens/s, %.1f us a step\n", batch, s.Len(0), float64(batch*n)/took.Seconds(), took.Seconds()/float64(n)*1e6)
		}
		s.Close()
	}
	long := make([]int, 2048)
	for i := range long {
		long[i] = i + 5
	}
	s, err := decode.NewSession(m, decode.Options{Slots: 1, Context: 2100, Chunk: 2048})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.Cut(0, 0)
		from := time.Now()
		n, err := s.Prompt(ctx, 0, long)
		if err == nil {
			_, err = n.Best()
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("pp2048 %.0f tokens/s\n", 2048/time.Since(from).Seconds())
	}
}
