package weight_test

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

func drawSpec(t *rapid.T) weight.Spec {
	return weight.Spec{
		Kind:      rapid.SampledFrom([]string{"", "lut", "other"}).Draw(t, "kind"),
		Bits:      rapid.IntRange(0, 8).Draw(t, "bits"),
		Group:     rapid.SampledFrom(append(weight.Groups(), weight.RowGroup, 0)).Draw(t, "group"),
		Codebook:  rapid.SampledFrom([]string{"", "nf", "js"}).Draw(t, "codebook"),
		Method:    rapid.SampledFrom([]string{"", "rtn", "gptq"}).Draw(t, "method"),
		Scale:     weight.ScaleMethod(rapid.IntRange(0, int(weight.MSE)).Draw(t, "scale")),
		ScaleType: weight.ScaleType(rapid.IntRange(0, int(weight.S1E4M3)).Draw(t, "scale type")),
	}
}

// TestDefaults: what differs from defaults is all that has to be kept beside them, and zero fields
// say nothing.
func TestDefaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, defaults := drawSpec(t), drawSpec(t)
		full := s.Or(defaults)
		if got := full.Without(defaults).Or(defaults); got != full {
			t.Errorf("%+v without and with %+v is %+v", full, defaults, got)
		}
		if got := (weight.Spec{}).Or(s); got != s {
			t.Errorf("nothing over %+v is %+v", s, got)
		}
		if got := s.Without(s); got != (weight.Spec{}) {
			t.Errorf("%+v differs from itself by %+v", s, got)
		}
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back weight.Spec
		if err := json.Unmarshal(data, &back); err != nil || back != s {
			t.Errorf("%s is read as %+v, %v: want %+v", data, back, err, s)
		}
	})
}

func TestSpelling(t *testing.T) {
	tests := []struct {
		spec         weight.Spec
		json, fields string
	}{
		{weight.Spec{}, `{}`, ""},
		{
			weight.Spec{Bits: 4, Group: 64, Codebook: "js", Method: "rtn", Scale: weight.MSE, ScaleType: weight.F16},
			`{"bits":4,"group":64,"codebook":"js","method":"rtn","scale":"mse","scale_type":"f16"}`, "4:64:js:mse:f16::rtn",
		},
		{weight.Spec{Group: weight.RowGroup, ScaleType: weight.E4M4}, `{"group":-1,"scale_type":"e4m4"}`, ":row:::e4m4"},
		{weight.Spec{Kind: "lut", Bits: 3}, `{"kind":"lut","bits":3}`, "3:::::lut"},
		{weight.Spec{Method: "gptq"}, `{"method":"gptq"}`, "::::::gptq"},
	}
	for _, tc := range tests {
		t.Run(tc.fields, func(t *testing.T) {
			if got, err := json.Marshal(tc.spec); err != nil || string(got) != tc.json {
				t.Errorf("JSON is %s, %v: want %s", got, err, tc.json)
			}
			if got := tc.spec.Fields(); got != tc.fields {
				t.Errorf("fields are %q, want %q", got, tc.fields)
			}
		})
	}
	var s weight.Spec
	if err := json.Unmarshal([]byte(`{"scale_type": "e4m3", "scale": ""}`), &s); err != nil || s != (weight.Spec{ScaleType: weight.E4M4}) {
		t.Errorf("the older spelling e4m3 is read as %+v, %v", s, err)
	}
	for _, bad := range []string{`{"scale_type": "f8"}`, `{"scale": "max"}`, `{"scale": 1}`} {
		if err := json.Unmarshal([]byte(bad), &s); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
}

func TestParseGroup(t *testing.T) {
	for _, name := range weight.GroupNames() {
		if g, err := weight.ParseGroup(name); err != nil || weight.GroupName(g) != name {
			t.Errorf("group %s is %d, %v", name, g, err)
		}
	}
	for _, bad := range []string{"", "48", "-1", "64 ", "rows"} {
		_, err := weight.ParseGroup(bad)
		if err == nil || err.Error() != `group "`+bad+`": want 32, 64, 128, 256 or row` {
			t.Errorf("group %q: got error %v", bad, err)
		}
	}
}

func TestGroupsIn(t *testing.T) {
	for _, tc := range [][3]int{{1, 64, 1}, {63, 64, 1}, {64, 64, 1}, {65, 64, 2}, {127, 64, 2}, {128, 64, 2}, {129, 64, 3}} {
		if got := weight.GroupsIn(tc[0], tc[1]); got != tc[2] {
			t.Errorf("%d columns in groups of %d: got %d, want %d", tc[0], tc[1], got, tc[2])
		}
	}
}

func TestCheck(t *testing.T) {
	sound := weight.Spec{Bits: 4, Group: 64, ScaleType: weight.F16}
	tests := []struct {
		name   string
		change func(s *weight.Spec)
		want   string
	}{
		{"sound", func(*weight.Spec) {}, ""},
		{"a row", func(s *weight.Spec) { s.Group = weight.RowGroup }, ""},
		{"another program's group", func(s *weight.Spec) { s.Group = 48 }, ""},
		{"few bits", func(s *weight.Spec) { s.Bits = 1 }, "bits is 1: want 2 to 5"},
		{"many bits", func(s *weight.Spec) { s.Bits = 6 }, "bits is 6: want 2 to 5"},
		{"no group", func(s *weight.Spec) { s.Group = 0 }, "group is 0: want a number of columns, or -1 for one scale a row"},
		{"no scale type", func(s *weight.Spec) { s.ScaleType = 0 }, "unknown scale type: want f16, bf16, f32, e4m4, s1e4m3, e8m0"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := sound
			tc.change(&s)
			err := s.Check(lut.Kind{})
			if got := errorText(err); got != tc.want {
				t.Errorf("got error %q, want %q", got, tc.want)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
