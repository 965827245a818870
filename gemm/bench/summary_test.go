package bench

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSummarize(t *testing.T) {
	row := func(n, bits, m int, ratio float64) Row {
		return Row{N: n, Bits: bits, M: m, DenseRatio: ratio}
	}
	got := Summarize([]Row{
		row(1, 4, 16, 2), row(2, 4, 16, 1.1), row(3, 4, 16, 3),
		row(1, 4, 1, .5), row(2, 4, 1, .96), row(3, 4, 1, NearDense), row(4, 4, 1, 9),
		row(1, 3, 16, .9), row(1, 3, 16, .8), // of two kernels
	}, 64)
	want := []Summary{
		{3, 64, 16, 1, .9, .9, row(1, 3, 16, .9), []Row{row(1, 3, 16, .9)}},
		{4, 64, 1, 4, .5, NearDense, row(1, 4, 1, .5), []Row{row(1, 4, 1, .5), row(2, 4, 1, .96)}},
		{4, 64, 16, 3, 1.1, 2, row(2, 4, 16, 1.1), []Row{}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("summaries (-want +got):\n%s", diff)
	}
	if got := Summarize(nil, 64); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
