package torch

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

// TestTorchLaunches holds every launch that is written for PyTorch to the engine's own, for the layers of
// many models and up to 1024 rows of X: the grid, the memory and, with addresses and a table where lutq_torch.py puts them,
// each byte of the argument. For half of them ways are those that are guessed, for others each that may be measured.
func TestTorchLaunches(t *testing.T) {
	gpu := cuda.GPU{DeviceInfo: cuda.GPUs()[0]}
	gpu.Clusters = true
	each := &eachWay{gpu: gpu}
	e := cuda.Planner(gpu, nil)
	ways := make(map[string]int)
	for i, shape := range cudatest.ModelShapes(t) {
		f := table.Format{Bits: 2 + i%4, Group: []int{64, 128, 32, 0, 256}[i%5], Scale: []weight.ScaleType{weight.F16, weight.BF16}[i%2], Type: []driver.DType{driver.F16, driver.BF16}[i/2%2]}
		tiles := &repack.CUDATiles{N: shape[0], K: shape[1], Bits: f.Bits, Group: f.Group, ScaleType: f.Scale}
		if f.Group == 0 {
			tiles.Group = tiles.K
		}
		kernels := make(map[string]table.Alone)
		var by Measurer
		if i%2 == 1 {
			by = each
		}
		p, measured, err := plan(f, tiles, gpu, by, kernels)
		if err := errors.Join(measured, err); err != nil {
			t.Fatal(err)
		}
		few := len(p.Launches)
		if few != cuda.MaxRows && few != 2*cuda.MaxRows || few+8*len(p.Many) != mostRows || p.Scales != nil {
			t.Fatalf("%v: %d launches and %d of many rows", shape, few, len(p.Many))
		}
		values := make([]float32, 1<<f.Bits)
		for v := range values {
			values[v] = float32(v) / 8
		}
		codebook := cudatest.Must(f.Table(values))(t)
		w := cudatest.Must(table.New(f, tiles.N, tiles.K, values, nil))(t)
		at := []driver.Ptr{1 << 40, 2 << 40}
		for m := 1; m <= few; m++ {
			c := cudatest.Must(e.Chosen(w, m))(t)
			want := cudatest.Must(w.Launch(gpu, at, c, cuda.Operands{X: 3 << 40, Y: 4 << 40, Bias: 5 << 40, M: m}))(t)[0]
			got := p.Launches[m-1]
			if want.Grid.X != uint32(got.Grid) || want.Block.X != uint32(got.Block) || want.Shared != got.Shared || !got.Programmatic {
				t.Errorf("%v, %d rows: %+v, want %+v", shape, m, got, want)
			}
			if !bytes.Equal(torchArgument(t, got, codebook, m), want.Args[0]) {
				t.Errorf("%v, %d rows: the argument is another", shape, m)
			}
			of := want.Of.Kernel()
			if k, ok := kernels[got.Kernel]; !ok || k.Kernel.Source != of.Source || !slices.Equal(k.Kernel.Options.Defines, of.Options.Defines) || k.Function != want.Function {
				t.Errorf("%v, %d rows: %s is another kernel than %v", shape, m, got.Kernel, c)
			}
		}
		for m := few + 1; m <= mostRows; m += 1 + m/5 {
			got, by := p.Many[(m-few-1)/8], e.Way(table.Like(f, tiles.N, tiles.K), m)
			if of := slices.IndexFunc(p.Timings, func(of Timing) bool { return of.Rows >= m }); of >= 0 {
				by = p.Timings[of].Way
			} else if i%2 == 1 {
				t.Fatalf("%v: %d rows are not timed", shape, m)
			}
			if (by == cuda.InTurns || by == cuda.AsNumbers) != (got.Launch == nil) || (by == cuda.InTurns) != (got.Turns != 0) {
				t.Fatalf("%v, %d rows: %+v, want %v", shape, m, got, by)
			}
			if by == cuda.InTurns && got.Turns > few {
				t.Errorf("%v, %d rows: turns of %d", shape, m, got.Turns)
			}
			if got.Launch == nil {
				continue
			}
			ways[by.String()]++
			o := cuda.Operands{X: 3 << 40, Y: 4 << 40, Bias: 5 << 40, M: m, Scratch: 6 << 40, Flags: 7 << 40}
			want := cudatest.Must(w.Launch(gpu, at, by, o))(t)[0]
			power := want.Args[1][table.PowersAt:][:8]
			if !bytes.Equal(torchArgument(t, *got.Launch, codebook, m), want.Args[0]) || !bytes.Equal(secondArgument(t, got.Work, power), want.Args[1]) {
				t.Errorf("%v, %d rows: the arguments are others", shape, m)
			}
			needs := by.Needs(tiles.N, tiles.K, m)
			prepare := needs.Form.Prepare(gpu, f.Type, 2<<40, 1<<40, m, tiles.K)
			b, _ := hex.DecodeString(got.Prepare.Arguments)
			binary.LittleEndian.PutUint64(b, 1<<40)
			binary.LittleEndian.PutUint64(b[8:], 2<<40)
			binary.LittleEndian.PutUint32(b[16:], uint32(m))
			if !bytes.Equal(b, prepare.Args[0]) || got.Sums != needs.Sums || got.Prepared < needs.Form.Bytes(m, tiles.K) {
				t.Errorf("%v, %d rows: activations are prepared otherwise: %+v", shape, m, got)
			}
			for _, l := range []struct {
				got  Launch
				want cuda.Launch
			}{{*got.Launch, want}, {*got.Prepare, prepare}} {
				k, of := kernels[l.got.Kernel], l.want.Of.Kernel()
				if l.want.Grid.X != uint32(l.got.Grid) || l.want.Cluster.X != uint32(l.got.Cluster) || l.want.Block.X != uint32(l.got.Block) || l.want.Shared != l.got.Shared || !l.got.Programmatic ||
					k.Kernel.Source != of.Source || !slices.Equal(k.Kernel.Options.Defines, of.Options.Defines) || k.Function != l.want.Function {
					t.Errorf("%v, %d rows: %+v, want %+v", shape, m, l.got, l.want.Launch)
				}
			}
		}
		want := cudatest.Must(w.Rows(gpu, []driver.Ptr{0, 0}, cuda.Rows{To: 4 << 40, Type: f.Type, Count: tiles.N}))(t)
		args := torchArgument(t, p.Unpack, codebook, 0)
		for _, at := range []int{0, 8, 48, 64} {
			clear(args[at:][:8])
		}
		if !bytes.Equal(args, want.Args[0]) || want.Grid.X != uint32(p.Unpack.Grid) || want.Shared != p.Unpack.Shared || p.Unpack.Programmatic {
			t.Errorf("%v: unpacking is launched otherwise: %+v", shape, p.Unpack)
		}
	}
	if len(ways) < 7 {
		t.Errorf("many rows are multiplied by %v alone", ways)
	}
}

// eachWay finds every way the fastest in turn.
type eachWay struct {
	gpu cuda.GPU
	at  int
}

func (e *eachWay) Times(f table.Format, n, k int, rows []int) (all []Timing, err error) {
	for _, r := range rows {
		ways := table.Like(f, n, k).Ways(e.gpu, r)
		all = append(all, Timing{Rows: r, Way: ways[e.at%len(ways)]})
		e.at++
	}
	return all, nil
}

// secondArgument completes that of a launch for many rows.
func secondArgument(t *testing.T, work string, powers []byte) []byte {
	t.Helper()
	b, err := hex.DecodeString(work)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint64(b, 6<<40)
	binary.LittleEndian.PutUint64(b[8:], 7<<40)
	copy(b[table.PowersAt:], powers)
	return b
}

// torchArgument completes a launch's argument as lutq_torch.py does.
func torchArgument(t *testing.T, l Launch, codebook []uint32, m int) []byte {
	t.Helper()
	b, err := hex.DecodeString(l.Arguments)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range codebook {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	b = append(b, make([]byte, -len(b)&7)...)
	for i, at := range []int{0, 8, 48, 56, 64} { // codes, scales, x, y, bias
		binary.LittleEndian.PutUint64(b[at:], uint64(i+1)<<40)
	}
	binary.LittleEndian.PutUint32(b[72:], uint32(m))
	return b
}

// TestTorchOp writes what PyTorch needs for layers in several formats, without a compiler: one kernel for each
// type, and the reason where there is none. Scales of a byte come with what each stands for.
func TestTorchOp(t *testing.T) {
	c, err := driver.Open(driver.Options{NoCompiler: true, NoCache: true})
	if err != nil {
		t.Skip(err)
	}
	tiles := func(n, k, bits, group int, st weight.ScaleType) *repack.CUDATiles {
		return &repack.CUDATiles{N: n, K: k, Bits: bits, Group: group, ScaleType: st}
	}
	op, err := New(t.Context(), c, cuda.GPUs()[0], "digest", map[string]*repack.CUDATiles{
		"a": tiles(4096, 4096, 4, 64, weight.F16), "b": tiles(4096, 4096, 4, 64, weight.F16), "bytes": tiles(4096, 4096, 4, 64, weight.S1E4M3),
		"rare": tiles(64, 64, 3, 32, weight.F16), "odd": tiles(64, 81, 4, 64, weight.F16),
	}, nil, Types()...)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	size, err := op.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, PlanName))
	if err != nil {
		t.Fatal(err)
	}
	var read Op
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 6 || len(read.Kernels) != 4 { // two kernels for each type, the plan and the code
		t.Fatalf("%d files and %d kernels, %v", len(files), len(read.Kernels), err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		size -= info.Size()
	}
	if size != 0 {
		t.Errorf("the size is off by %d", size)
	}
	for name, k := range read.Kernels {
		if ptx, err := os.ReadFile(filepath.Join(dir, k.File)); err != nil || !bytes.Contains(ptx, []byte(".entry "+k.Function+"(")) {
			t.Errorf("%s has no %s: %v", name, k.Function, err)
		}
	}
	if a, b := read.Layers["a"], read.Layers["b"]; len(a.Products) != 2 || !slices.Equal(a.Products, b.Products) {
		t.Errorf("layers alike have products %v and %v", a, b)
	}
	for name, why := range map[string]string{"rare": "and none for 3bit-32-f16-f16", "odd": "multiple of 32"} {
		if l := read.Layers[name]; len(l.Products) != 0 || !strings.Contains(l.Why, why) {
			t.Errorf("%s: %+v", name, l)
		}
	}
	p := read.Products[read.Layers["bytes"].Products[0]]
	// 0x38 is 2^-4 as s1e4m3, 0xb8 its negative; see package num.
	if len(p.Scales) != 256 || p.Scales[0x38] != 0x2c00 || p.Scales[0xb8] != 0xac00 || p.ScaleSize != 2 {
		t.Errorf("%d scales, of 0x38 %#x and of 0xb8 %#x", len(p.Scales), p.Scales[0x38], p.Scales[0xb8])
	}
}
