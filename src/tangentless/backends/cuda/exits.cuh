// Exits of segments: what a pool, or a stride, collects from the planes of `offsets.cuh`, which includes this file.
// Without a pool, windows have size 1.
//
// Windows are numbered (J, K) in the left image. An exit has a value for each window and each offset (U, V) to a window
// of the right image. A position at offset (u, v) adds to every (U, V) for which its partner lies in the window (J + U,
// K + V).
#pragma once

__device__ inline int floor_divided(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// One axis of an exit: LENGTH windows of SIZE positions, STRIDE apart, on an axis of POSITIONS.
//
// A group g of offsets, u = STRIDE g ... STRIDE g + STRIDE - 1, feeds the offsets U = g + lowest + slot of windows, for
// slot = 0 ... slots - 1. Each group has a block of its own. Different groups feed the same U in different slots, so no
// two blocks ever write to the same place; `entered` adds up the slots. Example: with SIZE = 3 and STRIDE = 2, group g
// feeds U = g - 1, g and g + 1, in slots 0, 1 and 2.
template <int SIZE, int STRIDE, int POSITIONS, int LENGTH>
struct Axis {
    static constexpr int size = SIZE, stride = STRIDE, positions = POSITIONS, length = LENGTH;
    static constexpr int lowest = -((SIZE - 1) / STRIDE), slots = (STRIDE + SIZE - 2) / STRIDE - lowest + 1;
    static constexpr bool tiles = SIZE == STRIDE && LENGTH * STRIDE == POSITIONS;
    // Whether POSITIONS is a multiple of STRIDE. Then, if u feeds U, u - POSITIONS feeds U - POSITIONS / STRIDE from
    // the same slot, and the two can be followed together.
    static constexpr bool around = POSITIONS % STRIDE == 0;

    // Whether there is a window U further.
    __device__ static bool has(int window, int U) { return unsigned(window + U) < unsigned(LENGTH); }
    // Positions [begin, end) of a window whose partners at offset u lie in the window U further.
    __device__ static int begin(int u, int U) { return max(0, U * STRIDE - u); }
    __device__ static int end(int u, int U) { return min(SIZE, SIZE + U * STRIDE - u); }
    // Of the two offsets U that share a slot, the one at which a window has a partner; it may have none at either.
    __device__ static int at(int window, int U) { return around && window + U >= LENGTH ? U - POSITIONS / STRIDE : U; }
    // Where offset U is stored: U and U - LENGTH share a place, since no window has a partner at both.
    __device__ static int wrapped(int U) { return U < 0 ? U + LENGTH : U; }
};

// The values of an exit, [slot][U][V][J][K]. U and U - TALL share a place, and so do V and V - WIDE. Item J * WIDE + K,
// the window of the left image, belongs to one thread: it alone sets these values to zero and adds to them.
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
    // Adds what a plane holds at u and at the `count` offsets v to all windows that they feed. `corner` is the first
    // position of the thread's window in the plane, `left` the number of columns from there to the seam.
    template <int STRIDE, int PAD, int STACK>
    __device__ void add(const Value* plane, int group, int u, const int* __restrict__ offsets, int count) const {
        for (int item = threadIdx.x; item < TALL * WIDE; item += THREADS) {
            const Value* corner = plane + item / WIDE * Down::stride * STRIDE + PAD + item % WIDE * Across::stride;
            Tiles tiles(*this, u, item);
            for (int number = 0; number < count; ++number, corner += STACK ? STRIDE : WIDTH + 2 * PAD) {
                const int v = offsets[number], left = WIDTH - v - item % WIDE * Across::stride;
                if constexpr (Down::tiles && Across::tiles)
                    tiles.template add<STRIDE, PAD>(corner, left, v);
                else if (PAIRS && !STACK && v % 2 == 0 && number + 1 < count && offsets[number + 1] == v + 1) {
                    add_pair<STRIDE, PAD>(corner, left, group, u, v, item);
                    corner += WIDTH + 2 * PAD, ++number;
                } else if constexpr (SMALL)
                    add_small<STRIDE, PAD>(corner, left, group, u, v, item);
                else
                    add_window<STRIDE, PAD, -1, -1>(corner, left, group, u, v, item);
            }
            if constexpr (Down::tiles && Across::tiles) tiles.leave();
        }
    }
    // For windows that tile the grid: each position is in one window, and modulo the grid each window has a partner at
    // every offset. The first a = P - u % P rows of a window have their partners in the window u / P further, the
    // others in the next one; a multiple of P has no others. It is the same for columns. Successive v feed the same V,
    // so sums wait in registers until another V comes.
    struct Tiles {
        static constexpr int P = Down::size, Q = Across::size;
        const Exit& out;
        const int item, a, rows[2];  // rows[0], rows[1]: U of the first a rows of a window, and of the others
        int waiting = -1;            // V of the sums, -1 while there are none
        Value sums[2];               // for each of the two U

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
        // Adds up the parts of a window that have different partners: the first rows and the others, if ROW_PARTS is 2,
        // and the same for columns. The last part of columns waits.
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
    // Small windows that may overlap, with strides of 1 or 2: which part of a window has which partner depends only on
    // the remainders of u and v by the strides. Each case is compiled with these as constants.
    static constexpr bool SMALL = Down::stride <= 2 && Across::stride <= 2 && Across::around && Down::size * Across::size <= 9;
    template <int STRIDE, int PAD>
    __device__ void add_small(const Value* corner, int left, int group, int u, int v, int item) const {
        constexpr int R = Down::stride - 1, S = Across::stride - 1;  // the largest remainders
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
    // Such windows with strides of 2, at an even offset v and at v + 1, whose columns are beside each other in the
    // plane: what the two add to the same V is added up first.
    static constexpr bool PAIRS = SMALL && Down::stride == 2 && Across::stride == 2;
    template <int STRIDE, int PAD>
    __device__ void add_pair(const Value* corner, int left, int group, int u, int v, int item) const {
        if (u % 2)
            add_both<STRIDE, PAD, 1>(corner, left, group, v, item);
        else
            add_both<STRIDE, PAD, 0>(corner, left, group, v, item);
    }
    template <int STRIDE, int PAD, int R>
    __device__ void add_both(const Value* corner, int left, int group, int v, int item) const {
        const int J = item / WIDE, K = item % WIDE;
#pragma unroll
        for (int target = 0; target < Across::slots; ++target) {
            const int further = Across::lowest + target, V = Across::at(K, v / 2 + further);
            if (!Across::has(K, V)) continue;
            Value sums[Down::slots];
#pragma unroll
            for (int slot = 0; slot < Down::slots; ++slot) sums[slot] = nothing();
#pragma unroll
            for (int i = 0; i < Down::size; ++i) {
                Value line = nothing();
#pragma unroll
                for (int odd = 0; odd < 2; ++odd)
#pragma unroll
                    for (int j = 0; j < Across::size; ++j)
                        if (j >= Across::begin(odd, further) && j < Across::end(odd, further))
                            line = line + corner[i * STRIDE + odd * (WIDTH + 2 * PAD) + j + (j >= left - odd ? PAD : 0)];
#pragma unroll
                for (int slot = 0; slot < Down::slots; ++slot)
                    if (i >= Down::begin(R, Down::lowest + slot) && i < Down::end(R, Down::lowest + slot))
                        sums[slot] = sums[slot] + line;
            }
            leave(sums, group, R, J, V, item);
        }
    }
    // Adds sums of a window's rows to the values at V and at all U that the group feeds.
    __device__ void leave(const Value (&sums)[Down::slots], int group, int r, int J, int V, int item) const {
#pragma unroll
        for (int slot = 0; slot < Down::slots; ++slot) {
            const int below = Down::lowest + slot, U = Down::at(J, group + below);
            if (Down::begin(r, below) >= Down::end(r, below) || !Down::has(J, U)) continue;
            add_to(slot, Down::wrapped(U), Across::wrapped(V), item, sums[slot]);
        }
    }
    // Windows of any kind. R and S are the remainders of u and v by the strides, or negative if they are not constants.
    // All loops have constant bounds: where the bounds of a loop are a maximum and a minimum, NVRTC has made code that
    // runs once too often.
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
            leave(sums, group, r, J, V, item);
        }
    }
    // Adds a sum to one value of the exit.
    __device__ void add_to(int slot, int U, int V, int item, const Value& sum) const {
        Value* place = at(slot, U, V, item);
        const Value before = *place;
        *place = before + sum;
    }
};

// The exit of a grid of one row that windows of 2 positions tile. A plane holds STACK neighbouring offsets, v ... v +
// STACK - 1, where v is a multiple of STACK. For even v', V = v' / 2 is the sum of both positions of a window at v', of
// the first at v' + 1, and of the second at v' - 1. Only v - 1 is not in the plane; its values were kept in registers.
// So every sum is stored once, and none is read again but those of V = 0, which get the last offset's share at the end.
template <class Across, int STACK, int THREADS>
struct RowExit {
    static constexpr int WIDE = Across::length, WIDTH = Across::positions;
    static constexpr int ITEMS = WIDE * (STACK / 2), SHARE = (ITEMS + THREADS - 1) / THREADS;
    static_assert(Across::tiles && Across::size == 2 && STACK % 2 == 0 && WIDTH % STACK == 0);
    Value* __restrict__ values;  // (V, window)
    Value kept[SHARE];

    __device__ explicit RowExit(Value* values) : values(values) {
        for (int i = 0; i < SHARE; ++i) kept[i] = nothing();
    }
    template <int STRIDE, int PAD>
    __device__ void add(const Value* plane, int v) {
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            const int item = threadIdx.x + i * THREADS, window = item % WIDE, first = item / WIDE * 2;  // v' - v
            const auto at = [&](int which, int j) {
                const int k = 2 * window + j;
                return plane[which * STRIDE + PAD + k + (k >= WIDTH - v - which ? PAD : 0)];
            };
            if (item >= ITEMS) continue;
            const Value before = first ? at(first - 1, 1) : kept[i];
            values[(v + first) / 2 * WIDE + window] = before + at(first, 0) + (at(first, 1) + at(first + 1, 0));
            if (!first) kept[i] = at(STACK - 1, 1);
        }
    }
    __device__ void finish() const {
        for (int i = 0; i < SHARE; ++i) {
            const int item = threadIdx.x + i * THREADS;
            if (item < WIDE) values[item] = values[item] + kept[i];
        }
    }
};
