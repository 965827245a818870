// Package awq finds what columns of layers are multiplied by before they are rounded, so that columns of large inputs
// lose less: activation-aware weight quantization (Lin et al., "AWQ", 2024, section 3.2).
//
// Layers that read one state share a factor in each of its components,
//
//	f[k] = (Σ x[k]² / tokens)^(α/2), divided by the root of the product of its largest and least
//
// with the α of 0, 1/20 … 19/20 that leaves the least error in what the layers put out on a text. The paper has means of
// |x[k]|. Root mean squares are what a walk through a model takes anyway, and are in proportion to them where inputs have
// one distribution.
package awq

import (
	"context"
	"errors"
	"math"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/gemm/cpu"
)

// Steps is the number of values that α takes.
const Steps = 20

// most bounds a factor, and its reciprocal: beyond it, weights of 16 bits would leave the range of their type.
const most = 1 << 8

// Layer is one of the layers that read a state.
type Layer struct {
	Weights []float32 // rows of K
	Share   float64   // how many rows of the layer one of them stands for
	// Round puts what is stored of rows in their place. There are as many ways to do it as there are tables that the layers may
	// come to share, and each layer has all, or one where its table is known. Several goroutines may call them.
	Round []func(w []float32) error
}

// Found is what was found for a state.
type Found struct {
	Factors []float32
	Alpha   float64
	// Loss is the squared error of what the layers put out with the factors, Plain without: as a mean over tokens.
	Loss, Plain float64
}

// Search finds factors for layers that read a state. h are the second moments Σ x·xᵀ of that over some tokens, [K, K]. tie
// makes those factors alike that have to be. As many values of α are tried at once as there are workers.
func Search(ctx context.Context, layers []Layer, h []float32, tokens, workers int, tie func(f []float32)) (*Found, error) {
	if len(layers) == 0 || tokens < 1 {
		return nil, errors.New("nothing to find factors by")
	}
	k := int(math.Sqrt(float64(len(h))))
	sizes := make([]float64, k)
	for i := range sizes {
		sizes[i] = float64(h[i*(k+1)]) / float64(tokens)
	}
	tries := make([]*Found, Steps)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(workers, 1))
	for i := range tries {
		group.Go(func() (err error) {
			alpha := float64(i) / Steps
			f := factors(sizes, alpha)
			if tie != nil {
				tie(f)
			}
			tries[i] = &Found{Factors: f, Alpha: alpha}
			tries[i].Loss, err = loss(ctx, layers, f, h, tokens)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	best := tries[0]
	for _, t := range tries {
		if t.Loss < best.Loss {
			best = t
		}
	}
	best.Plain = tries[0].Loss
	return best, nil
}

// factors returns those of inputs of some mean squares.
func factors(sizes []float64, alpha float64) []float32 {
	f := make([]float32, len(sizes))
	least, largest := math.Inf(1), 0.
	logs := make([]float64, len(sizes))
	for k, v := range sizes {
		if v > 0 {
			logs[k] = alpha / 2 * math.Log(v)
			least, largest = min(least, v), max(largest, v)
		}
	}
	middle := alpha / 4 * (math.Log(least) + math.Log(largest))
	for k, v := range sizes {
		if f[k] = 1; v > 0 {
			f[k] = float32(min(max(math.Exp(logs[k]-middle), 1./most), most))
		}
	}
	return f
}

// loss returns the squared error of what layers put out, by the table that leaves the least.
func loss(ctx context.Context, layers []Layer, f, h []float32, tokens int) (float64, error) {
	engine, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		return 0, err
	}
	k := len(f)
	moments := cpu.NewPlain(k, k, h)
	var always float64
	var byTable []float64
	for _, l := range layers {
		for table, round := range l.Round {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			off := make([]float32, len(l.Weights))
			for i, w := range l.Weights {
				off[i] = w * f[i%k]
			}
			if err := round(off); err != nil {
				return 0, err
			}
			for i, w := range l.Weights {
				off[i] = w - off[i]/f[i%k]
			}
			product := make([]float32, len(off))
			engine.MatMul(product, off, len(off)/k, moments)
			sum := 0.
			for i, v := range off {
				sum += float64(v) * float64(product[i])
			}
			sum *= l.Share / float64(tokens)
			if len(l.Round) == 1 {
				always += sum
				continue
			}
			if byTable == nil {
				byTable = make([]float64, len(l.Round))
			}
			byTable[table] += sum
		}
	}
	for i, v := range byTable {
		if i == 0 || v < byTable[0] {
			byTable[0] = v
		}
	}
	if byTable != nil {
		always += byTable[0]
	}
	return always, nil
}
