package conform

// Covering returns some of all that together have every pair of traits that any has: first those with the most
// pairs that no other has, so that they are few.
func Covering[V any](all []V, traits func(V) []string) []V {
	var some []V
	seen := map[[2]string]bool{}
	pairs := func(v V, do func(pair [2]string)) {
		of := traits(v)
		for i, a := range of {
			for _, b := range of[i+1:] {
				do([2]string{a, b})
			}
		}
	}
	most := 0
	for _, v := range all {
		most = max(most, len(traits(v))*(len(traits(v))-1)/2)
	}
	for ; most > 0; most-- {
		for _, v := range all {
			fresh := 0
			pairs(v, func(pair [2]string) {
				if !seen[pair] {
					fresh++
				}
			})
			if fresh == most {
				pairs(v, func(pair [2]string) { seen[pair] = true })
				some = append(some, v)
			}
		}
	}
	return some
}
