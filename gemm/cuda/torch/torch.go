// Package torch writes what PyTorch needs to multiply by matrices of codes with a table, without lutq.
package torch

import (
	"context"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

// The files of a [Op], beside those of its kernels.
const (
	CodeName = "lutq_torch.py"
	PlanName = "lutq_torch.json"
)

//go:embed lutq_torch.py
var code []byte

const version = 1

// Op is what PyTorch needs to multiply by matrices with the kernels, without lutq: machine code or PTX, and
// how it is launched. lutq_torch.py reads it.
type Op struct {
	Version  int               `json:"version"`
	SHA256   string            `json:"sha256"` // of the container's quantized tensors
	GPU      GPU               `json:"gpu"`
	Layers   map[string]Layer  `json:"layers"`
	Products []*Product        `json:"products"`
	Kernels  map[string]Kernel `json:"kernels"`

	files map[string][]byte
}

// GPU is what kernels were compiled and launches planned for: GPUs of this architecture, or for PTX this or
// a later one, with as much shared memory.
type GPU struct {
	Name   string `json:"name"`
	Arch   string `json:"arch"`
	SMs    int    `json:"multiprocessors"`
	Shared int    `json:"shared_bytes"` // of a block
}

// Layer says how a layer's matrix is multiplied by. Why is set where there is no kernel: it is then unpacked.
type Layer struct {
	Products []int  `json:"products,omitempty"` // one for each type of activations
	Why      string `json:"why,omitempty"`
}

// Product is a product by matrices of a shape and format.
type Product struct {
	Type      string   `json:"type"` // of activations: f16 or bf16
	N         int      `json:"n"`
	K         int      `json:"k"`
	Bits      int      `json:"bits"`
	ScaleSize int      `json:"scale_bytes"`      // of a scale in the GPU's memory
	Scales    []int    `json:"scales,omitempty"` // where scales are stored in a byte and held in two: those of every byte
	Launches  []Launch `json:"launches"`         // for 1 to 16 rows of activations
	Unpack    Launch   `json:"unpack"`           // that writes the weights as numbers to y
}

// Launch is a launch. Arguments is the memory of its argument, in hexadecimal digits, up to the table, as
// lut.cuh's Params has it. The 64-bit addresses of codes, scales, x, y and bias are at bytes 0, 8, 48, 56 and 64 and zero.
type Launch struct {
	Kernel       string `json:"kernel"`
	Grid         int    `json:"grid"`
	Block        int    `json:"block"`
	Shared       int    `json:"shared"`
	Programmatic bool   `json:"programmatic,omitempty"` // launched as dependent
	Arguments    string `json:"arguments"`
}

// Kernel is a function of a file, a cubin or PTX.
type Kernel struct {
	File     string `json:"file"`
	Function string `json:"function"`
}

// New compiles the kernels for the layers of a container, with this digest, on a GPU. Of the tiles only shapes and
// formats count. Without a compiler the kernels are those that were built ahead of time.
func New(ctx context.Context, c *driver.CUDA, gpu driver.DeviceInfo, sha256 string, layers map[string]*repack.CUDATiles) (*Op, error) {
	op := &Op{
		Version: version, SHA256: sha256, GPU: GPU{gpu.Name, gpu.Arch(), gpu.SMs, gpu.SharedPerBlock},
		Layers: make(map[string]Layer), Kernels: make(map[string]Kernel), files: make(map[string][]byte),
	}
	_, _, noCompiler := c.NVRTCVersion()
	var missing *driver.MissingError
	if noCompiler != nil && !errors.As(noCompiler, &missing) {
		return nil, noCompiler
	}
	kernels := make(map[string]table.Alone)
	type key struct {
		table.Format
		n, k, held int
	}
	known := make(map[key]int)
	for _, name := range slices.Sorted(maps.Keys(layers)) {
		t := layers[name]
		var layer Layer
		for _, dtype := range []driver.DType{driver.F16, driver.BF16} {
			f, err := table.FormatOf(t, dtype)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			held := key{f, t.N, t.K, int(t.ScaleType)}
			i, ok := known[held]
			if !ok {
				p, err := product(f, t, cuda.GPU{DeviceInfo: gpu, NoCompiler: noCompiler}, kernels)
				if err != nil {
					layer = Layer{Why: err.Error()}
					break
				}
				i = len(op.Products)
				known[held] = i
				op.Products = append(op.Products, p)
			}
			layer.Products = append(layer.Products, i)
		}
		op.Layers[name] = layer
	}
	return op, op.compile(ctx, c, gpu, kernels)
}

// product plans all launches for a matrix, and adds the kernels that they take.
func product(f table.Format, t *repack.CUDATiles, gpu cuda.GPU, kernels map[string]table.Alone) (*Product, error) {
	p := &Product{Type: f.Type.String(), N: t.N, K: t.K, Bits: t.Bits, ScaleSize: f.Scale.Size()}
	if t.ScaleType.Size() == 1 && f.Scale.Size() == 2 {
		every := *t
		every.Scales = make([]byte, 256)
		for b := range every.Scales {
			every.Scales[b] = byte(b)
		}
		for held := f.Scales(&every); len(held) > 0; held = held[2:] {
			p.Scales = append(p.Scales, int(held[0])|int(held[1])<<8)
		}
	}
	tiles := table.Like(f, t.N, t.K)
	all := make(map[string]table.Alone) // added where the product has them all
	for m := range cuda.MaxRows {
		l, err := tiles.Alone(gpu, m+1)
		if err != nil {
			return nil, err
		}
		all[l.Name] = l
		p.Launches = append(p.Launches, launchOf(l))
	}
	l, err := tiles.DenseAlone(gpu)
	if err != nil {
		return nil, err
	}
	all[l.Name] = l
	p.Unpack = launchOf(l)
	maps.Copy(kernels, all)
	return p, nil
}

func launchOf(l table.Alone) Launch {
	return Launch{l.Name, int(l.Grid.X), int(l.Block.X), l.Shared, l.Programmatic, hex.EncodeToString(l.Fixed)}
}

// compile compiles kernels, or takes what was built of them ahead of time.
func (op *Op) compile(ctx context.Context, c *driver.CUDA, gpu driver.DeviceInfo, kernels map[string]table.Alone) error {
	type image struct {
		data   []byte
		suffix string
	}
	names := slices.Sorted(maps.Keys(kernels))
	images := make([]image, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			k := kernels[name].Kernel
			k.Options.Arch = gpu.Arch()
			cubin, _, err := c.Cubin(k)
			var missing *driver.MissingError
			switch {
			case err == nil:
				images[i] = image{cubin, ".cubin"}
			case errors.As(err, &missing):
				ptx, err := k.PTX(gpu)
				if err != nil {
					return err
				}
				images[i] = image{ptx, ".ptx"}
			default:
				return err
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, name := range names {
		file := name + images[i].suffix
		op.files[file] = images[i].data
		op.Kernels[name] = Kernel{file, kernels[name].Function}
	}
	return nil
}

// Write writes the files to a folder and returns their size.
func (op *Op) Write(dir string) (int64, error) {
	plan, err := json.MarshalIndent(op, "", " ")
	if err != nil {
		return 0, err
	}
	files := map[string][]byte{CodeName: code, PlanName: append(plan, '\n')}
	for name, data := range op.files {
		files[name] = data
	}
	var size int64
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return 0, err
		}
		size += int64(len(data))
	}
	return size, nil
}
