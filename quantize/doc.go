// Package quantize turns a checkpoint into a lutq container.
//
// A [Recipe] says what each tensor becomes, a [Plan] is that recipe held
// against a checkpoint, and [Plan.Run] carries it out: tensors are read,
// quantized and written in blocks of rows by several workers, so that memory
// does not grow with the model, and the same plan gives the same bytes however
// the blocks fall. Work is done in a folder beside the output, with a journal
// of finished tensors; the same plan run again goes on where it was stopped.
//
// How weights become codes is a [Method]'s. One that has to know what layers read
// on a text quantizes them as a [Calibrator] comes by, one block of the model after
// the other; others take the layers in any order. What is written then a [Refiner]
// may improve: its result lies in a file of its own until it is whole, and is copied
// to its place. A new method is a type that implements [Method] and a line in methods,
// and nothing else here knows it.
package quantize
