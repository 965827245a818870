package tasks

import "math"

// random is Python's random.Random: the Mersenne Twister MT19937 of Matsumoto and Nishimura (1998), seeded by
// init_by_array as CPython does with a whole number.
type random struct {
	state [624]uint32
	at    int
}

func newRandom(seed uint64) *random {
	key := []uint32{uint32(seed)}
	if high := uint32(seed >> 32); high > 0 {
		key = append(key, high)
	}
	r := &random{at: 624}
	s := &r.state
	s[0] = 19650218
	for i := 1; i < len(s); i++ {
		s[i] = 1812433253*(s[i-1]^s[i-1]>>30) + uint32(i)
	}
	i, j := 1, 0
	for range len(s) {
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*1664525) + key[j] + uint32(j)
		if i++; i == len(s) {
			s[0], i = s[len(s)-1], 1
		}
		if j++; j == len(key) {
			j = 0
		}
	}
	for range len(s) - 1 {
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*1566083941) - uint32(i)
		if i++; i == len(s) {
			s[0], i = s[len(s)-1], 1
		}
	}
	s[0] = 1 << 31
	return r
}

// next returns 32 random bits.
func (r *random) next() uint32 {
	s := &r.state
	if r.at == len(s) {
		for i := range s {
			y := s[i]&(1<<31) | s[(i+1)%len(s)]&(1<<31-1)
			s[i] = s[(i+397)%len(s)] ^ y>>1 ^ y&1*0x9908b0df
		}
		r.at = 0
	}
	y := s[r.at]
	r.at++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// below returns a number of [0, n), with n of at most 32 bits.
func (r *random) below(n int) int {
	bits := 0
	for x := n; x > 0; x >>= 1 {
		bits++
	}
	for {
		if v := int(r.next() >> (32 - bits)); v < n {
			return v
		}
	}
}

// sample returns k different numbers of [0, n) in the order in which Python's sample draws them; k ≤ n.
func (r *random) sample(n, k int) []int {
	drawn := make([]int, k)
	small := 21 // where a list is less memory than a set
	if k > 5 {
		small += int(math.Pow(4, math.Ceil(math.Log(float64(3*k))/math.Log(4))))
	}
	if n <= small {
		pool := make([]int, n)
		for i := range pool {
			pool[i] = i
		}
		for i := range drawn {
			j := r.below(n - i)
			drawn[i], pool[j] = pool[j], pool[n-i-1]
		}
		return drawn
	}
	taken := make(map[int]bool)
	for i := range drawn {
		j := r.below(n)
		for taken[j] {
			j = r.below(n)
		}
		taken[j] = true
		drawn[i] = j
	}
	return drawn
}
