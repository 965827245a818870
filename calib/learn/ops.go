package learn

import "github.com/lutq/lutq/calib/model"

// Ops are the operations that scales are learned with, beside those of a model
// and its gradient: calib/model/cpu and calib/model/cuda have them.
type Ops interface {
	model.Ops

	// Trainable uploads a weight whose scales are learned. LinearBack and Linear of a model take it as any other.
	Trainable(t model.Trainable) (model.Weight, error)
	// SetScales gives a trainable weight new scales, floats [N·groups], rounded to its ScaleType.
	SetScales(w model.Weight, scales model.Array)
	// SetTable gives it a new codebook, floats.
	SetTable(w model.Weight, table model.Array)
	// Recode chooses the codes anew: the entry nearest to original/scale, the lower
	// one of equals; code of zero where the scale is 0. bf16 rounds the quotient to bfloat16 first.
	Recode(w model.Weight, bf16 bool)
	// Codes reads the codes [N·K].
	Codes(dst []uint8, w model.Weight)

	// Adam takes one step of the optimizer for every element.
	Adam(a model.Adam)
	// ExpScale writes s = base·exp(theta), and ExpScaleBack multiplies g by s, which is ∂s/∂theta. All floats.
	ExpScale(s, base, theta model.Array)
	ExpScaleBack(g, s model.Array)
	// SumSquares returns Σ x² over all arrays, floats.
	SumSquares(x ...model.Array) float64
}
