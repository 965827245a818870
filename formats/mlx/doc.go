// Package mlx reads and writes what MLX quantizes, as mlx-lm converts models.
//
// A layer P of N rows and K columns, linear or an embedding, is
//
//	P.weight  U32 [N, K·b/32]  each row a stream of codes of b bits, from the lowest of the first word on
//	P.scales  [N, K/g]         of the model's type
//	P.biases  the same
//
// and means w = scale·code + bias, with codes from 0. In the modes mxfp4 (groups of 32) and
// nvfp4 (of 16) codes are of E2M1, scales U8, powers of two or of E4M3, and biases missing.
// config.json has bits, group_size and mode under "quantization", and there under a layer's
// name what it has of its own. The source is MLX 0.32.
package mlx
