// The names of device.cuh for the host. The threads of a block are fibers, which switch at shuffles and barriers;
// blocks run one after the other.
//
// Every order of events that a kernel allows must give the same bits, so the tests run the orders that differ most:
//
// - Warps. Between two barriers one warp runs to the end before the next one starts, from the first warp to the last,
//   or in reverse. So where a barrier between two warps is missing, one of the two orders lets a warp read too early.
// - Warps that may be a turn apart. After `arrive`, only the first warp (or the last, in reverse) runs on; the others
//   are held back until it has to wait.
// - Asynchronous copies. They land at once, or as late as possible: when the thread that started them waits for them,
//   or when the phase of their barrier completes. Until then their target is NaN, as is all shared memory at the start.
//
// The emulation reports deadlocks, copies that no thread waited for, and accesses beyond shared memory or without
// alignment. It cannot show everything: a shuffle synchronises the memory accesses of a warp here, which a GPU does not
// promise.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#define DEVICE inline
#define KERNEL(threads, blocks) extern "C" void

namespace emulation {

// The order of events: when copies land, and which of `count` warps, lanes or blocks is number `number` to run.
struct Order {
    bool copies_late, last_first;
    int pick(int number, int count) const { return last_first ? count - 1 - number : number; }
};

struct Barrier {
    int arrived = 0;
    long generation = 0;  // how often it has been complete
};

constexpr int COPIED = 4;  // floats of an asynchronous copy

struct Copy {
    float* to;
    const float* from;
};

inline void finish(std::vector<Copy>& copies) {
    for (const auto& copy : copies) std::copy_n(copy.from, COPIED, copy.to);
    copies.clear();
}

// An mbarrier in shared memory.
struct SharedBarrier {
    Barrier barrier;
    int arrivals = 0;          // how many complete a phase
    std::vector<Copy> copies;  // those that land when the phase is complete
};
constexpr float NEVER_WRITTEN = std::numeric_limits<float>::quiet_NaN();

struct alignas(128) Line {
    float words[32];
};

struct Fiber {
    ucontext_t start;
    jmp_buf resume;  // not swapcontext, which makes a system call for signals at every switch
    std::unique_ptr<char[]> stack;
    bool started = false, done = false;
    bool held_back = false;            // until no warp can go on otherwise
    const Barrier* barrier = nullptr;  // the one that it waits at
    long generation = 0;               // of that barrier when it began to wait
    std::vector<Copy> copies;          // started, and not landed
    bool waits() const { return barrier != nullptr && barrier->generation == generation; }
};

struct Block {
    Order order;
    int index = 0, blocks = 1, threads = 0, current = 0;
    const char* failure = nullptr;
    std::vector<Fiber> fibers;
    std::vector<double> exchange[2];  // values that lanes exchange, by thread; two buffers take turns
    std::vector<std::array<unsigned, 6>> fragments[2];  // the same for operands of tensor cores
    std::vector<int> exchanges;                         // how many each thread has made
    std::vector<Barrier> warps;
    std::map<int, Barrier> teams;  // -1: all threads of the block
    std::map<unsigned, SharedBarrier> shared_barriers;  // by address
    std::vector<Line> shared;
    std::function<void()> body;
    jmp_buf scheduler;
};

static Block block;

inline Fiber& fiber() { return block.fibers[block.current]; }

__attribute__((noinline)) inline void yield() {
    if (_setjmp(fiber().resume) == 0) _longjmp(block.scheduler, 1);
}

__attribute__((noinline)) inline void resume(Fiber& fiber) {
    if (_setjmp(block.scheduler) != 0) return;
    if (fiber.started) _longjmp(fiber.resume, 1);
    fiber.started = true;
    setcontext(&fiber.start);
}

// Unless the condition holds, records a failure, at which the scheduler gives up the block.
inline void require(bool condition, const char* failure) {
    if (condition) return;
    block.failure = failure;
    yield();
}

// Returns whether this was the last of `count` arrivals.
inline bool arrive(Barrier& barrier, int count) {
    if (++barrier.arrived < count) return false;
    barrier.arrived = 0;
    barrier.generation++;
    return true;
}

inline void wait_for_next(const Barrier& barrier) {
    fiber().barrier = &barrier, fiber().generation = barrier.generation;
    yield();
    fiber().barrier = nullptr;
}

inline void wait(Barrier& barrier, int count) {
    if (!arrive(barrier, count)) wait_for_next(barrier);
}

// The main function of a fiber: runs one thread of every block.
inline void run_blocks() {
    for (;; yield()) {
        block.body();
        require(fiber().copies.empty(), "a thread ended without waiting for its copies");
        fiber().done = true;
    }
}

inline void make_fibers(int threads) {
    constexpr size_t STACK = 1 << 17;
    block.fibers = std::vector<Fiber>(threads);
    for (auto& fiber : block.fibers) {
        fiber.stack.reset(new char[STACK]);
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = fiber.stack.get();
        fiber.start.uc_stack.ss_size = STACK;
        fiber.start.uc_link = nullptr;
        makecontext(&fiber.start, run_blocks, 0);
    }
}

// Runs a warp until all its threads are done or wait for other warps; returns whether any of them ran.
inline bool run_warp(int first, int count) {
    bool ran = false;
    for (bool again = true; again; ran |= again) {
        again = false;
        for (int lane = 0; lane < count; lane++) {
            block.current = first + block.order.pick(lane, count);
            if (fiber().done || fiber().held_back || fiber().waits()) continue;
            again = true;
            resume(fiber());
            if (block.failure) return true;
        }
    }
    return ran;
}

// Lets a warp go on; returns whether it was held back.
inline bool release_warp(int first) {
    bool held_back = false;
    for (int thread = first; thread < std::min(first + 32, block.threads); thread++) {
        held_back |= block.fibers[thread].held_back;
        block.fibers[thread].held_back = false;
    }
    return held_back;
}

inline void run_block() {
    const int warps = (block.threads + 31) / 32;
    block.warps.assign(warps, {});
    block.teams.clear();
    block.shared_barriers.clear();
    block.exchanges.assign(block.threads, 0);
    for (auto& values : block.exchange) values.assign(block.threads, 0.0);
    for (auto& values : block.fragments) values.assign(block.threads, {});
    for (auto& line : block.shared) std::fill_n(line.words, 32, NEVER_WRITTEN);
    for (auto& fiber : block.fibers) fiber.done = fiber.held_back = false;
    for (bool ran = true; ran;) {
        ran = false;
        for (int w = 0; w < warps; w++) {
            const int first = 32 * block.order.pick(w, warps);
            ran |= run_warp(first, std::min(32, block.threads - first));
            if (block.failure) return;
        }
        for (int w = 0; w < warps && !ran; w++) ran = release_warp(32 * block.order.pick(w, warps));
    }
    for (auto& fiber : block.fibers)
        if (!fiber.done) block.failure = "deadlock: some threads wait at a barrier that others never reach";
    for (auto& [address, barrier] : block.shared_barriers)
        if (!barrier.copies.empty()) block.failure = "copies belong to a phase of a barrier that never completed";
}

// Runs all blocks of a launch; returns null, or a message that says what went wrong.
inline const char* launch(Order order, int blocks, int threads, size_t shared_bytes, std::function<void()> body) {
    block.order = order, block.blocks = blocks, block.threads = threads, block.body = body, block.failure = nullptr;
    block.shared.resize((shared_bytes + sizeof(Line) - 1) / sizeof(Line));
    if (static_cast<int>(block.fibers.size()) != threads) make_fibers(threads);
    for (int b = 0; b < blocks && !block.failure; b++) {
        block.index = order.pick(b, blocks);
        run_block();
    }
    if (block.failure) block.fibers.clear();
    return block.failure;
}

}  // namespace emulation

inline int thread_index() { return emulation::block.current; }
inline int block_index() { return emulation::block.index; }

inline void sync_warp() { emulation::wait(emulation::block.warps[thread_index() / 32], 32); }
inline void sync_block() { emulation::wait(emulation::block.teams[-1], emulation::block.threads); }
inline void sync_team(int team, int threads) { emulation::wait(emulation::block.teams[team], threads); }

namespace emulation {
inline void arrive(SharedBarrier& shared) {
    if (arrive(shared.barrier, shared.arrivals)) finish(shared.copies);
}
}  // namespace emulation

inline void init_barrier(unsigned at, int arrivals) { emulation::block.shared_barriers[at] = {{}, arrivals, {}}; }
inline void arrive_with_copies(unsigned at) {
    auto& copies = emulation::block.shared_barriers[at].copies;
    auto& own = emulation::fiber().copies;
    copies.insert(copies.end(), own.begin(), own.end());
    own.clear();
    emulation::arrive(emulation::block.shared_barriers[at]);
}
inline void arrive(unsigned at) {
    emulation::arrive(emulation::block.shared_barriers[at]);
    if (thread_index() / 32 == emulation::block.order.pick(0, emulation::block.threads / 32)) return;
    emulation::fiber().held_back = true;
    emulation::yield();
}
inline bool has_passed(unsigned at, int phase) {
    return emulation::block.shared_barriers[at].barrier.generation % 2 != phase;
}
inline void wait_for(unsigned at, int phase) {
    if (!has_passed(at, phase)) emulation::wait_for_next(emulation::block.shared_barriers[at].barrier);
}

inline double from_lane(double value, int lane) {
    const int thread = thread_index();
    auto& values = emulation::block.exchange[emulation::block.exchanges[thread]++ & 1];
    values[thread] = value;
    sync_warp();
    return values[thread / 32 * 32 + lane];
}
inline int uniform(int value) {
    emulation::require(from_lane(static_cast<double>(value), 0) == value, "`uniform` got different values from lanes");
    return value;
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

// Every lane stores its operands, and then computes its four entries from those of all lanes. device.cuh says which
// lane has what.
inline void multiply(float (&sum)[4], const float (&a)[4], float b0, float b1) {
    const int thread = thread_index(), base = thread / 32 * 32, g = thread % 32 / 4, t = thread % 4;
    auto& all = emulation::block.fragments[emulation::block.exchanges[thread]++ & 1];
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

// The same for numbers with eleven binary digits, one in each float.
inline void multiply_parts(float (&sum)[4], float a0, float a1, float b) {
    const int thread = thread_index(), base = thread / 32 * 32, g = thread % 32 / 4, t = thread % 4;
    auto& all = emulation::block.fragments[emulation::block.exchanges[thread]++ & 1];
    const float own[] = {a0, a1, b};
    for (int i = 0; i < 3; i++) {
        all[thread][i] = emulation::bits_of(own[i]);
        emulation::require((all[thread][i] & 0x1fff) == 0, "a number has more than the eleven binary digits of TF32");
    }
    sync_warp();
    for (int entry = 0; entry < 4; entry++) {
        double total = sum[entry];
        for (int k = 0; k < 4; k++) {
            float x, z;
            std::memcpy(&x, &all[base + 4 * g + k][entry / 2], 4);
            std::memcpy(&z, &all[base + 4 * (2 * t + entry % 2) + k][2], 4);
            total += (double)x * z;
        }
        sum[entry] = static_cast<float>(total);
    }
}

inline char* shared_memory() { return reinterpret_cast<char*>(emulation::block.shared.data()); }
inline unsigned shared_address(const float* shared) {
    return static_cast<unsigned>(reinterpret_cast<const char*>(shared) - shared_memory());
}

namespace emulation {
template <int BYTES, int COUNT>
inline float* words(unsigned from) {
    require((from + BYTES) % (4 * COUNT) == 0, "a load or store is not aligned");
    require(from + BYTES + 4 * COUNT <= block.shared.size() * sizeof(Line), "a load or store ends beyond shared memory");
    return reinterpret_cast<float*>(shared_memory() + from + BYTES);
}
}  // namespace emulation

template <int BYTES>
inline void load_one(unsigned from, float& x) {
    x = *emulation::words<BYTES, 1>(from);
}
template <int BYTES>
inline void load_two(unsigned from, float& x, float& y) {
    const float* words = emulation::words<BYTES, 2>(from);
    x = words[0], y = words[1];
}
template <int BYTES>
inline void load_four(unsigned from, float& x, float& y, float& z, float& w) {
    const float* words = emulation::words<BYTES, 4>(from);
    x = words[0], y = words[1], z = words[2], w = words[3];
}

template <int FLOATS, int COUNT>
inline void store_shared(unsigned to, const float (&values)[COUNT]) {
    std::copy_n(values, COUNT, emulation::words<4 * FLOATS, COUNT>(to));
}

inline void copy_ahead(unsigned shared, const float* global) {
    using namespace emulation;
    constexpr size_t BYTES = COPIED * sizeof(float);
    require(shared % BYTES == 0 && reinterpret_cast<size_t>(global) % BYTES == 0, "a copy is not aligned");
    require(shared + BYTES <= block.shared.size() * sizeof(Line), "a copy ends beyond shared memory");
    float* to = reinterpret_cast<float*>(shared_memory() + shared);
    if (block.order.copies_late) {
        fiber().copies.push_back({to, global});
        std::fill_n(to, COPIED, NEVER_WRITTEN);
    } else {
        std::copy_n(global, COPIED, to);
    }
}
inline void wait_for_copies() { emulation::finish(emulation::fiber().copies); }

inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_sqrt(float x) { return std::sqrt(x); }
inline float saturate(float x) { return x > 1.0f ? 1.0f : x > 0.0f ? x : 0.0f; }
inline float add_if(float sum, float value, bool condition) { return condition ? sum + value : sum; }
inline float zero_if(bool condition) { return condition ? 0.0f : 1.0f; }
template <class T>
inline T* opaque(T* pointer) {
    return pointer;
}
template <int COUNT>
inline void put(float* to, const float (&values)[COUNT], bool store, bool add) {
    emulation::require(reinterpret_cast<size_t>(to) % (4 * COUNT) == 0, "a store is not aligned");
    for (int i = 0; i < COUNT; i++) {
        if (store) to[i] = values[i];
        if (add) to[i] += values[i];
    }
}
