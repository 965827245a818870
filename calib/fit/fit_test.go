package fit

import (
	"errors"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/learn"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/gptq"
)

// TestTo: a recipe gets what its methods ask for, whose flags ask for the same again.
func TestTo(t *testing.T) {
	const text, each = "--calib harbour.txt --calib-windows 3 --calib-ctx 32 --calib-bos half", "--calib harbour.txt --calib-windows 3 --calib-ctx 32 --calib-bos window"
	learned := func(o learn.Options) *Learning {
		o.Epochs, o.Batch = 1, 1
		return &Learning{Options: o, After: true, Valid: 1}
	}
	for _, tc := range []struct {
		name, recipe      string
		learn             *Learning
		calibrate, refine string // flags
	}{
		{"nothing", `{}`, nil, "", ""},
		{"second moments", `{"method": "gptq"}`, nil, text + " --damp 0.1 --retarget 0.5 --rescale=false --seed 7 --device cpu", ""},
		{"a rule alone", `{"tensors": [{"match": "down_proj", "method": "gptq"}]}`, nil, text + " --damp 0.1 --retarget 0.5 --rescale=false --seed 7 --device cpu", ""},
		{"the diagonal alone", `{"method": "wanda"}`, nil, text + " --seed 7 --device cpu", ""},
		{"scales", `{}`, learned(learn.Options{Mode: learn.Lutq}), "", "--learn " + text + " --valid-windows 1 --learn-mode lutq --seed 7 --device cpu"},
		{
			"scales as FLUTE has them", `{}`, learned(learn.Options{Mode: learn.Flute, BF16: true, LSQ: true, Rate: 0.25, Recode: 2, Objective: learn.KL}), "",
			"--learn " + each + " --valid-windows 1 --learn-mode flute --learn-objective kl --learn-rate 0.25 --learn-recode 2 --learn-grad lsq --learn-params bf16 --device cpu",
		},
		{"codes as FLUTE has them", `{"method": "nfl"}`, learned(learn.Options{Mode: learn.Flute}), "", "--learn " + each + " --valid-windows 1 --learn-mode flute --device cpu"},
		{
			"both", `{"method": "gptq"}`, learned(learn.Options{Mode: learn.Lutq, Table: true}), text + " --damp 0.1 --retarget 0.5 --rescale=false --seed 7 --device cpu",
			"--learn --valid-windows 1 --learn-mode lutq --learn-table",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := quantize.ParseRecipe([]byte(tc.recipe))
			if err != nil {
				t.Fatal(err)
			}
			l, err := To(t.Context(), modeltest.Open(t, "../testdata/lutq-tiny"), &r, Options{
				Texts: []string{"../testdata/harbour.txt"}, Windows: 3, Context: 32, Seed: 7, GPTQ: gptq.Options{Damp: 0.1, Retarget: 0.5}, Learn: tc.learn, Device: "cpu",
			})
			if err != nil {
				t.Fatal(err)
			}
			calibrate, refine := "", ""
			if c := r.Calibrate; c != nil {
				calibrate = strings.Join(c.Flags(), " ")
				if !strings.HasPrefix(c.Key(), calibrate+" ") {
					t.Errorf("the key %q does not name the text", c.Key())
				}
				if record := c.Record(); (record.Damp != 0) != strings.Contains(calibrate, "--damp") || record.Windows != 3 || record.Tokens != 95 {
					t.Errorf("recorded as %+v", record)
				}
			}
			if r.Refine != nil {
				refine = strings.Join(r.Refine.Flags(), " ")
			}
			if calibrate != tc.calibrate || refine != tc.refine || (l == nil) != (tc.learn == nil) {
				t.Errorf("flags are %q and %q: want %q and %q", calibrate, refine, tc.calibrate, tc.refine)
			}
			if tc.learn != nil && l.o.Learn.Fitted != (tc.calibrate != "") {
				t.Errorf("learned after fitting: %v", l.o.Learn.Fitted)
			}
			if tc.learn != nil && (r.Default.ScaleType == weight.BF16) != tc.learn.BF16 {
				t.Errorf("scales are of type %v", r.Default.ScaleType)
			}
			if flute := r.Default.Method == "nfl"; (r.Default.Scale == weight.Absmax) != flute {
				t.Errorf("scales are found by %v", r.Default.Scale)
			}
		})
	}
}

// TestReady: what stands against learning is told before a device is opened, and nothing has begun.
func TestReady(t *testing.T) {
	var r quantize.Recipe
	stop := errors.New("no memory")
	l, err := To(t.Context(), modeltest.Open(t, "../testdata/lutq-tiny"), &r, Options{
		Texts: []string{"../testdata/harbour.txt"}, Windows: 2, Context: 32, Device: "cpu",
		Learn: &Learning{Options: learn.Options{Mode: learn.Lutq}, Ready: func() error { return stop }},
		Open: func(int64) ([]model.Ops, func() error, error) {
			t.Error("the device was opened")
			return nil, nil, stop
		},
		Begin: func(string) func() {
			t.Error("learning has begun")
			return func() {}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Refine(t.Context(), nil, nil, ""); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
}
