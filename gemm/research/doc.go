// Package research is the room for experiments. Each folder in it asks one question about multiplying by lookup. Nothing that
// quantizes, stores, multiplies or runs a model needs them, and only the commands that lutq help lists under Research import them.
//
//	dse              how large would a tensor core be that looks sums up instead of multiplying? (lutq dse)
//	lmma             what does an instruction of such a core compute, and how many lookups does it take? (lutq lmma)
//	roofline         how near do kernels come to what memory and arithmetic allow? (lutq bench --roofline)
//
// Some experiments are a few lines of what they compare with, and stay there:
//
//	gemm/cuda        ways to look a table up other than those of models (lutq bench --lookup), and products by binary codes through
//	                 tables of activations (lutq bench --kernel gather:full)
//	gemm/cpu         products through tables of activations that are rounded (lutq eval-ppl --act-table)
//	quantize/kbit    the codes that bitsandbytes' encoder makes, bit for bit (lutq quantize --kbit-encode)
//	calib/learn      the control of an experiment with learned scales (lutq quantize --learn-control)
//
// The package itself has no code.
package research
