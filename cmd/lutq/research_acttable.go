package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/gemm/lookup"
)

// tableFlag says through what tables of activations quantized layers are multiplied.
type tableFlag struct{ actTable string }

// noTables is its value for products without tables.
const noTables = "none"

func (t *tableFlag) addActTable(f *pflag.FlagSet) {
	tables := newWord(&t.actTable, noTables, noTables, lookup.Precision{F16: true}.String())
	tables.also = "int8:"
	f.Var(tables, "act-table", "multiply through tables with entries `NAME`: none, fp16 or int8:T")
}

// tables are what products go through. A nil one is none.
type tables struct {
	lookup.Precision
	ops *modelcpu.TableOps
}

// tables returns what the flag asks for, nil without tables, and has the device be the cpu.
func (t *tableFlag) tables(d *deviceFlags, a *actFlag) (*tables, error) {
	if t.actTable == "" || t.actTable == noTables {
		return nil, nil
	}
	p, err := lookup.ParsePrecision(t.actTable)
	switch {
	case err != nil:
		return nil, usage("--act-table: %w", err)
	case d.device == "cuda":
		return nil, usage("--act-table is for the cpu")
	case a.fp8():
		return nil, usage("--act-table and --act fp8 do not go together")
	}
	d.device = "cpu"
	return &tables{Precision: p}, d.check()
}

// over returns operations that multiply through the tables and do the rest as ops, or ops themselves.
func (t *tables) over(ops model.Ops) model.Ops {
	if t == nil {
		return ops
	}
	t.ops = modelcpu.NewTableOps(ops.(*modelcpu.Ops), t.Precision) // the device is the cpu
	return t.ops
}

// tablesJSON is what the tables of activations are, and were, as JSON.
type tablesJSON struct {
	Precision string `json:"precision"`
	modelcpu.TableCounts
}

// report returns what was counted, nil without tables.
func (t *tables) report() *tablesJSON {
	if t == nil {
		return nil
	}
	return &tablesJSON{t.String(), t.ops.Counts()}
}

func (t *tablesJSON) String() string {
	return fmt.Sprintf("products through tables of activations in %s: made %d times for %d products, %s in all, %d times by norms, which saved reading %s; "+
		"tiles of 64 outputs would make them %d times, %.1fx as often",
		t.Precision, t.Builds, t.Products, formatBytes(t.Bytes), t.Fused, formatBytes(t.Saved), t.PerTile, float64(t.PerTile)/float64(max(1, t.Builds)))
}
