package cuda

import (
	"errors"
	"sync"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// lanes are operations beside those of a device that it belongs to, each with a thread and a stream of its own: the columns of several
// layers are rounded at a time, as one does not fill a GPU and waits for copies.
type lanes struct {
	once sync.Once
	free chan *Ops
	mu   sync.Mutex
	all  []*Ops
}

// laneCount is how many there are.
const laneCount = 4

// lane returns operations that nobody else uses until back is called: the device's own where there is no room for more. What was asked of
// the device before is done.
func (o *Ops) lane() (l *Ops, back func()) {
	o.lanes.once.Do(o.openLanes)
	if len(o.lanes.all) == 0 {
		o.rounding.Lock()
		return o, o.rounding.Unlock
	}
	l = <-o.lanes.free
	return l, func() { o.lanes.free <- l }
}

func (o *Ops) openLanes() {
	o.lanes.free = make(chan *Ops, laneCount)
	for range laneCount {
		l, err := o.newLane()
		if err != nil {
			return // with those that there are
		}
		o.lanes.mu.Lock()
		o.lanes.all = append(o.lanes.all, l)
		o.lanes.mu.Unlock()
		o.lanes.free <- l
	}
}

func (o *Ops) newLane() (*Ops, error) {
	dev, err := o.dev.Beside()
	if err != nil {
		return nil, err
	}
	l := &Ops{dev: dev, acts: o.acts, main: o, functions: map[string]*driver.Function{}}
	l.pool.init()
	if err := dev.Do(l.openStream); err != nil {
		return nil, errors.Join(err, l.Close(), dev.Close())
	}
	return l, nil
}

// close gives them back.
func (l *lanes) close() error {
	var errs []error
	for _, o := range l.all {
		errs = append(errs, o.Close(), o.dev.Close())
	}
	l.all = nil
	return errors.Join(errs...)
}

// pools returns those of the device's memory, of all lanes.
func (o *Ops) pools() []*pool {
	if o.main != nil {
		o = o.main
	}
	o.lanes.mu.Lock()
	defer o.lanes.mu.Unlock()
	all := []*pool{&o.pool}
	for _, l := range o.lanes.all {
		all = append(all, &l.pool)
	}
	return all
}

// fetch reads memory of the device once all that was asked of these operations is done, and waits for no others. It is called inside do.
func (o *Ops) fetch(dst []byte, src driver.Ptr) {
	for len(dst) > 0 && o.err == nil {
		if o.fetched == nil {
			var err error
			if o.fetched, err = o.dev.AllocHost(stagingBytes); err != nil {
				o.fail(err)
				return
			}
		}
		n := min(len(dst), stagingBytes)
		o.fail(o.stream.Read(o.fetched, 0, src, n))
		if o.err == nil {
			o.fail(o.stream.Sync())
		}
		copyWide(dst, o.fetched.Bytes()[:n])
		dst, src = dst[n:], src+driver.Ptr(n)
	}
}
