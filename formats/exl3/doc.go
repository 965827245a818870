// Package exl3 reads and writes the format of exllamav3.
//
// A layer P of N rows (outputs) and K columns (inputs), each up to the next multiple of 128, is
//
//	P.trellis  I16 [K/16, N/16, 16·b]  tiles of 16 × 16 weights: rings of b bits a weight, 1 to 8, or 1.5, 2.5 or 3.5
//	P.suh      F16 [K]                 factors of inputs
//	P.svh      F16 [N]                 factors of outputs
//	P.su       I16 [K/16]              in the place of suh: signs, bit i of word j that of input 16·j+i, 1 for −1
//	P.sv       I16 [N/16]              the same of svh
//	P.mul1     I32 []                  0x83DCD12D: there where the codebook is mul1
//	P.mcg      I32 []                  0xCBAC1FED: there where it is mcg; without either it is 3inst
//	P.bias     F16 [N]                 may be missing
//
// What rings and codebooks are, and what they mean, package [trellis] has: its rings are these tiles, byte for byte, in
// the order of outputs first. How many rows and columns are not padding the model's config.json tells. Other
// tensors have the names and types of any Hugging Face folder, and an output head is never left out for the embedding. Matrices that a
// model has for several layers at once, such as qkv_proj of Phi-3, are stored as these layers.
//
// config.json says under quantization_config that quant_method is exl3. quantization_config.json repeats that, with a list of all
// tensors. Programs go by the tensors. The source of all this is the code of exllamav3 1.6.5.
//
// [trellis]: https://pkg.go.dev/github.com/lutq/lutq/formats/weight/trellis
package exl3
