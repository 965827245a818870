// Package export writes models in the formats that other programs open.
//
// [New] looks at every layer first, and says which the target holds as they are, and why not the
// others; [Plan.Run] then writes the model. A layer that does not fit can be quantized anew, from
// the weights that it stands for, in the target's own format.
package export
