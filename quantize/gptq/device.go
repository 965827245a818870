package gptq

import (
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize/rounding"
)

// deviceQuantizer implements [rounding.Quantizer] where the state lies on a device.
type deviceQuantizer struct {
	*State
	Leveled

	// Scratch for the rows at hand.
	target       []float32
	fed, nearest rounding.Rounded
	outputs      []float32
}

// Rows implements [rounding.Quantizer].
func (q *deviceQuantizer) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	n, k := len(errs), q.k
	if err := q.CheckParts(parts, n, k); err != nil {
		return err
	}
	target := grow(&q.target, n*k)
	copy(target, w)
	if err := q.device.Retarget(target); err != nil {
		return err
	}
	keepFinite(target, w, k)
	if err := q.Fit(target, n); err != nil {
		return err
	}
	levels, group, count := q.Levels()
	for _, r := range []*rounding.Rounded{&q.fed, &q.nearest} {
		grow(&r.Codes, n*k)
		grow(&r.Loss, n)
		r.Codes, r.Loss = r.Codes[:n*k], r.Loss[:n]
	}
	outputs := grow(&q.outputs, n)
	if err := q.device.Round(q.fed, q.nearest, outputs, target, levels, group, count); err != nil {
		return err
	}
	groups := weight.GroupsIn(k, group)
	for r := range n {
		e := rounding.RowError{Output: float64(outputs[r]), Loss: float64(q.fed.Loss[r]), NearestLoss: float64(q.nearest.Loss[r]), Wants: q.Wants(r)}
		codes := q.fed.Codes[r*k : (r+1)*k]
		if !(e.Loss < e.NearestLoss) {
			codes, e.Loss = q.nearest.Codes[r*k:(r+1)*k], e.NearestLoss
		}
		stored := func(c int) float32 { return levels[(r*groups+c/group)*count+int(codes[c])] }
		for c := range codes {
			e.Add(w[r*k+c], stored(c))
		}
		q.undamp(&e, target[r*k:(r+1)*k], stored)
		errs[r] = e
		q.Store(parts, r, r, codes)
	}
	return nil
}
