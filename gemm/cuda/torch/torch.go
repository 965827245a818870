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

const version = 3

// mostRows are the rows of activations beyond which weights are unpacked: by the README of gemm/cuda it is then as fast to write
// numbers and have cuBLAS multiply.
const mostRows = 1024

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
	Type      string    `json:"type"` // of activations: f16 or bf16
	N         int       `json:"n"`
	K         int       `json:"k"`
	Bits      int       `json:"bits"`
	ScaleSize int       `json:"scale_bytes"`      // of a scale in the GPU's memory
	ScaleType string    `json:"scale_type"`       // of it there
	Scales    []int     `json:"scales,omitempty"` // where scales are stored in a byte and held in two: those of every byte
	Values    []float32 `json:"values,omitempty"` // where they are held in a byte: what every byte stands for
	Launches  []Launch  `json:"launches"`         // for 1 row of activations, for 2 and so on, up to 16 or 32
	Many      []Many    `json:"many"`             // for up to 8 more, 16 more and so on; for more than those weights are unpacked
	Unpack    Launch    `json:"unpack"`           // that writes the weights as numbers to y
	Timings   []Timing  `json:"timings,omitempty"`
}

// Many says how a number of rows is multiplied. Where nothing is set, weights are unpacked.
type Many struct {
	Turns    int     `json:"turns,omitempty"` // rows of one of several launches
	Launch   *Launch `json:"launch,omitempty"`
	Work     string  `json:"work,omitempty"`     // the launch's second argument, as lutmany.cu's Work has it; addresses of sums and flags at bytes 0 and 8
	Sums     int     `json:"sums,omitempty"`     // bytes of memory for sums
	Prepare  *Launch `json:"prepare,omitempty"`  // that writes x to memory for the launch to read: addresses at bytes 0 and 8, rows at 16
	Prepared int     `json:"prepared,omitempty"` // bytes of it
}

// Launch is a launch. Arguments is the memory of its argument, in hexadecimal digits, up to the table, as
// lut.cuh's Params has it. The 64-bit addresses of codes, scales, x, y and bias are at bytes 0, 8, 48, 56 and 64 and zero.
// The rows of activations are at byte 72.
type Launch struct {
	Kernel       string `json:"kernel"`
	Grid         int    `json:"grid"`
	Block        int    `json:"block"`
	Shared       int    `json:"shared"`
	Cluster      int    `json:"cluster,omitempty"`      // blocks that are launched together, if not one
	Programmatic bool   `json:"programmatic,omitempty"` // launched as dependent
	Arguments    string `json:"arguments"`
}

// Kernel is a function of a file, a cubin or PTX.
type Kernel struct {
	File     string `json:"file"`
	Function string `json:"function"`
}

// Types returns those that activations can have.
func Types() []driver.DType { return []driver.DType{driver.F16, driver.BF16} }

// New compiles the kernels for the layers of a container, with this digest, and activations of some types on a GPU. Of the
// tiles only shapes and formats count. Without a compiler the kernels are those that were built ahead of time. More rows of activations than
// one launch takes are multiplied as by says, or where that is nil as is known to be the fastest on an H200.
func New(ctx context.Context, c *driver.CUDA, gpu driver.DeviceInfo, sha256 string, layers map[string]*repack.CUDATiles, by Measurer, types ...driver.DType) (*Op, error) {
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
		for _, dtype := range types {
			f, err := table.FormatOf(t, dtype)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			held := key{f, t.N, t.K, int(t.ScaleType)}
			i, ok := known[held]
			if !ok {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				p, measured, err := plan(f, t, cuda.GPU{DeviceInfo: gpu, NoCompiler: noCompiler}, by, kernels)
				if measured != nil {
					return nil, fmt.Errorf("%s: %w", name, measured)
				}
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

// plan plans all launches for a matrix, and adds the kernels that they take. An error of by comes
// apart from one that tells why there is no kernel.
func plan(f table.Format, t *repack.CUDATiles, gpu cuda.GPU, by Measurer, kernels map[string]table.Alone) (p *Product, measured, err error) {
	p = &Product{Type: f.Type.String(), N: t.N, K: t.K, Bits: t.Bits, ScaleSize: f.Scale.Size(), ScaleType: f.Scale.String()}
	bytes := make([]byte, 256)
	for b := range bytes {
		bytes[b] = byte(b)
	}
	switch {
	case f.Scale.Size() == 1:
		p.Values = make([]float32, len(bytes))
		f.Scale.Decode(p.Values, bytes)
	case t.ScaleType.Size() == 1:
		every := *t
		every.Scales = bytes
		for held := f.Scales(&every); len(held) > 0; held = held[2:] {
			p.Scales = append(p.Scales, int(held[0])|int(held[1])<<8)
		}
	}
	tiles := table.Like(f, t.N, t.K)
	all := make(map[string]table.Alone) // added where the product has them all
	add := func(l table.Alone) Launch {
		all[l.Name] = l
		return Launch{l.Name, int(l.Grid.X), int(l.Block.X), l.Shared, int(l.Cluster.X), l.Programmatic, hex.EncodeToString(l.Fixed)}
	}
	for m := 1; m <= cuda.MaxRows || tiles.AtOnce(gpu, m) == m; m++ {
		l, err := tiles.Alone(gpu, m)
		if err != nil {
			return nil, nil, err
		}
		p.Launches = append(p.Launches, add(l))
	}
	guess := cuda.Planner(gpu, nil)
	way := func(m int) cuda.Way { return guess.Way(tiles, m) }
	if by != nil {
		if p.Timings, measured = by.Times(f, t.N, t.K, alike(len(p.Launches)+1)); measured != nil {
			return nil, measured, nil
		}
		way = func(m int) cuda.Way {
			i := slices.IndexFunc(p.Timings, func(of Timing) bool { return of.Rows >= m })
			return p.Timings[i].Way
		}
	}
	for m := len(p.Launches) + 8; m <= mostRows; m += 8 {
		var many Many
		switch of := way(m); of {
		case cuda.AsNumbers:
		case cuda.InTurns:
			many.Turns = tiles.AtOnce(gpu, m)
		default:
			l, ok := tiles.WideAlone(gpu, of, m)
			if !ok {
				break // and it is unpacked
			}
			multiply, prepare := add(l.Alone), add(l.Prepare)
			many = Many{Launch: &multiply, Work: hex.EncodeToString(l.Work), Sums: l.Sums, Prepare: &prepare, Prepared: l.Prepared}
		}
		p.Many = append(p.Many, many)
	}
	l, err := tiles.DenseAlone(gpu)
	if err != nil {
		return nil, nil, err
	}
	p.Unpack = add(l)
	maps.Copy(kernels, all)
	return p, nil, nil
}

// alike returns the numbers of rows up to which as many are multiplied alike, from some on.
func alike(from int) (all []int) {
	for m := from; m <= mostRows; m = all[len(all)-1] + 1 {
		all = append(all, cuda.Alike(m))
	}
	return all
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
