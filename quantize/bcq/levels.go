package bcq

import (
	"slices"
	"sort"
)

// levels are the numbers that codes stand for, ascending, in float32 as [Matrix.Row]
// adds them up.
type levels struct {
	value, merged   []float32
	code, mergedFor []uint8
}

// set makes the levels of some factors. Of equal levels all have the smallest code.
func (l *levels) set(alpha []float32, z float32) {
	l.value, l.code = append(l.value[:0], z), append(l.code[:0], 0)
	for i, a := range alpha {
		// Rounding keeps the order, so the levels are those without α and those with it, merged.
		l.merged, l.mergedFor = l.merged[:0], l.mergedFor[:0]
		n := len(l.value)
		for less, more := 0, 0; less < n || more < n; {
			if more == n || less < n && l.value[less]-a <= l.value[more]+a {
				l.merged, l.mergedFor = append(l.merged, l.value[less]-a), append(l.mergedFor, l.code[less])
				less++
			} else {
				l.merged, l.mergedFor = append(l.merged, l.value[more]+a), append(l.mergedFor, l.code[more]|1<<i)
				more++
			}
		}
		l.value, l.merged = l.merged, l.value
		l.code, l.mergedFor = l.mergedFor, l.code
	}
	for from := 0; from < len(l.value); {
		to := from + 1
		for to < len(l.value) && l.value[to] == l.value[from] {
			to++
		}
		least := slices.Min(l.code[from:to])
		for i := from; i < to; i++ {
			l.code[i] = least
		}
		from = to
	}
}

// nearest returns the index of the level nearest to w, the lower one of two.
func (l *levels) nearest(w float64) int {
	// The first level whose midpoint with the next is not below w.
	return sort.Search(len(l.value)-1, func(i int) bool {
		return w <= (float64(l.value[i])+float64(l.value[i+1]))/2
	})
}
