// Package tasks measures language models by questions that have an answer: which of some continuations of a text a model
// finds most likely, and whether it finds the right one so.
//
// A [Task] is read from JSONL, from a task file of lm-evaluation-harness in YAML, or is one of [Names], of which this
// package has the form. Data is the user's, or that of a data set on a hub, which a [Fetcher] brings. A task asks what
// lm-evaluation-harness 0.4.13 asks, to the letter: contexts, examples drawn by the same seed, delimiters, and where a
// context ends and a continuation begins in tokens.
//
// # Definitions
//
// With ll(c) = Σ ln p(token | all before it) over the tokens of continuation c behind its context:
//
//	acc       share of items whose right choice has the largest ll, of equals the first
//	acc_norm  the same by ll over the choice's length in characters, without the delimiter before it
//	ppl       exp(−mean ll), of tasks of one continuation, where acc is the share that greedy decoding writes
//	stderr    √(Σ(x−mean)²/(n−1)/n)
//
// Two models answer the same items, so that they are held against each other item by item: see [Compare].
package tasks
