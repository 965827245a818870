// Package research is the room for experiments. Each folder in it asks one question about multiplying by lookup. Nothing that
// quantizes, stores, multiplies or runs a model needs them, and nothing but the commands of the group "Research" imports them.
//
//   - dse: how large would a tensor core be that looks sums up instead of multiplying? (lutq dse)
//   - lmma: what does an instruction of such a tensor core compute, and how many lookups and additions does it take? (lutq lmma)
//   - roofline: how near do the kernels of lutq come to what memory and arithmetic units allow? (lutq bench --roofline)
//   - plot: the pictures of the others.
//
// The package itself has no code.
package research
