package lut

import "github.com/lutq/lutq/formats/weight"

// Format is how a layer of this kind is stored, and how its scales are found.
type Format struct {
	Codebook  Codebook
	Group     int // columns that share a scale; at least 1
	Scale     weight.ScaleMethod
	ScaleType weight.ScaleType
}
