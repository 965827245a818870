// Package cuda implements a decoder's operations, model.Ops, on an NVIDIA GPU.
//
// Dense weights are multiplied by cuBLAS, quantized ones by the fused kernels of
// gemm/cuda from their packed form, and the rest by the kernels beside this file,
// which are compiled for the GPU at hand. Activations are float16, bfloat16 or, for
// tests, float32; residuals, logits, norms and all sums are float32.
//
// Everything is queued on one stream, so operations follow each other without the
// host waiting; the host waits where it reads.
package cuda
