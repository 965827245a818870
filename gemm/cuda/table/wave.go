package table

import "github.com/lutq/lutq/gemm/cuda/driver"

// efficiency is [cuda.Engine.WaveEfficiency] of tiles that are divided among the blocks of a launch.
func (p *Params) efficiency(l driver.Launch, sms int) float64 {
	most := p.tilesEach
	if p.tilesOver > 0 {
		most++
	}
	return float64(p.tilesEach*l.Grid.X+p.tilesOver) / float64(int(most)*sms)
}

// sharedBefore returns how many of the atoms of shared fields the workers before one have.
func (w *Work) sharedBefore(worker uint32) int {
	return int(uint64(w.shared) * uint64(w.atoms) * uint64(worker) / uint64(w.workers))
}

// efficiency is [cuda.Engine.WaveEfficiency] of fields that are divided among workers, on sms blocks of neighbours or as many as there are.
func (w *Work) efficiency(sms int) float64 {
	blocks, most := min(int(w.workers), sms), 0
	for b := range blocks {
		first, end := int(w.workers)*b/blocks, int(w.workers)*(b+1)/blocks
		atoms := w.sharedBefore(uint32(end)) - w.sharedBefore(uint32(first))
		for worker := first; worker < end; worker++ {
			if left := int(w.fields-w.shared) - worker; left > 0 {
				atoms += (left + int(w.workers) - 1) / int(w.workers) * int(w.atoms)
			}
		}
		most = max(most, atoms)
	}
	return float64(w.fields) * float64(w.atoms) / float64(most*sms)
}
