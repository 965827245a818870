// Package num converts between float32 and the narrow number formats that
// checkpoints and containers store.
package num
