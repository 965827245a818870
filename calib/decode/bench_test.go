package decode_test

import (
	"context"
	"os"
	"testing"

	"github.com/lutq/lutq/calib/decode"
)

// BenchmarkWrite goes on with a text of depth tokens. LUTQ_BENCH_MODEL names another model.
func BenchmarkWrite(b *testing.B) {
	dir := tiny
	if d := os.Getenv("LUTQ_BENCH_MODEL"); d != "" {
		dir = d
	}
	m := open(b, dir)
	for _, bench := range []struct {
		name  string
		depth int
	}{{"short", 8}, {"deep", 1024}} {
		b.Run(bench.name, func(b *testing.B) {
			s := session(b, m, decode.Options{Context: bench.depth + 64})
			prompt := make([]int, bench.depth)
			for i := range prompt {
				prompt[i] = 5 + i*7%1000
			}
			if _, err := s.Prompt(context.Background(), 0, prompt); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				next, err := s.Step(context.Background(), []int{0}, []int{17})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := next.Best(); err != nil {
					b.Fatal(err)
				}
				s.Cut(0, bench.depth)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
