package bench

import (
	"cmp"
	"slices"
)

// NearDense is the part of the speed of dense weights below which [Summarize] names a product.
const NearDense = .97

// Summary tells how products of all shapes stand beside dense weights, for a width, a group size and a number of rows of X.
type Summary struct {
	Bits   int     `json:"bits"`
	Group  int     `json:"group"`
	M      int     `json:"m"`
	Shapes int     `json:"shapes"`
	Least  float64 `json:"least_dense_ratio"` // how many times faster than by dense weights, of the worst shape
	Median float64 `json:"median_dense_ratio"`
	Worst  Row     `json:"worst"`
	Below  []Row   `json:"below"` // those below NearDense, the worst first
}

// Summarize returns a summary for each width and number of rows of X, in this order, of rows of a group size. Of several
// kernels for a product the fastest counts.
func Summarize(rows []Row, group int) []Summary {
	type kind struct{ bits, m int }
	sets := make(map[kind][]Row)
	var order []kind
	for _, r := range rows {
		k := kind{r.Bits, r.M}
		set := sets[k]
		if set == nil {
			order = append(order, k)
		}
		i := slices.IndexFunc(set, func(other Row) bool { return other.N == r.N && other.K == r.K })
		switch {
		case i < 0:
			sets[k] = append(set, r)
		case r.DenseRatio > set[i].DenseRatio:
			set[i] = r
		}
	}
	slices.SortFunc(order, func(a, b kind) int { return cmp.Or(cmp.Compare(a.bits, b.bits), cmp.Compare(a.m, b.m)) })
	var all []Summary
	for _, k := range order {
		set := sets[k]
		slices.SortStableFunc(set, func(a, b Row) int { return cmp.Compare(a.DenseRatio, b.DenseRatio) })
		below := slices.IndexFunc(set, func(r Row) bool { return r.DenseRatio >= NearDense })
		if below < 0 {
			below = len(set)
		}
		all = append(all, Summary{
			Bits: k.bits, Group: group, M: k.m, Shapes: len(set),
			Least: set[0].DenseRatio, Median: set[len(set)/2].DenseRatio, Worst: set[0], Below: slices.Clone(set[:below]),
		})
	}
	return all
}
