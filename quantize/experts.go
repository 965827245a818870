package quantize

import "slices"

// Experts says how many tokens of a text went to the experts of a block.
type Experts struct {
	Block  string  `json:"block"`
	Top    int     `json:"top"`    // experts of a token
	Tokens []int   `json:"tokens"` // of each expert
	Least  int     `json:"least"`
	Median int     `json:"median"`
	Never  float64 `json:"never"` // the share of experts that no token went to
	// Filled are experts that had fewer tokens than a layer of theirs has inputs: they were fitted to tokens as well that they would
	// have had if twice as many experts were chosen, or to all.
	Filled int `json:"filled"`
}

// routed is implemented by statistics of experts, see model.Stats.
type routed interface{ Routed() int }

// experts gathers where the tokens went, of blocks whose experts were fitted.
func (p *Plan) experts(records []record) []Experts {
	if p.names.model == nil {
		return nil
	}
	at := make(map[string]int, len(p.Items))
	for i := range p.Items {
		at[p.Items[i].Tensor.Name] = i
	}
	var all []Experts
	for i := range p.names.model.Blocks {
		b := &p.names.model.Blocks[i]
		if b.MoE == nil {
			continue
		}
		x := Experts{Block: b.Path, Top: b.MoE.Top}
		for e := range b.MoE.Experts {
			m := &b.MoE.Experts[e]
			j, ok := at[m.Gate.Stored.Tensor]
			if !ok || m.Gate.Expert >= len(records[j].Routed) {
				break
			}
			n := records[j].Routed[m.Gate.Expert]
			x.Tokens = append(x.Tokens, n)
			if n < max(m.Gate.K, m.Down.K) {
				x.Filled++
			}
		}
		if len(x.Tokens) < len(b.MoE.Experts) || len(x.Tokens) == 0 {
			continue
		}
		sorted, never := slices.Sorted(slices.Values(x.Tokens)), 0
		for _, n := range sorted {
			if n == 0 {
				never++
			}
		}
		x.Least, x.Median, x.Never = sorted[0], sorted[len(sorted)/2], float64(never)/float64(len(sorted))
		all = append(all, x)
	}
	return all
}
