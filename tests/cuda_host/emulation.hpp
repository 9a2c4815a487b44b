// The names of device.cuh for the host: a block's threads are fibers that take turns at every exchange or barrier.
//
// Threads of a warp do not run in lockstep here, so a missing barrier, an exchange not reached by all lanes or a read of shared
// memory that nobody wrote (it starts as NaN) shows up as a wrong result or as a deadlock, which is reported.
#pragma once
#include <ucontext.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#define DEVICE inline
#define KERNEL(threads, blocks) extern "C" void

namespace emulation {

struct Barrier {
    int arrived = 0;
    long generation = 0;
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool done = false;
};

struct Block {
    int index = 0, blocks = 1, threads = 0, current = 0, progress = 0;
    std::vector<Fiber> fibers;
    std::vector<double> exchange[2];  // by thread; two take turns
    std::vector<std::array<unsigned, 6>> fragments[2];
    std::vector<int> turn;           // by thread
    std::vector<Barrier> warps;
    std::map<int, Barrier> teams;
    std::vector<char> shared;
    std::function<void()> body;
    ucontext_t scheduler;
};

inline Block block;

inline void yield() { swapcontext(&block.fibers[block.current].context, &block.scheduler); }

inline void wait(Barrier& barrier, int count) {
    const long generation = barrier.generation;
    block.progress++;
    if (++barrier.arrived == count) {
        barrier.arrived = 0;
        barrier.generation++;
    } else {
        while (barrier.generation == generation) yield();
    }
}

inline void enter() {
    block.body();
    block.fibers[block.current].done = true;
    block.progress++;
    yield();
}

inline void run_block(int index, int blocks, int threads, size_t shared_bytes, std::function<void()> body) {
    constexpr size_t STACK = 1 << 17;
    block.index = index, block.blocks = blocks, block.threads = threads, block.body = body;
    block.warps.assign(threads / 32 + 1, {});
    block.teams.clear();
    block.turn.assign(threads, 0);
    for (auto& values : block.exchange) values.assign(threads, 0.0);
    for (auto& values : block.fragments) values.assign(threads, {});
    block.shared.resize(shared_bytes + 128);
    float* words = reinterpret_cast<float*>(block.shared.data());
    for (size_t i = 0; i < block.shared.size() / 4; i++) words[i] = std::numeric_limits<float>::quiet_NaN();
    block.fibers.resize(threads);
    for (auto& fiber : block.fibers) {
        if (!fiber.stack) fiber.stack.reset(new char[STACK]);
        fiber.done = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
    }
    for (bool alive = true; alive;) {
        alive = false;
        block.progress = 0;
        for (block.current = 0; block.current < threads; block.current++) {
            if (block.fibers[block.current].done) continue;
            alive = true;
            swapcontext(&block.scheduler, &block.fibers[block.current].context);
        }
        if (alive && block.progress == 0) {
            std::fprintf(stderr, "deadlock: some threads wait at a barrier that others never reach\n");
            std::abort();
        }
    }
}

}  // namespace emulation

inline int thread_index() { return emulation::block.current; }
inline int block_index() { return emulation::block.index; }
inline long long global_index() { return (long long)emulation::block.index * emulation::block.threads + thread_index(); }
inline long long global_threads() { return (long long)emulation::block.blocks * emulation::block.threads; }

inline int uniform(int value) { return value; }
inline void sync_warp() { emulation::wait(emulation::block.warps[thread_index() / 32], 32); }
inline void sync_block() { emulation::wait(emulation::block.teams[-1], emulation::block.threads); }
inline void sync_team(int team, int threads) { emulation::wait(emulation::block.teams[team], threads); }

inline double from_lane(double value, int lane) {
    const int thread = thread_index();
    auto& values = emulation::block.exchange[emulation::block.turn[thread]++ & 1];
    values[thread] = value;
    sync_warp();
    return values[thread / 32 * 32 + lane];
}
inline float from_lane(float value, int lane) { return static_cast<float>(from_lane(static_cast<double>(value), lane)); }
template <int DISTANCE>
inline float from_before(float value) {
    const int lane = thread_index() % 32;
    return from_lane(value, lane < DISTANCE ? lane : lane - DISTANCE);
}
template <int DISTANCE>
inline float from_after(float value) {
    const int lane = thread_index() % 32;
    return from_lane(value, lane + DISTANCE > 31 ? lane : lane + DISTANCE);
}

namespace emulation {
inline unsigned bits_of(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline float half_of(unsigned word, int which) {
    const unsigned short bits = which == 0 ? word & 0xffff : word >> 16;
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return value;
}
}  // namespace emulation

// Rows of A and columns of B are handed round, then every lane works out its four entries.
inline void multiply(float (&sum)[4], const float (&a)[4], float b0, float b1) {
    const int thread = thread_index(), base = thread / 32 * 32, g = thread % 32 / 4, t = thread % 4;
    auto& all = emulation::block.fragments[emulation::block.turn[thread]++ & 1];
    const float own[] = {a[0], a[1], a[2], a[3], b0, b1};
    for (int i = 0; i < 6; i++) all[thread][i] = emulation::bits_of(own[i]);
    sync_warp();
    for (int entry = 0; entry < 4; entry++) {
        const int upper = entry / 2, column = 2 * t + entry % 2;
        double total = sum[entry];
        for (int k = 0; k < 16; k++) {
            const auto& left = all[base + 4 * g + k % 8 / 2];
            const auto& right = all[base + 4 * column + k % 8 / 2];
            total += (double)emulation::half_of(left[upper + 2 * (k / 8)], k % 2) * emulation::half_of(right[4 + k / 8], k % 2);
        }
        sum[entry] = static_cast<float>(total);
    }
}

inline unsigned shared_address(const float* shared) {
    return static_cast<unsigned>(reinterpret_cast<const char*>(shared) - emulation::block.shared.data());
}
inline void copy_ahead(unsigned shared, const float* global) {
    std::memcpy(emulation::block.shared.data() + shared, global, 16);
}
inline void wait_for_copies() {}

inline char* shared_memory() {
    const auto address = reinterpret_cast<size_t>(emulation::block.shared.data());
    return reinterpret_cast<char*>((address + 127) / 128 * 128);
}

inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_sqrt(float x) { return std::sqrt(x); }
inline float saturate(float x) { return x > 1.0f ? 1.0f : x > 0.0f ? x : 0.0f; }
inline float add_if(float sum, float value, bool condition) { return condition ? sum + value : sum; }
inline float zero_if(bool condition) { return condition ? 0.0f : 1.0f; }
inline void store_four(float* to, float x, float y, float z, float w) { to[0] = x, to[1] = y, to[2] = z, to[3] = w; }
