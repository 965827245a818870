package outdir

import (
	"crypto/sha256"
	"errors"
	"io"
	"os"

	"github.com/lutq/lutq/formats/input"
)

// CopyFile copies a file, and returns the SHA-256 of what it wrote.
func CopyFile(dst, src string) (sum [sha256.Size]byte, err error) {
	in, err := input.Open(src)
	if err != nil {
		return sum, err
	}
	return Copy(dst, in)
}

// Copy writes a file of what in reads, which it closes, and returns the SHA-256.
func Copy(dst string, in io.ReadCloser) (sum [sha256.Size]byte, err error) {
	defer in.Close()
	out, err := os.Create(dst)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, h), in)
	h.Sum(sum[:0])
	return sum, errors.Join(err, out.Close())
}
