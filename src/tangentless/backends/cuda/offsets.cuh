// Segments of a graph, offset by offset, in shared memory.
//
// Fix the offset (u, v) between a position of the left image and one of the right: windows are then plain sums over
// positions. A block follows one u after the other, and for each u all v, COLUMNS / WIDTH of them at a time. A value is a
// plane: rows of the left image, and beside each other the columns of these v. Offsets v and v - WIDTH share a row, of which
// each needs what the other leaves; so do u and u - HEIGHT share a column. Beside the columns of each offset stand PAD zeros,
// for what a window has outside.
//
// `offsets.py` writes one kernel for every segment from the functions here. Every element is computed by one thread, in a
// fixed order of sums, so bits depend neither on the launch nor on the batch.
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

// Inner products of LANES left images with one right image, and in a tangent graph as many tangents after them.
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
// Kernels are added to tangents: a layer of weights.
__device__ inline Value weighed(Value value) {
    for (int i = LANES; i < PARTS; ++i) value.v[i] += value.v[i - LANES];
    return value;
}

// As many numbers of left images, which stand beside each other in memory.
struct alignas(sizeof(real) * LANES) Lanes {
    real v[LANES];
};

// A run of left images, all of one number of LANES, and the right image they meet.
struct Unit {
    int right, left, count, slot;
};

// Rows of the left image that one value of u has. Where HEIGHT is a multiple of the exit's stride, u and u - HEIGHT are
// followed together: each needs the rows that the other leaves.
template <int HEIGHT, bool PAIRED>
struct Rows {
    static constexpr bool paired = PAIRED;
    int begin, split, end;  // part 0 is [begin, split), part 1 is [split, end)
    int u;

    __device__ explicit Rows(int u) : begin(max(0, -u)), split(HEIGHT - max(0, u)), end(PAIRED ? HEIGHT : split), u(u) {}
    __device__ int offset(int part) const { return part ? u - HEIGHT : u; }
    __device__ int low(int part) const { return part ? split : begin; }
    __device__ int high(int part) const { return part ? end : split; }
};

// A column of the planes, and a band of its rows: the work of one thread.
template <int WIDTH, int PAD, int COLUMNS, int BANDS>
struct Column {
    int place, k, n;  // in a plane's rows, and in both images
    int v, first, last;

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

// A column of the left image at COUNT offsets, the places of which are STEP apart. Beyond the last offset it stands for that
// again, at places that nobody reads.
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

// Zeros between the columns of v and those of v - WIDTH, in all rows of all planes.
template <int WIDTH, int PAD, int STRIDE, int STACK, int ROWS, int THREADS>
__device__ inline void separate(Value* planes, const int* __restrict__ offsets, int count) {
    if constexpr (PAD > 0)
        for (int i = threadIdx.x; i < (STACK ? 1 : count) * ROWS; i += THREADS) {
            const int number = STACK ? min(i % max(1, STACK), count - 1) : i / ROWS, row = i % ROWS;
            Value* seam = planes + row * STRIDE + PAD + WIDTH - offsets[number] + (STACK ? 0 : number * (WIDTH + 2 * PAD));
            for (int j = 0; j < PAD; ++j) seam[j] = nothing();
        }
}

// The other zeros, which stay: before the first column, and after those of every offset.
template <int WIDTH, int PAD, int STRIDE, int ROWS, int THREADS>
__device__ inline void frame(Value* planes) {
    for (int i = threadIdx.x; i < ROWS; i += THREADS)
        for (int j = 0; j < PAD; ++j)
            for (int place = j; place < STRIDE; place += WIDTH + 2 * PAD) planes[i * STRIDE + place] = nothing();
}

// Sums over places LOW to HIGH from each of the PLACES of a row that are no margin, in all rows: RUN neighbouring ones by a
// thread, which reads each value once. They are sums of pairs, of which neighbours share all but one.
template <int LOW, int HIGH, int RUN, int PLACES, int HEIGHT, int STRIDE, int PAD, int THREADS>
__device__ inline void add_lines(const Value* __restrict__ from, Value* __restrict__ to) {
    constexpr int TAPS = HIGH - LOW + 1, RUNS = (PLACES + RUN - 1) / RUN;
    for (int item = threadIdx.x; item < HEIGHT * RUNS; item += THREADS) {
        const int first = item / HEIGHT * RUN, start = item % HEIGHT * STRIDE + PAD + first;
        Value pairs[TAPS - 1];  // from place i + LOW on
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

// A number below COUNT for each below COUNT, such that those of an even number and the next are APART; both are powers of two.
template <int COUNT, int APART>
__device__ inline int spread(int number) {
    return COUNT < 2 * APART ? number : number / (2 * APART) * (2 * APART) + number % 2 * APART + number / 2 % APART;
}

// Products of pixels at all offsets beside each other, and their sums over places LOW to HIGH in their place, TEAM rows at once by
// one warp. Lanes that share a quarter of a warp read from rows and runs that lie in different banks.
template <int CHANNELS, int LOW, int HIGH, int TEAM, int RUN, int PLACES, int HEIGHT, int WIDTH, int OFFSETS, int STRIDE, int PAD,
          int THREADS, class Rows>
__device__ inline void line_sums(const Lanes* __restrict__ x, const real* __restrict__ z, Value* __restrict__ plane,
                                 const int* __restrict__ offsets, int count, const Rows& rows) {
    constexpr int WARP = THREADS < 32 ? THREADS : 32, WARPS = THREADS / WARP, RUNS = 32 / TEAM, SHARE = 32 / WARP;
    constexpr int TAPS = HIGH - LOW + 1, GRID = HEIGHT * WIDTH, APART = RUN % 8 == 4 ? 1 : RUN % 4 == 2 ? 2 : 4;
    constexpr bool WHOLE = Rows::paired && HEIGHT % (WARPS * TEAM) == 0;  // all warps have all their rows
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
            const Lanes* left_column = x + k;
            const real* right_columns[OFFSETS];
            for (int which = 0; which < OFFSETS; ++which) right_columns[which] = z + own[which].n;
#pragma unroll 2
            for (int i = 0; i < TEAM; ++i) {
                const int row = row_of(i);
                const Lanes* p = left_column + row * WIDTH;
                const int partner = (row + rows.offset(row >= rows.split)) * WIDTH;
                Value values[OFFSETS];
                for (int which = 0; which < OFFSETS; ++which) values[which] = nothing();
#pragma unroll(CHANNELS < 4 ? CHANNELS : 4)
                for (int c = 0; c < CHANNELS; ++c) {
                    const Lanes left = p[c * GRID];
#pragma unroll
                    for (int which = 0; which < OFFSETS; ++which) {
                        const real right = right_columns[which][partner + c * GRID];
                        for (int lane = 0; lane < LANES; ++lane) values[which].v[lane] += left.v[lane] * right;
                    }
                }
#pragma unroll
                for (int which = 0; which < OFFSETS; ++which) plane[row * STRIDE + own[which].place] = values[which];
            }
        }
        for (int j = lane; busy && j < PAD; j += WARP)  // the sums of the offsets before are where zeros were
#pragma unroll
            for (int which = 0; which < OFFSETS; ++which) {
                const int start = which * (WIDTH + 2 * PAD) + j, seam = start + PAD + WIDTH - offsets[min(which, count - 1)];
#pragma unroll
                for (int i = 0; i < TEAM; ++i) {
                    plane[row_of(i) * STRIDE + seam] = nothing();
                    if (which > 0) plane[row_of(i) * STRIDE + start] = nothing();
                }
            }
        sync_warp();
        Value pairs[SHARE][TAPS - 1], newest[SHARE], beyond[SHARE][HIGH];  // what other lanes are about to store over
#pragma unroll
        for (int share = 0; share < SHARE; ++share) {
            const Value* from = plane + place(share);
            newest[share] = from[LOW];
#pragma unroll
            for (int i = 1; i < TAPS - 1; ++i) {
                const Value next = from[LOW + i];
                pairs[share][i] = newest[share] + next;
                newest[share] = next;
            }
#pragma unroll
            for (int i = 0; i < HIGH; ++i) beyond[share][i] = from[RUN + i];
        }
        sync_warp();
#pragma unroll
        for (int share = 0; share < SHARE; ++share) {
            Value* to = plane + place(share);
            const bool there = WHOLE || top + (lane + share * WARP) % TEAM < rows.end;
#pragma unroll
            for (int j = 0; j < RUN; ++j) {
#pragma unroll
                for (int i = 0; i + 2 < TAPS; ++i) pairs[share][i] = pairs[share][i + 1];
                const Value next = j + HIGH < RUN ? to[j + HIGH] : beyond[share][max(0, j + HIGH - RUN)];
                pairs[share][TAPS - 2] = newest[share] + next;
                newest[share] = next;
                Value sum = pairs[share][0];
#pragma unroll
                for (int i = 2; i + 1 < TAPS; i += 2) sum = sum + pairs[share][i];
                const bool inside = RUN * (RUNS - 1) + j < PLACES || run(share) * RUN + j < PLACES;
                if (there && inside) to[j] = TAPS % 2 ? sum + next : sum;
            }
        }
    }
}

__device__ inline int floor_divided(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// Windows of SIZE at every STRIDE along an axis of POSITIONS, LENGTH of them; an offset u of positions feeds offsets U of
// windows. A group of u, those from STRIDE g on, feeds U = g + lowest and following, a slot each.
template <int SIZE, int STRIDE, int POSITIONS, int LENGTH>
struct Axis {
    static constexpr int size = SIZE, stride = STRIDE, positions = POSITIONS, length = LENGTH;
    static constexpr int lowest = -((SIZE - 1) / STRIDE), slots = (STRIDE + SIZE - 2) / STRIDE - lowest + 1;
    static constexpr bool tiles = SIZE == STRIDE && LENGTH * STRIDE == POSITIONS;
    // Whether u and u - POSITIONS belong to groups that are whole numbers apart, so that one slot serves both.
    static constexpr bool around = POSITIONS % STRIDE == 0;

    __device__ static bool has(int window, int U) { return unsigned(window + U) < unsigned(LENGTH); }
    // Positions [begin, end) of a window that have their partner in the window U further.
    __device__ static int begin(int u, int U) { return max(0, U * STRIDE - u); }
    __device__ static int end(int u, int U) { return min(SIZE, SIZE + U * STRIDE - u); }
    // Of the two offsets that share a slot, the one at which a window has its partner, if there is one.
    __device__ static int at(int window, int U) { return around && window + U >= LENGTH ? U - POSITIONS / STRIDE : U; }
    __device__ static int wrapped(int U) { return U < 0 ? U + LENGTH : U; }
};

// Values of windows: (slot, U, V, row, column), where U and U - height share their rows, and so do V and V - width. A thread
// owns (row, column), so it alone ever adds to what it has set to zero.
template <class Down, class Across, int THREADS>
struct Exit {
    static constexpr int TALL = Down::length, WIDE = Across::length, WIDTH = Across::positions;
    Value* __restrict__ values;

    __device__ Value* at(int slot, int U, int V, int item) const {
        return values + ((slot * TALL + U) * WIDE + V) * (TALL * WIDE) + item;
    }
    __device__ void clear(int group) const {
        for (int item = threadIdx.x; item < TALL * WIDE; item += THREADS)
            for (int slot = 0; slot < Down::slots; ++slot) {
                const int U = Down::at(item / WIDE, group + Down::lowest + slot);
                if (!Down::has(item / WIDE, U)) continue;
                for (int V = 0; V < WIDE; ++V) *at(slot, Down::wrapped(U), V, item) = nothing();
            }
    }
    // Adds what a plane holds at offset u and those v to all windows that they feed.
    template <int STRIDE, int PAD, int STACK>
    __device__ void add(const Value* plane, int group, int u, const int* __restrict__ offsets, int count) const {
        for (int item = threadIdx.x; item < TALL * WIDE; item += THREADS) {
            const Value* corner = plane + item / WIDE * Down::stride * STRIDE + PAD + item % WIDE * Across::stride;
            Tiles tiles(*this, u, item);
            for (int number = 0; number < count; ++number, corner += STACK ? STRIDE : WIDTH + 2 * PAD) {
                const int v = offsets[number], left = WIDTH - v - item % WIDE * Across::stride;  // columns before the seam
                if constexpr (Down::tiles && Across::tiles)
                    tiles.template add<STRIDE, PAD>(corner, left, v);
                else if constexpr (SMALL)
                    add_small<STRIDE, PAD>(corner, left, group, u, v, item);
                else
                    add_window<STRIDE, PAD, -1, -1>(corner, left, group, u, v, item);
            }
            if constexpr (Down::tiles && Across::tiles) tiles.leave();
        }
    }
    // Windows tile the grid: going around, each has a partner, and no position is in two of them. At u of one window all rows
    // have the same partner; so have all columns at such v. Sums for a partner wait until an offset has another one.
    struct Tiles {
        static constexpr int P = Down::size, Q = Across::size;
        const Exit& out;
        const int item, a, rows[2];  // the first a rows of a window have their partners in rows[0]
        int waiting = -1;            // V of the sums
        Value sums[2];

        __device__ Tiles(const Exit& out, int u, int item)
            : out(out), item(item), a(P - u % P), rows{u / P, u / P + 1 == TALL ? 0 : u / P + 1} {}
        template <int STRIDE, int PAD>
        __device__ void add(const Value* corner, int left, int v) {
            if (a == P && v % Q == 0)
                add_parts<STRIDE, PAD, 1, 1>(corner, left, v);
            else if (a == P)
                add_parts<STRIDE, PAD, 1, 2>(corner, left, v);
            else if (v % Q == 0)
                add_parts<STRIDE, PAD, 2, 1>(corner, left, v);
            else
                add_parts<STRIDE, PAD, 2, 2>(corner, left, v);
        }
        // The first rows and columns of a window, and if there are two PARTS the others, each to its partner.
        template <int STRIDE, int PAD, int ROW_PARTS, int COLUMN_PARTS>
        __device__ void add_parts(const Value* corner, int left, int v) {
            const int b = Q == 2 ? 3 - COLUMN_PARTS : Q - v % Q, until = P == 2 ? 3 - ROW_PARTS : a;
            Value parts[COLUMN_PARTS][ROW_PARTS];
#pragma unroll
            for (int j = 0; j < COLUMN_PARTS; ++j)
#pragma unroll
                for (int i = 0; i < ROW_PARTS; ++i) parts[j][i] = nothing();
#pragma unroll(P > 8 ? 1 : P)
            for (int i = 0; i < P; ++i) {
                Value line[COLUMN_PARTS];
#pragma unroll
                for (int j = 0; j < COLUMN_PARTS; ++j) line[j] = nothing();
#pragma unroll(Q > 8 ? 1 : Q)
                for (int j = 0; j < Q; ++j) {
                    const Value value = corner[i * STRIDE + j + (j >= left ? PAD : 0)];
                    if (COLUMN_PARTS == 1 || j < b)
                        line[0] = line[0] + value;
                    else
                        line[COLUMN_PARTS - 1] = line[COLUMN_PARTS - 1] + value;
                }
#pragma unroll
                for (int j = 0; j < COLUMN_PARTS; ++j)
                    if (ROW_PARTS == 1 || i < until)
                        parts[j][0] = parts[j][0] + line[j];
                    else
                        parts[j][ROW_PARTS - 1] = parts[j][ROW_PARTS - 1] + line[j];
            }
            const int V = v / Q;
            if (waiting == V) {
#pragma unroll
                for (int i = 0; i < ROW_PARTS; ++i) parts[0][i] = sums[i] + parts[0][i];
            } else {
                leave();
            }
            if constexpr (COLUMN_PARTS == 2)
#pragma unroll
                for (int i = 0; i < ROW_PARTS; ++i) out.add_to(i, rows[i], V, item, parts[0][i]);
            waiting = COLUMN_PARTS == 1 ? V : V + 1 == WIDE ? 0 : V + 1;
#pragma unroll
            for (int i = 0; i < ROW_PARTS; ++i) sums[i] = parts[COLUMN_PARTS - 1][i];
        }
        __device__ void leave() const {
            if (waiting < 0) return;
            out.add_to(0, rows[0], waiting, item, sums[0]);
            if (a < P) out.add_to(1, rows[1], waiting, item, sums[1]);
        }
    };
    // Windows that overlap, at every or every other position: which part of one has which partner depends on whether u and v are
    // even, and is known to the compiler in each case.
    static constexpr bool SMALL = Down::stride <= 2 && Across::stride <= 2 && Across::around && Down::size * Across::size <= 9;
    template <int STRIDE, int PAD>
    __device__ void add_small(const Value* corner, int left, int group, int u, int v, int item) const {
        constexpr int R = Down::stride - 1, S = Across::stride - 1;  // the last remainders
        const bool odd_u = u - group * Down::stride == R, odd_v = v % Across::stride == S;
        if (odd_u && odd_v)
            add_window<STRIDE, PAD, R, S>(corner, left, group, u, v, item);
        else if (odd_u)
            add_window<STRIDE, PAD, R, 0>(corner, left, group, u, v, item);
        else if (odd_v)
            add_window<STRIDE, PAD, 0, S>(corner, left, group, u, v, item);
        else
            add_window<STRIDE, PAD, 0, 0>(corner, left, group, u, v, item);
    }
    // Any windows. R and S are the remainders of u and v by the strides, or negative where the compiler is not to know them. All
    // loops have fixed bounds: of one whose bounds are a maximum and a minimum, NVRTC makes code that runs once too often.
    template <int STRIDE, int PAD, int R, int S>
    __device__ void add_window(const Value* corner, int left, int group, int u, int v, int item) const {
        constexpr int P = Down::size, Q = Across::size, parts = Across::around ? 1 : 2, targets = parts * Across::slots;
        constexpr bool known = R >= 0;
        const int J = item / WIDE, K = item % WIDE, r = known ? R : u - group * Down::stride;
        Value window[known ? P : 1][known ? Q : 1];
        if constexpr (known)
#pragma unroll
            for (int i = 0; i < P; ++i)
#pragma unroll
                for (int j = 0; j < Q; ++j) window[i][j] = corner[i * STRIDE + j + (j >= left ? PAD : 0)];
#pragma unroll(known ? targets : 1)
        for (int target = 0; target < targets; ++target) {
            const int offset = v - target / Across::slots * WIDTH, group_v = floor_divided(offset, Across::stride);
            const int further = Across::lowest + target % Across::slots, s = known ? S : offset - group_v * Across::stride;
            const int begin = Across::begin(s, further), end = Across::end(s, further), V = Across::at(K, group_v + further);
            if (begin >= end || !Across::has(K, V)) continue;
            const Value* first = corner + (begin >= left ? PAD : 0);
            Value sums[Down::slots];
#pragma unroll
            for (int slot = 0; slot < Down::slots; ++slot) sums[slot] = nothing();
#pragma unroll(P > 8 ? 1 : P)
            for (int i = 0; i < P; ++i) {
                Value line = nothing();
#pragma unroll(Q > 8 ? 1 : Q)
                for (int j = 0; j < Q; ++j)
                    if (j >= begin && j < end) line = line + (known ? window[known ? i : 0][known ? j : 0] : first[i * STRIDE + j]);
#pragma unroll
                for (int slot = 0; slot < Down::slots; ++slot)
                    if (i >= Down::begin(r, Down::lowest + slot) && i < Down::end(r, Down::lowest + slot))
                        sums[slot] = sums[slot] + line;
            }
#pragma unroll
            for (int slot = 0; slot < Down::slots; ++slot) {
                const int below = Down::lowest + slot, U = Down::at(J, group + below);
                if (Down::begin(r, below) >= Down::end(r, below) || !Down::has(J, U)) continue;
                add_to(slot, Down::wrapped(U), Across::wrapped(V), item, sums[slot]);
            }
        }
    }
    __device__ void add_to(int slot, int U, int V, int item, const Value& sum) const {
        Value* place = at(slot, U, V, item);
        const Value before = *place;
        *place = before + sum;
    }
};

// The sum over slots of what a segment before has left at offset (u, v).
template <class Down, int WIDTH>
__device__ inline Value entered(const Value* __restrict__ values, int u, int v, int row, int k) {
    constexpr int HEIGHT = Down::length;
    const int place = ((Down::wrapped(u) * WIDTH + v) * HEIGHT + row) * WIDTH + k;
    Value sum = values[place];
    for (int slot = 1; slot < Down::slots; ++slot) sum = sum + values[slot * (HEIGHT * WIDTH * HEIGHT * WIDTH) + place];
    return sum;
}

// The sum over all threads of a block, in a fixed order; the first thread has it.
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

// Entries from the totals of all groups of a unit, added in order: kernels, and tangents after all of them.
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
