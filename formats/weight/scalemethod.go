package weight

import "fmt"

// ScaleMethod says how the scale of a group is found.
type ScaleMethod uint8

const (
	// Absmax maps the weight of largest magnitude to the end of the table. A
	// one-sided table is mirrored where that weight has the other sign.
	Absmax ScaleMethod = iota + 1
	// MSE searches the scale with the smallest squared error.
	MSE
)

// ScaleMethods lists the spellings of scale methods.
func ScaleMethods() []string { return []string{Absmax.String(), MSE.String()} }

// ParseScaleMethod is the inverse of [ScaleMethod.String].
func ParseScaleMethod(s string) (ScaleMethod, error) {
	switch s {
	case "absmax":
		return Absmax, nil
	case "mse":
		return MSE, nil
	}
	return 0, fmt.Errorf("unknown scale method %q: want absmax or mse", s)
}

// MarshalText implements [encoding.TextMarshaler].
func (m ScaleMethod) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. The empty text is no method.
func (m *ScaleMethod) UnmarshalText(text []byte) (err error) {
	*m = 0
	if len(text) > 0 {
		*m, err = ParseScaleMethod(string(text))
	}
	return err
}

func (m ScaleMethod) String() string {
	switch m {
	case Absmax:
		return "absmax"
	case MSE:
		return "mse"
	}
	return fmt.Sprintf("ScaleMethod(%d)", uint8(m))
}
