package mxfp4

import (
	"testing"

	"github.com/lutq/lutq/formats/source/sourcetest"
)

func TestGolden(t *testing.T) { sourcetest.Golden(t, Scheme{}) }

func FuzzRead(f *testing.F) { sourcetest.Fuzz(f, Scheme{}) }
