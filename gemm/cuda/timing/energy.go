package timing

import (
	"context"
	"errors"
	"time"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// energyTurn is how long the launches take that are waited for at once: so long that waiting is nothing.
const energyTurn = 50 * time.Millisecond

// Energy calls an arm over and over for some time at least, and returns what the GPU takes for that; units are calls.
func Energy(ctx context.Context, d *driver.Device, s *driver.Stream, m *driver.Meter, a *Arm, least time.Duration) (e driver.Energy, err error) {
	defer func() { err = errors.Join(err, a.release()) }()
	if err := a.capture(s); err != nil {
		return e, err
	}
	// The first launch loads the graph; the second says how many there are in a turn.
	took, err := launches(d, s, a, 1)
	if err == nil {
		took, err = launches(d, s, a, 1)
	}
	if err != nil {
		return e, err
	}
	each := max(1, int(energyTurn/max(took, time.Microsecond)))
	return m.Over(ctx, least, func() (int, error) {
		_, err := launches(d, s, a, each)
		return each * a.calls(), err
	})
}
