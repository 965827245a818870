package lutq

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/hf"
)

// Sum is a SHA-256. Its text form is hex.
type Sum [sha256.Size]byte

// MarshalText implements [encoding.TextMarshaler].
func (s Sum) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, s[:]), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Sum) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(s) {
		return fmt.Errorf("%q is no SHA-256", text)
	}
	copy(s[:], b)
	return nil
}

// TensorSum is the SHA-256 of one stored tensor's data.
type TensorSum struct {
	Entry hf.Entry
	Sum   Sum
}

// SumOf returns the SHA-256 of size bytes of data that read hands out piece by
// piece; read fills its argument from an offset.
func SumOf(size int64, read func(p []byte, off int64) error) (sum Sum, err error) {
	h := sha256.New()
	buf := make([]byte, min(size, 1<<20))
	for off := int64(0); off < size; off += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), size-off)]
		if err := read(b, off); err != nil {
			return sum, err
		}
		h.Write(b)
	}
	h.Sum(sum[:0])
	return sum, nil
}

// Digest returns the digest of a container's quantized tensors in hex; see the
// package comment.
func Digest(sums []TensorSum) string {
	sums = slices.Clone(sums)
	slices.SortFunc(sums, func(a, b TensorSum) int { return strings.Compare(a.Entry.Name, b.Entry.Name) })
	h := sha256.New()
	for _, s := range sums {
		dims := make([]string, len(s.Entry.Shape))
		for i, d := range s.Entry.Shape {
			dims[i] = strconv.Itoa(d)
		}
		fmt.Fprintf(h, "%s %s %s %x\n", s.Entry.Name, s.Entry.DType, strings.Join(dims, "x"), s.Sum)
	}
	return hex.EncodeToString(h.Sum(nil))
}
