package fit

import (
	"context"
	"time"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/relay"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/rounding"
)

// apart has a walk go on from the layers as they were.
type apart struct{ model.Visitor }

func (apart) Weight(string) (weight.Matrix, error) { return nil, nil }

// onTheWay wants nothing of a walk.
type onTheWay struct{}

func (onTheWay) Wants(string) bool                                  { return false }
func (onTheWay) Quantize(context.Context, []rounding.Readers) error { return nil }
func (onTheWay) Weight(string) (weight.Matrix, error)               { return nil, nil }

// patience is how long a part that has nothing else to do waits at least for others that are on their way with what it needs. It
// may walk beside them for nothing then, or wait for one that was killed: both cost no more than time.
const patience = 5 * time.Second

// keptBytes is what states may take on the disk if the model takes less.
const keptBytes = 8 << 30

// walkApart is a walk through the original model, which parts of it share as far as it is the same for all.
func (c *calibrator) walkApart(ctx context.Context, v *quantize.Visitor) error {
	shared := v.Shared()
	if shared == nil {
		return c.walkWith(ctx, "calibrating", apart{v})
	}
	return c.onDevices(func(devices []model.StatsOps) error {
		r := c.relay(shared, devices)
		walk := func(from int) error {
			o := c.walk()
			o.From, o.States = from, r.Whole()
			return c.walkOn(ctx, "calibrating", devices, apart{v}, o)
		}
		err := error(nil)
		for tries := 0; tries == 0 || relay.Damaged(err); tries++ {
			from := 0
			if tries < 3 { // else what is kept is damaged again and again
				if from, err = r.Run(ctx); err != nil {
					return err
				}
			}
			err = walk(from)
		}
		if err == nil && shared.Finished() {
			err = r.Clear()
		}
		return err
	})
}

// relay shares a walk.
func (c *calibrator) relay(shared *quantize.Shared, devices []model.StatsOps) *relay.Relay {
	o := c.walk()
	r := relay.Options{
		Folder: shared.Folder, Key: shared.Plan, Part: shared.Part.I, Parts: shared.Part.N, First: shared.First,
		Starts: model.Starts(c.src.Decoder(), o), Bytes: max(shared.Bytes, keptBytes), Patience: patience, Note: c.o.Warn,
	}
	for _, m := range shared.Begins {
		r.Marks = append(r.Marks, relay.Mark(m))
	}
	for _, w := range o.Windows {
		r.Sizes = append(r.Sizes, model.StateSize(c.src.Decoder(), len(w)))
	}
	r.Walk = func(ctx context.Context, from, to int, windows [2]int, states model.States) error {
		some := o
		some.Windows, some.From, some.To, some.States = o.Windows[windows[0]:windows[1]], from, to, states
		return c.walkOn(ctx, "walking ahead", devices, onTheWay{}, some)
	}
	return relay.New(r)
}
