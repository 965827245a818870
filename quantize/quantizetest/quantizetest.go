// Package quantizetest quantizes models for tests.
package quantizetest

import (
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/quantize"
)

// Container quantizes a model by a recipe and returns the folder that it is written to, which lasts as long as the test.
func Container(t testing.TB, model string, r quantize.Recipe) string {
	t.Helper()
	p, err := quantize.NewPlan(modeltest.Open(t, model), r)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := p.Run(t.Context(), out, quantize.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	return out
}

// Recipe reads a recipe in JSON.
func Recipe(t testing.TB, text string) quantize.Recipe {
	t.Helper()
	r, err := quantize.ParseRecipe([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}
