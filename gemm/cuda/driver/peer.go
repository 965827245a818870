package driver

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"
)

// OpenDevices opens several GPUs, each with a goroutine of its own, which work beside each other. Of those that are named one
// is named once.
func (c *CUDA) OpenDevices(indices []int) (devs []*Device, err error) {
	for i, index := range indices {
		if slices.Contains(indices[:i], index) {
			err = fmt.Errorf("GPU %d is named twice", index)
			break
		}
		var d *Device
		if d, err = c.OpenDevice(index); err != nil {
			break
		}
		devs = append(devs, d)
	}
	if err != nil {
		return nil, errors.Join(err, CloseDevices(devs))
	}
	return devs, nil
}

// CloseDevices closes devices, the last first.
func CloseDevices(devs []*Device) error {
	var errs []error
	for _, d := range slices.Backward(devs) {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// CanReach tells whether one GPU can read and write another's memory.
func (c *CUDA) CanReach(from, to int) (bool, error) {
	a, err := c.ready()
	if err != nil || a.deviceCanAccessPeer == 0 {
		return false, err
	}
	var devs [2]int32
	for i, index := range []int{from, to} {
		if devs[i], err = a.device(index); err != nil {
			return false, err
		}
	}
	var can int32
	err = a.check("cuDeviceCanAccessPeer", call(a.deviceCanAccessPeer, uintptr(unsafe.Pointer(&can)), uintptr(devs[0]), uintptr(devs[1])))
	return can != 0, err
}

// ConnectPeers lets kernels on each of some GPUs read and write the memory of all others, by the addresses that those have there.
// It must not be called inside Do.
func (c *CUDA) ConnectPeers(devs []*Device) error {
	for _, d := range devs {
		for _, peer := range devs {
			if d == peer {
				continue
			}
			can, err := c.CanReach(d.Info.Index, peer.Info.Index)
			if err == nil && !can {
				err = ErrNoPeers
			}
			if err == nil {
				err = d.Do(func() error { return d.reach(peer) })
			}
			if err != nil {
				return fmt.Errorf("GPUs %d and %d: %w", d.Info.Index, peer.Info.Index, err)
			}
		}
	}
	return nil
}

// ErrNoPeers is in the chain of the error of [CUDA.ConnectPeers] where a GPU has no way to another's memory.
var ErrNoPeers = errors.New("neither reads the other's memory (no NVLink, and none over PCIe that the system allows)")

func (d *Device) reach(peer *Device) error {
	r := call(d.api.ctxEnablePeerAccess, peer.ctx, 0)
	if int32(r) == codePeersAlready {
		return nil
	}
	return d.api.check("cuCtxEnablePeerAccess", r)
}

// CopyPeer queues a copy of n bytes from one GPU's memory to another's, over the way between them where there is one and through
// the host's memory where there is none. The stream may be of either.
func (s *Stream) CopyPeer(dst Ptr, to *Device, src Ptr, from *Device, n int) error {
	switch {
	case n == 0:
		return nil
	case s.api.memcpyPeerAsync == 0:
		return fmt.Errorf("GPUs %d and %d: the driver copies nothing between GPUs", from.Info.Index, to.Info.Index)
	}
	return s.api.check("cuMemcpyPeerAsync", call(s.api.memcpyPeerAsync, uintptr(dst), to.ctx, uintptr(src), from.ctx, uintptr(n), s.handle))
}
