// Package dense writes the weights that a model's layers stand for: a folder that every program
// opens, in 16 or 32 bits a weight.
package dense
