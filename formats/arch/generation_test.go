package arch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestEnds(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"none", "", "[7]"},
		{"null", `{"eos_token_id": null}`, "[7]"},
		{"one", `{"eos_token_id": 9, "temperature": 0.6}`, "[7 9]"},
		{"the same", `{"eos_token_id": 7}`, "[7]"},
		{"several", `{"eos_token_id": [9, 7, 3]}`, "[7 9 3]"},
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
