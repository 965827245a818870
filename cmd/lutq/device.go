package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	modelcuda "github.com/lutq/lutq/calib/model/cuda"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/gemm/cpu"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/peers"
)

// deviceFlags say where a command computes, and in which type.
type deviceFlags struct {
	device, dtype string
	devices       gpuList // empty: the first GPU, where there is one
}

// addDevice adds --device to a command's flags, with what auto is there.
func (d *deviceFlags) addDevice(f *pflag.FlagSet, auto string) {
	f.Var(newWord(&d.device, "auto", "auto", "cpu", "cuda"), "device", "on `NAME`: cpu, cuda or auto, "+auto)
}

// addDevices adds --devices, for what is divided among several GPUs.
func (d *deviceFlags) addDevices(f *pflag.FlagSet, what string) {
	f.Var(&d.devices, "devices", "GPUs in a `LIST`, as 0,1, "+what)
}

// addDType adds --dtype, the type of what is computed.
func (d *deviceFlags) addDType(f *pflag.FlagSet, what string) {
	f.Var(newWord(&d.dtype, "", "f32", "f16", "bf16"), "dtype", "`TYPE` of "+what)
}

// check refuses a type that the device does not compute in, and a list of GPUs on the cpu.
func (d *deviceFlags) check() error {
	if d.device == "cpu" && d.dtype != "" && d.dtype != "f32" {
		return usage("type %s: the cpu computes in f32", d.dtype)
	}
	if len(d.devices) > 0 && d.device == "cpu" {
		return usage("--devices names GPUs, and --device cpu none")
	}
	return nil
}

// chooseDevice resolves the --device flag of commands that run a model: auto is
// cuda where there is a GPU. Asked for the GPU, it fails where there is none.
func chooseDevice(name string) (string, error) {
	if name == "cpu" {
		return name, nil
	}
	_, err := driver.FirstGPU()
	switch {
	case err == nil:
		return "cuda", nil
	case name == "auto":
		return "cpu", nil
	}
	return "", hintDoctor(err)
}

// choose resolves --device of commands that run a model, and checks the flags.
func (d *deviceFlags) choose() (string, error) {
	if err := d.check(); err != nil {
		return "", err
	}
	if len(d.devices) > 0 {
		return chooseDevice("cuda")
	}
	return chooseDevice(d.device)
}

// openDevices is [openOps] for all devices that the flags name.
func (d *deviceFlags) openDevices(device, dtype string, o cpu.Options, reserve int64) (all []model.Ops, done func() error, err error) {
	if len(d.devices) == 0 {
		ops, done, err := openOps(device, dtype, o, reserve)
		return []model.Ops{ops}, done, err
	}
	on, _, done, err := openGPUs(d.devices, dtype, reserve, false)
	for _, ops := range on {
		all = append(all, ops)
	}
	return all, done, hintDoctor(err)
}

// openFirst is openDevices for the first of them.
func (d *deviceFlags) openFirst(device, dtype string, o cpu.Options, reserve int64) (ops model.Ops, done func() error, err error) {
	one := deviceFlags{devices: d.devices[:min(len(d.devices), 1)]}
	all, done, err := one.openDevices(device, dtype, o, reserve)
	if err != nil {
		return nil, nil, err
	}
	return all[0], done, nil
}

// openOps opens the operations that models are run by: those of the device auto,
// cpu or cuda, with activations of type f16, bf16 or f32 on a GPU and those
// options on the CPU. On a GPU reserve bytes stay free for more than the model. The
// caller calls done when models are closed.
func openOps(device, dtype string, o cpu.Options, reserve int64) (ops model.Ops, done func() error, err error) {
	if device, err = chooseDevice(device); err != nil {
		return nil, nil, err
	}
	if device == "cuda" {
		ops, _, done, err = openCUDAOps(dtype, reserve)
		return ops, done, hintDoctor(err)
	}
	engine, err := cpu.New(o)
	if err != nil {
		return nil, nil, err
	}
	return modelcpu.New(engine), func() error { engine.Close(); return nil }, nil
}

// open opens a model by its path or its name, each once in a command, which says what is odd about it and closes it in its end.
func (u *ui) open(name string, o source.Options) (*source.Model, error) {
	return u.openParts(name, o, false)
}

// openParts is open, and without weights it does not download them.
func (u *ui) openParts(name string, o source.Options, besideWeights bool) (*source.Model, error) {
	if m := u.models[name]; m != nil {
		return m, nil
	}
	o.Note = u.tell
	path, err := u.find.path(name, besideWeights)
	if err != nil {
		return nil, err
	}
	m, err := source.Open(path, o)
	if err != nil {
		return nil, err
	}
	if u.models == nil {
		u.models = make(map[string]*source.Model)
	}
	u.models[name] = m
	return m, nil
}

// closing returns a command that closes the models that it opened, unless it ended before its time: something that it left to
// itself may be reading them.
func (u *ui) closing(run func(c *cobra.Command, args []string) error) func(c *cobra.Command, args []string) error {
	if run == nil {
		return nil
	}
	return func(c *cobra.Command, args []string) error {
		u.find = u.finder(c.Context())
		err := run(c, args)
		if c.Context().Err() == nil {
			for _, m := range u.models {
				m.Close()
			}
			u.models = nil
		}
		return err
	}
}

// checkModelMemory refuses a model for whose tensors the host has no memory: for
// all of them where it runs the model, and for each on its way to a GPU.
func checkModelMemory(m *source.Model, ops model.Ops) error {
	ckpt, err := m.Weights()
	if err != nil {
		return err
	}
	return checkMemory(ckpt, ops.Name() == "cpu")
}

// checkMemory refuses a folder of which not all tensors, or not each by itself, can
// be in memory.
func checkMemory(ckpt *hf.Checkpoint, all bool) error {
	var sum, largest int64
	for _, t := range ckpt.Tensors() {
		sum += t.Bytes()
		largest = max(largest, t.Bytes())
	}
	need := largest
	if all {
		need = sum
	}
	if free := availableMemory(); free > 0 && need > free {
		return fmt.Errorf("%s: needs %s of memory: %s are available", ckpt.Dir(), formatBytes(need), formatBytes(free))
	}
	return nil
}

// openCUDAOps opens the operations of the first GPU.
func openCUDAOps(dtype string, reserve int64) (ops *modelcuda.Ops, dev *driver.Device, done func() error, err error) {
	return openGPU(0, dtype, reserve)
}

// openGPU opens those of one GPU.
func openGPU(index int, dtype string, reserve int64) (ops *modelcuda.Ops, dev *driver.Device, done func() error, err error) {
	all, devs, done, err := openGPUs([]int{index}, dtype, reserve, false)
	if err != nil {
		return nil, nil, nil, err
	}
	return all[0], devs[0], done, nil
}

// openGPUs opens the operations of some GPUs, which reach each other's memory where they can, and must, where a model is divided among them.
func openGPUs(indices []int, dtype string, reserve int64, divide bool) (all []*modelcuda.Ops, devs []*driver.Device, done func() error, err error) {
	types := map[string]driver.DType{"f16": driver.F16, "bf16": driver.BF16, "f32": driver.F32}
	acts, ok := types[dtype]
	if !ok {
		return nil, nil, nil, usageError{fmt.Errorf("unknown type %q: want f16, bf16 or f32", dtype)}
	}
	c, err := driver.Open(driver.Options{})
	if err != nil {
		return nil, nil, nil, err
	}
	n, err := c.DeviceCount()
	if err != nil {
		return nil, nil, nil, err
	}
	for _, i := range indices {
		if i >= n {
			return nil, nil, nil, fmt.Errorf("there is no GPU %d: the machine has %d, from 0 on", i, n)
		}
	}
	if devs, err = c.OpenDevices(indices); err != nil {
		return nil, nil, nil, err
	}
	var engines []*gemmcuda.Engine
	var team *peers.Team
	done = func() error {
		var errs []error
		for _, ops := range all {
			errs = append(errs, ops.Close())
		}
		for i, e := range engines {
			errs = append(errs, devs[i].Do(e.Close))
		}
		if team != nil {
			errs = append(errs, team.Close())
		}
		return errors.Join(append(errs, driver.CloseDevices(devs))...)
	}
	if divide {
		team, err = peers.NewTeam(c, devs)
	} else if err = c.ConnectPeers(devs); errors.Is(err, driver.ErrNoPeers) {
		err = nil // copies go through the host's memory
	}
	for rank, dev := range devs {
		if err != nil {
			break
		}
		var engine *gemmcuda.Engine
		err = dev.Do(func() (err error) {
			engine, err = gemmcuda.New(dev, c.Cache())
			return err
		})
		if err != nil {
			break
		}
		engines = append(engines, engine)
		o := modelcuda.Options{Type: acts, Reserve: reserve}
		if team != nil {
			o.Seat = team.Seat(rank)
		}
		var ops *modelcuda.Ops
		if ops, err = modelcuda.New(dev, engine, o); err == nil {
			all = append(all, ops)
		}
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, done())
	}
	return all, devs, done, nil
}
