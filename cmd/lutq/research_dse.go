package main

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/gemm/research/dse"
)

type dseOptions struct {
	bits                 []string
	products, entry, top int
	format               string
	json                 bool
}

func newDSECommand(u *ui) *cobra.Command {
	var o dseOptions
	c := &cobra.Command{
		Use:     "dse",
		GroupID: researchTitle,
		Short:   "Size tensor cores that multiply by lookup, on paper",
		Long: `Dse computes the area of tensor cores that look up sums of activations where
others multiply by weights, as LUT Tensor Core (ISCA 2025) does. Cores that
multiply in float16 stand beside them. A tile has a table of 2^(K-1) sums for
each of M rows and K columns; N rows of weights choose from it, one bit a cycle.
The documentation of package gemm/research/dse has the formulas.

  lutq dse --bits 2                         the smallest tiles
  lutq dse --format csv >space.csv          all of them
  lutq dse --bits 1 --format svg >dse.svg   a picture

The numbers are analytic: gates are added up, and two constants are fitted to a
density that the paper gives. Nothing is synthesized. They compare areas; they
do not tell how fast a GPU would be. What the paper says of speed (8.2 times end
to end, 72.2 times for a product) comes from a simulator of hardware that nobody
has built. Nothing that lutq runs on attains it.

How to read it. A lookup without its adder is 18 times as dense as a
multiplication with its adder. But the lookup needs an adder too, which leaves 6
times. A whole tile is 4 to 6 times smaller. It takes a cycle for each bit of a
weight, so at equal rates it is 2.8 times smaller with 2 bits and 1.4 times with
4.

Columns: gates (NAND2 of 0.5 µm² at 28 nm), TFLOPS/mm² at 1 GHz, stored bits of
tables and of weights, lookups at a time, and how many times the gates the best
multiplying tile takes: as it is, and at an equal rate.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.json && c.Flags().Changed("format") && o.format != "json" {
				return usage("--json and --format %s do not go together", o.format)
			}
			if o.json {
				o.format = "json"
			}
			return u.dse(o)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.bits, "bits", []string{"1", "2", "4"}, "`BITS` of a weight, 1 to 8, a list")
	f.Var(newNumber(&o.products, 512, 2, dse.MaxProduct), "products", "`N` products in a tile, M·N·K, a power of two")
	f.Var(newNumber(&o.entry, dse.EntryBits, 1, dse.MaxEntryBits), "entry-bits", "`BITS` of a table's entry")
	f.Var(newNumber(&o.top, 3, 1, 1000), "top", "`N` tiles of each kind in a table")
	f.Var(newWord(&o.format, "table", "table", "md", "json", "csv", "svg"), "format", "output `NAME`: table, md, or of all tiles json, csv, svg")
	f.BoolVar(&o.json, "json", false, "the same as --format json")
	return c
}

func (u *ui) dse(o dseOptions) error {
	var spaces [][]dse.Point
	for _, s := range o.bits {
		bits, err := strconv.Atoi(s)
		if err != nil || bits < 1 || bits > dse.MaxBits {
			return usage("--bits %q: want a whole number, 1 to %d", s, dse.MaxBits)
		}
		points, err := dse.Space(dse.Options{Bits: bits, EntryBits: o.entry, Product: o.products})
		if err != nil {
			return usageError{err}
		}
		spaces = append(spaces, points)
	}
	switch o.format {
	case "svg":
		return dse.Plot(u.stdout, spaces...)
	case "json":
		return u.printJSON(struct {
			Label  string      `json:"label"`
			Points []dse.Point `json:"points"`
			Dots   []dse.Dot   `json:"dots"`
		}{dse.Label, slices.Concat(spaces...), dse.Dots()})
	case "csv":
		return u.printCells("csv", numbersShape(), dseHeader("label"), dseCells(slices.Concat(spaces...), dse.Label))
	}
	var best []dse.Point
	for _, points := range spaces {
		shown := make(map[dse.Unit]int)
		for _, p := range points {
			if shown[p.Unit]++; shown[p.Unit] <= o.top {
				best = append(best, p)
			}
		}
	}
	if err := u.printLine("Tiles of %d products (%s)", o.products, dse.Label); err != nil {
		return err
	}
	fmt.Fprintln(u.stdout)
	if err := u.printCells(o.format, numbersShape("lookups", "weight bits", "table bits", "gates", "cycles", "k", "n", "m", "mm2"), dseHeader(), dseCells(best)); err != nil {
		return err
	}
	fmt.Fprintf(u.prose(), "\nDot products of 4 elements by weights of 1 bit, TFLOPS/mm²\n\n")
	var cells [][]string
	for _, d := range dse.Dots() {
		published := "–"
		if d.Published > 0 {
			published = fmt.Sprint(d.Published)
		}
		cells = append(cells, []string{d.Name, digits(d.Flops, 3), published})
	}
	return u.printCells(o.format, numbersShape(), []string{"unit", "here", "as published"}, cells)
}

// dseHeader names the columns of [dseCells], and more.
func dseHeader(more ...string) []string {
	return append([]string{
		"unit", "bits", "m", "n", "k", "gates", "cycles", "mm2", "tflops/mm2", "table bits", "weight bits", "lookups", "area ratio", "at equal rate",
	}, more...)
}

// dseCells are the lines of a table of points, each with more at its end.
func dseCells(points []dse.Point, more ...string) [][]string {
	var cells [][]string
	for _, p := range points {
		cells = append(cells, append([]string{
			string(p.Unit), strconv.Itoa(p.Bits), strconv.Itoa(p.M), strconv.Itoa(p.N), strconv.Itoa(p.K), fmt.Sprintf("%.0f", p.Gates), strconv.Itoa(p.Cycles),
			digits(p.Area, 4), digits(p.Flops, 3), strconv.Itoa(p.TableBits), strconv.Itoa(p.WeightBits), strconv.Itoa(p.Muxes),
			fmt.Sprintf("%.2f", p.Gain), fmt.Sprintf("%.2f", p.Throughput),
		}, more...))
	}
	return cells
}
