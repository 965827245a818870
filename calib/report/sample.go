package report

import (
	"context"
	"math"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/hf"
)

// What is read of the original: up to mostRows rows of each layer, evenly, and fewer where there are many, so that it takes no
// more than about a second. With fewer than leastRows a column's size is too uncertain; of experts in a block only some are looked at then.
const (
	mostRows, leastRows = 128, 32
	sampleWeights       = 32 << 20
)

// Sample reads some rows of the original's layers, and of the model's own where own is not nil, and notes
// outlier columns and, with own, the errors of weights. Layers that the original has not, in the same shape, stay unknown.
func (m *Model) Sample(ctx context.Context, own, original *hf.Checkpoint) error {
	type place struct {
		block int
		kind  string
	}
	groups := make(map[place][]*Layer)
	columns := 0 // of one layer of each group
	for i := range m.Layers {
		l := &m.Layers[i]
		block, kind := Place(l.Name)
		at := place{block, kind}
		if len(groups[at]) == 0 {
			columns += l.Shape[1]
		}
		groups[at] = append(groups[at], l)
	}
	if columns == 0 {
		return nil
	}
	most := 0 // of a group
	for _, all := range groups {
		most = max(most, len(all))
	}
	experts := min(max(sampleWeights/(columns*leastRows), 1), most) // of a block
	rows := min(max(sampleWeights/(columns*experts), leastRows), mostRows)
	m.Sampled = rows
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, all := range groups {
		for _, i := range evenly(len(all), experts) {
			l := all[i]
			w := tensorOf(original, l)
			if w == nil {
				continue
			}
			group.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				var other *hf.Tensor
				if own != nil {
					if other = tensorOf(own, l); other == nil {
						return nil
					}
				}
				return l.sample(w, other, rows)
			})
		}
	}
	return group.Wait()
}

// tensorOf finds the weights of a layer in a checkpoint: nil where they are not there in its shape.
func tensorOf(c *hf.Checkpoint, l *Layer) *hf.Tensor {
	for _, name := range []string{l.Name + ".weight", l.Name} {
		t, ok := c.Tensor(name)
		if !ok {
			continue
		}
		rows := 1
		for _, n := range t.Shape[:max(len(t.Shape)-1, 0)] {
			rows *= n
		}
		if len(t.Shape) >= 2 && rows == l.Shape[0] && t.Shape[len(t.Shape)-1] == l.Shape[1] {
			return t
		}
	}
	return nil
}

// evenly returns up to n of count places, as far from each other as can be.
func evenly(count, n int) []int {
	n = min(n, count)
	places := make([]int, n)
	for i := range places {
		places[i] = (2*i + 1) * count / (2 * n)
	}
	return places
}

// sample reads rows of a layer's weights w, and of how they are stored, which may be nil.
func (l *Layer) sample(w, stored *hf.Tensor, n int) error {
	k := l.Shape[1]
	row, own := make([]float32, k), make([]float32, k)
	squares := make([]float64, k)
	var diff, energy float64
	rows := evenly(l.Shape[0], n)
	for _, r := range rows {
		if err := w.ReadFloat32(row, int64(r)*int64(k)); err != nil {
			return err
		}
		for i, v := range row {
			squares[i] += float64(v) * float64(v)
		}
		if stored == nil {
			continue
		}
		if err := stored.ReadFloat32(own, int64(r)*int64(k)); err != nil {
			return err
		}
		for i, v := range row {
			d := float64(v) - float64(own[i])
			diff += d * d
			energy += float64(v) * float64(v)
		}
	}
	if stored != nil && energy > 0 {
		l.Error = math.Sqrt(diff / energy)
	}
	sorted := slices.Clone(squares)
	slices.Sort(sorted)
	if median := sorted[k/2]; median > 0 && len(rows) > 1 {
		l.Column = slices.Index(squares, sorted[k-1])
		l.Outlier = sorted[k-1] / median
	}
	return nil
}
