//go:build !unix

package hub

import "context"

// lock would keep other processes from downloading the same file. Hashes tell where two did.
func lock(context.Context, string, func()) (unlock func() error, err error) {
	return func() error { return nil }, nil
}
