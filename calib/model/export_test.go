package model

import "github.com/lutq/lutq/formats/hf"

// Files returns the checkpoint behind a source.
func (c *Checkpoint) Files() *hf.Checkpoint { return c.ckpt }

// SetLossRows sets the number of positions whose logits exist at a time.
func (m *Model) SetLossRows(n int) { m.lossRows = n }
