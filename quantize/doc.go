// Package quantize turns a checkpoint into a lutq container.
//
// A [Recipe] says what each tensor becomes, a [Plan] is that recipe held
// against a checkpoint, and [Plan.Run] carries it out: tensors are read,
// quantized and written in blocks of rows by several workers, so that memory
// does not grow with the model, and the same plan gives the same bytes however
// the blocks fall. Work is done in a folder beside the output, with a journal
// of finished tensors; the same plan run again goes on where it was stopped.
package quantize
