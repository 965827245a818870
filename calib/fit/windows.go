package fit

import "github.com/lutq/lutq/formats/arch"

// How many tokens second moments are taken of, and bounds of the number of windows. NOTES.md in package corpus has what they rest on.
const (
	tokensPerColumn = 64 // of the widest layer
	leastWindows    = 32
	MostWindows     = 128
)

// Windows returns how many windows of so many tokens the layers of a model are fitted to where nothing else is said: as many as
// have 64 tokens for each column of the widest, of which an expert reads its part, but 32 to [MostWindows].
func Windows(d *arch.Decoder, context int) int {
	columns := 0
	for i := range d.Blocks {
		b := &d.Blocks[i]
		for _, l := range b.Linears() {
			columns = max(columns, l.K)
		}
		if b.MoE == nil {
			continue
		}
		for _, m := range b.MLPs() {
			columns = max(columns, max(m.Gate.K, m.Down.K)*len(b.MoE.Experts)/max(b.MoE.Top, 1))
		}
	}
	return min(max((tokensPerColumn*columns+context-1)/context, leastWindows), MostWindows)
}
