// The way back through the segments of a chain. `offsets.cuh` says what offsets are.
//
// A team of threads, one for each column of the left image, keeps the offset v and walks down the rows of all offsets u, one
// after the other. Values enter at row t; every window waits for the rows below it, so each step, and each step back, works
// on a row that entered a little earlier. All that a thread has to remember of these rows stays in its registers. Only
// columns beside each other meet, in a row of shared memory. `pulling.py` writes one kernel for every segment.
//
// Cotangents of logarithms of norms, and of pixels, are added up for either image in shared memory, by all teams of a block.
// Teams are SKEW rows apart, and wait for each other every SKEW rows or more often: no two teams add to the same row of the left
// image, nor of the right one, at the same time. So the order of sums is fixed.
#pragma once

#ifdef __CUDACC__  // the tests provide these names themselves
// The compiler then keeps the number or the pointer instead of computing it again for every row.
__device__ inline int opaque(int number) {
    asm("" : "+r"(number));
    return number;
}
template <class T>
__device__ inline T* opaque(T* pointer) {
    asm("" : "+l"(pointer));
    __builtin_assume(__isGlobal(pointer));
    return pointer;
}
// Four warps wait for each other.
__device__ inline void sync_four(int barrier) { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }
#else
inline void sync_four(int) { sync_block(); }
#endif

__device__ inline Value operator*(const Value& a, const Value& b) {
    Value product;
    for (int i = 0; i < PARTS; ++i) product.v[i] = a.v[i] * b.v[i];
    return product;
}
__device__ inline real added(const Value& a) {
    real total = a.v[0];
    for (int i = 1; i < LANES; ++i) total += a.v[i];
    return total;
}

// Cotangents of COUNT numbers at every position, of left images if BOTH are wanted, and of the right one.
template <int COUNT, int HEIGHT, int WIDTH, int COLUMNS, int THREADS, bool BOTH>
struct Found {
    static constexpr int PLACES = HEIGHT * COLUMNS;
    Value* left;
    real* right;

    __device__ explicit Found(Value* room)
        : left(room), right(reinterpret_cast<real*>(room + (BOTH ? COUNT * PLACES : 0))) {}

    __device__ void clear() const {
        for (int i = threadIdx.x; i < COUNT * PLACES; i += THREADS) {
            if constexpr (BOTH) left[i] = nothing();
            right[i] = 0;
        }
    }
    // What both images have of number `which` so far, at places of a plane without its zeros.
    struct Sums {
        Value left;
        real right;
    };
    __device__ Sums sums(int which, int mine, int others) const {
        Sums so_far;
        if constexpr (BOTH) so_far.left = left[which * PLACES + mine];
        so_far.right = right[which * PLACES + others];
        return so_far;
    }
    __device__ void add(int which, int mine, int others, const Sums& so_far, const Value& cotangent) const {
        if constexpr (BOTH) left[which * PLACES + mine] = so_far.left + cotangent;
        right[which * PLACES + others] = so_far.right + added(cotangent);
    }
    __device__ void add_pixels(int channel, int mine, int others, const Sums& so_far, const Value& cotangent, const Lanes x,
                               real z) const {
        if constexpr (BOTH) left[channel * PLACES + mine] = so_far.left + z * cotangent;
        real total = so_far.right;
        for (int i = 0; i < LANES; ++i) total += cotangent.v[i] * x.v[i];
        right[channel * PLACES + others] = total;
    }
    // Adds up what the offsets beside each other have found.
    __device__ void leave(Value* __restrict__ lefts, real* __restrict__ rights) const {
        for (int i = threadIdx.x; i < COUNT * HEIGHT * WIDTH; i += THREADS) {
            const int place = i / WIDTH * COLUMNS + i % WIDTH;
            real sum = right[place];
            for (int k = WIDTH; k < COLUMNS; k += WIDTH) sum += right[place + k];
            rights[i] = sum;
            if constexpr (BOTH) {
                Value total = left[place];
                for (int k = WIDTH; k < COLUMNS; k += WIDTH) total = total + left[place + k];
                lefts[i] = total;
            }
        }
    }
};

// The thread's column of both images, and its place in a team's row of values, which has PAD more at either end. There are
// OFFSETS of v, from FIRST on.
template <int WIDTH, int OFFSETS, int FIRST, int PAD, int COLUMNS, int TEAM, int TEAMS>
struct Place {
    static constexpr bool all_work = COLUMNS == TEAM && OFFSETS % (TEAMS * COLUMNS / WIDTH) == 0;
    int team, k, n, v, mine, others, column;
    bool idle;

    __device__ Place(int item, int first) : team(item / TEAM), k(item % TEAM % WIDTH) {
        const int number = item % TEAM / WIDTH;
        v = first + team * (COLUMNS / WIDTH) + number;
        idle = !all_work && (item % TEAM >= COLUMNS || v >= OFFSETS);
        v = (v + FIRST) % WIDTH;
        n = k + v - (k >= WIDTH - v ? WIDTH : 0);
        mine = number * WIDTH + k, others = number * WIDTH + n;
        column = PAD + mine;
    }
};

// Whether windows reach the columns up to ACROSS to the left and to the right, in both images: 1 or 0. Values that they do not
// reach stand beside those they do: zeros between them would set threads apart, and shared memory would answer in more turns.
template <int ACROSS>
struct Neighbours {
    real left[ACROSS > 0 ? ACROSS : 1], right[ACROSS > 0 ? ACROSS : 1];

    __device__ void find(int k, int n, int width) {
        for (int j = 1; j <= ACROSS; ++j) {
            left[j - 1] = k >= j && n >= j ? 1 : 0;
            right[j - 1] = k + j < width && n + j < width ? 1 : 0;
        }
    }
};

// Row `time` of a walk through all rows of OFFSETS of u, from FIRST on; it begins at BEFORE * HEIGHT. Earlier and later rows are
// not in use, but they have a row in either image too.
template <int HEIGHT, int OFFSETS, int FIRST, int BEFORE>
struct Row {
    static constexpr unsigned SHIFT = FIRST + HEIGHT * BEFORE - BEFORE;
    int row, partner;
    bool used;

    __device__ explicit Row(unsigned time)
        : row(time % HEIGHT), partner((time % HEIGHT + time / HEIGHT + SHIFT) % HEIGHT),
          used(time - BEFORE * HEIGHT < OFFSETS * HEIGHT) {}
    __device__ int u() const { return partner - row + (partner < row ? HEIGHT : 0); }
    // Whether windows reach so many rows up or down, in both images: 1 or 0.
    __device__ real up(int rows) const { return row >= rows && partner >= rows ? 1 : 0; }
    __device__ real down(int rows) const { return row + rows < HEIGHT && partner + rows < HEIGHT ? 1 : 0; }
};

// Sums over windows that reach DOWN rows up and down and ACROSS columns to either side.
template <int DOWN, int ACROSS>
struct Windows {
    Value lines[DOWN > 0 ? 2 * DOWN : 1];  // sums along rows, the oldest first

    __device__ void clear() {
        for (Value& line : lines) line = nothing();
    }
    // Takes a thread's value and those beside it, and returns the sum of the window that it completes, DOWN rows above.
    template <class Row, class Beside>
    __device__ Value add(const Value& own, const Value* beside, const Row& above, const Beside& links) {
        Value line = own;
#pragma unroll
        for (int j = 1; j <= ACROSS; ++j) {
            line = line + links.left[j - 1] * beside[-j];
            line = line + links.right[j - 1] * beside[j];
        }
        if constexpr (DOWN == 0) return line;
        Value sum = lines[DOWN];
#pragma unroll
        for (int d = 1; d <= DOWN; ++d) {
            sum = sum + above.up(d) * lines[DOWN - d];
            sum = sum + above.down(d) * (d == DOWN ? line : lines[DOWN + d]);
        }
#pragma unroll
        for (int i = 1; i < 2 * DOWN; ++i) lines[i - 1] = lines[i];
        lines[2 * DOWN - 1] = line;
        return sum;
    }
};

// A value that is needed again when so many rows have passed.
template <int ROWS>
struct Delayed {
    Value kept[ROWS > 0 ? ROWS : 1], due;

    __device__ void clear() {
        for (Value& value : kept) value = nothing();
    }
    __device__ void add(const Value& value) {
        if constexpr (ROWS == 0) {
            due = value;
        } else {
            due = kept[ROWS - 1];
#pragma unroll
            for (int i = ROWS - 1; i > 0; --i) kept[i] = kept[i - 1];
            kept[0] = value;
        }
    }
};

template <int TEAM>
__device__ inline void sync_threads_of_team() {
    if constexpr (TEAM > 32)
        sync_block();
    else
        sync_warp();
}

// How teams wait for each other, so that they add to a row in a fixed order. If teams are warps and there are enough of them,
// pairs of teams stand in a ring, and each pair waits only for the one before and the one after it. Elsewhere the block waits.
//
// A pair is then at most one turn of SKEW rows ahead of its neighbours, and a row passes from team to team one turn at a time.
// If the block is CROWDED, with teams at all rows, the first team follows the last one after a single row, so the pairs that
// share barrier `second`, the last and the first among them, wait after every row.
template <int TEAM, int TEAMS, int SKEW, int HEIGHT>
struct Order {
    static constexpr int PAIRS = TEAMS / 2;
    static constexpr bool CROWDED = TEAMS * SKEW >= HEIGHT, RING = TEAM == 32 && TEAMS % 4 == 0 && TEAMS > 4;
    int first, second;  // barriers with the two neighbours: every one is `first`, or `second`, for both of its pairs

    __device__ explicit Order(int team) {
        const int own = team / 2, before = own > 0 ? own : PAIRS, after = own + 1;
        first = opaque(own % 2 ? before : after), second = opaque(own % 2 ? after : before);
    }
    __device__ void wait(int step) const {
        if constexpr (!RING) {
            if (step == 0 || CROWDED) sync_block();
        } else {
            if (step == 0) sync_four(first);
            if (step == 0 || CROWDED) sync_four(second);  // of the last pair and the first, among others
        }
    }
};

// Where the cotangent of two windows of SIZE stands along an axis of exits: offset U and place J, where offsets go around.
template <int SIZE, int LENGTH>
struct OfWindows {
    int U, J;
    __device__ OfWindows(int place, int partner) : U(partner / SIZE - place / SIZE), J(place / SIZE) {
        if (U < 0) U += LENGTH;
    }
    __device__ int place(int of_offset, int of_place) const { return U * of_offset + J * of_place; }
};

// What a thread reads in its columns: pixels and norms of both images, cotangents of exits, and where it has its value in the
// first of its team's rows.
struct Sources {
    const Lanes *x, *a;
    const real *z, *b;
    const Value* given;
    int line;
};

// Sums of a pool as `stage.cu` leaves them, [pair][u][row][k][n], as exits of units: [u][v][row][k], in one slot. Pairs
// that a unit lacks have zeros.
extern "C" __global__ void lay_out(const float* sums, Value* exits, const Unit* units, index elements, int height, int width,
                                   double factor) {
    const int size = height * width * height * width;
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const index number = i / size;
        const int place = int(i % size), plane = place / (width * width), v = place / width % width, k = place % width;
        const int n = k + v < width ? k + v : k + v - width;
        const int first = units[number].left % LANES, last = first + units[number].count;
        const float* from = sums + (number * LANES - first) * size + (index(plane) * width + k) * width + n;
        Value value;
        for (int lane = 0; lane < LANES; ++lane)
            value.v[lane] = lane >= first && lane < last ? real(factor) * from[index(lane) * size] : 0;
        exits[number * size + ((index(plane / height) * width + v) * height + plane % height) * width + k] = value;
    }
}

// Adds cotangents of images alone, (images, size), to those of exits of images with themselves, at no offset.
extern "C" __global__ void add_own(Value* given, const double* by, index elements, int size) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const index image = i / size;
        given[image * size * size + i % size].v[image % LANES] += real(by[i]);
    }
}

// Adds what all units found to the images' totals: of a left image those with all columns, of a right one those with all runs
// of left images, each in order. `table` has the unit of every run and column, or -1.
extern "C" __global__ void gather_left(const Value* parts, const int* table, double* found, index elements, int size, int groups,
                                       int columns, const double* factor) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const int image = int(i / size), place = int(i % size);
        double total = found[i];
        for (int column = 0; column < columns; ++column) {
            const int unit = table[image / LANES * columns + column];
            if (unit < 0) continue;
            double sum = 0;
            for (int group = 0; group < groups; ++group)
                sum += parts[(index(unit) * groups + group) * size + place].v[image % LANES];
            total += *factor * sum;
        }
        found[i] = total;
    }
}
extern "C" __global__ void gather_right(const real* parts, const int* table, double* found, index elements, int size, int groups,
                                        int columns, int runs, const double* factor) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const int column = int(i / size), place = int(i % size);
        double total = found[i];
        for (int run = 0; run < runs; ++run) {
            const int unit = table[run * columns + column];
            if (unit < 0) continue;
            double sum = 0;
            for (int group = 0; group < groups; ++group) sum += parts[(index(unit) * groups + group) * size + place];
            total += *factor * sum;
        }
        found[i] = total;
    }
}
// The same of one number a pair, (images, others).
extern "C" __global__ void gather_numbers(const double* values, double* found, index images, int others) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < images; i += index(gridDim.x) * blockDim.x) {
        double total = found[i];
        for (int other = 0; other < others; ++other) total += values[i * others + other];
        found[i] = total;
    }
}
