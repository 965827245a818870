package lutq

import (
	"fmt"

	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/weight"
)

// Kinds lists the kinds of layers that a container may have. The first is what a
// layer is whose configuration names none.
func Kinds() []weight.Kind {
	return []weight.Kind{lut.Kind{}}
}

// KindOf returns the kind of a name, "" for the first.
func KindOf(name string) (weight.Kind, error) {
	kinds := Kinds()
	if name == "" {
		return kinds[0], nil
	}
	for _, k := range kinds {
		if k.Name() == name {
			return k, nil
		}
	}
	return nil, fmt.Errorf("unknown kind %q of weights", name)
}
