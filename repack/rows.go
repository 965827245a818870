package repack

import (
	"bytes"
	"encoding/binary"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/weight/lut"
)

// slack is how much longer than its rows scratch is, for words to be read past their end.
const slack = 8

// load returns the eight codes that begin at src.
func load(src []byte, bits int) uint64 {
	return binary.LittleEndian.Uint64(src) & (1<<(8*bits) - 1)
}

// store is the inverse of load.
func store(dst []byte, codes uint64, bits int) {
	for i := range dst[:bits] {
		dst[i] = byte(codes >> (8 * i))
	}
}

// field returns n bits, up to 32, of a bit stream from one of them on.
func field(stream []byte, from, n int) uint64 {
	return binary.LittleEndian.Uint64(stream[from/8:]) >> (from % 8) & (1<<n - 1)
}

// setField is the inverse of field, on bits that are zero.
func setField(stream []byte, from int, v uint64) {
	s := stream[from/8:]
	binary.LittleEndian.PutUint64(s, binary.LittleEndian.Uint64(s)|v<<(from%8))
}

// copyRow copies the canonical codes of row n to dst, and zeros behind them. Rows beyond
// the last have none.
func copyRow(dst []byte, m *lut.Matrix, n int) {
	used := 0
	if size := m.RowBytes(); n < m.N {
		used = copy(dst, m.Codes[n*size:(n+1)*size])
		if rest := m.K * m.Bits % 8; rest > 0 {
			dst[used-1] &= 1<<rest - 1
		}
	}
	clear(dst[used:])
}

// takeRow is the inverse of copyRow. It reports whether what lies behind the codes is zero.
func takeRow(m *lut.Matrix, n int, src []byte) bool {
	used := 0
	if size := m.RowBytes(); n < m.N {
		used = copy(m.Codes[n*size:(n+1)*size], src)
		if rest := m.K * m.Bits % 8; rest > 0 && src[used-1]>>rest != 0 {
			return false
		}
	}
	return zeros(src[used:])
}

func zeros(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// tilesPerTask are as many as take some hundred microseconds.
const tilesPerTask = 8

// overTiles calls f for stretches [from, to) of n tiles or panels in parallel, and returns
// the error of the first to fail by number.
func overTiles(n int, f func(from, to int) error) error {
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	errs := make([]error, (n+tilesPerTask-1)/tilesPerTask)
	for i := range errs {
		group.Go(func() error {
			errs[i] = f(i*tilesPerTask, min((i+1)*tilesPerTask, n))
			return nil
		})
	}
	_ = group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
