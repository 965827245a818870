// Package arch says what decoders are made of: from a config.json, and from
// which tensors there are, it makes the description of a model, a [Decoder].
//
// All knowledge of names lives here: which tensor is a linear layer, which a
// router, an embedding or a norm, which layers read the same state, which are
// one matrix in a runtime, and how a stack of experts is stored. What computes
// a model, quantizes or exports it asks the description and knows no names.
//
// Each family has a file of its own and a line in [families].
package arch
