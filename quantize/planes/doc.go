// Package planes quantizes weights to binary codes: each weight is a sum of a few factors with signs, and maybe an
// offset. Package formats/weight/bcq has the form.
//
// A [Quantizer] fits factors and signs of each group of a row in turns, each the best for the other, and keeps those
// with the least squared error.
package planes
