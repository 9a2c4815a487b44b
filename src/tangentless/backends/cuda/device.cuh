// Everything stage.cu and front.cu need from the hardware, most of it as inline PTX: thread indices, shuffles,
// barriers, shared memory, tensor cores, and the fast approximations of the special-function unit.
//
// The tests compile the same kernels for the host: with HOST_EMULATION, tests/cuda_host/emulation.hpp defines these
// names and runs each thread as a fiber, so that a wrong index fails without a GPU.
#pragma once

#ifdef HOST_EMULATION
#include "emulation.hpp"
#else

#define DEVICE __device__ __forceinline__
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int block_index() { return blockIdx.x; }

DEVICE double from_lane(double value, int lane) { return __shfl_sync(~0u, value, lane); }
// The value of the lane DISTANCE before (after) this one. Where no such lane exists, the result is meaningless: callers
// mask it.
template <int DISTANCE>
DEVICE float from_before(float value) { return __shfl_up_sync(~0u, value, DISTANCE); }
template <int DISTANCE>
DEVICE float from_after(float value) { return __shfl_down_sync(~0u, value, DISTANCE); }
// The same value, which must be equal in all lanes. After the reduction the compiler knows that it is, and can keep it,
// and what is computed from it, in uniform registers.
DEVICE int uniform(int value) { return __reduce_max_sync(~0u, value); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE void sync_block() { __syncthreads(); }

// A barrier for the warps of a team. Named barrier 0 is that of sync_block, so teams have 1, 2, ...
DEVICE void sync_team(int team, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(threads) : "memory"); }

// An mbarrier in shared memory. arrive() does not block; a thread tests or waits later whether the phase is complete,
// that is, whether it had all its `arrivals`. A phase is named by its parity, 0 or 1: no thread is ever two phases
// behind.
DEVICE void init_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void arrive(unsigned barrier) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier) : "memory");
}
// Arrives when the copies that this thread has started so far are complete; the call itself returns at once. With
// `.noinc` this is one of the `arrivals` of the phase.
DEVICE void arrive_with_copies(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
#define ASK_BARRIER(how)                                                                                 \
    asm volatile("{.reg .pred p; mbarrier." how ".parity.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p;}" \
                 : "=r"(passed)                                                                          \
                 : "r"(barrier), "r"(phase)                                                              \
                 : "memory")
DEVICE bool has_passed(unsigned barrier, int phase) {
    int passed;
    ASK_BARRIER("test_wait");
    return passed;
}
DEVICE void wait_for(unsigned barrier, int phase) {
#if __CUDA_ARCH__ >= 900
    for (int passed = 0; !passed;) ASK_BARRIER("try_wait");  // suspends the thread for a limited time
#else
    while (!has_passed(barrier, phase)) {}
#endif
}
#undef ASK_BARRIER

DEVICE char* shared_memory() {
    extern __shared__ __align__(128) char bytes[];
    return bytes;
}

DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float fast_sqrt(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float saturate(float x) { return __saturatef(x); }

// sum + value if `condition` holds, else sum. A predicated addition needs no register for a factor of 0 or 1.
DEVICE float add_if(float sum, float value, bool condition) {
    asm("{.reg .pred p; setp.ne.s32 p, %2, 0; @p add.ftz.f32 %0, %0, %1;}" : "+f"(sum) : "f"(value), "r"((int)condition));
    return sum;
}

// Zero if `condition` holds, one otherwise. As a `selp`, the compiler can compute it in a uniform register, and reading
// a uniform register costs an instruction no bandwidth of the register file.
DEVICE float zero_if(bool condition) {
    int bits;
    asm("{.reg .pred p; setp.ne.s32 p, %1, 0; selp.b32 %0, 0, 0x3f800000, p;}" : "=r"(bits) : "r"((int)condition));
    return __int_as_float(bits);
}

// sum += A B on the tensor cores, by all lanes of a warp together: A 16x16 and B 16x8 in float16, sum 16x8 in float32.
// Each float of `a`, b0 and b1 carries the bits of two float16. With g = lane / 4 and t = lane % 4, a lane holds
//   a[0], a[1]   rows g, g + 8 of A, columns 2t, 2t + 1           a[2], a[3]   the same rows, columns 2t + 8, 2t + 9
//   b0, b1       rows 2t, 2t + 1 and 2t + 8, 2t + 9 of B, column g
//   sum          rows g (0, 1) and g + 8 (2, 3), columns 2t, 2t + 1
DEVICE void multiply(float (&sum)[4], const float (&a)[4], float b0, float b1) {
    const auto bits = [](float pair) { return __float_as_uint(pair); };
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(bits(a[0])), "r"(bits(a[1])), "r"(bits(a[2])), "r"(bits(a[3])), "r"(bits(b0)), "r"(bits(b1)));
}

// The same for A 16x4 and B 4x8 in TF32, numbers with eleven binary digits: a0, a1 are rows g, g + 8 of A in column t,
// and b is row t of B in column g.
DEVICE void multiply_parts(float (&sum)[4], float a0, float a1, float b) {
    asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(b)));
}

// Stores 1, 2 or 4 floats in global memory if `store` holds, or adds them to what is there if `add` holds (`red`, which
// returns nothing and so is not waited for); if neither holds, it does nothing. The address must be aligned to COUNT
// floats.
template <int COUNT>
DEVICE void put(float* to, const float (&values)[COUNT], bool store, bool add) {
#if __CUDA_ARCH__ >= 900
#define ADD_TWO "@a red.global.add.v2.f32 [%0], {%1, %2};"
#define ADD_FOUR "@a red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
#else
#define ADD_TWO "@a red.global.add.f32 [%0], %1; @a red.global.add.f32 [%0+4], %2;"
#define ADD_FOUR ADD_TWO "@a red.global.add.f32 [%0+8], %3; @a red.global.add.f32 [%0+12], %4;"
#endif
#define PREDICATES(store, add) "{.reg .pred s, a; setp.ne.s32 s, " store ", 0; setp.ne.s32 a, " add ", 0;"
    const int stores = store, adds = add;
    if constexpr (COUNT == 4)
        asm volatile(PREDICATES("%5", "%6") "@s st.global.v4.f32 [%0], {%1, %2, %3, %4};" ADD_FOUR "}" ::"l"(to),
                     "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(stores), "r"(adds)
                     : "memory");
    else if constexpr (COUNT == 2)
        asm volatile(PREDICATES("%3", "%4") "@s st.global.v2.f32 [%0], {%1, %2};" ADD_TWO "}" ::"l"(to), "f"(values[0]),
                     "f"(values[1]), "r"(stores), "r"(adds)
                     : "memory");
    else
        asm volatile(PREDICATES("%2", "%3") "@s st.global.f32 [%0], %1; @a red.global.add.f32 [%0], %1;}" ::"l"(to),
                     "f"(values[0]), "r"(stores), "r"(adds)
                     : "memory");
#undef PREDICATES
#undef ADD_FOUR
#undef ADD_TWO
}

// The same pointer, but the compiler cannot see how it was computed: it keeps it in a register instead of computing it
// again.
template <class T>
DEVICE T* opaque(T* pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

// The 32-bit address of something in shared memory, kept in a register like an `opaque` pointer.
DEVICE unsigned shared_address(const float* shared) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("" : "+r"(address));
    return address;
}

// Loads of one, two and four floats from shared memory, BYTES behind `from`: the address in a register, BYTES in the
// instruction.
template <int BYTES>
DEVICE void load_one(unsigned from, float& x) {
    asm volatile("ld.shared.f32 %0, [%1+%2];" : "=f"(x) : "r"(from), "n"(BYTES));
}
template <int BYTES>
DEVICE void load_two(unsigned from, float& x, float& y) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2+%3];" : "=f"(x), "=f"(y) : "r"(from), "n"(BYTES));
}
template <int BYTES>
DEVICE void load_four(unsigned from, float& x, float& y, float& z, float& w) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4+%5];"
                 : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
                 : "r"(from), "n"(BYTES));
}

// Stores 1, 2 or 4 floats to shared memory, FLOATS floats behind `to`.
template <int FLOATS, int COUNT>
DEVICE void store_shared(unsigned to, const float (&values)[COUNT]) {
    if constexpr (COUNT == 4)
        asm volatile("st.shared.v4.f32 [%0+%1], {%2, %3, %4, %5};" ::"r"(to), "n"(4 * FLOATS), "f"(values[0]), "f"(values[1]),
                     "f"(values[2]), "f"(values[3]));
    else if constexpr (COUNT == 2)
        asm volatile("st.shared.v2.f32 [%0+%1], {%2, %3};" ::"r"(to), "n"(4 * FLOATS), "f"(values[0]), "f"(values[1]));
    else
        asm volatile("st.shared.f32 [%0+%1], %2;" ::"r"(to), "n"(4 * FLOATS), "f"(values[0]));
}

// Starts an asynchronous copy of 16 bytes from global to shared memory.
DEVICE void copy_ahead(unsigned shared, const float* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#endif

// Compile-time indices: unroll<3>([&](auto i) { constexpr int n = i.value; ... }) runs its body for n = 0, 1, 2.
template <int I>
struct Index {
    static constexpr int value = I;
};

template <int COUNT, int I = 0, class Body>
DEVICE void unroll(Body&& body) {
    if constexpr (I < COUNT) {
        body(Index<I>{});
        unroll<COUNT, I + 1>(body);
    }
}

// The greatest common divisor.
DEVICE constexpr int divisor(int a, int b) { return b == 0 ? a : divisor(b, a % b); }

#ifdef HOST_EMULATION
struct alignas(8) Two {
    float x, y;
};
struct alignas(16) Four {
    float x, y, z, w;
};
#else
using Two = float2;
using Four = float4;
#endif

// Loads COUNT floats by the widest loads that an address aligned to ALIGN floats allows. AT counts the floats loaded so
// far.
template <int COUNT, int ALIGN, int AT = 0>
DEVICE void load(const float* from, float (&to)[COUNT]) {
    if constexpr (AT + 4 <= COUNT && ALIGN % 4 == 0) {
        const Four v = *reinterpret_cast<const Four*>(from + AT);
        to[AT] = v.x, to[AT + 1] = v.y, to[AT + 2] = v.z, to[AT + 3] = v.w;
        load<COUNT, ALIGN, AT + 4>(from, to);
    } else if constexpr (AT + 2 <= COUNT && ALIGN % 2 == 0) {
        const Two v = *reinterpret_cast<const Two*>(from + AT);
        to[AT] = v.x, to[AT + 1] = v.y;
        load<COUNT, ALIGN, AT + 2>(from, to);
    } else if constexpr (AT < COUNT) {
        to[AT] = from[AT];
        load<COUNT, ALIGN, AT + 1>(from, to);
    }
}

// The same from shared memory, OFFSET floats behind `from`.
template <int COUNT, int ALIGN, int OFFSET, int AT = 0>
DEVICE void load_shared(unsigned from, float (&to)[COUNT]) {
    if constexpr (AT + 4 <= COUNT && ALIGN % 4 == 0) {
        load_four<4 * (OFFSET + AT)>(from, to[AT], to[AT + 1], to[AT + 2], to[AT + 3]);
        load_shared<COUNT, ALIGN, OFFSET, AT + 4>(from, to);
    } else if constexpr (AT + 2 <= COUNT && ALIGN % 2 == 0) {
        load_two<4 * (OFFSET + AT)>(from, to[AT], to[AT + 1]);
        load_shared<COUNT, ALIGN, OFFSET, AT + 2>(from, to);
    } else if constexpr (AT < COUNT) {
        load_one<4 * (OFFSET + AT)>(from, to[AT]);
        load_shared<COUNT, ALIGN, OFFSET, AT + 1>(from, to);
    }
}
