// What the kernels that Python writes (offset_writer.py, pull_writer.py, nodes.py, node_back.py, classical/gpu.py) need of
// CUDA, for the host. With ALL_THREADS, every thread of a block is a thread of the host, so that a missing barrier
// shows. Without, one thread does the work of all, which is much faster.
#include <cmath>
#include <utility>
#ifdef ALL_THREADS  // these take a second to compile
#include <atomic>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>
#endif

using std::abs, std::exp, std::exp2, std::fabs, std::fmax, std::fmin, std::frexp, std::ldexp, std::max, std::min, std::sqrt;

#define __global__
#define __device__
#define __launch_bounds__(...)
#ifdef ALL_THREADS
#define THREADS_OF_BLOCK(count) count
#else
#define THREADS_OF_BLOCK(count) 1
#endif
#define SHARED(type, name) type* name = reinterpret_cast<type*>(emulation::shared)

struct Index {
    unsigned x;
};
static Index blockIdx{0}, blockDim{1}, gridDim{1};
static thread_local Index threadIdx{0};

namespace emulation {
alignas(128) static char shared[256 * 1024];  // teams of `pulling.cuh` do not shuffle, and need rows of values
#ifdef ALL_THREADS
static std::unique_ptr<std::barrier<>> barrier;
static std::vector<std::unique_ptr<std::barrier<>>> warps;
#endif

template <class Body>
void run(unsigned threads, Body body) {
    __builtin_memset(shared, 255, sizeof shared);  // all bits set is NaN: what is read before it was stored shows
#ifdef ALL_THREADS
    barrier = std::make_unique<std::barrier<>>(threads);
    warps.clear();
    for (unsigned first = 0; first < threads; first += 32)
        warps.push_back(std::make_unique<std::barrier<>>(std::min(32u, threads - first)));
    std::vector<std::thread> running;
    for (unsigned i = 0; i < threads; ++i)
        running.emplace_back([=] {
            threadIdx.x = i;
            body();
        });
    for (std::thread& thread : running) thread.join();
#else
    body();
#endif
}
}  // namespace emulation

inline void sync_block() {
#ifdef ALL_THREADS
    if (emulation::barrier) emulation::barrier->arrive_and_wait();
#endif
}
inline void sync_warp() {
#ifdef ALL_THREADS
    if (emulation::barrier) emulation::warps[threadIdx.x / 32]->arrive_and_wait();
#endif
}
// `pulling.cuh`: threads exchange values through shared memory. One thread for all takes teams in step.
constexpr bool ON_HOST = true;
#ifdef ALL_THREADS
constexpr bool IN_STEP = false;
struct Counter {
    std::atomic<int> number;
    operator int() const {
        std::this_thread::yield();  // it is read until another thread has changed it
        return number.load(std::memory_order_acquire);
    }
    void operator=(int value) { number.store(value, std::memory_order_release); }
};
#else
constexpr bool IN_STEP = true;
using Counter = int;
#endif
// The value of the thread at this distance in the team, or the thread's own if there is none. All threads must call it.
namespace emulation {
template <class T>
T from_thread(T value, int distance, int team) {
    static double exchange[1024];
    const int thread = int(threadIdx.x), other = thread + distance;
    exchange[thread] = value;
    sync_block();
    const T found = T(exchange[other >= 0 && other / team == thread / team ? other : thread]);
    sync_block();
    return found;
}
}  // namespace emulation
template <int DISTANCE, int TEAM, class T>
T from_before(T value) {
    return emulation::from_thread(value, -DISTANCE, TEAM);
}
template <class T>
T opaque(T value) {
    return value;
}
inline float reciprocal(float x) { return 1 / x; }
inline float magnitude(float x) { return std::fabs(x); }
inline float root(float x) { return std::sqrt(x); }
inline float power(float x) { return std::exp2(x); }
