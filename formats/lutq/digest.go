package lutq

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
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

// ErrDiffers means that something in a container's folder is not what was
// written, by its SHA-256.
var ErrDiffers = errors.New("differs from what was written")

// differs names what differs.
func differs(what string) error { return fmt.Errorf("%s %w", what, ErrDiffers) }

// Digests are the SHA-256 of all that a container's folder holds but
// config.json, by name.
type Digests struct {
	Tensors map[string]Sum `json:"tensors"` // the data of every stored tensor
	Headers map[string]Sum `json:"headers"` // of every safetensors file, what stands before the data
	Files   map[string]Sum `json:"files"`   // the index and the side files
}

// HeaderSums returns the SHA-256 of the headers of a folder's shards.
func HeaderSums(c *hf.Checkpoint) (map[string]Sum, error) {
	sums := make(map[string]Sum)
	for _, shard := range c.Shards() {
		header, err := c.Header(shard)
		if err != nil {
			return nil, err
		}
		sums[shard] = sha256.Sum256(header)
	}
	return sums, nil
}

// FileSum returns the SHA-256 of a file.
func FileSum(path string) (sum Sum, err error) {
	f, err := input.Open(path)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return sum, err
	}
	h.Sum(sum[:0])
	return sum, nil
}

// sealKey is what stands before config.json's own digest.
const sealKey = `"config_sha256": "`

// unsealed is the digest's place before the digest is known, and while it is
// computed.
var unsealed = strings.Repeat("0", hex.EncodedLen(sha256.Size))

// seal writes a config.json's digest in its place.
func seal(config []byte) {
	sum := sha256.Sum256(config)
	at := bytes.LastIndex(config, []byte(sealKey+unsealed+`"`)) + len(sealKey)
	hex.Encode(config[at:], sum[:])
}

// sealed reports whether a config.json has the digest that it names.
func sealed(config []byte) bool {
	at := bytes.LastIndex(config, []byte(sealKey)) + len(sealKey)
	if at < len(sealKey) || len(config) < at+len(unsealed) {
		return false
	}
	blank := bytes.Clone(config)
	copy(blank[at:], unsealed)
	sum := sha256.Sum256(blank)
	return string(config[at:at+len(unsealed)]) == hex.EncodeToString(sum[:])
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
