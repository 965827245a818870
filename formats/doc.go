// Package formats has no code of its own. The folders in it know what lies on disk.
//
// What a stored weight is:
//
//	weight           the kinds of weights: lut (a table), bcq (binary codes), lut24 (2:4 sparse)
//	num              numbers of 4 to 32 bits, and codes packed in bits
//
// What is read:
//
//	input            opens every file that a user names, safely
//	hf               a Hugging Face folder: safetensors, config.json, side files
//	gguf             a GGUF file
//	source           any model, opened once: what it is, its tensors, what is quantized and how, as one value
//	arch             which tensors of a model are what: linear layers, norms, experts
//	added            the added tokens of a tokenizer
//	ranks            a tekken.json or tiktoken.model, as a tokenizer.json
//
// What is written:
//
//	lutq             the container that lutq quantize writes, and its digests
//	outdir           makes output folders appear whole or not at all
//	export           writes a container in another program's format
//	foreign          what those formats have in common; foreign/codes decodes their codes
//	kernels          layouts of other programs' kernels, byte for byte
//	svg              pictures, in colors that everybody tells apart
//
// Package racetest is for tests. Every other folder is one format of another program: ct (compressed-tensors), gptq, awq, bnb, exl3, mlx, modelopt, mxfp4,
// dense, marlin, marlin24, kbit, lutgemm.
//
// A weight passes through here twice. Package source opens the model and hands out each tensor as float32, when it is
// asked for. Package quantize makes codes of it. Package lutq writes them, and later gives each layer back as a matrix
// of package weight/lut, which package repack lays out for a kernel.
package formats
