package foreign_test

import (
	"math"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/weight/lut"
)

// scaled returns values times a factor, each rounded to float32.
func scaled(values []float32, factor float64) []float32 {
	v := make([]float32, len(values))
	for i, x := range values {
		v[i] = float32(float64(x) * factor)
	}
	return v
}

func TestMatchTable(t *testing.T) {
	e2m1 := []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}
	sorted := []float32{-6, -4, -3, -2, -1.5, -1, -0.5, float32(math.Copysign(0, -1)), 0, 0.5, 1, 1.5, 2, 3, 4, 6}
	codes := []uint8{15, 14, 13, 12, 11, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7}
	builtin := func(name string, bits int) []float32 {
		c, err := lut.NewCodebook(name, bits, 64)
		if err != nil {
			t.Fatal(err)
		}
		return c.Values
	}
	q3 := foreign.Integers(3)
	up := []uint8{0, 1, 2, 3, 4, 5, 6, 7}
	for _, tc := range []struct {
		name          string
		table, values []float32
		negative      bool
		factor        float64 // 0: no match
		exact         bool
		codes         []uint8
	}{
		{"itself", q3, q3, false, 1, true, up},
		{"times a power of two", scaled(q3, 0.25), q3, false, 0.25, true, up},
		{"times three", scaled(q3, 3), q3, false, 3, true, up},
		{"times a seventh", scaled(q3, 1.0/7), q3, false, 1.0 / 7, false, up},
		{"a part of it", foreign.Integers(2), q3, false, 1, true, []uint8{2, 3, 4, 5}},
		{"mirrored", []float32{-3, -2, -1, 0, 1, 2, 3, 4}, q3, true, -1, true, []uint8{7, 6, 5, 4, 3, 2, 1, 0}},
		{"mirrored, without a sign", []float32{-3, -2, -1, 0, 1, 2, 3, 4}, q3, false, 0, false, nil},
		{"int", builtin("int", 3), q3, false, 1.0 / 3, false, []uint8{1, 1, 2, 3, 4, 5, 6, 7}},
		{"int of two bits", builtin("int", 2), foreign.Integers(2), true, 1, true, []uint8{1, 1, 2, 3}},
		{"two zeros", sorted, e2m1, false, 1, true, codes},
		{"fp", builtin("fp", 4), e2m1, false, 1.0 / 6, false, codes},
		{"nf2 in nf4", builtin("nf", 2), builtin("nf", 4), false, 1, false, []uint8{0, 7, 11, 15}},
		{"other tables", builtin("nf", 3), q3, true, 0, false, nil},
		{"one value off", []float32{-4, -3, -2, -1, 0, 1, 2, 3.0001}, q3, true, 0, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, ok := foreign.MatchTable(tc.table, tc.values, tc.negative)
			if ok != (tc.factor != 0) {
				t.Fatalf("match is %v: %+v", ok, m)
			}
			if !ok {
				return
			}
			if math.Abs(m.Factor/tc.factor-1) > 1e-7 || (m.Rounded == 0) != tc.exact || !slices.Equal(m.Codes, tc.codes) {
				t.Errorf("got %+v, want factor %v, exactly %v, codes %v", m, tc.factor, tc.exact, tc.codes)
			}
		})
	}
}

func TestEdit(t *testing.T) {
	gone := foreign.Member{Key: "q"}
	for _, tc := range []struct {
		name, object string
		edits        []foreign.Member
		want         string
	}{
		{"nothing", "{ \"a\" : 1e3,\n\t\"b\":{} }\n", nil, "{ \"a\" : 1e3,\n\t\"b\":{} }\n"},
		{"the last goes", "{\n  \"a\": 1,\n  \"q\": {\"x\": [1, 2]}\n}\n", []foreign.Member{gone}, "{\n  \"a\": 1\n}\n"},
		{"the first goes", `{"q": 1, "a": 2}`, []foreign.Member{gone}, `{ "a": 2}`},
		{"one between", `{"a":"\u00e9","q":null,"b":-0}`, []foreign.Member{gone}, `{"a":"\u00e9","b":-0}`},
		{"the only one goes", `{"q": 1}`, []foreign.Member{gone}, `{}`},
		{"one is replaced", `{"a": 1, "b": 2}`, []foreign.Member{{Key: "a", Value: []byte(`[3]`)}}, `{"a": [3], "b": 2}`},
		{"one is added", "{\n  \"a\": 1\n}\n", []foreign.Member{{Key: "b", Value: []byte(`2`)}}, "{\n  \"a\": 1,\n  \"b\": 2\n}\n"},
		{"one is added to none", "{}", []foreign.Member{{Key: "b", Value: []byte(`2`)}}, "{\n  \"b\": 2\n}"},
		{"inner keys stay", `{"a": {"q": 1}}`, []foreign.Member{gone}, `{"a": {"q": 1}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := foreign.Edit([]byte(tc.object), tc.edits...)
			if err != nil || string(got) != tc.want {
				t.Errorf("got %q, %v: want %q", got, err, tc.want)
			}
		})
	}
	for _, bad := range []string{"", "[]", `{"a": 1`, `{"a" 1}`, `{"a": }`} {
		if got, err := foreign.Edit([]byte(bad)); err == nil {
			t.Errorf("%q gives %q", bad, got)
		}
	}
}
