package driver

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// Cache keeps compiled kernels in a folder. Processes may share it: an entry
// appears whole or not at all, and one that is damaged counts as absent. Where
// the folder cannot be written, nothing is kept, and where another user could
// write, nothing is taken from it either.
type Cache struct{ dir string }

// NewCache returns the cache in a folder, which is made when it is first
// needed.
func NewCache(dir string) *Cache { return &Cache{dir} }

// DefaultCacheDir returns the folder of kernels in [input.CacheDir].
func DefaultCacheDir() string { return filepath.Join(input.CacheDir(), "kernels") }

// Dir returns the folder.
func (c *Cache) Dir() string { return c.dir }

// Check returns the reason why the folder is not used, if there is one: machine
// code is run without another look, so it must come from nobody else.
func (c *Cache) Check() error { return input.Private(c.dir) }

// cacheMagic begins an entry; the content's SHA-256 in hexadecimal digits and a
// newline follow, then the content.
const cacheMagic = "lutq kernel 1 "

const cacheSuffix = ".cubin"

func (c *Cache) path(key string) string { return filepath.Join(c.dir, key+cacheSuffix) }

// Get returns what is kept under a key.
func (c *Cache) Get(key string) ([]byte, bool) {
	if c == nil || c.Check() != nil {
		return nil, false
	}
	data, err := input.ReadFile(c.path(key), input.Kernel)
	if err != nil {
		return nil, false
	}
	return parseEntry(data)
}

// parseEntry returns the content of an entry's file, or false where that is damaged.
func parseEntry(data []byte) ([]byte, bool) {
	head, content, ok := bytes.Cut(data, []byte("\n"))
	if !ok || string(head) != cacheMagic+digest(content) {
		return nil, false
	}
	return content, true
}

// Put keeps content under a key.
func (c *Cache) Put(key string, content []byte) error {
	if c == nil {
		return nil
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("caching a kernel: %w", err)
	}
	if err := c.Check(); err != nil {
		return fmt.Errorf("caching a kernel: %w", err)
	}
	// A name of its own, so that several processes can write the same entry:
	// each rename puts a whole file in place.
	f, err := os.CreateTemp(c.dir, "*.tmp")
	if err != nil {
		return fmt.Errorf("caching a kernel: %w", err)
	}
	_, err = fmt.Fprintf(f, "%s%s\n", cacheMagic, digest(content))
	if err == nil {
		_, err = f.Write(content)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), c.path(key))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("caching a kernel: %w", err)
	}
	return nil
}

// Size returns the number of entries and of bytes in the folder.
func (c *Cache) Size() (entries int, size int64, err error) {
	files, err := os.ReadDir(c.dir)
	if os.IsNotExist(err) {
		return 0, 0, nil
	}
	for _, f := range files {
		var info fs.FileInfo
		if info, err = f.Info(); err != nil {
			err = nil // removed by another process
			continue
		}
		if strings.HasSuffix(f.Name(), cacheSuffix) {
			entries++
		}
		size += info.Size()
	}
	return entries, size, err
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
