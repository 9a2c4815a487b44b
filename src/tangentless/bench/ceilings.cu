// What a GPU can do at most: kernels that issue one kind of instruction and nothing else.
//
// Every thread works on sixteen independent values, so that no instruction waits for the one before it. The results are
// stored, because otherwise the compiler would remove the work.
constexpr int CHAINS = 16;

template <typename Step>
__device__ void run(float* output, int rounds, Step step) {
    float value[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; i++) value[i] = -0.01f * (threadIdx.x + i);
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int i = 0; i < CHAINS; i++) step(value[i]);
    }
#pragma unroll
    for (int i = 1; i < CHAINS; i++) value[0] += value[i];
    output[blockIdx.x * blockDim.x + threadIdx.x] = value[0];
}

// Powers of two, by the special-function unit.
extern "C" __global__ void special_functions(float* output, int rounds) {
    run(output, rounds, [](float& value) { asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(value)); });
}

// Fused multiply-adds, which are issued at the full rate.
extern "C" __global__ void instructions(float* output, int rounds) {
    run(output, rounds, [](float& value) { asm volatile("fma.rn.f32 %0, %0, 0f3F000000, 0f3F000000;" : "+f"(value)); });
}
