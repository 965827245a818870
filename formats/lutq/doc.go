// Package lutq reads the lutq container and says what lies in it. A container is a Hugging Face folder whose linear
// layers are quantized: stored as codes, scales and a codebook, or as another kind of weight.
//
// # Files
//
// The folder holds:
//
//   - safetensors shards with an index, or one model.safetensors. Tensors that are not quantized are there as they were, bit for
//     bit.
//   - config.json: the original's, with the key "quantization_config" added. Where it has no "auto_map", that is added too and
//     names lutq_hf.py.
//   - lutq_hf.py, with which transformers opens the folder.
//   - the side files of the original, byte for byte. Its README.md is called ORIGINAL_README.md.
//   - README.md, a model card, which may be edited or left out.
//   - .lutq, which lists the others. Lutq replaces no folder that holds other files than those; see package outdir. It may be left
//     out.
//
// Nothing depends on a GPU, a kernel's tiles or the version of the tool.
//
// A linear layer P had a weight P.weight of N rows (output features) and K columns (input features). It is three
// tensors instead:
//
//	P.codes     U8  [N, ⌈K·b/8⌉]  a row is a little-endian bit stream: code k in bits [k·b, (k+1)·b), the rest zero
//	P.scales    F16, BF16, F32 or U8 [N, ⌈K/g⌉]  one for g consecutive columns; the last group of a row may be short
//	P.codebook  F32 [2^b]  ascending
//
// They mean the weights
//
//	ŵ[n,k] = codebook[code(n,k)] · scale[n, k/g]
//
// with one float32 multiplication. U8 scales are bytes of type E4M4 (unsigned), S1E4M3 (signed) or F8E8M0, which is
// called e8m0 (a power of two: 2^(u-127) for byte u; 255 is not allowed). See package num. E4M4 and S1E4M3 may need a
// power of two to cover a layer's scales: that is part of the codebook.
//
// # Kinds
//
// The above is the kind "lut". A container whose layers all have it is written in version 1, which names no kinds. In
// version 2 and later a layer may have another kind, which its configuration names under "kind".
//
// A layer of the kind "bcq" with q bits is
//
//	P.planes   U8 [N, q, ⌈K/8⌉]  bit k%8, from the lowest, of byte k/8 of plane i; after the last, zero
//	P.alphas   F16, BF16 or F32 [N, ⌈K/g⌉, q]
//	P.offsets  the same type [N, ⌈K/g⌉]; may be left out, and is 0 then
//
// and means the weights that float32 sums give in this order, with + where the bit of the plane is set:
//
//	ŵ = offset ± alpha₀ ± alpha₁ … ± alpha_(q-1)
//
// A layer of the kind "lut24", for K and g that are multiples of 4, is
//
//	P.codes, P.scales, P.codebook  as above for K/2 columns in groups of g/2
//	P.pattern  U8 [N, ⌈K/8⌉]  nibble c%2 of byte c/2, the low one first, is i0 | i1<<2, i0 < i1; after the last, zero
//
// and means that columns 4c+i0 and 4c+i1 have the weights of the row's codes 2c and 2c+1, and the other two are exactly
// 0.
//
// In version 3 a layer may be of the kind "trellis" as well, with b bits a weight: "bits", and half a bit more where its
// configuration says "half". It has one scale a row. Its "codebook" is "trellis", with 1 ≤ b ≤ 6 and
//
//	P.rings    U8 [⌈N/8⌉, 1, ⌈K/16⌉, 16·b]  rings of 8 rows × 16 columns
//	P.scales   F16, BF16 or F32 [N]
//	P.factors  F16 [K]  may be left out
//	P.pairs    F16 [256, 2]  may be left out
//
// or EXL3's "mul1", "mcg" or "3inst", with 1 ≤ b ≤ 8, of which mul1 alone has halves, 1.5 to 3.5. With N and K rounded up to
// multiples of 128 it is then
//
//	P.rings    U8 [N/128, 8, K/16, 32·b]  rings of 16 × 16
//	P.scales   F16, BF16 or F32 [N/128, 128]
//	P.factors  F16 [K]
//
// A ring is a string of bits whose end joins its beginning. Each of its steps adds bits to those of the steps before, and has a
// window x of 16 bits, from which one weight follows, or two. Of the codebook trellis:
//
//	string    bit i is bit i%8 of byte i/8, from the lowest
//	step i    of 64 adds 2b bits; x is bits 2b·i to 2b·i+15, the first of which is the lowest
//	weights   r = 2·(i>>2 & 3) + (i & 1) is their row, c = 4·(i>>4) + (i & 2) the first's column, c+1 the second's
//	values    pairs[y>>7 & 255] ^ (y & m), y = x·0xCBAC1FED: two float16, the first in the low half
//	m         0x81808000, or 0x83C08060 for b > 4
//
// and of EXL3's:
//
//	string    bit i is bit 31-i%32 of the little-endian word i/32 of 32 bits
//	step i    of 256 adds b bits; of b with a half, ⌊b⌋ where i is even and ⌈b⌉ where it is odd. x is the 16 bits that end
//	          with the step's last, which is the lowest
//	weight    with l = i>>3 and j = i & 7, its row is (l>>2) + 8·(j>>2), its column 2·(l & 3) + (j & 1) + 8·(j>>1 & 1)
//	mul1      y = x·0x83DCD12D: 1024 plus the sum of y's four bytes, times h(0x1EEE), plus h(0xC931), rounded once to float16
//	mcg       y = x·0xCBAC1FED & 0x8FFF8FFF ^ 0x3B603B60: the sum of the float16 in y's halves, rounded to float16
//	3inst     the same with x·89226354 + 64248484 in the place of the product
//
// Products are modulo 2^32, and h is the float16 of some bits. Where P.pairs is left out, "tables" in the configuration has them, by b
// in words, such as "2.5": in base64, as P.pairs are stored. Where P.factors is left out, that of column k is -1 where bit 16 of
// (z ^ z>>15)·0x85EBCA77 is set for z = (k+1)·0x9E3779B1, and else 1.
//
// Let r[n,k] be what rings hold, and H[i,j] -1 where i & j has an odd number of bits that are set, else 1, with i, j, n and k counted
// from the beginning of a block of columns or rows. The weights are sums over blocks:
//
//	trellis  ŵ[n,k] = Σⱼ H[j,k] · r[n,j] · scale[n] · factor[k]
//	EXL3     ŵ[n,k] = Σᵢⱼ H[i,n] · H[j,k] · r[i,j] / 128 · scale[n] · factor[k]
//
// Blocks have 128 columns, as many as there are; the rest is blocks of powers of two, the largest first. Everything is float32, in this order.
// Of the numbers of a block of columns, those that are 1 apart become their sum and their difference; then those that are 2
// apart, 4 and so on. A block of s < 128 columns is multiplied by √(128/s). Of EXL3's, the same is done to
// blocks of 128 rows, and the result is divided by 128. Then come the scale, and last the factor.
//
// # Stacks
//
// A stack of experts is one tensor P of shape [E, N, K] in the original. It is stored as the matrix of all its rows,
// [E·N, K]: rows e·N to (e+1)·N are expert e's. Its entry in the configuration says "experts": E, and "transposed"
// where the original is [E, K, N].
//
// # Configuration
//
// quantization_config names the defaults. Under "tensors" it names every quantized layer with its shape [N, K], its
// relative error ‖W-Ŵ‖/‖W‖ and whatever differs from the defaults. "group" is -1 where a row has one scale.
//
// "method" says how codes were chosen:
//
//	rtn              every weight has the nearest code
//	magnitude        the two largest of four have the nearest code
//	wanda            likewise, where columns count as the layer reads them on a text
//	gptq, sparsegpt  codes make up for each other on what the layer reads
//	…+learn          scales were learned after the method
//	nfl              is rtn+learn on NormalFloat tables
//
// Where a text was read, "calib" says which one, see [Calibration]. Where scales were learned, "learn" says how, see [Learning].
//
// # Digests
//
// "sha256" covers what was quantized. It is the SHA-256 of one line for each of the tensors that store every layer,
// such as P.codes, sorted by name:
//
//	name SP dtype SP dimensions separated by "x" SP hex SHA-256 of the data LF
//
// "digests" has the hex SHA-256 of everything else as well, so that damage is found wherever it is:
//
//	"tensors"  by name, of the data of every tensor in the shards, quantized or copied
//	"headers"  by shard, of the length and the JSON before the data
//	"files"    by name, of every side file and of the shards' index, but for README.md
//
// "config_sha256", the last key, is that of config.json itself, with 64 zeros for these digits. The two keys are there
// together or not at all: older containers have neither, and are read as they are. Nothing else belongs in the folder,
// hidden files apart.
//
// [Open] checks config.json and the headers. [Reader] and [Model.Linear] check each tensor that they read.
// [Model.Verify] checks all.
package lutq
