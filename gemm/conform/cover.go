package conform

// Covering returns some of all that together have every trait that any has: first those with the most traits
// that no other has, so that they are few.
func Covering[V any](all []V, traits func(V) []string) []V {
	var some []V
	seen := map[string]bool{}
	most := 0
	for _, v := range all {
		most = max(most, len(traits(v)))
	}
	for ; most > 0; most-- {
		for _, v := range all {
			of, fresh := traits(v), 0
			for _, trait := range of {
				if !seen[trait] {
					fresh++
				}
			}
			if fresh == most {
				for _, trait := range of {
					seen[trait] = true
				}
				some = append(some, v)
			}
		}
	}
	return some
}

// Pairs returns traits two by two, by which [Covering] covers whatever occurs together.
func Pairs(traits []string) []string {
	var pairs []string
	for i, a := range traits {
		for _, b := range traits[i+1:] {
			pairs = append(pairs, a+" and "+b)
		}
	}
	return pairs
}
