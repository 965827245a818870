package repack

import "github.com/lutq/lutq/formats/weight/lut"

var (
	_ lut.Layout = (*CPUPanels)(nil)
	_ lut.Layout = (*CUDATiles)(nil)
)

// Shape implements [lut.Layout].
func (p *CPUPanels) Shape() (n, k int) { return p.N, p.K }

// Shape implements [lut.Layout].
func (p *CUDATiles) Shape() (n, k int) { return p.N, p.K }
