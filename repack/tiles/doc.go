// Package tiles keeps the layers of a container on disk as a device's kernels read them,
// so that they need not be laid out when a model is loaded. Such a folder is a cache: it can
// be deleted, and made again from the container.
//
// It holds safetensors files. For the target cpu a layer P is P.panels and P.panel_scales,
// U8 [panels, bytes], for the target cuda P.tiles and P.tile_scales, U8 [tiles, bytes], laid
// out as package repack says. Both have the table P.codebook, F32 [2^Bits], and P.crc32c,
// U32 [1]: the CRC-32C of codes, scales and table, in this order. It finds damage at the
// speed of memory; a SHA-256 would take longer than laying the layer out again. The files'
// metadata has the format, "lutq-panels" or "lutq-tiles", its version, and the digest of the
// container's quantized tensors, by which a folder belongs to a container.
package tiles
