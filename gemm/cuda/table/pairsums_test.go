package table

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// phases are those that a place in shared memory counts, as PTX's "mbarrier" has them.
type phases struct {
	number, count, pending, bytes int // that have ended; arrivals of each and those that the present one lacks; and bytes
}

func newPhases(count int) *phases { return &phases{count: count, pending: count} }

func (p *phases) settle() {
	if p.pending == 0 && p.bytes == 0 {
		p.number++
		p.pending = p.count
	}
}

// ended is what who waits for a phase asks: whether the present one is not of that parity.
func (p *phases) ended(odd int) bool { return p.number%2 != odd }

// sentSums is what has been sent of a warpgroup's sums: of which piece and rows, how much, and whether it has been read.
type sentSums struct {
	piece, rows, parts int
	read               bool
}

// pairModel is what the warpgroups of two blocks that pass sums on share.
type pairModel struct {
	splits int
	random *rand.Rand
	sent   [2][2]*phases // of a block, by rows
	read   [2][4]*phases // of a block: by it, by the other, of even pieces and of odd ones
	places [2][]sentSums // of a block, by sender
	queue  []func()      // parts under way
	faults []string
}

const partsSent = 3 // of a warpgroup's sums, which arrive in any order

func newPairModel(splits int, seed uint64) *pairModel {
	m := &pairModel{splits: splits, random: rand.New(rand.NewPCG(seed, 1))}
	for block := range 2 {
		for i := range 2 {
			m.sent[block][i] = newPhases(1)
		}
		for i := range m.read[block] {
			m.read[block][i] = newPhases(1)
		}
		m.places[block] = make([]sentSums, 2*splits-1)
		for i := range m.places[block] {
			m.places[block][i] = sentSums{piece: -1, read: true}
		}
	}
	return m
}

// arrives is a part of the sums of a piece that comes to a place of a block.
func (m *pairModel) arrives(block, place, piece, rows int) {
	p := &m.places[block][place]
	if p.piece != piece {
		if !p.read {
			m.faults = append(m.faults, fmt.Sprintf("sums of piece %d come where those of piece %d have not been read", piece, p.piece))
		}
		*p = sentSums{piece: piece, rows: rows}
	}
	p.parts++
	m.sent[block][rows].bytes--
	m.sent[block][rows].settle()
}

// warpgroup returns the steps of a warpgroup, of which each returns false if it has to wait: pass and gather of lutpair.cu.
func (m *pairModel) warpgroup(block, rows, split, pieces int, careless bool) []func() bool {
	var all []func() bool
	for n := range pieces {
		to := (rows ^ n) & 1
		if to != block || split != 0 {
			by, place := 0, 0 // who reads it, and where it lies
			if to != block {
				by, place = 1, m.splits-1+split
			}
			all = append(all, func() bool { return n == 0 || careless || m.read[block][2*by+(n-1)%2].ended((n-1)/2&1) }, func() bool {
				for range partsSent {
					m.queue = append(m.queue, func() { m.arrives(to, place, n, rows) })
				}
				return true
			})
			continue
		}
		all = append(all, func() bool {
			p := m.sent[block][rows]
			p.bytes += (2*m.splits - 1) * partsSent
			p.pending--
			if p.pending < 0 {
				m.faults = append(m.faults, "more arrive than a phase counts")
			}
			p.settle()
			return true
		}, func() bool { return m.sent[block][rows].ended(n / 2 & 1) }, func() bool {
			for i := range m.places[block] {
				p := &m.places[block][i]
				if p.piece != n || p.rows != rows || p.parts != partsSent || p.read {
					m.faults = append(m.faults, fmt.Sprintf("piece %d: read are %+v", n, *p))
				}
				p.read = true
			}
			for i, b := range []int{block, 1 - block} {
				m.read[b][2*i+n%2].pending--
				m.read[b][2*i+n%2].settle()
			}
			return true
		})
	}
	return all
}

// run does all steps in an order of its own, and returns what went wrong.
func (m *pairModel) run(pieces int, careless bool) []string {
	var groups [][]func() bool
	for block := range 2 {
		for rows := range 2 {
			for split := range m.splits {
				groups = append(groups, m.warpgroup(block, rows, split, pieces, careless))
			}
		}
	}
	lazy := m.random.IntN(len(groups)) // which goes on seldom
	for idle := 0; ; {
		left := len(m.queue)
		for _, g := range groups {
			left += len(g)
		}
		switch {
		case left == 0 || len(m.faults) > 0:
			return m.faults
		case idle > 1000*len(groups):
			return append(m.faults, fmt.Sprintf("%d steps wait for ever", left))
		}
		idle++
		if i := m.random.IntN(len(groups) + 1); i < len(groups) {
			if g := groups[i]; len(g) > 0 && (i != lazy || m.random.IntN(20) == 0) && g[0]() {
				groups[i], idle = g[1:], 0
			}
		} else if n := len(m.queue); n > 0 {
			j := m.random.IntN(n)
			part := m.queue[j]
			m.queue = append(m.queue[:j], m.queue[j+1:]...)
			part()
			idle = 0
		}
	}
}

// TestPairSums has the warpgroups of two blocks pass sums on in many orders: nobody waits for ever, no sums come where others' have not been
// read, and who has the rows reads those of the piece. Without the wait for that, it is seen.
func TestPairSums(t *testing.T) {
	for splits := 1; splits <= 2; splits++ {
		seen := 0
		for seed := range uint64(1000) {
			pieces := 1 + int(seed%7)
			for _, fault := range newPairModel(splits, seed).run(pieces, false) {
				t.Errorf("%d splits, %d pieces, seed %d: %s", splits, pieces, seed, fault)
			}
			if pieces > 2 && len(newPairModel(splits, seed).run(pieces, true)) > 0 {
				seen++
			}
		}
		if seen == 0 {
			t.Errorf("%d splits: nothing is wrong where nobody waits", splits)
		}
	}
}
