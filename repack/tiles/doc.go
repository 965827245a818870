// Package tiles keeps a model's layers on disk in the layout of a device's kernels, so that opening the model need not
// lay them out. Such a folder is a cache: it can be deleted, and made again from the container.
//
// It holds safetensors files. For the target cpu a layer P is P.panels and P.panel_scales, U8 [panels, bytes]. For the
// target cuda it is P.tiles and P.tile_scales, U8 [tiles, bytes]. Package repack has the layouts. Both have the table
// P.codebook, F32 [2^Bits], and P.crc32c, U32 [1]: the CRC-32C of codes, scales and table, in this order. A CRC finds
// damage at the speed of memory; a SHA-256 would take longer than laying the layer out again.
//
// The files' metadata has the format, "lutq-panels" or "lutq-tiles", and its version. It also has the digest of the
// container's quantized tensors, which tells the container that a folder belongs to.
package tiles
