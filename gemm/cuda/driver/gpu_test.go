package driver

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lutq/lutq/formats/num"
)

// onGPU runs a test inside Do of the first GPU.
func onGPU(t testing.TB, test func(d *Device)) {
	t.Helper()
	c := open(t)
	n, err := c.DeviceCount()
	if err != nil {
		t.Skip(err)
	}
	if n == 0 {
		t.Skip("no GPU")
	}
	d, err := c.OpenDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := d.Do(func() error { test(d); return nil }); err != nil && !t.Failed() && !t.Skipped() {
		t.Error(err)
	}
}

// must fails the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// got fails the test if there is an error, and returns the value.
func got[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

const testSource = `
struct Book { float v[32]; };

extern "C" __global__ void look(float *y, const unsigned char *code, unsigned n, float scale, long long shift, Book book) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = book.v[(code[i] + shift) & 31] * scale;
}

extern "C" __global__ void cluster(unsigned *y) {
  unsigned rank, size;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0) y[blockIdx.x] = size * 100 + rank;
}

extern "C" __global__ void dynamic(unsigned *y, unsigned n) {
  extern __shared__ unsigned s[];
  for (unsigned i = threadIdx.x; i < n; i += blockDim.x) s[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) y[0] = s[n - 1];
}

// next adds one to each word; started before the kernel in front of it has
// ended, it waits before it reads.
extern "C" __global__ void next(unsigned *y, unsigned n) {
  asm volatile("griddepcontrol.launch_dependents;");
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (i < n) y[i]++;
}

extern "C" __global__ void nothing(unsigned *y) {}
`

func testKernel(t testing.TB, d *Device) *Module {
	t.Helper()
	if d.Info.Major < 9 {
		t.Skip("the test's kernels need sm_90")
	}
	m, err := d.LoadKernel(Kernel{Name: "test.cu", Source: testSource})
	var missing *MissingError
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	must(t, err)
	return m
}

func read32(t testing.TB, d *Device, p Ptr, n int) []uint32 {
	t.Helper()
	out := make([]uint32, n)
	must(t, d.Read(Bytes(out), p))
	return out
}

func TestGPUMemory(t *testing.T) {
	onGPU(t, func(d *Device) {
		t.Logf("%+v", d.Info)
		if d.Info.Name == "" || d.Info.SMs < 1 || d.Info.L2 < 1<<16 || d.Info.SharedPerBlock < 48<<10 || d.Info.Memory < 1<<30 {
			t.Errorf("the description makes no sense: %+v", d.Info)
		}
		free, total, err := d.Memory()
		must(t, err)
		if free <= 0 || free > total || total > d.Info.Memory {
			t.Errorf("%d bytes of %d are free on a GPU of %d", free, total, d.Info.Memory)
		}

		const n = 1 << 20
		want := make([]uint32, n)
		for i := range want {
			want[i] = rand.Uint32()
		}
		p := got(d.Upload(Bytes(want)))(t)
		q := got(d.Alloc(4 * n))(t)
		must(t, d.Copy(q, p, 4*n))
		if !slices.Equal(read32(t, d, q, n), want) {
			t.Error("Upload, Copy and Read do not give back what went in")
		}
		must(t, d.Fill8(q, 0xab, 8))
		must(t, d.Fill32(q+8, 0x01020304, 2))
		head := append([]uint32{0xabababab, 0xabababab, 0x01020304, 0x01020304}, want[4])
		if got := read32(t, d, q, 5); !slices.Equal(got, head) {
			t.Errorf("after filling: got %x, want %x", got, head)
		}

		s := got(d.NewStream())(t)
		h := got(d.AllocHost(4 * n))(t)
		copy(h.Bytes(), Bytes(want))
		must(t, s.Fill32(q, 0, n))
		must(t, s.Write(p, h, 4, 4*n-4))
		must(t, s.Copy(q, p, 2*n))
		must(t, s.Fill8(q, 0, 4))
		must(t, s.Sync())
		clear(h.Bytes())
		must(t, s.Read(h, 8, q, 4*n-8))
		must(t, s.Sync())
		expect := make([]uint32, n)
		copy(expect[2:], append([]uint32{0}, want[2:n/2+1]...))
		if !bytes.Equal(h.Bytes(), Bytes(expect)) {
			t.Error("asynchronous copies do not give what they should")
		}
		if err := s.Write(p, h, 4, 4*n); err == nil {
			t.Error("a write from beyond the buffer is accepted")
		}
		if err := s.Read(h, -1, p, 4); err == nil {
			t.Error("a read to before the buffer is accepted")
		}
		must(t, h.Close())
		must(t, s.Close())
		must(t, d.Free(p))
		must(t, d.Free(q))
		if _, err := d.Alloc(1 << 50); !IsOutOfMemory(err) {
			t.Errorf("a petabyte: got error %v, want out of memory", err)
		}
		if p, err := d.Alloc(0); p != 0 || err != nil {
			t.Errorf("nothing: got %#x, %v", p, err)
		}
	})
}

func TestGPULaunch(t *testing.T) {
	onGPU(t, func(d *Device) {
		m := testKernel(t, d)
		s := got(d.NewStream())(t)
		look := got(m.Function("look"))(t)
		if _, err := m.Function("absent"); err == nil {
			t.Error("a kernel that is not there is found")
		}
		info := got(look.Info())(t)
		if info.Registers < 8 || info.Local != 0 || info.Binary != 10*d.Info.Major+d.Info.Minor || info.MaxThreads < 256 {
			t.Errorf("got %+v", info)
		}
		if n := got(look.BlocksPerSM(256, 0))(t); n < 1 || n > d.Info.ThreadsPerSM/256 {
			t.Errorf("%d blocks per SM", n)
		}

		const n = 1000
		code := make([]byte, n)
		for i := range code {
			code[i] = byte(rand.IntN(32))
		}
		var book [32]float32
		for i := range book {
			book[i] = rand.Float32()
		}
		y := got(d.Alloc(4 * n))(t)
		x := got(d.Upload(code))(t)
		var a Args
		a.Ptr(y).Ptr(x).Int(n).F32(1.5).I64(-3).Struct(Bytes(book[:]))
		must(t, look.Launch(s, Launch{Grid: Dim{X: (n + 127) / 128}, Block: Dim{X: 128}}, &a))
		a.Reset() // the launch has its own copy
		values := make([]float32, n)
		must(t, d.Read(Bytes(values), y))
		for i, v := range values {
			if want := book[(int(code[i])-3)&31] * 1.5; v != want {
				t.Fatalf("element %d: got %v, want %v", i, v, want)
			}
		}

		cluster := got(m.Function("cluster"))(t)
		l := Launch{Grid: Dim{X: 8}, Block: Dim{X: 32}, Cluster: Dim{X: 4}}
		must(t, cluster.Launch(s, l, a.Reset().Ptr(y)))
		if got, want := read32(t, d, y, 8), []uint32{400, 401, 402, 403, 400, 401, 402, 403}; !slices.Equal(got, want) {
			t.Errorf("clusters: got %d, want %d", got, want)
		}
		if n := got(cluster.MaxClusters(l))(t); n < 1 {
			t.Errorf("%d clusters at a time", n)
		}

		dynamic := got(m.Function("dynamic"))(t)
		words := d.Info.SharedPerBlock / 4
		l = Launch{Block: Dim{X: 128}, Shared: 4 * words, Cooperative: true}
		if err := dynamic.Launch(s, l, a.Reset().Ptr(y).Int(words)); err == nil {
			t.Error("all shared memory is to be had without asking")
		}
		must(t, dynamic.SetMaxDynamicShared(4*words))
		must(t, dynamic.Launch(s, l, &a))
		if got := read32(t, d, y, 1)[0]; got != uint32(words)-1 {
			t.Errorf("dynamic shared memory: got %d, want %d", got, words-1)
		}
		l.Grid.X = uint32(d.Info.SMs) + 1
		if err := dynamic.Launch(s, l, &a); err == nil {
			t.Error("more blocks than fit run at the same time")
		}

		next := got(m.Function("next"))(t)
		must(t, d.Fill32(y, 0, n))
		l = Launch{Grid: Dim{X: (n + 63) / 64}, Block: Dim{X: 64}, Programmatic: true}
		a.Reset().Ptr(y).Int(n)
		for range 100 {
			must(t, next.Launch(s, l, &a))
		}
		if got := read32(t, d, y, n); slices.Min(got) != 100 || slices.Max(got) != 100 {
			t.Errorf("programmatic launches: got %d to %d, want 100", slices.Min(got), slices.Max(got))
		}
		if allocs := testing.AllocsPerRun(100, func() { must(t, next.Launch(s, l, &a)) }); allocs != 0 {
			t.Errorf("a launch makes %v allocations, want none", allocs)
		}
		must(t, s.Sync())
		must(t, m.Close())
	})
}

func TestGPUGraph(t *testing.T) {
	onGPU(t, func(d *Device) {
		m := testKernel(t, d)
		s := got(d.NewStream())(t)
		next := got(m.Function("next"))(t)
		const n = 5000
		y := got(d.Alloc(4 * n))(t)
		var a Args
		l := Launch{Grid: Dim{X: (n + 63) / 64}, Block: Dim{X: 64}}
		check := func(what string, want uint32) {
			t.Helper()
			must(t, s.Sync())
			if got := read32(t, d, y, n); slices.Min(got) != want || slices.Max(got) != want {
				t.Errorf("%s: got %d to %d, want %d", what, slices.Min(got), slices.Max(got), want)
			}
		}
		for _, programmatic := range []bool{false, true} {
			l.Programmatic = programmatic
			g := got(s.Capture(func() error {
				if err := s.Fill32(y, 0, n); err != nil {
					return err
				}
				for range 10 {
					if err := next.Launch(s, l, a.Reset().Ptr(y).Int(n)); err != nil {
						return err
					}
				}
				return nil
			}))(t)
			if nodes := got(g.Nodes())(t); nodes != 11 {
				t.Errorf("captured %d nodes, want 11", nodes)
			}
			e := got(g.Instantiate())(t)
			must(t, g.Close())
			must(t, e.Upload(s))
			for range 3 {
				must(t, e.Launch(s))
			}
			check("captured", 10)
			must(t, e.Close())
		}
		failure := errors.New("failure")
		if _, err := s.Capture(func() error { return failure }); !errors.Is(err, failure) {
			t.Errorf("got error %v, want the function's", err)
		}
		if _, err := s.Capture(func() error { return s.Sync() }); err == nil {
			t.Error("waiting during a capture is accepted")
		}

		g := got(d.NewGraph())(t)
		if _, err := g.AddKernel(next, l, &a); !errors.Is(err, errProgrammaticNode) {
			t.Errorf("got error %v, want %v", err, errProgrammaticNode)
		}
		l.Programmatic = false
		l.Cluster = Dim{X: 1}
		first := got(g.AddKernel(next, l, &a))(t)
		second := got(g.AddKernel(next, l, &a, first))(t)
		got(g.AddKernel(next, l, &a, first, second))(t)
		e := got(g.Instantiate())(t)
		must(t, d.Fill32(y, 0, n))
		must(t, e.Launch(s))
		check("built", 3)
		must(t, e.SetKernel(second, next, l, a.Reset().Ptr(y).Int(0)))
		must(t, e.Launch(s))
		check("changed", 5)
		must(t, e.Close())
		must(t, g.Close())
	})
}

func TestGPUEvents(t *testing.T) {
	onGPU(t, func(d *Device) {
		s, other := got(d.NewStream())(t), got(d.NewStream())(t)
		begin, end, fence := got(d.NewEvent())(t), got(d.NewEvent())(t), got(d.NewUntimedEvent())(t)
		const n = 256 << 20
		p := got(d.Alloc(n))(t)
		must(t, begin.Record(s))
		for range 10 {
			must(t, s.Fill8(p, 1, n))
		}
		must(t, end.Record(s))
		must(t, fence.Record(s))
		must(t, other.Wait(fence))
		must(t, other.Fill8(p, 2, 4))
		must(t, other.Sync())
		must(t, end.Sync())
		took := got(end.Since(begin))(t)
		// 2.7 GB take a GPU between 0.1 ms and 0.3 s.
		if took < 100*time.Microsecond || took > 300*time.Millisecond {
			t.Errorf("filling %d bytes took %v", 10*n, took)
		}
		if got := read32(t, d, p, 2); got[0] != 0x02020202 || got[1] != 0x01010101 {
			t.Errorf("the other stream did not wait: got %x", got)
		}
		for _, e := range []*Event{begin, end, fence} {
			must(t, e.Close())
		}
		must(t, d.Free(p))
	})
}

func TestGPUFallback(t *testing.T) {
	onGPU(t, func(d *Device) {
		k := Kernel{Name: "add.cu", Source: addSource, Options: addOptions("compute_80")}
		out, err := d.cuda.Compile(k.Source, k.Name, k.Options)
		if err != nil {
			t.Skip(err)
		}
		k.Options.Arch = ""
		run := func(what string, k Kernel) {
			t.Helper()
			m, err := d.LoadKernel(k)
			must(t, err)
			f := got(m.Function("add"))(t)
			y := got(d.Upload(Bytes([]float32{1, 2, 3})))(t)
			s := got(d.NewStream())(t)
			must(t, f.Launch(s, Launch{Block: Dim{X: 32}}, new(Args).Ptr(y).Ptr(y).Int(3)))
			values := make([]float32, 3)
			must(t, d.Read(Bytes(values), y))
			if want := []float32{4, 8, 12}; !slices.Equal(values, want) {
				t.Errorf("%s: got %v, want %v", what, values, want)
			}
		}
		run("compiled", k)
		run("cached", k)
		k.PTX = func(DeviceInfo) ([]byte, error) { return out.PTX, nil }
		k.Options.Arch = "sm_1"
		run("an unknown architecture", k)
		d.cuda.nvrtc = func() (*nvrtcAPI, error) { return nil, &MissingError{Library: "NVRTC"} }
		k.Options.Arch = ""
		run("no compiler", k)
		k.PTX = nil
		var missing *MissingError
		if _, err := d.LoadKernel(k); !errors.As(err, &missing) {
			t.Errorf("no compiler and no PTX: got error %v, want a MissingError", err)
		}
		k.PTX = func(DeviceInfo) ([]byte, error) { return []byte("nonsense"), nil }
		_, err = d.LoadKernel(k)
		var e *Error
		if !errors.As(err, &e) || e.Op != "cuModuleLoadDataEx" {
			t.Errorf("PTX that is none: got error %v, want the driver's", err)
		}
	})
}

func TestGPUBLAS(t *testing.T) {
	onGPU(t, func(d *Device) {
		s := got(d.NewStream())(t)
		b, err := d.NewBLAS(s)
		var missing *MissingError
		if errors.As(err, &missing) {
			t.Skip(err)
		}
		must(t, err)
		const m, n, k = 5, 72, 136
		small := func(count int) []float32 { // integers: every type and order of sums is exact
			v := make([]float32, count)
			for i := range v {
				v[i] = float32(rand.IntN(7) - 3)
			}
			return v
		}
		x, w := small(m*k), small(n*k)
		want := make([]float32, m*n)
		for i := range m {
			for j := range n {
				for l := range k {
					want[i*n+j] += x[i*k+l] * w[j*k+l]
				}
			}
		}
		encode := func(v []float32, t DType) []byte {
			if t == F32 {
				return Bytes(v)
			}
			half := make([]byte, 2*len(v))
			if t == F16 {
				num.EncodeF16(half, v)
			} else {
				num.EncodeBF16(half, v)
			}
			return half
		}
		for _, tc := range []struct{ in, out DType }{{F16, F16}, {F16, F32}, {BF16, F32}, {F32, F32}} {
			px, pw := got(d.Upload(encode(x, tc.in)))(t), got(d.Upload(encode(w, tc.in)))(t)
			py := got(d.Alloc(m * n * tc.out.Size()))(t)
			g := got(s.Capture(func() error { return b.MatMul(py, px, pw, m, n, k, tc.in, tc.out) }))(t)
			e := got(g.Instantiate())(t)
			for _, how := range []string{"called", "replayed"} {
				must(t, d.Fill8(py, 0xff, m*n*tc.out.Size()))
				if how == "called" {
					must(t, b.MatMul(py, px, pw, m, n, k, tc.in, tc.out))
				} else {
					must(t, e.Launch(s))
				}
				result := make([]byte, m*n*tc.out.Size())
				must(t, d.Read(result, py))
				if !bytes.Equal(result, encode(want, tc.out)) {
					t.Errorf("%v to %v, %s: the product is wrong", tc.in, tc.out, how)
				}
			}
			must(t, e.Close())
			must(t, g.Close())
		}
		var e *Error
		if err := b.MatMul(0, 0, 0, 1, 1, 1, DType(77), F32); !errors.As(err, &e) || e.Name == "" {
			t.Errorf("an unknown type: got error %v, want cuBLAS's", err)
		}
		must(t, b.Close())
	})
}

// BenchmarkGPU times what a call costs the program, not the GPU.
func BenchmarkGPU(b *testing.B) {
	c := open(b)
	if n, err := c.DeviceCount(); n == 0 {
		b.Skip("no GPU ", err)
	}
	d := got(c.OpenDevice(0))(b)
	defer d.Close()
	calls := make(map[string]func() error)
	var s *Stream
	must(b, d.Do(func() error {
		s = got(d.NewStream())(b)
		nothing := got(testKernel(b, d).Function("nothing"))(b)
		plain := Launch{Block: Dim{X: 32}}
		programmatic := plain
		programmatic.Programmatic = true
		p, h, event := got(d.Alloc(4096))(b), got(d.AllocHost(4096))(b), got(d.NewEvent())(b)
		a := new(Args).Ptr(p)
		g := got(s.Capture(func() error { return nothing.Launch(s, plain, a) }))(b)
		e := got(g.Instantiate())(b)
		calls["launch"] = func() error { return nothing.Launch(s, plain, a) }
		calls["launch/programmatic"] = func() error { return nothing.Launch(s, programmatic, a) }
		calls["launch/10args"] = func() error {
			a.Reset().Ptr(p).Ptr(p).Ptr(p).Ptr(p).Int(1).Int(2).Int(3).Int(4).F32(1).I64(2)
			return nothing.Launch(s, plain, a)
		}
		calls["graph"] = func() error { return e.Launch(s) }
		calls["write/4KiB"] = func() error { return s.Write(p, h, 0, 4096) }
		calls["record"] = func() error { return event.Record(s) }
		calls["sync"] = s.Sync
		return nil
	}))
	b.Run("do", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			must(b, d.Do(func() error { return nil }))
		}
	})
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			must(b, d.Do(func() error {
				for i := 0; b.Loop(); i++ {
					if err := calls[name](); err != nil {
						return err
					}
					if i%256 == 255 { // the driver's queue holds about a thousand
						b.StopTimer()
						if err := s.Sync(); err != nil {
							return err
						}
						b.StartTimer()
					}
				}
				return nil
			}))
		})
	}
}

// BenchmarkLoadKernel times the way from source to a loaded module.
func BenchmarkLoadKernel(b *testing.B) {
	onGPU(b, func(d *Device) {
		k := Kernel{Name: "test.cu", Source: testSource}
		var cold, warm []float64
		cache := d.cuda.cache
		for b.Loop() {
			d.cuda.cache = NewCache(b.TempDir())
			for _, times := range []*[]float64{&cold, &warm} {
				begin := time.Now()
				m := got(d.LoadKernel(k))(b)
				*times = append(*times, time.Since(begin).Seconds()*1e3)
				must(b, m.Close())
			}
		}
		d.cuda.cache = cache
		slices.Sort(cold)
		slices.Sort(warm)
		b.ReportMetric(cold[len(cold)/2], "cold-ms")
		b.ReportMetric(warm[len(warm)/2], "cached-ms")
	})
}

func TestGPUProbe(t *testing.T) {
	onGPU(t, func(d *Device) {
		err := d.Probe()
		var missing *MissingError
		if errors.As(err, &missing) {
			t.Skip(err)
		}
		must(t, err)
	})
}
