package model

// StatsOps are the operations that the statistics of what linear layers read are taken by.
type StatsOps interface {
	Ops

	// Gram adds xᵀ·x of x [rows, k], acts, to h, floats [k, k], on its diagonal and above. What
	// lies below is left to Mirror, until which it is anything.
	Gram(h, x Array, rows int)
	// Cross adds (x − xq)ᵀ·xq to d, floats [k, k]. x and xq are acts [rows, k], whose difference
	// is formed in float32.
	Cross(d, x, xq Array, rows int)
	// Mirror makes h, floats [k, k], symmetric, with what lies above the diagonal.
	Mirror(h Array, k int)
}

// Stats are sums over tokens of what linear layers read: x̂ is that in the model whose layers
// before them are quantized, x in the original one.
type Stats struct {
	K, Tokens int
	H         Array // Σ x̂·x̂ᵀ, floats [K, K]
	D         Array // Σ (x − x̂)·x̂ᵀ, floats [K, K]; nil where the original model was not run
}
