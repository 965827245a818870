package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/gemm/research/lmma"
)

type lmmaOptions struct {
	shape, format string
	zeros, json   bool
	seed          uint64
}

func newLMMACommand(u *ui) *cobra.Command {
	var o lmmaOptions
	c := &cobra.Command{
		Use:     "lmma INSTRUCTION",
		GroupID: researchTitle,
		Short:   "Simulate an instruction that multiplies by lookup, and count",
		Long: `Lmma simulates an instruction of LUT Tensor Core (ISCA 2025), which no machine
has. It computes what the instruction computes and counts what it does; it tells
no time. A product of random numbers is cut into tiles, multiplied in every
order of loops over them, and compared with float64. Integers are compared with
int64, bit by bit. Exit code 3 means that a product differs.

INSTRUCTION is lmma.m{M}n{N}k{K}.{A}.{W}.{Acc}.{O}: a tile has M rows of A, N
rows of weights and K columns (2, 4 or 8). Types:
  A    f16, bf16, f8e4m3 or i8
  W    i1, i2 or i4: codes, which stand for the odd numbers around 0
  Acc  of sums: f32 or f16; i32 if A is i8
  O    of results: the same types

  lutq lmma lmma.m2n64k4.f16.i2.f32.f16 --shape 16x1024x256

A row counts instructions and their cycles (one for each bit of a weight);
tables of sums, their bytes, and the additions that make them; lookups and the
additions that follow; and how many lookups share a table. An instruction makes
new tables unless the one before had the same rows of A, so counts depend on the
order of loops, which is listed outermost first. In the first row a separate
operator makes each table once, which is as few as with n innermost.

The documentation of gemm/research/lmma and gemm/lookup has the arithmetic.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if o.json && c.Flags().Changed("format") && o.format != "json" {
				return usage("--json and --format %s do not go together", o.format)
			}
			if o.json {
				o.format = "json"
			}
			return u.lmma(args[0], o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.shape, "shape", "16x1024x256", "`MxNxK`: rows of A, rows of weights and columns")
	f.BoolVar(&o.zeros, "zeros", false, "give rows of weights zero points")
	f.Uint64Var(&o.seed, "seed", 1, "`SEED` of random numbers")
	f.Var(newWord(&o.format, "table", "table", "md", "json", "csv"), "format", "output `NAME`: table, md, json or csv")
	f.BoolVar(&o.json, "json", false, "the same as --format json")
	return c
}

// parseProduct reads MxNxK.
func parseProduct(s string) (sides [3]int, err error) {
	f := strings.Split(s, "x")
	if len(f) != len(sides) {
		return sides, usage("--shape %q: want MxNxK", s)
	}
	for i, text := range f {
		if sides[i], err = strconv.Atoi(text); err != nil || sides[i] < 1 {
			return sides, usage("--shape %q: want MxNxK, whole numbers from 1", s)
		}
	}
	return sides, nil
}

func (u *ui) lmma(name string, o lmmaOptions) error {
	in, err := lmma.Parse(name)
	if err != nil {
		return usageError{err}
	}
	s, err := parseProduct(o.shape)
	if err != nil {
		return err
	}
	rows, relErr, err := in.Trial(lmma.TrialOptions{M: s[0], N: s[1], K: s[2], Zeros: o.zeros, Seed: o.seed})
	switch {
	case errors.Is(err, lmma.ErrResult):
		return checkError{err}
	case err != nil:
		return usageError{err}
	}
	if o.format == "json" {
		return u.printJSON(struct {
			Instruction string          `json:"instruction"`
			M           int             `json:"m"`
			N           int             `json:"n"`
			K           int             `json:"k"`
			RelErr      float64         `json:"rel_err"`
			Rows        []lmma.TrialRow `json:"rows"`
		}{in.String(), s[0], s[1], s[2], relErr, rows})
	}
	var cells [][]string
	for _, r := range rows {
		made := "instruction"
		if r.Resident {
			made = "operator"
		}
		line := []string{r.Order, made}
		for _, n := range []int64{r.Tiles, r.Cycles, r.Tables, r.TableBytes, r.TableAdds, r.Lookups, r.Adds} {
			line = append(line, strconv.FormatInt(n, 10))
		}
		cells = append(cells, append(line, digits(r.Reuse, 4)))
	}
	header := []string{"loops", "tables by", "tiles", "cycles", "tables", "table bytes", "table adds", "lookups", "adds", "reuse"}
	if err := u.printCells(o.format, numbersShape("adds", "table adds", "lookups", "table bytes", "tiles", "reuse"), header, cells); err != nil || o.format == "csv" {
		return err
	}
	result := fmt.Sprintf("the relative error against float64 is %.1e", relErr)
	if in.A == lmma.I8 {
		result = "the product is that of int64"
	}
	fmt.Fprintf(u.prose(), "\nSimulated: %s; orders agree to the bit\n", result)
	return nil
}
