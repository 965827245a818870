// Package export writes a model in the format of another program.
//
// [New] looks at every layer first. It says which layers the target holds as they are, and why not the others.
// [Plan.Run] then writes the model. A layer that does not fit can be quantized anew in the target's own format, from
// the weights that it stands for.
package export
