package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestEvalDevices holds the perplexity on a GPU to that on the CPU, from dense and
// from packed weights.
func TestEvalDevices(t *testing.T) {
	if _, err := driver.FirstGPU(); err != nil {
		t.Skip(err)
	}
	const data = "../../calib/testdata/"
	packed := filepath.Join(t.TempDir(), "packed")
	if code, _, stderr := exec("quantize", "--preset", "fast", data+"lutq-tiny", packed, "--bits", "3"); code != 0 {
		t.Fatal(stderr)
	}
	type result struct {
		PPL    float64 `json:"ppl"`
		KL     float64 `json:"kl_mean"`
		Device string  `json:"device"`
		DType  string  `json:"dtype"`
	}
	evaluate := func(m, device, dtype string) (r result) {
		t.Helper()
		code, stdout, stderr := exec("eval-ppl", m, "--text", data+"harbour.txt", "--against", data+"lutq-tiny",
			"--ctx", "256", "--windows", "4", "--device", device, "--dtype", dtype, "--json")
		if code != 0 {
			t.Fatal(stderr)
		}
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, m := range []string{data + "lutq-tiny", packed} {
		want := evaluate(m, "cpu", "f32")
		for dtype, tol := range map[string]float64{"f32": 1e-5, "f16": 1e-3, "bf16": 3e-3} {
			got := evaluate(m, "cuda", dtype)
			if got.Device != "cuda" || got.DType != dtype {
				t.Errorf("%s: the report says %s in %s", dtype, got.Device, got.DType)
			}
			if math.Abs(math.Log(got.PPL/want.PPL)) > tol || math.Abs(got.KL-want.KL) > tol {
				t.Errorf("%s in %s: got %+v, want %+v", filepath.Base(m), dtype, got, want)
			}
		}
	}
}

func TestHintEval(t *testing.T) {
	overflow := fmt.Errorf("x: state is %w", model.ErrNotFinite)
	for _, tc := range []struct {
		name  string
		err   error
		dtype string
		hint  bool
	}{
		{"overflow in f16", overflow, "f16", true},
		{"overflow in bf16", overflow, "bf16", false},
		{"overflow on the CPU", overflow, "f32", false},
		{"another error", errors.New("x"), "f16", false},
		{"none", nil, "f16", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := hintEval(tc.err, evalOptions{deviceFlags: deviceFlags{dtype: tc.dtype}})
			var h hintError
			if errors.As(err, &h) != tc.hint || !errors.Is(err, tc.err) {
				t.Errorf("got %#v, want a hint: %t", err, tc.hint)
			}
		})
	}
}
