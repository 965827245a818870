// Activations of gates, for kernels that have the types of ptx.cuh or their own.

// The names are those of package arch. SWIGLU_OAI clamps both factors.
enum Activation { SILU, GELU, GELU_TANH, RELU, SWIGLU_OAI };

// Gating has what SWIGLU_OAI needs besides.
struct Gating {
    float alpha, limit;
};

__device__ __forceinline__ float gelu_angle(float g) { return 0.7978845608f * (g + 0.044715f * g * g * g); }
__device__ __forceinline__ float normal_below(float g) { return 0.5f * (1.0f + erff(g * 0.70710678f)); }

template <Activation A>
__device__ __forceinline__ float activated(float g, Gating a) {
    if (A == SILU) return g / (1 + expf(-g));
    if (A == GELU) return g * normal_below(g);
    if (A == GELU_TANH) return 0.5f * g * (1.0f + tanhf(gelu_angle(g)));
    if (A == RELU) return fmaxf(g, 0.0f);
    g = fminf(g, a.limit);
    return g / (1 + expf(-a.alpha * g));
}

// other_factor is what stands beside the activated gate.
template <Activation A>
__device__ __forceinline__ float other_factor(float u, Gating a) {
    if (A != SWIGLU_OAI) return u;
    return fminf(fmaxf(u, -a.limit), a.limit) + 1;
}
