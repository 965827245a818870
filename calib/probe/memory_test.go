package probe_test

import (
	"testing"

	"github.com/lutq/lutq/calib/probe"
	"github.com/lutq/lutq/formats/source/modeltest"
)

// TestMemory holds a runtime's memory against a sum by hand, and what is left for weights against it.
func TestMemory(t *testing.T) {
	d, err := modeltest.Open(t, tiny).Decoder()
	if err != nil {
		t.Fatal(err)
	}
	// Four blocks of two KV heads of 32; hidden 128, MLP 384, Q 128, KV 64, and 4096 tokens.
	cache := int64(4 * 2 * 2 * 2 * 32 * 1000)
	const row = 2 * (4*128 + 2*384 + 128 + 2*64)
	for r, working := range map[probe.Runtime]int64{
		probe.Lutq:         600<<20 + 512*row + 4*4096,
		probe.Transformers: 600<<20 + 1000*row + 4*4096 + 5<<24 + 2*cache/4,
		probe.LlamaCPP:     600<<20 + 512*row + 4*512*4096,
		probe.VLLM:         600<<20 + 1000*row + 4*256*4096 + 1<<30,
	} {
		m := probe.MemoryFor(r, d, 12345, 1000)
		if m.Cache != cache || m.Working != working || m.Weights != 12345 {
			t.Errorf("%+v: want a cache of %d and working memory of %d", m, cache, working)
		}
		if left := probe.WeightsFor(r, d, m.Total, 1000); left < 12345 || left > 12346 {
			t.Errorf("%s: %d bytes are left for weights of 12345", r, left)
		}
	}
	if n := probe.FitContext(d); n != 2048 {
		t.Errorf("%d tokens", n)
	}
}
