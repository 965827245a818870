package driver

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestOpenDevicesRefused(t *testing.T) {
	c := open(t)
	c.api = func() (*cudaAPI, error) { return nil, errors.New("lost") }
	if _, err := c.OpenDevices([]int{0, 1}); err == nil || err.Error() != "lost" {
		t.Errorf("without a driver: got error %v", err)
	}
	if devs, err := c.OpenDevices(nil); len(devs) != 0 || err != nil {
		t.Errorf("no devices: got %v, error %v", devs, err)
	}
	if _, err := c.CanReach(0, 1); err == nil {
		t.Error("CanReach without a driver: no error")
	}
}

// several opens all GPUs, and skips the test where there is one.
func several(t testing.TB) (*CUDA, []*Device) {
	t.Helper()
	c := open(t)
	n, err := c.DeviceCount()
	if err != nil {
		t.Skip(err)
	}
	if n < 2 {
		t.Skipf("%d GPUs", n)
	}
	indices := make([]int, n)
	for i := range indices {
		indices[i] = i
	}
	devs := got(c.OpenDevices(indices))(t)
	t.Cleanup(func() { must(t, CloseDevices(devs)) })
	return c, devs
}

// each runs f for each device, beside each other.
func each(t testing.TB, devs []*Device, f func(rank int, d *Device) error) {
	t.Helper()
	errs := make(chan error, len(devs))
	for i, d := range devs {
		go func() { errs <- d.Do(func() error { return f(i, d) }) }()
	}
	for range devs {
		must(t, <-errs)
	}
}

// TestGPUPeers copies around all GPUs, before they are connected and after, and has a kernel write to a peer.
func TestGPUPeers(t *testing.T) {
	c, devs := several(t)
	if _, err := c.OpenDevices([]int{0, 0}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a GPU named twice: got error %v", err)
	}
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	around := func() {
		at := make([]Ptr, len(devs))
		each(t, devs, func(rank int, d *Device) (err error) {
			at[rank], err = d.Alloc(len(want))
			return err
		})
		must(t, devs[0].Do(func() error { return devs[0].Write(at[0], want) }))
		for i := 1; i < len(devs); i++ {
			must(t, devs[i].Do(func() error {
				s := got(devs[i].NewStream())(t)
				got := make([]byte, len(want))
				err := errors.Join(s.CopyPeer(at[i], devs[i], at[i-1], devs[i-1], len(want)), s.Sync(), devs[i].Read(got, at[i]), s.Close())
				if !bytes.Equal(got, want) {
					t.Errorf("GPU %d has other bytes than the one before", i)
				}
				return err
			}))
		}
		each(t, devs, func(rank int, d *Device) error { return d.Free(at[rank]) })
	}
	around()
	err := c.ConnectPeers(devs)
	if errors.Is(err, ErrNoPeers) {
		t.Skip(err)
	}
	must(t, err)
	must(t, c.ConnectPeers(devs)) // again
	around()
	var to Ptr
	must(t, devs[1].Do(func() error { to = got(devs[1].Upload(make([]byte, 256)))(t); return nil }))
	must(t, devs[0].Do(func() error {
		m := got(devs[0].LoadKernel(Kernel{Name: probeName, Source: probeSource}))(t)
		s := got(devs[0].NewStream())(t)
		return errors.Join(got(m.Function("probe"))(t).Launch(s, Launch{Block: Dim{X: 64}}, new(Args).Ptr(to).U32(5)), s.Sync(), s.Close(), m.Close())
	}))
	out := make([]uint32, 64)
	must(t, devs[1].Do(func() error { return errors.Join(devs[1].Read(Bytes(out), to), devs[1].Free(to)) }))
	for i, v := range out {
		if v != uint32(15+i) {
			t.Fatalf("word %d is %d, want %d", i, v, 15+i)
		}
	}
}

// TestGPUNCCL adds small numbers up, which every order of adding does exactly, and gathers.
func TestGPUNCCL(t *testing.T) {
	c, devs := several(t)
	comms, err := c.NewComms(devs)
	var missing *MissingError
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	must(t, err)
	const n = 5000
	each(t, devs, func(rank int, d *Device) error {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(i%100 + rank)
		}
		x, all := got(d.Upload(Bytes(v)))(t), got(d.Alloc(4*n*len(devs)))(t)
		s := got(d.NewStream())(t)
		gathered := make([]float32, n*len(devs))
		err := errors.Join(comms[rank].AllGather(s, all, x, n, F32), comms[rank].AllReduce(s, x, x, n, F32), s.Sync(),
			d.Read(Bytes(v), x), d.Read(Bytes(gathered), all), d.Free(x), d.Free(all), s.Close())
		for i := range v {
			if want := float32(len(devs)*(i%100) + len(devs)*(len(devs)-1)/2); v[i] != want {
				t.Errorf("GPU %d: sum %d is %v, want %v", rank, i, v[i], want)
				break
			}
		}
		for i := range gathered {
			if want := float32(i%n%100 + i/n); gathered[i] != want {
				t.Errorf("GPU %d: element %d is %v, want %v", rank, i, gathered[i], want)
				break
			}
		}
		return err
	})
	must(t, CloseComms(comms))
}

func TestNCCLTypes(t *testing.T) {
	// ncclDataType_t of nccl.h: ncclFloat16 6, ncclFloat32 7, ncclBfloat16 9.
	got := []uintptr{ncclType(F16), ncclType(F32), ncclType(BF16)}
	if want := []uintptr{6, 7, 9}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
