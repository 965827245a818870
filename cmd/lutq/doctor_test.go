package main

import "testing"

func TestPeerLines(t *testing.T) {
	for _, tc := range []struct {
		name string
		f    peerFindings
		want string
	}{
		{"all", peerFindings{GPU: 1, Reaches: []int{0, 2}}, "reaches the memory of all other GPUs"},
		{"some", peerFindings{GPU: 0, Reaches: []int{2}}, "reaches the memory of GPUs 2"},
		{"none", peerFindings{GPU: 0}, "reaches no other GPU's memory"},
		{"unknown", peerFindings{GPU: 0, Error: "lost"}, "its way to other GPUs' memory is unknown: lost"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.f.line(3); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
