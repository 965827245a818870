package main

import (
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/tasks"
)

// TestTaskNames: the help of eval-tasks names the tasks that the program knows.
func TestTaskNames(t *testing.T) {
	code, help, stderr := exec("help", "eval-tasks", "--all")
	if code != 0 {
		t.Fatal(stderr)
	}
	for _, name := range tasks.Names() {
		if !strings.Contains(help, name) {
			t.Errorf("the help does not name %s", name)
		}
	}
}
