// Package trellistest makes layers of the kind trellis for tests, whose rings may hold any bytes.
package trellistest

import (
	"math/rand/v2"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// Spec returns that of layers of a codebook and a rate: the bits of two weights.
func Spec(codebook string, rate int, scales weight.ScaleType) weight.Spec {
	return weight.Spec{
		Kind: trellis.Name, Bits: rate / 2, Half: rate%2 != 0, Group: weight.RowGroup, Codebook: codebook, ScaleType: scales,
	}
}

// Rates lists those that a codebook has.
func Rates(codebook string) []int {
	var rates []int
	for rate := range 17 {
		if _, err := trellis.NewCode(codebook, rate); err == nil {
			rates = append(rates, rate)
		}
	}
	return rates
}

// Parts returns random data of a layer's parts, nil for optional ones that are not wanted: factors, and a table of its own.
func Parts(rng *rand.Rand, s weight.Spec, n, k int, factors, table bool) ([][]byte, error) {
	parts, err := trellis.Kind{}.Parts(s, n, k)
	if err != nil {
		return nil, err
	}
	data := make([][]byte, len(parts))
	for i, p := range parts {
		if p.Optional && !(i == trellis.FactorsPart && factors) && !(i == trellis.TablePart && table) {
			continue
		}
		count := 1
		for _, d := range p.Shape {
			count *= d
		}
		if i == trellis.RingsPart {
			data[i] = make([]byte, count)
			for j := range data[i] {
				data[i][j] = byte(rng.Uint32())
			}
			continue
		}
		values := make([]float32, count)
		for j := range values {
			switch i {
			case trellis.ScalesPart:
				values[j] = float32(.01 + .01*rng.Float64()) // of a small weight, times what mixing adds up
			case trellis.FactorsPart:
				values[j] = float32((.5 + rng.Float64()) * float64(1-2*rng.IntN(2)))
			default:
				values[j] = float32(rng.NormFloat64())
			}
		}
		if i == trellis.ScalesPart {
			data[i] = make([]byte, count*s.ScaleType.Size())
			s.ScaleType.Encode(data[i], values)
			continue
		}
		data[i] = make([]byte, 2*count)
		num.EncodeF16(data[i], values)
	}
	return data, nil
}

// Matrix returns a random layer, with [Parts].
func Matrix(rng *rand.Rand, s weight.Spec, n, k int, factors, table bool) (*trellis.Matrix, error) {
	data, err := Parts(rng, s, n, k, factors, table)
	if err != nil {
		return nil, err
	}
	m, err := trellis.Kind{}.Open(s, n, k, data)
	if err != nil {
		return nil, err
	}
	return trellis.Of(m)
}
