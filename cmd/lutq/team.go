package main

import (
	"github.com/lutq/lutq/calib/decodebench"
	"github.com/lutq/lutq/calib/model"
	modelcuda "github.com/lutq/lutq/calib/model/cuda"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// teamOps are the operations of the first of several GPUs that have a part of a model each, and of all.
type teamOps struct {
	*modelcuda.Ops
	all  []model.Peer
	devs []*driver.Device
}

// openTeam opens several GPUs for models that each has a part of.
func openTeam(indices []int, dtype string) (*teamOps, func() error, error) {
	all, devs, done, err := openGPUs(indices, dtype, 0, true)
	if err != nil {
		return nil, nil, hintDoctor(err)
	}
	t := &teamOps{Ops: all[0], devs: devs}
	for _, ops := range all {
		t.all = append(t.all, ops)
	}
	return t, done, nil
}

// openWriteOps opens the device, or all of them, that a model writes on.
func (u *ui) openWriteOps(d *deviceFlags, onCPU cpu.Options, doing string) (ops model.Ops, done func() error, err error) {
	if len(d.devices) < 2 {
		return u.openModelOps(d, onCPU, doing)
	}
	if _, err := d.choose(); err != nil {
		return nil, nil, err
	}
	if d.dtype == "" {
		d.dtype = "f16"
	}
	return openTeam(d.devices, d.dtype)
}

// loadOn loads a model to be run on a device, or on all of a team.
func (u *ui) loadOn(m *source.Model, ops model.Ops, o model.OpenOptions) (*model.Model, error) {
	t, ok := ops.(*teamOps)
	if !ok {
		return u.load(m, ops, o)
	}
	if err := checkDivided(m, len(t.all)); err != nil {
		return nil, err
	}
	if err := checkModelMemory(m, ops); err != nil {
		return nil, err
	}
	loaded, err := model.OpenDivided(m, t.all, o)
	return loaded, hintDiffers(err)
}

// checkDivided refuses models that several GPUs cannot have a part of each, before anything of them is read.
func checkDivided(m *source.Model, gpus int) error {
	if gpus < 2 {
		return nil
	}
	d, err := m.Decoder()
	if err != nil {
		return err
	}
	if err := divides(m.Path(), d, gpus); err != nil {
		return err
	}
	packed, err := m.IsContainer()
	if err != nil || !packed {
		return err
	}
	entries, err := m.Entries()
	if err != nil {
		return err
	}
	for rank := range gpus {
		part, err := arch.Divide(d, rank, gpus)
		if err != nil {
			return err
		}
		for _, e := range entries {
			share, some := part.Shares[e.Name]
			if !some || share.Axis == 0 || e.Layer == nil || e.Layer.Kind != lut.Name {
				continue
			}
			if k := e.Layer.Shape[1]; e.Layer.Columns(k) < k && share.From%e.Layer.Columns(k) != 0 {
				return hintError{
					usage("%s: %s: %d GPUs would part groups of %d columns", m.Path(), e.Name, gpus, e.Layer.Columns(k)),
					"one GPU runs it, without --devices, as fewer may, or smaller groups",
				}
			}
		}
	}
	return nil
}

func divides(name string, d *arch.Decoder, gpus int) error {
	if gpus < 2 {
		return nil
	}
	if _, err := arch.Divide(d, 0, gpus); err != nil {
		return hintError{usage("%s: %w", name, err), "one GPU runs it, without --devices"}
	}
	return nil
}

// dividedRandom makes up the parts of a model for each of a team.
func (t *teamOps) dividedRandom(name string, d *arch.Decoder, ro decodebench.RandomOptions) (*model.Model, error) {
	var sources []model.Source
	for rank := range t.all {
		part, err := arch.Divide(d, rank, len(t.all))
		if err != nil {
			return nil, err
		}
		r, err := decodebench.NewRandom(name, part.Decoder, ro)
		if err != nil {
			return nil, err
		}
		sources = append(sources, r)
	}
	return model.NewDivided(d, sources, t.all, 0)
}
