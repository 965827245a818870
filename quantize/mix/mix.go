// Package mix divides bytes among sets of layers so that a model loses least. Each set has choices, which take bytes and lose some of
// the model's predictions; losses add up, which holds for small ones.
package mix

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// A Choice is a way to store a set.
type Choice struct {
	Bytes int64
	Loss  float64 // not negative
}

// BudgetError means that the least choice of every set takes more than there is.
type BudgetError struct{ Budget, Least int64 }

func (e *BudgetError) Error() string {
	return fmt.Sprintf("%d bytes are not enough: the least possible is %d", e.Budget, e.Least)
}

// maxStates bounds how many partial sums are kept at a time. Where more are worth keeping, the answer may not be the best, but is within
// what one set's choices differ by.
const maxStates = 1 << 16

// Allocate returns an index into every set's choices, so that their bytes are within the budget and the sum of their losses is least.
// Of equals it takes fewer bytes, and then the first.
//
// Sets join one after the other. Of the partial sums so far those stay that no other one beats in both bytes and loss, and whose
// loss, with the least that the others can have by Lagrange's bound, is not above that of an answer that is known. The bound is nearly
// tight, so few stay, and the answer is exact.
func Allocate(sets [][]Choice, budget int64) ([]int, error) {
	var least int64
	for i, set := range sets {
		if len(set) == 0 {
			return nil, errors.New("a set without a choice")
		}
		for _, c := range set {
			if c.Bytes < 0 || !(c.Loss >= 0) {
				return nil, fmt.Errorf("set %d: a choice of %d bytes with a loss of %v", i, c.Bytes, c.Loss)
			}
		}
		least += slices.MinFunc(set, func(a, b Choice) int { return cmp.Compare(a.Bytes, b.Bytes) }).Bytes
	}
	if least > budget {
		return nil, &BudgetError{budget, least}
	}
	if len(sets) == 0 {
		return nil, nil
	}
	price, known := prices(sets, budget)
	return exact(sets, budget, price, known), nil
}

// total returns the sums of an answer.
func total(sets [][]Choice, at []int) (t Choice) {
	for i, set := range sets {
		t.Bytes += set[at[i]].Bytes
		t.Loss += set[at[i]].Loss
	}
	return t
}

// Total returns the bytes and the loss of an answer.
func Total(sets [][]Choice, at []int) Choice { return total(sets, at) }

// bestAt returns the choice of a set whose loss is least when a byte costs so much, of equals that of fewest bytes.
func bestAt(set []Choice, price float64) int {
	best := 0
	for i, c := range set {
		was, is := set[best].Loss+price*float64(set[best].Bytes), c.Loss+price*float64(c.Bytes)
		if is < was || is == was && c.Bytes < set[best].Bytes {
			best = i
		}
	}
	return best
}

// prices searches the price of a byte at which sets choose about what the budget has, and returns the best answer on the way.
func prices(sets [][]Choice, budget int64) (price float64, known []int) {
	at := func(p float64) []int {
		all := make([]int, len(sets))
		for i, set := range sets {
			all[i] = bestAt(set, p)
		}
		return all
	}
	if known = at(0); total(sets, known).Bytes <= budget {
		return 0, known
	}
	// The highest price that can matter makes a byte cost more than any loss.
	low, high := 0., 1.
	for total(sets, at(high)).Bytes > budget && high < 1e300 {
		high *= 16
	}
	known = leastBytes(sets)
	for range 200 {
		mid := (low + high) / 2
		if low > 0 {
			mid = math.Sqrt(low * high)
		}
		if all := at(mid); total(sets, all).Bytes <= budget {
			high = mid
			if better(total(sets, all), total(sets, known)) {
				known = all
			}
		} else {
			low = mid
		}
		if low > 0 && high/low < 1+1e-12 || high < 1e-300 {
			break
		}
	}
	fill(sets, budget, known)
	return high, known
}

func leastBytes(sets [][]Choice) []int {
	all := make([]int, len(sets))
	for i, set := range sets {
		for j, c := range set {
			if c.Bytes < set[all[i]].Bytes || c.Bytes == set[all[i]].Bytes && c.Loss < set[all[i]].Loss {
				all[i] = j
			}
		}
	}
	return all
}

func better(a, b Choice) bool { return a.Loss < b.Loss || a.Loss == b.Loss && a.Bytes < b.Bytes }

// fill makes single choices better as long as the budget has room for one.
func fill(sets [][]Choice, budget int64, at []int) {
	for left := budget - total(sets, at).Bytes; ; {
		set, to := -1, 0
		gain := 0.
		for i, choices := range sets {
			now := choices[at[i]]
			for j, c := range choices {
				if more := c.Bytes - now.Bytes; more <= left && now.Loss-c.Loss > gain {
					set, to, gain = i, j, now.Loss-c.Loss
				}
			}
		}
		if set < 0 {
			return
		}
		left -= sets[set][to].Bytes - sets[set][at[set]].Bytes
		at[set] = to
	}
}

// state is a partial sum: what was chosen last, and the state before.
type state struct {
	Choice
	before *state
	chosen int32
}

// exact joins set after set.
func exact(sets [][]Choice, budget int64, price float64, known []int) []int {
	// Of the sets from each on: the least loss at that price, with what bytes cost, and the least bytes.
	bound, rest := make([]float64, len(sets)+1), make([]int64, len(sets)+1)
	for i := len(sets) - 1; i >= 0; i-- {
		c := sets[i][bestAt(sets[i], price)]
		bound[i] = bound[i+1] + c.Loss + price*float64(c.Bytes)
		rest[i] = rest[i+1] + slices.MinFunc(sets[i], func(a, b Choice) int { return cmp.Compare(a.Bytes, b.Bytes) }).Bytes
	}
	incumbent := total(sets, known)
	slack := 1e-12 * (incumbent.Loss + price*float64(budget)) // of sums of floats
	front := []*state{{}}
	for i, set := range sets {
		var next []*state
		for _, s := range front {
			for j, c := range set {
				sum := Choice{s.Bytes + c.Bytes, s.Loss + c.Loss}
				if sum.Bytes+rest[i+1] > budget || sum.Loss+bound[i+1]-price*float64(budget-sum.Bytes) > incumbent.Loss+slack {
					continue
				}
				next = append(next, &state{sum, s, int32(j)})
			}
		}
		slices.SortStableFunc(next, func(a, b *state) int {
			return cmp.Or(cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Loss, b.Loss))
		})
		front = front[:0:0]
		for _, s := range next {
			if len(front) == 0 || s.Loss < front[len(front)-1].Loss {
				front = append(front, s)
			}
		}
		front = thin(front, price)
	}
	var best *state
	for _, s := range front {
		if best == nil || better(s.Choice, best.Choice) {
			best = s
		}
	}
	if best == nil || !better(best.Choice, incumbent) && best.Choice != incumbent {
		return known // which nothing beats, by more than sums are rounded
	}
	at := make([]int, len(sets))
	for i := len(sets) - 1; i >= 0; i-- {
		at[i], best = int(best.chosen), best.before
	}
	return at
}

// thin keeps the states that promise most where there are too many.
func thin(front []*state, price float64) []*state {
	if len(front) <= maxStates {
		return front
	}
	byPromise := slices.Clone(front)
	slices.SortStableFunc(byPromise, func(a, b *state) int {
		return cmp.Compare(a.Loss+price*float64(a.Bytes), b.Loss+price*float64(b.Bytes))
	})
	kept := byPromise[:maxStates]
	slices.SortStableFunc(kept, func(a, b *state) int { return cmp.Compare(a.Bytes, b.Bytes) })
	return kept
}
