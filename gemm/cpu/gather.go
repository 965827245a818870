package cpu

// Gather writes rows[i] of w, as the products take it, to row i of
// dst [len(rows), Cols].
func (e *Engine) Gather(dst []float32, w Weights, rows []int) {
	k := w.Cols()
	if len(dst) < len(rows)*k {
		panic(badShape)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.split(len(rows), func(worker, r0, r1 int) {
		panel := e.buffer(worker, 16*kBlock)
		for r := r0; r < r1; r++ {
			lane := panel[rows[r]%16:]
			for k0 := 0; k0 < k; k0 += kBlock {
				out := dst[r*k+k0 : r*k+min(k, k0+kBlock)]
				w.decode(e.isa, panel[:16*len(out)], rows[r]/16, k0, len(out))
				for i := range out {
					out[i] = lane[16*i]
				}
			}
		}
	})
}
