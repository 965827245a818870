// Package hf reads and writes Hugging Face model folders: safetensors shards,
// their index, config.json and the files beside them.
//
// [Open] checks everything that a folder says about its tensors before it hands out the first one, and reads no tensor
// data. Data is read on demand, by offset. So a checkpoint larger than memory can be streamed. A file that shrinks
// meanwhile gives an error. [Writer] lays out new shards first and then takes the data in any order from any number of
// goroutines.
//
// Weights that are published in 8 or 4 bits with scales are read as the values that
// they stand for; see [Encoding].
//
// # The safetensors format
//
// A file is an unsigned 64-bit little-endian length n, n bytes of JSON and the
// data. The JSON is one object, with white space about it at most. Its
// keys are tensor names; each value has exactly the keys dtype, shape (a list
// of natural numbers, empty for a scalar) and data_offsets (begin and end,
// relative to the end of the JSON). The key __metadata__ holds an object of
// strings, or null, instead. Tensors are row-major and little-endian, and cover the data
// without overlap or hole. Their offsets need not be multiples of their elements' sizes.
//
// This package is stricter than most readers. It refuses a key that appears twice, a tensor's name that appears twice
// with different values, invalid UTF-8, and a shape whose product overflows even where a dimension is zero.
package hf
