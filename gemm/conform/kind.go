package conform

import (
	"math/rand/v2"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
)

// Kind is a kind of weights of which there are random matrices.
type Kind struct {
	weight.Kind
	// Random returns an N×K matrix with weights of a layer, whose scales are float16.
	Random func(r *rand.Rand, n, k, bits, group int) weight.Matrix
}

// Kinds lists them, that of tables first.
func Kinds() []Kind {
	return []Kind{
		{lut.Kind{}, func(r *rand.Rand, n, k, bits, group int) weight.Matrix {
			return RandomMatrix(r, n, k, bits, group, weight.F16)
		}},
		{bcq.Kind{}, func(r *rand.Rand, n, k, bits, group int) weight.Matrix {
			return RandomBCQ(r, n, k, bits, group, weight.F16, true)
		}},
		{lut24.Kind{}, func(r *rand.Rand, n, k, bits, group int) weight.Matrix {
			return RandomSparse(r, n, k, bits, group, weight.F16)
		}},
	}
}
