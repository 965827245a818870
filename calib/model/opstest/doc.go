// Package opstest holds implementations of [model.Gradients] to what they have
// to compute.
//
// [Reference] is one in float64, each operation written as its formula reads.
// [Run] compares any other with it, operation by operation, and so says which
// one is wrong where a comparison of whole models could not.
//
// The package is for tests.
package opstest
