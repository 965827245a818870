package cuda

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/rtn"
)

// TestGPUSearch holds scales that the device finds to the host's, bit for bit.
func TestGPUSearch(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i == 0 {
			testSearch(t, o)
		}
	})
}

// searchCase is a format whose scales are searched in rows of k columns.
type searchCase struct {
	table       string
	bits, group int
	scale       weight.ScaleMethod
	of          weight.ScaleType
	k           int
}

// searchCases are all tables, and all types of scales, with groups that end in rows, fill registers, or are read again each time.
func searchCases() (all []searchCase) {
	for _, name := range lut.CodebookNames() {
		bits := 4
		if name[0] == 'q' {
			bits = int(name[1] - '0')
		}
		all = append(all, searchCase{name, bits, 64, weight.MSE, weight.F16, 200})
	}
	for _, of := range []weight.ScaleType{weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3, weight.E8M0} {
		all = append(all, searchCase{"nf", 4, 32, weight.MSE, of, 96}, searchCase{"q4", 4, 32, weight.MSE, of, 70}, searchCase{"nf", 4, 32, weight.Absmax, of, 70})
	}
	return append(all,
		searchCase{"nf", 2, 64, weight.MSE, weight.F16, 130}, searchCase{"nf", 3, 100, weight.MSE, weight.F16, 130}, searchCase{"nf", 5, 128, weight.MSE, weight.F16, 300},
		searchCase{"q3", 3, 130, weight.MSE, weight.BF16, 300}, searchCase{"nf", 4, 300, weight.MSE, weight.F32, 300}, searchCase{"nf", 4, 7, weight.MSE, weight.F16, 40},
		searchCase{"q4", 4, 64, weight.Absmax, weight.F16, 130},
	)
}

// plainRows is how many rows have scales that all types hold.
const plainRows = 8

// searchRow fills a row of weights. Groups have outliers, two largest ones of either sign, zeros, or many equal ones, and beyond plain
// rows they may be very small or large.
func searchRow(r *rand.Rand, row []float32, i, group int) {
	for c := range row {
		row[c] = float32(r.NormFloat64() * .02)
	}
	sizes := []float64{1}
	if i >= plainRows {
		sizes = []float64{1, 1, 1, 0x1p-20, 0x1p14, 0x1p-45, 0x1p-140, 0x1p60, 1e-6}
	}
	for from := 0; from < len(row); from += group {
		g, kind := row[from:min(from+group, len(row))], i+from/group
		for c := range g {
			g[c] *= float32(sizes[kind%len(sizes)])
		}
		switch kind % 7 {
		case 1:
			g[r.IntN(len(g))] *= 30
		case 2:
			g[0], g[len(g)-1] = slices.Max(g)*2, -slices.Max(g)*2
		case 3:
			g[0], g[len(g)/2] = -1, 1
		case 4:
			clear(g)
		case 5:
			for c := range g {
				g[c] = float32(r.IntN(3)-1) * .5
			}
		}
	}
}

func testSearch(t *testing.T, o *Ops) {
	for _, c := range searchCases() {
		t.Run(fmt.Sprintf("%s of %d bits in groups of %d of %d, %v, %v", c.table, c.bits, c.group, c.k, c.scale, c.of), func(t *testing.T) {
			book, err := lut.NewCodebook(c.table, c.bits, c.group)
			if err != nil {
				t.Fatal(err)
			}
			f := lut.Format{Codebook: book, Group: c.group, Scale: c.scale, ScaleType: c.of}
			host, err := rtn.NewQuantizer(f)
			if err != nil {
				t.Fatal(err)
			}
			device, err := rtn.NewQuantizer(f)
			if err != nil {
				t.Fatal(err)
			}
			s := device.Search()
			if !searchable(s) {
				t.Fatal("not to be searched by a device")
			}
			const n = 20
			r := rand.New(rand.NewPCG(uint64(c.k), uint64(c.group)))
			w := make([]float32, n*c.k)
			for i := range n {
				searchRow(r, w[i*c.k:(i+1)*c.k], i, c.group)
			}
			w[(n-1)*c.k+3] = float32(math.Inf(-1))
			groups := weight.GroupsIn(c.k, c.group)
			in, found := o.Floats(len(w)), o.Floats(3*n*groups)
			defer o.Free(in, found)
			o.Write(in, w)
			part := func(i int) []float32 {
				v := make([]float32, n*groups)
				o.Read(v, found.Slice(i*n*groups, (i+1)*n*groups))
				return v
			}
			o.do(func() {
				lists, rest := o.uploadSearch(s)
				defer o.release(lists)
				at := func(i int) driver.Ptr { return ptr(found) + driver.Ptr(4*i*n*groups) }
				o.searchScales(s, lists, rest, at(0), at(1), at(2), in, n, c.k)
			})
			wanted, stored, tops := part(0), part(1), make([]uint32, n*groups)
			for i, v := range part(2) {
				tops[i] = math.Float32bits(v)
			}
			if err := o.Err(); err != nil {
				t.Fatal(err)
			}
			if device.Found(wanted[(n-1)*groups:], tops[(n-1)*groups:], 1) {
				t.Error("an infinite weight was not told")
			}
			count := 1 << c.bits
			for i := range n - 1 {
				at := func(v []float32) []float32 { return v[i*groups : (i+1)*groups] }
				found := device.Found(at(wanted), tops[i*groups:(i+1)*groups], 1)
				if err := host.Fit(w[i*c.k:(i+1)*c.k], 1); err != nil {
					if found {
						t.Errorf("row %d is found, and by the host: %v", i, err)
					}
					continue
				}
				want, _, _ := host.Levels()
				for g, scale := range at(stored) {
					for j, v := range book.Values {
						if math.Float32bits(v*scale) != math.Float32bits(want[g*count+j]) {
							t.Fatalf("row %d, group %d: level %d by the device is %v, want %v", i, g, j, v*scale, want[g*count+j])
						}
					}
				}
				if !found {
					if i < plainRows {
						t.Errorf("row %d is not all found", i)
					}
					continue
				}
				got, _, _ := device.Levels()
				for j := range want {
					if math.Float32bits(got[j]) != math.Float32bits(want[j]) {
						t.Fatalf("row %d, group %d: level %d is %v, want %v", i, j/count, j%count, got[j], want[j])
					}
				}
				codes := make([]uint8, c.k)
				parts := func(q *rtn.Quantizer) []byte {
					p := [][]byte{lut.ScalesPart: make([]byte, groups*c.of.Size()), lut.CodesPart: make([]byte, lut.RowBytes(c.k, c.bits))}
					q.Store(p, 0, 0, codes)
					return p[lut.ScalesPart]
				}
				if !bytes.Equal(parts(device), parts(host)) || device.Wants(0) != host.Wants(0) {
					t.Fatalf("row %d has scales of other bytes", i)
				}
			}
		})
	}
}
