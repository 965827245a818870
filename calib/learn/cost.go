package learn

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/weight"
)

// What learning takes on the host besides arrays: the program with its texts,
// and what is freed but not yet collected. The factor is what makes up the
// difference on models of 1 and 11 million parameters with windows of 256 and
// 2048 tokens, of which the estimate was 0.96 to 1.39 times the measured peak.
const (
	baseBytes   = 32 << 20
	uncollected = 1.6
)

// HostMemory returns about how many bytes of the host learning on the device
// takes at most, for a model of so many bytes of weights and layers of these shapes.
func HostMemory(d *arch.Decoder, weights int64, shapes map[string]weight.Matrix, device string, o Options) int64 {
	var layers, scales, largest int64
	for _, m := range shapes {
		st, err := storedOf(m)
		if err != nil {
			continue // of which nothing is learned
		}
		s := st.shape()
		n, k, groups := int64(s.n), int64(s.k), int64(s.groups())
		each, read := int64(1), int64(1) // bytes of what is in the place of a weight, and of what it is made of
		if s.entries == 0 {
			each, read = 4, 8
		}
		// Codes, or what else is multiplied, and values, and parameters as the optimizer has them.
		layers += n * (each*k + 4*k + 9*4*groups)
		scales += n * groups
		largest = max(largest, s.data+n*(read*k+groups*int64(s.scaleType.Size()+4)))
	}
	if device != "cpu" {
		// The model streams through to the device, a matrix at a time, of which the
		// embedding is the largest, and after it the layers. A state that is read has six
		// numbers for each scale at most.
		return baseBytes + max(2*4*int64(d.Vocab)*int64(d.Hidden), 6*4*scales) + largest
	}
	window := 0
	for _, w := range o.Windows {
		window = max(window, len(w))
	}
	arrays := model.GradientBytes(d, window, o.objective() == KL)
	return baseBytes + int64(uncollected*float64(weights+layers+largest+arrays))
}

// objective returns what the options or their mode make small.
func (o Options) objective() Objective {
	switch {
	case o.Objective != "":
		return o.Objective
	case o.Mode == Flute:
		return NLL
	}
	return KL
}

// Seconds returns about how long learning takes for a model on a device, which
// it times at a product of the model's own width.
func Seconds(ops model.Ops, d *arch.Decoder, o Options) (float64, error) {
	teacher := o.objective() == KL
	var work float64
	window := 0
	for _, w := range o.Windows {
		work += float64(max(o.Epochs, 1)) * model.GradientWork(d, len(w), teacher)
		window = max(window, len(w))
	}
	for _, w := range o.Valid {
		work += (validations + 1) * model.LossWork(d, len(w), teacher)
	}
	perSecond, err := model.Speed(ops, d, min(window, 512), 0)
	if err != nil {
		return 0, err
	}
	return work / perSecond, nil
}
