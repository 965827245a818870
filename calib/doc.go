// Package calib has no code of its own. The folders in it run a model on text.
//
//	tokenizer    text to token ids and back
//	chat         messages into a model's chat template
//	corpus       a text file into windows of tokens; corpus/bundled has a text to calibrate with
//	model        the decoder: forward, backward, and one block at a time for calibration. Its operations lie in
//	             model/cpu and model/cuda; model/opstest checks both
//	eval         perplexity, and the distance from another model, on windows
//	report       shows what an evaluation and a container tell as a page of pictures
//	decode       writes text
//	learn        refines scales of a quantized model by gradient descent
//	fit          gives package quantize what it asks for of a model on a text
//	decodebench  times how fast a model reads and writes
//
// To calibrate is to fit weights to text. Package model runs windows of text through the model, block by block. What
// each linear layer reads goes to package quantize, which rounds the layer and hands it back, so that the next block
// reads what quantized layers give.
package calib
