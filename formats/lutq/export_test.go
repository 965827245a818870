package lutq

import "golang.org/x/sync/semaphore"

// Sealed reports whether a config.json has the digest that it names.
var Sealed = sealed

// Limit bounds the bytes that wait for their hash.
func (r *Reader) Limit(n int64) { r.limit, r.waiting = n, semaphore.NewWeighted(n) }
