package cuda

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
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// The files of a [TorchOp], beside those of its kernels.
const (
	TorchCodeName = "lutq_torch.py"
	TorchPlanName = "lutq_torch.json"
)

//go:embed lutq_torch.py
var torchCode []byte

const torchVersion = 1

// TorchOp is what PyTorch needs to multiply by matrices with the kernels, without lutq: machine code or PTX, and
// how it is launched. lutq_torch.py reads it.
type TorchOp struct {
	Version  int                    `json:"version"`
	SHA256   string                 `json:"sha256"` // of the container's quantized tensors
	GPU      TorchGPU               `json:"gpu"`
	Layers   map[string]TorchLayer  `json:"layers"`
	Products []*TorchProduct        `json:"products"`
	Kernels  map[string]TorchKernel `json:"kernels"`

	files map[string][]byte
}

// TorchGPU is what kernels were compiled and launches planned for: GPUs of this architecture, or for PTX this or
// a later one, with as much shared memory.
type TorchGPU struct {
	Name   string `json:"name"`
	Arch   string `json:"arch"`
	SMs    int    `json:"multiprocessors"`
	Shared int    `json:"shared_bytes"` // of a block
}

// TorchLayer says how a layer's matrix is multiplied by. Why is set where there is no kernel: it is then unpacked.
type TorchLayer struct {
	Products []int  `json:"products,omitempty"` // one for each type of activations
	Why      string `json:"why,omitempty"`
}

// TorchProduct is a product by matrices of a shape and format.
type TorchProduct struct {
	Type      string  `json:"type"` // of activations: f16 or bf16
	N         int     `json:"n"`
	K         int     `json:"k"`
	Bits      int     `json:"bits"`
	ScaleSize int     `json:"scale_bytes"`      // of a scale in the GPU's memory
	Scales    []int   `json:"scales,omitempty"` // where scales are stored in a byte and held in two: those of every byte
	Launches  []Torch `json:"launches"`         // for 1 to 16 rows of activations
	Unpack    Torch   `json:"unpack"`           // that writes the weights as numbers to y
}

// Torch is a launch. Arguments is the memory of its argument, in hexadecimal digits, up to the table, as
// lut.cuh's Params has it. The 64-bit addresses of codes, scales, x, y and bias are at bytes 0, 8, 48, 56 and 64 and zero.
type Torch struct {
	Kernel       string `json:"kernel"`
	Grid         int    `json:"grid"`
	Block        int    `json:"block"`
	Shared       int    `json:"shared"`
	Programmatic bool   `json:"programmatic,omitempty"` // launched as dependent
	Arguments    string `json:"arguments"`
}

// TorchKernel is a function of a file, a cubin or PTX.
type TorchKernel struct {
	File     string `json:"file"`
	Function string `json:"function"`
}

// GPUs lists GPUs that kernels can be compiled for where they are not at hand. The first is the usual.
func GPUs() []driver.DeviceInfo {
	return []driver.DeviceInfo{
		{Name: "h200", Major: 9, SMs: 132, SharedPerBlock: 227 << 10},
		{Name: "h100", Major: 9, SMs: 132, SharedPerBlock: 227 << 10},
		{Name: "a100", Major: 8, SMs: 108, SharedPerBlock: 163 << 10},
		{Name: "rtx4090", Major: 8, Minor: 9, SMs: 128, SharedPerBlock: 99 << 10},
		{Name: "l40s", Major: 8, Minor: 9, SMs: 142, SharedPerBlock: 99 << 10},
	}
}

// NewTorchOp compiles the kernels for the layers of a container, with this digest, on a GPU. Of the tiles only shapes and
// formats count. Without a compiler the kernels are those that were built ahead of time.
func NewTorchOp(ctx context.Context, c *driver.CUDA, gpu driver.DeviceInfo, sha256 string, layers map[string]*repack.CUDATiles) (*TorchOp, error) {
	op := &TorchOp{
		Version: torchVersion, SHA256: sha256, GPU: TorchGPU{gpu.Name, gpu.Arch(), gpu.SMs, gpu.SharedPerBlock},
		Layers: make(map[string]TorchLayer), Kernels: make(map[string]TorchKernel), files: make(map[string][]byte),
	}
	_, _, noCompiler := c.NVRTCVersion()
	var missing *driver.MissingError
	if noCompiler != nil && !errors.As(noCompiler, &missing) {
		return nil, noCompiler
	}
	e := &Engine{limits: limitsOf(gpu), noCompiler: noCompiler}
	kernels := make(map[string]driver.Kernel)
	type key struct {
		Format
		n, k, held int
	}
	known := make(map[key]int)
	for _, name := range slices.Sorted(maps.Keys(layers)) {
		t := layers[name]
		var layer TorchLayer
		for _, dtype := range []driver.DType{driver.F16, driver.BF16} {
			f, err := FormatOf(t, dtype)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			held := key{f, t.N, t.K, int(t.ScaleType)}
			i, ok := known[held]
			if !ok {
				p, err := e.torchProduct(f, t, gpu, kernels)
				if err != nil {
					layer = TorchLayer{Why: err.Error()}
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

// torchProduct plans all launches for a matrix, and adds the kernels that they take.
func (e *Engine) torchProduct(f Format, t *repack.CUDATiles, gpu driver.DeviceInfo, kernels map[string]driver.Kernel) (*TorchProduct, error) {
	p := &TorchProduct{Type: f.Type.String(), N: t.N, K: t.K, Bits: t.Bits, ScaleSize: f.Scale.Size()}
	if t.ScaleType.Size() == 1 && f.Scale.Size() == 2 {
		every := *t
		every.Scales = make([]byte, 256)
		for b := range every.Scales {
			every.Scales[b] = byte(b)
		}
		for held := f.scales(&every); len(held) > 0; held = held[2:] {
			p.Scales = append(p.Scales, int(held[0])|int(held[1])<<8)
		}
	}
	all := make(map[string]driver.Kernel) // added where the product has them all
	for m := range MaxRows {
		s := shapeOf(f, t.N, t.K, m+1)
		configs, err := e.tried(s)
		if err != nil {
			return nil, err
		}
		c := configs[0]
		args, launch, err := s.under(c).plan(c, e.limits)
		if err != nil {
			return nil, err
		}
		kernel := f.Kernel(c)
		if e.noCompiler != nil {
			if _, err := kernel.PTX(gpu); err != nil {
				return nil, err
			}
			c = c.kernel().prebuilt() // that stands in
		}
		name := fmt.Sprintf("%s.%s.%s", c.kernel().name(), f.name(), torchName(c))
		all[name] = kernel
		launch.Programmatic = gpu.Major >= 9
		p.Launches = append(p.Launches, torchLaunch(name, launch, &args))
	}
	d := lutdense{f}
	name := fmt.Sprintf("%s.%s", denseName, f.name())
	all[name] = d.kernel()
	w := Matrix{N: t.N, K: t.K, Format: f}
	launch, args := w.densePlan(0, 0, t.N, gpu.SMs)
	if launch.Shared > gpu.SharedPerBlock {
		return nil, fmt.Errorf("%d bits need %d bytes of shared memory, and a block has %d", f.Bits, launch.Shared, gpu.SharedPerBlock)
	}
	p.Unpack = torchLaunch(name, launch, &args)
	maps.Copy(kernels, all)
	return p, nil
}

// torchName is a configuration's part of a file's name.
func torchName(c Config) string {
	return fmt.Sprintf("%s-m%d", strings.ReplaceAll(c.String(), " ", "-"), c.rowsOfX())
}

func torchLaunch(kernel string, l driver.Launch, p *params) Torch {
	return Torch{kernel, int(l.Grid.X), int(l.Block.X), l.Shared, l.Programmatic, hex.EncodeToString(p.fixed())}
}

// compile compiles kernels, or takes what was built of them ahead of time.
func (op *TorchOp) compile(ctx context.Context, c *driver.CUDA, gpu driver.DeviceInfo, kernels map[string]driver.Kernel) error {
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
			k := kernels[name]
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
		function := gemmName
		if strings.HasPrefix(name, denseName+".") {
			function = denseName
		}
		op.Kernels[name] = TorchKernel{file, function}
	}
	return nil
}

// Write writes the files to a folder and returns their size.
func (op *TorchOp) Write(dir string) (int64, error) {
	plan, err := json.MarshalIndent(op, "", " ")
	if err != nil {
		return 0, err
	}
	files := map[string][]byte{TorchCodeName: torchCode, TorchPlanName: append(plan, '\n')}
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
