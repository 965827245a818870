// Package dense writes a model without quantization: each weight that a layer stands for, in 16 or 32 bits, in a folder
// that every program opens.
package dense
