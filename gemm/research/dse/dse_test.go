package dse

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func first(points []Point, u Unit) int {
	for i, p := range points {
		if p.Unit == u {
			return i
		}
	}
	return -1
}

// TestGolden has the numbers that the model was published to agree with and those that were
// computed of its formulas by other means.
func TestGolden(t *testing.T) {
	for _, tc := range []struct {
		bits        int
		tiles       []string // the best
		gates       float64
		ratio, rate float64
	}{
		{1, []string{"2×64×4", "1×128×4", "4×32×4"}, 115840, 5.95, 5.95},
		{2, []string{"2×64×4"}, 121856, 5.66, 2.83},
		{4, []string{"4×32×4"}, 123392, 5.59, 1.40},
	} {
		t.Run(fmt.Sprintf("%d bits", tc.bits), func(t *testing.T) {
			points, err := Space(Options{Bits: tc.bits, EntryBits: EntryBits, Product: 512})
			if err != nil {
				t.Fatal(err)
			}
			var tiles []string
			for _, p := range points[:len(tc.tiles)] {
				tiles = append(tiles, p.Tile())
			}
			if diff := cmp.Diff(tc.tiles, tiles); diff != "" {
				t.Errorf("tiles (-want +got):\n%s", diff)
			}
			best, mac := points[0], points[first(points, MAC)]
			if best.Gates != tc.gates || math.Abs(best.Gain-tc.ratio) > .005 || math.Abs(best.Throughput-tc.rate) > .005 {
				t.Errorf("got %+v, want %v gates, %v of a MAC's area and %v of that for equal rates", best, tc.gates, tc.ratio, tc.rate)
			}
			if mac.M != 8 || mac.N != 8 || mac.K != 8 || mac.Gates != 689152 || mac.Gain != 1 {
				t.Errorf("the best MAC tile is %+v, want 8×8×8 of 689152 gates", mac)
			}
			if best.Muxes != 128 || best.TableBits != best.M*8*16 || best.WeightBits != best.N*4*tc.bits {
				t.Errorf("storage: %+v", best)
			}
		})
	}
}

func TestDots(t *testing.T) {
	want := []float64{62.7, 20.4, 3.40}
	for i, d := range Dots() {
		if math.Abs(d.Flops-want[i]) > .005*want[i] {
			t.Errorf("%s: %v, want %v", d.Name, d.Flops, want[i])
		}
		if d.Published != 0 && math.Abs(d.Flops/d.Published-1) > .02 {
			t.Errorf("%s: %v is not what was published, %v", d.Name, d.Flops, d.Published)
		}
	}
}

// TestSpace: every tile has as many products, and is there once; more bits take more gates.
func TestSpace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{
			Bits:      rapid.IntRange(1, MaxBits-1).Draw(t, "bits"),
			EntryBits: rapid.IntRange(1, 32).Draw(t, "entry"),
			Product:   1 << rapid.IntRange(1, 12).Draw(t, "product"),
		}
		points, err := Space(o)
		if err != nil {
			t.Fatal(err)
		}
		o.Bits++
		wider, err := Space(o)
		if err != nil {
			t.Fatal(err)
		}
		type key struct {
			u       Unit
			m, n, k int
		}
		gates := make(map[key]float64)
		for _, p := range wider {
			gates[key{p.Unit, p.M, p.N, p.K}] = p.Gates
		}
		seen := make(map[key]bool)
		for i, p := range points {
			at := key{p.Unit, p.M, p.N, p.K}
			if seen[at] || p.M*p.N*p.K != o.Product || p.Gates <= 0 {
				t.Errorf("tile %d: %+v", i, p)
			}
			seen[at] = true
			if more := gates[at]; p.Unit == Lookup && more <= p.Gates || p.Unit == MAC && more != p.Gates {
				t.Errorf("%+v takes %v gates with one more bit", p, more)
			}
			if i > 0 && points[i-1].Unit == p.Unit && points[i-1].Gates > p.Gates {
				t.Errorf("tile %d is smaller than the one before it", i)
			}
		}
	})
}

func TestBadOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"weights of 0 bits: want 1 to 8":                                            {0, 16, 512},
		"weights of 9 bits: want 1 to 8":                                            {9, 16, 512},
		"entries of 33 bits: want 1 to 32":                                          {1, 33, 512},
		"tiles of 500 products: want a power of two, 2 to 1048576":                  {1, 16, 500},
		"tiles of 1 products: want a power of two, 2 to 1048576":                    {1, 16, 1},
		"tiles of 2097152 products: want a power of two, 2 to 1048576":              {1, 16, 1 << 21},
		"tiles of -9223372036854775808 products: want a power of two, 2 to 1048576": {1, 16, math.MinInt},
	} {
		if _, err := Space(o); err == nil || err.Error() != want {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}

// TestPlot: the picture is well-formed, has a mark for each tile and says what it is.
func TestPlot(t *testing.T) {
	points, err := Space(Options{Bits: 2, EntryBits: EntryBits, Product: 512})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := Plot(&b, points); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(b.String(), "<circle "); n != len(points)+2 { // and the legend's
		t.Errorf("%d marks for %d tiles", n, len(points))
	}
	for _, want := range []string{"analytic", "no synthesis", "2×64×4", "8×8×8"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
}
