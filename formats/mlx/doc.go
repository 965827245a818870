// Package mlx reads and writes models as mlx-lm quantizes them for MLX.
//
// A layer P of N rows and K columns, linear or an embedding, is
//
//	P.weight  U32 [N, K·b/32]  each row a stream of codes of b bits, from the lowest of the first word on
//	P.scales  [N, K/g]         of the model's type
//	P.biases  the same
//
// and means w = scale·code + bias, with codes from 0. In the modes mxfp4 (groups of 32) and nvfp4 (groups of 16) codes
// are of E2M1, and there are no biases. Scales are U8: powers of two in mxfp4, E4M3 in nvfp4. config.json has bits,
// group_size and mode under "quantization"; under a layer's name there it has what differs for that layer. The source
// is MLX 0.32.
package mlx
