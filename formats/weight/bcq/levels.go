package bcq

import (
	"slices"
	"sort"
)

// Levels are the numbers that codes stand for, ascending, in float32 as [Matrix.Row]
// adds them up.
type Levels struct {
	Value []float32
	Code  []uint8

	merged    []float32
	mergedFor []uint8
}

// Set makes the levels of some factors. Of equal levels all have the smallest code.
func (l *Levels) Set(alpha []float32, z float32) {
	l.Value, l.Code = append(l.Value[:0], z), append(l.Code[:0], 0)
	for i, a := range alpha {
		// Rounding keeps the order, so the levels are those without α and those with it, merged.
		l.merged, l.mergedFor = l.merged[:0], l.mergedFor[:0]
		n := len(l.Value)
		for less, more := 0, 0; less < n || more < n; {
			if more == n || less < n && l.Value[less]-a <= l.Value[more]+a {
				l.merged, l.mergedFor = append(l.merged, l.Value[less]-a), append(l.mergedFor, l.Code[less])
				less++
			} else {
				l.merged, l.mergedFor = append(l.merged, l.Value[more]+a), append(l.mergedFor, l.Code[more]|1<<i)
				more++
			}
		}
		l.Value, l.merged = l.merged, l.Value
		l.Code, l.mergedFor = l.mergedFor, l.Code
	}
	for from := 0; from < len(l.Value); {
		to := from + 1
		for to < len(l.Value) && l.Value[to] == l.Value[from] {
			to++
		}
		least := slices.Min(l.Code[from:to])
		for i := from; i < to; i++ {
			l.Code[i] = least
		}
		from = to
	}
}

// Nearest returns the index of the level nearest to w, the lower one of two.
func (l *Levels) Nearest(w float64) int {
	// The first level whose midpoint with the next is not below w.
	return sort.Search(len(l.Value)-1, func(i int) bool {
		return w <= (float64(l.Value[i])+float64(l.Value[i+1]))/2
	})
}
