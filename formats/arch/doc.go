// Package arch says what a model is made of. From a config.json and the names of its tensors it makes a [Decoder]:
// blocks, their linear layers, norms and experts.
//
// All knowledge of names lives here: which tensor is a linear layer, a router, an embedding or a norm; which layers
// read the same state; which are one matrix in a runtime; how a stack of experts is stored. Whoever runs, quantizes or
// exports a model asks the description and knows no names.
//
// Each family has a file of its own and a line in [families].
package arch
