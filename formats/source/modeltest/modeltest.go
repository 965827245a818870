// Package modeltest opens models for tests.
package modeltest

import (
	"testing"

	"github.com/lutq/lutq/formats/source"
)

// Open opens a model, checked, for the length of a test.
func Open(t testing.TB, path string) *source.Model {
	t.Helper()
	m, err := source.Open(path, source.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}
