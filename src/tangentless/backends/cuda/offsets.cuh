// Segments of a graph, offset by offset, in shared memory.
//
// Fix the offset (u, v) between a position (row, k) of the left image and its partner (row + u, n), n = k + v, of the
// right one. Window sums are then plain sums over positions of one image. A block follows the offsets u of its group
// one after the other, and for each u all v, OFFSETS = COLUMNS / WIDTH of them at a time.
//
// Every value of the graph that is read again has a *plane* in shared memory: HEIGHT rows of the left image, and in
// each row, beside each other, the columns k of these v. At offset v, only the columns k < WIDTH - v have a partner; at
// v - WIDTH, only the others have one. So the two share a row, with PAD zeros at the *seam* between them. Zeros at the
// seam, before the first columns and behind the last ones are what windows read outside. For WIDTH = 5, PAD = 1 and the
// offsets v = 2 and 3, a row is
//
//   place    0  1  2  3  4  5  6  7  8  9 10 11 12 13 14
//   k        .  0  1  2  .  3  4  .  0  1  .  2  3  4  .     . is a zero
//   n           2  3  4     0  1     3  4     0  1  2
//   n - k       2  2  2    -3 -3     3  3    -2 -2 -2
//
// In the same way, u and u - HEIGHT share the rows of a plane: part 0 and part 1. There are no zeros between these;
// windows stop at the first and the last row of a part.
//
// With STACK, for grids of one row, the rows of a plane are STACK neighbouring offsets v instead.
//
// `offset_writer.py` writes one kernel for every segment from the functions here. Every element is computed by one
// thread, in a fixed order of sums, so bits depend neither on the launch nor on the batch.
#pragma once

#include "duals.cuh"

typedef long long index;

#ifdef __CUDACC__  // the tests provide these names themselves
#define THREADS_OF_BLOCK(count) count
#define SHARED(type, name)                                 \
    extern __shared__ __align__(16) char shared_bytes[];   \
    type* name = reinterpret_cast<type*>(shared_bytes)
__device__ inline void sync_block() { __syncthreads(); }
__device__ inline void sync_warp() { __syncwarp(); }
#endif

// One element for LANES left images and one right image: LANES inner products, and in a tangent graph as many tangents
// after them. PARTS is LANES, or 2 LANES in a tangent graph.
struct alignas(sizeof(real) * PARTS) Value {
    real v[PARTS];
};
__device__ inline Value nothing() {
    Value value;
    for (int i = 0; i < PARTS; ++i) value.v[i] = 0;
    return value;
}
__device__ inline Value operator+(const Value& a, const Value& b) {
    Value sum;
    for (int i = 0; i < PARTS; ++i) sum.v[i] = a.v[i] + b.v[i];
    return sum;
}
__device__ inline Value operator*(real factor, const Value& a) {
    Value product;
    for (int i = 0; i < PARTS; ++i) product.v[i] = factor * a.v[i];
    return product;
}
// What a layer of weights does: adds the inner products to the tangents.
__device__ inline Value weighed(Value value) {
    for (int i = LANES; i < PARTS; ++i) value.v[i] += value.v[i - LANES];
    return value;
}

// A pixel or norm of LANES left images, which are interleaved in memory.
struct alignas(sizeof(real) * LANES) Lanes {
    real v[LANES];
};

// The work of a block: left images left ... left + count - 1, all of which lie in the same run of LANES, paired with
// image `right`.
struct Unit {
    int right, left, count, slot;
};

// The rows of the left image at offset u. PAIRED: u and u - HEIGHT are followed together, where u has the rows up to
// HEIGHT - u, and u - HEIGHT the others. They can be where HEIGHT is a multiple of the exit's stride.
template <int HEIGHT, bool PAIRED>
struct Rows {
    static constexpr bool paired = PAIRED;
    int begin, split, end;  // part 0, at u: rows [begin, split); part 1, at u - HEIGHT: rows [split, end)
    int u;

    __device__ explicit Rows(int u) : begin(max(0, -u)), split(HEIGHT - max(0, u)), end(PAIRED ? HEIGHT : split), u(u) {}
    __device__ int offset(int part) const { return part ? u - HEIGHT : u; }
    __device__ int low(int part) const { return part ? split : begin; }
    __device__ int high(int part) const { return part ? end : split; }
};

// The work of one thread: a column of the planes, and a band of its rows.
template <int WIDTH, int PAD, int COLUMNS, int BANDS>
struct Column {
    int place, k, n;     // the column in a plane's row, in the left image and in the right one
    int v, first, last;  // rows [first, last)

    template <class Rows>
    __device__ Column(int item, const int* __restrict__ offsets, int count, const Rows& rows) {
        const int number = item % COLUMNS / WIDTH, band = item / COLUMNS;
        const int tall = (rows.end - rows.begin + BANDS - 1) / BANDS;
        v = number < count ? offsets[number] : 0;
        k = item % WIDTH;
        const bool beyond = k >= WIDTH - v;
        n = k + v - (beyond ? WIDTH : 0);
        place = PAD + number * (WIDTH + 2 * PAD) + k + (beyond ? PAD : 0);
        first = rows.begin + band * tall;
        last = number < count ? min(first + tall, rows.end) : first;
    }
};

// Column k of the left image at COUNT offsets v, whose places are STEP apart. Where there are fewer offsets, the last
// one is repeated, at places that nobody reads.
template <int WIDTH, int PAD, int STEP, int COUNT>
struct Stack {
    struct Column {
        int place, k, n, v;
    };
    Column columns[COUNT];

    template <class Rows>
    __device__ Stack(int k, const int* __restrict__ offsets, int count, const Rows&) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int v = offsets[min(i, count - 1)];
            const bool beyond = k >= WIDTH - v;
            columns[i] = {i * STEP + PAD + k + (beyond ? PAD : 0), k, k + v - (beyond ? WIDTH : 0), v};
        }
    }
    __device__ const Column& operator[](int i) const { return columns[i]; }
};

// Stores the zeros at the seams, between the columns of v and those of v - WIDTH, in all rows of all planes. Seams move
// with v.
template <int WIDTH, int PAD, int STRIDE, int STACK, int ROWS, int THREADS>
__device__ inline void separate(Value* planes, const int* __restrict__ offsets, int count) {
    if constexpr (PAD > 0)
        for (int i = threadIdx.x; i < (STACK ? 1 : count) * ROWS; i += THREADS) {
            const int number = STACK ? min(i % max(1, STACK), count - 1) : i / ROWS, row = i % ROWS;
            Value* seam = planes + row * STRIDE + PAD + WIDTH - offsets[number] + (STACK ? 0 : number * (WIDTH + 2 * PAD));
            for (int j = 0; j < PAD; ++j) seam[j] = nothing();
        }
}

// Stores the other zeros, which stay where they are: before the columns of every offset, and after the last ones.
template <int WIDTH, int PAD, int STRIDE, int ROWS, int THREADS>
__device__ inline void frame(Value* planes) {
    for (int i = threadIdx.x; i < ROWS; i += THREADS)
        for (int j = 0; j < PAD; ++j)
            for (int place = j; place < STRIDE; place += WIDTH + 2 * PAD) planes[i * STRIDE + place] = nothing();
}

// Window sums along rows: to[i] = from[i + LOW] + ... + from[i + HIGH], for the PLACES of each row between the first
// and the last PAD. A thread computes RUN neighbouring sums and reads each value once. It keeps sums of two neighbours,
// pairs[j] = from[i + LOW + j] + from[i + LOW + j + 1], and adds up every other one. For the next sum they shift by
// one, so that only one of them is new.
template <int LOW, int HIGH, int RUN, int PLACES, int HEIGHT, int STRIDE, int PAD, int THREADS>
__device__ inline void add_lines(const Value* __restrict__ from, Value* __restrict__ to) {
    constexpr int TAPS = HIGH - LOW + 1, RUNS = (PLACES + RUN - 1) / RUN;
    for (int item = threadIdx.x; item < HEIGHT * RUNS; item += THREADS) {
        const int first = item / HEIGHT * RUN, start = item % HEIGHT * STRIDE + PAD + first;
        Value pairs[TAPS - 1];
        Value newest = from[start + LOW];
#pragma unroll
        for (int i = 1; i < TAPS - 1; ++i) {
            const Value next = from[start + LOW + i];
            pairs[i] = newest + next;
            newest = next;
        }
#pragma unroll
        for (int j = 0; j < RUN; ++j) {
            if (first + j >= PLACES) break;
#pragma unroll
            for (int i = 0; i + 2 < TAPS; ++i) pairs[i] = pairs[i + 1];
            const Value next = from[start + j + HIGH];
            pairs[TAPS - 2] = newest + next;
            newest = next;
            Value sum = pairs[0];
#pragma unroll
            for (int i = 2; i + 1 < TAPS; i += 2) sum = sum + pairs[i];
            to[start + j] = TAPS % 2 ? sum + next : sum;
        }
    }
}

// A permutation of 0 ... COUNT - 1 that takes each even number and the next one to numbers that are APART. COUNT and
// APART are powers of two.
template <int COUNT, int APART>
__device__ inline int spread(int number) {
    return COUNT < 2 * APART ? number : number / (2 * APART) * (2 * APART) + number % 2 * APART + number / 2 % APART;
}

// Products of pixels at all OFFSETS of a plane, and then window sums along its rows as in `add_lines`, in place. Each
// warp works on TEAM rows at a time, alone: nothing waits for other warps. A row has RUNS runs of RUN sums, one per
// lane; `spread` assigns them such that the lanes of a quarter of a warp read different banks. SHARE is the number of
// lanes whose work a thread does: 1 on a GPU, 32 in the tests that run one thread.
template <int CHANNELS, int LOW, int HIGH, int TEAM, int RUN, int PLACES, int HEIGHT, int WIDTH, int OFFSETS, int STRIDE, int PAD,
          int THREADS, class Rows>
__device__ inline void line_sums(const Lanes* __restrict__ x, const real* __restrict__ z, Value* __restrict__ plane,
                                 const int* __restrict__ offsets, int count, const Rows& rows) {
    constexpr int WARP = THREADS < 32 ? THREADS : 32, WARPS = THREADS / WARP, RUNS = 32 / TEAM, SHARE = 32 / WARP;
    constexpr int TAPS = HIGH - LOW + 1, GRID = HEIGHT * WIDTH, APART = RUN % 8 == 4 ? 1 : RUN % 4 == 2 ? 2 : 4;
    constexpr bool WHOLE = Rows::paired && HEIGHT % (WARPS * TEAM) == 0;  // every warp always has TEAM rows
    static_assert(RUN >= HIGH && RUN >= -LOW && RUN * RUNS >= PLACES);
    const int lane = threadIdx.x % WARP;
    for (int start = rows.begin; start < rows.end; start += WARPS * TEAM) {
        const int top = start + int(threadIdx.x) / WARP * TEAM;
        const bool busy = WHOLE || top < rows.end;
        const auto row_of = [&](int i) { return WHOLE ? top + i : min(top + i, rows.end - 1); };
        const auto run = [&](int share) { return spread<RUNS, APART>((lane + share * WARP) / TEAM); };
        const auto place = [&](int share) {
            return row_of((lane + share * WARP) % TEAM) * STRIDE + PAD + run(share) * RUN;
        };
        for (int k = lane; busy && k < WIDTH; k += WARP) {
            const Stack<WIDTH, PAD, WIDTH + 2 * PAD, OFFSETS> own(k, offsets, count, rows);
#pragma unroll 2
            for (int i = 0; i < TEAM; ++i) {
                const int row = row_of(i);
                const Lanes* p = x + row * WIDTH + k;
                const real* q = z + (row + rows.offset(row >= rows.split)) * WIDTH;
                Value values[OFFSETS];
                for (int which = 0; which < OFFSETS; ++which) values[which] = nothing();
#pragma unroll(CHANNELS < 4 ? CHANNELS : 4)
                for (int c = 0; c < CHANNELS; ++c) {
                    const Lanes left = p[c * GRID];
#pragma unroll
                    for (int which = 0; which < OFFSETS; ++which) {
                        const real right = q[own[which].n + c * GRID];
                        for (int lane = 0; lane < LANES; ++lane) values[which].v[lane] += left.v[lane] * right;
                    }
                }
#pragma unroll
                for (int which = 0; which < OFFSETS; ++which) plane[row * STRIDE + own[which].place] = values[which];
            }
        }
        for (int j = lane; busy && j < PAD; j += WARP)  // zeros again, where the offsets before have stored sums
#pragma unroll
            for (int which = 0; which < OFFSETS; ++which) {
                const int start = which * (WIDTH + 2 * PAD) + j, seam = start + PAD + WIDTH - offsets[min(which, count - 1)];
#pragma unroll
                for (int i = 0; i < TEAM; ++i) {
                    plane[row_of(i) * STRIDE + seam] = nothing();
                    if (which > 0) plane[row_of(i) * STRIDE + start] = nothing();
                }
            }
        const auto inside = [&](int share, int j) {  // whether a run has a sum number j
            const bool there = WHOLE || top + (lane + share * WARP) % TEAM < rows.end;
            return there && (RUN * (RUNS - 1) + j < PLACES || run(share) * RUN + j < PLACES);
        };
        sync_warp();
        // What a run reads beyond its own places is loaded first: other lanes are about to store their sums there.
        Value pairs[SHARE][TAPS - 1], newest[SHARE], beyond[SHARE][HIGH];
#pragma unroll
        for (int share = 0; share < SHARE; ++share) {
            const Value* from = plane + place(share);
            newest[share] = inside(share, 0) ? from[LOW] : nothing();
#pragma unroll
            for (int i = 1; i < TAPS - 1; ++i) {
                const Value next = inside(share, 0) ? from[LOW + i] : nothing();
                pairs[share][i] = newest[share] + next;
                newest[share] = next;
            }
#pragma unroll
            for (int i = 0; i < HIGH; ++i) beyond[share][i] = inside(share, RUN + i - HIGH) ? from[RUN + i] : nothing();
        }
        sync_warp();
#pragma unroll
        for (int share = 0; share < SHARE; ++share) {
            Value* to = plane + place(share);
#pragma unroll
            for (int j = 0; j < RUN; ++j) {
                if (!inside(share, j)) continue;
#pragma unroll
                for (int i = 0; i + 2 < TAPS; ++i) pairs[share][i] = pairs[share][i + 1];
                const Value next = j + HIGH < RUN ? to[j + HIGH] : beyond[share][max(0, j + HIGH - RUN)];
                pairs[share][TAPS - 2] = newest[share] + next;
                newest[share] = next;
                Value sum = pairs[share][0];
#pragma unroll
                for (int i = 2; i + 1 < TAPS; i += 2) sum = sum + pairs[share][i];
                to[j] = TAPS % 2 ? sum + next : sum;
            }
        }
    }
}

#include "exits.cuh"
#include "sliding.cuh"

// A value that enters a segment at offset (u, v): the sum over the slots of the exit of the segment before. `Down` is
// that exit's axis of rows.
template <class Down, int WIDTH, int SLOTS>
__device__ inline Value entered(const Value* __restrict__ values, int u, int v, int row, int k) {
    constexpr int HEIGHT = Down::length;
    const int place = ((Down::wrapped(u) * WIDTH + v) * HEIGHT + row) * WIDTH + k;
    Value sum = values[place];
    for (int slot = 1; slot < SLOTS; ++slot) sum = sum + values[slot * (HEIGHT * WIDTH * HEIGHT * WIDTH) + place];
    return sum;
}

// The sum over all threads of a block, in a fixed order; thread 0 gets it. `room` holds THREADS * PARTS doubles.
template <int THREADS>
__device__ inline void add_up(double (&total)[PARTS], double* room) {
    for (int i = 0; i < PARTS; ++i) room[threadIdx.x * PARTS + i] = total[i];
    for (int count = THREADS; count > 1; count = (count + 1) / 2) {
        sync_block();
        const int half = (count + 1) / 2, other = threadIdx.x + half;
        if (threadIdx.x < half && other < count)
            for (int i = 0; i < PARTS; ++i) room[threadIdx.x * PARTS + i] += room[other * PARTS + i];
    }
    for (int i = 0; i < PARTS; ++i) total[i] = room[threadIdx.x * PARTS + i];
}

// Entries of the matrix from totals, (units, groups, PARTS), added up over groups in order. `out` has `size` kernels,
// and behind them as many tangents.
extern "C" __global__ void finish(const double* totals, const Unit* units, double* out, index elements, int groups, int columns,
                                  index size) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const Unit unit = units[i];
        for (int part = 0; part < PARTS; ++part) {
            double total = 0;
            for (int group = 0; group < groups; ++group) total += totals[(i * groups + group) * PARTS + part];
            const int row = unit.left / LANES * LANES + part % LANES;
            if (row >= unit.left && row < unit.left + unit.count)
                out[part / LANES * size + index(row) * columns + unit.right] = total;
        }
    }
}
