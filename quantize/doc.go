// Package quantize turns a model into a container of quantized layers.
//
// One weight goes through it so. A [Recipe] says what each tensor becomes. [NewPlan] holds the recipe against a model
// and decides for every tensor. [Plan.Run] carries the plan out: workers read blocks of rows as float32, a [Method]
// makes codes and scales of them, and package formats/lutq writes these. Memory does not grow with the model, and a
// plan gives the same bytes whatever the blocks are. Work happens in a folder beside the output, with a journal of the
// tensors that are done, so the same plan goes on where a run was stopped.
//
// Where layers do not depend on each other, several processes may make parts of a plan, on machines that share a folder:
// [Plan.RunPart] makes one, and [Plan.Merge] makes of all what one process would have made.
//
// Methods differ in what they need to know:
//
//	nothing               rows come in any order: quantize/rtn (nearest values), quantize/planes (binary codes),
//	                      quantize/prune (two of four weights), quantize/kbit (as bitsandbytes rounds)
//	what the layer reads  a Calibrator walks the model block by block and hands over statistics: quantize/gptq,
//	                      and quantize/prune where columns do not count alike
//
// What needs to know nothing reads each tensor once, so that the files of a model may come one after the other: see [Shards].
//
// A [Calibrator] is given by the caller. Methods make codes through the interface [rounding.Quantizer]. After any method a [Refiner] may improve scales. Its
// result lies in a file of its own until it is whole, and is then copied to its place.
//
// A new method is a type that implements [Method] and a line in the function methods. Nothing else here knows it.
package quantize
