package cpu

import (
	"math"

	"github.com/lutq/lutq/calib/model"
)

// CrossEntropy implements [model.Ops].
func (c *Ops) CrossEntropy(loss, dlogits, logits model.Array, targets []int, vocab int, scale float32) {
	losses, grads, all := host(loss), host(dlogits), host(logits)
	c.checkLoss(losses, grads, all, len(targets), vocab)
	c.engine.Parallel(len(targets), func(_, i int) {
		row := all[i*vocab : (i+1)*vocab]
		losses[i] = float32(c.logSumExp(row) - float64(row[targets[i]]))
		if grads != nil {
			d := grads[i*vocab : (i+1)*vocab]
			c.softmax(d, row, scale)
			d[targets[i]] -= scale
		}
	})
}

// checkLoss panics where the arrays of a loss do not fit.
func (c *Ops) checkLoss(loss, grads, logits []float32, rows, vocab int) {
	if len(loss) != rows || len(logits) != rows*vocab || grads != nil && len(grads) != len(logits) {
		panic(badSize)
	}
}

// logSumExp returns ln Σ exp of a row of logits. It is not finite where one of
// them is not.
func (c *Ops) logSumExp(row []float32) float64 {
	if s := c.engine.Dot(row, row); math.IsNaN(s) || math.IsInf(s, 0) {
		return math.NaN() // an exponential hides −Inf
	}
	top := c.engine.Max(row)
	return float64(top) + math.Log(c.engine.SumExp(row, top))
}

// softmax writes scale times the probabilities of a row of logits.
func (c *Ops) softmax(dst, row []float32, scale float32) {
	sum := c.engine.ExpSum(dst, row, c.engine.Max(row))
	c.engine.Scale(dst, dst, float32(float64(scale)/sum))
}

// Divergence implements [model.Ops].
//
// The difference of the two log probabilities is formed first, for each token
// by itself, so that what is summed is small where the models agree.
func (c *Ops) Divergence(loss, dlogits, logits, teacher model.Array, rows, vocab int, scale float32) {
	losses, grads, all, want := host(loss), host(dlogits), host(logits), host(teacher)
	c.checkLoss(losses, grads, all, rows, vocab)
	c.checkLoss(losses, grads, want, rows, vocab)
	c.engine.Parallel(rows, func(worker, i int) {
		row, ref := all[i*vocab:(i+1)*vocab], want[i*vocab:(i+1)*vocab]
		p := c.row(worker, vocab)
		lse, refLSE := c.logSumExp(row), c.logSumExp(ref)
		c.engine.ExpSum(p, ref, float32(refLSE))
		kl, sum := divergence(p, ref, row, refLSE-lse)
		losses[i] = float32(kl)
		if grads != nil {
			d := grads[i*vocab : (i+1)*vocab]
			c.softmax(d, row, scale)
			c.engine.Axpy(float32(-float64(scale)/sum), p, d)
		}
	})
}

// divergence returns Σ p·(ln p − ln q) and Σ p, where shift is ln Σ exp of the
// teacher's logits less that of the others.
func divergence(p, teacher, logits []float32, shift float64) (kl, sum float64) {
	teacher, logits = teacher[:len(p)], logits[:len(p)]
	var k, s [4]float64 // independent chains of additions
	for i, p := range p {
		d := float64(teacher[i]-logits[i]) - shift
		k[i%4] += float64(p) * d
		s[i%4] += float64(p)
	}
	// The probabilities sum to 1 but for the rounding of the shift of their exponentials to float32.
	sum = s[0] + s[1] + s[2] + s[3]
	return (k[0] + k[1] + k[2] + k[3]) / sum, sum
}

// ArgMax implements [model.Ops].
func (c *Ops) ArgMax(dst, x model.Array, rows, cols int) {
	out, all := host(dst), host(x)
	if len(out) != rows || len(all) != rows*cols {
		panic(badSize)
	}
	c.engine.Parallel(rows, func(_, i int) {
		row := all[i*cols : (i+1)*cols]
		top, at := c.engine.Max(row), 0
		for j, v := range row {
			if v == top {
				at = j
				break
			}
		}
		out[i] = float32(at)
	})
}
