// turn turns the four words of four lanes: lane i gets word i of each.
__device__ __forceinline__ void turn(u32 (&v)[4], u32 lane) {
    const u32 odd = lane % 2, upper = lane / 2 % 2;
    const u32 a = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1), b = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
    const u32 w[4] = {odd ? a : v[0], odd ? v[1] : a, odd ? b : v[2], odd ? v[3] : b};
    const u32 c = __shfl_xor_sync(~0u, upper ? w[0] : w[2], 2), d = __shfl_xor_sync(~0u, upper ? w[1] : w[3], 2);
    v[0] = upper ? c : w[0];
    v[1] = upper ? d : w[1];
    v[2] = upper ? w[2] : c;
    v[3] = upper ? w[3] : d;
}
