package cuda

import "github.com/lutq/lutq/gemm/cuda/driver"

// WaveEfficiency returns how evenly m rows of X are multiplied by a matrix on the engine's multiprocessors, in the way
// and under the configuration that [Engine.MatMul] chooses: the mean work of one over the work of the fullest, so 1 where
// all have as much. It is 0 where that is unpacked, for then cuBLAS divides the work.
func (e *Engine) WaveEfficiency(w *Matrix, m int) (float64, error) {
	switch way := e.Way(w, m); {
	case way.Unpacked():
		return 0, nil
	case way.many != manyVariant{}:
		share := way.many.divide(w.N, w.K, m, manyWorkers)
		return share.efficiency(e.limits.sms), nil
	case way.FP8():
		share := way.fp8.divide(w.N, w.K, m, manyWorkers)
		return share.efficiency(e.limits.sms), nil
	}
	rows := e.rowsAtOnce(w.Format, w.N, w.K, m)
	c, err := e.Chosen(w, m)
	if err != nil {
		return 0, err
	}
	p, l, err := w.shape(rows).under(c).plan(c, e.limits)
	if err != nil {
		return 0, err
	}
	return p.efficiency(l, e.limits.sms), nil
}

// efficiency is [Engine.WaveEfficiency] of tiles that are divided among the blocks of a launch.
func (p *params) efficiency(l driver.Launch, sms int) float64 {
	most := p.tilesEach
	if p.tilesOver > 0 {
		most++
	}
	return float64(p.tilesEach*l.Grid.X+p.tilesOver) / float64(int(most)*sms)
}

// sharedBefore returns how many of the atoms of shared fields the workers before one have.
func (w *work) sharedBefore(worker uint32) int {
	return int(uint64(w.shared) * uint64(w.atoms) * uint64(worker) / uint64(w.workers))
}

// efficiency is [Engine.WaveEfficiency] of fields that are divided among workers, on sms blocks of neighbours or as many as there are.
func (w *work) efficiency(sms int) float64 {
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
