// Package lutq reads the lutq container and says what lies in it. A container is a Hugging Face folder whose linear
// layers are quantized: stored as codes, scales and a codebook, or as another kind.
//
// # Files
//
// The folder holds the side files of the original, byte for byte; lutq_hf.py, with which transformers
// opens it; the original's config.json with the key "quantization_config" added, and "auto_map", which
// names lutq_hf.py, where there is none; and safetensors shards with an index (or one
// model.safetensors). Tensors that are not quantized are in the shards as they were, bit for bit. A
// linear layer P, whose weight P.weight had N rows (output features) and K columns (input features),
// is three tensors instead:
//
//	P.codes     U8  [N, ⌈K·b/8⌉]  a row is a little-endian bit stream: code k in bits [k·b, (k+1)·b), the rest zero
//	P.scales    F16, BF16, F32 or U8 [N, ⌈K/g⌉]  one for g consecutive columns; the last group of a row may be short
//	P.codebook  F32 [2^b]  ascending
//
// and means the weights
//
//	ŵ[n,k] = codebook[code(n,k)] · scale[n, k/g]
//
// with one float32 multiplication. U8 scales are bytes of type E4M4 (unsigned),
// S1E4M3 (signed) or, called e8m0, F8E8M0 (a power of two: 2^(u-127) for byte u, of
// which 255 is not allowed); see package num. A power of two that E4M4 and S1E4M3
// need to cover a layer's scales is part of the codebook. Nothing in the folder depends
// on a GPU, a kernel's tiles or the version of the tool. The file .lutq lists
// the others, so that lutq replaces no folder with files of somebody else's; see
// package outdir. It may be left out.
//
// # Kinds
//
// That is the kind "lut". A container of version 2 may have layers of other kinds, which
// their configuration names under "kind". One of the kind "bcq", of q bits, is
//
//	P.planes   U8 [N, q, ⌈K/8⌉]  bit k%8, from the lowest, of byte k/8 of plane i; after the last, zero
//	P.alphas   F16, BF16 or F32 [N, ⌈K/g⌉, q]
//	P.offsets  the same type [N, ⌈K/g⌉]; may be left out, and is 0 then
//
// and means the weights that float32 sums give in this order,
//
//	ŵ = offset ± alpha₀ ± alpha₁ … ± alpha_(q-1)
//
// + where the bit of the plane is set. One of the kind "lut24", of which K and g are multiples of 4, is
//
//	P.codes, P.scales, P.codebook  as above for K/2 columns in groups of g/2
//	P.pattern  U8 [N, ⌈K/8⌉]  nibble c%2 of byte c/2, the low one first, is i0 | i1<<2, i0 < i1; after the last, zero
//
// and means those weights in columns 4c+i0 and 4c+i1, code 2c and 2c+1 of the row, and exactly 0 in the
// other two. Containers with layers of the kind lut alone are written in
// version 1, which names no kinds.
//
// # Stacks
//
// A stack of experts, one tensor P of shape [E, N, K] in the original, is stored as the
// matrix of all its rows, [E·N, K]: rows e·N to (e+1)·N are expert e's. Its entry in the
// configuration says "experts": E, and "transposed" where the original is [E, K, N].
//
// # Configuration
//
// quantization_config names the defaults, and under "tensors" every quantized
// layer with its shape [N, K], its relative error ‖W-Ŵ‖/‖W‖ and whatever
// differs from the defaults. "group" is -1 where a row has one scale. "method" is
// rtn where every weight has the nearest code, magnitude where so do the two largest of four, and gptq
// and sparsegpt where codes make up for each other on what the layer reads; "calib" then says on which texts, see [Calibration].
// +learn behind a method is for scales learned after it, and nfl for rtn+learn on
// NormalFloat tables; "learn" then says how and on which texts, see [Learning].
//
// # Digests
//
// "sha256" covers what was quantized: the SHA-256 of one line for each of the
// tensors that store every layer, such as P.codes, sorted by name,
//
//	name SP dtype SP dimensions separated by "x" SP hex SHA-256 of the data LF
//
// "digests" has the hex SHA-256 of everything else as well, so that damage is
// found wherever it is:
//
//	"tensors"  by name, of the data of every tensor in the shards, quantized or copied
//	"headers"  by shard, of the length and the JSON before the data
//	"files"    by name, of every side file and of the shards' index
//
// and "config_sha256", the last key, that of config.json itself, as it is with
// 64 zeros for these digits. Nothing else belongs in the folder, hidden files apart.
// The two keys are there together or not at all: containers
// written before there were any are read as they are.
//
// [Open] checks config.json and the headers, [Reader] and [Model.Linear] each
// tensor that they read, [Model.Verify] all of it.
package lutq
