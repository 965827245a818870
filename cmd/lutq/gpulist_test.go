package main

import (
	"slices"
	"testing"
)

func TestGPUList(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []int // nil where it is refused
	}{
		{"0", []int{0}},
		{"1,0", []int{1, 0}},
		{"0,1,7", []int{0, 1, 7}},
		{"", nil},
		{"0,", nil},
		{"0,0", nil},
		{"-1", nil},
		{"cuda", nil},
		{"99999", nil},
	} {
		t.Run(tc.text, func(t *testing.T) {
			var l gpuList
			err := l.Set(tc.text)
			if !slices.Equal(l, tc.want) || (err == nil) != (tc.want != nil) {
				t.Errorf("got %v, error %v: want %v", l, err, tc.want)
			}
			if err == nil && l.String() != tc.text {
				t.Errorf("%q prints as %q", tc.text, l.String())
			}
		})
	}
}
