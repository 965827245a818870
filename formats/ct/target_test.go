package ct

import "testing"

// TestTarget: a layer whose module has other names elsewhere is found under each, and no other is.
func TestTarget(t *testing.T) {
	for _, test := range []struct {
		layer, module string
		in            bool
	}{
		{"model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj", true},
		{"model.layers.1.mlp.up_proj", "backbone.layers.1.mlp.up_proj", false},
		{"backbone.layers.1.mixer.up_proj", "backbone.layers.1.mixer.up_proj", true},
		{"backbone.layers.1.mixer.up_proj", "model.layers.1.mixer.up_proj", true},
		{"backbone.layers.1.mixer.up_proj", "model.layers.1.mixer.up_proj2", false},
		{"backbone.layers.1.mixer.up_proj", "model.layers.11.mixer.up_proj", false},
	} {
		c := config{Groups: map[string]group{"group_0": {Targets: []string{target(test.layer)}, Weights: &weights{}}}}
		all, err := c.groups()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := of(all, test.module); (err == nil) != test.in {
			t.Errorf("%s under %s: error %v: want it to be there %v", test.layer, test.module, err, test.in)
		}
	}
}
