package arch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestEnds: where generation_config.json is there it counts alone, as generation with transformers 5.24 shows.
func TestEnds(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"none", "", "[7]"},
		{"empty", `{}`, "[]"},
		{"null", `{"eos_token_id": null}`, "[]"},
		{"of nothing", `{"bos_token_id": 0}`, "[]"},
		{"no token", `{"eos_token_id": -1}`, "[]"},
		{"one", `{"eos_token_id": 9, "temperature": 0.6}`, "[9]"},
		{"the same", `{"eos_token_id": 7}`, "[7]"},
		{"several", `{"eos_token_id": [9, 7, -1, 3]}`, "[9 7 3]"},
		{"text", `{"eos_token_id": "end"}`, "generation_config.json: eos_token_id: "},
		{"no JSON", `eos`, "generation_config.json: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := &Decoder{EOS: []int{7}}
			got, err := d.Ends([]byte(test.text))
			said := fmt.Sprint(got)
			if err != nil {
				said = err.Error()
			}
			if !strings.Contains(said, test.want) || err == nil && said != test.want {
				t.Errorf("got %s: want %s", said, test.want)
			}
			if !slices.Equal(d.EOS, []int{7}) {
				t.Error("the description was changed")
			}
		})
	}
}
