package lutq

import (
	"fmt"
	"strings"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// Kinds lists the kinds of layers that a container may have. The first is what a
// layer is whose configuration names none.
func Kinds() []weight.Kind {
	return []weight.Kind{lut.Kind{}, bcq.Kind{}, lut24.Kind{}, trellis.Kind{}}
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
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.Name()
	}
	last := len(names) - 1
	return nil, fmt.Errorf("unknown kind %q of weights: want %s or %s", name, strings.Join(names[:last], ", "), names[last])
}
