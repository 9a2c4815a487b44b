// The way back through the segments of a chain, offset by offset: `offsets.cuh` says what planes and columns are.
//
// For each offset a block computes its planes again, and pulls the cotangents of the pool after them back to its entrance. On
// the way cotangents of logarithms of norms, and of pixels, are added up for either image in shared memory: those of left
// images by the thread that owns the position, those of the right image where the offset takes it, which within one offset is
// another place for every thread. `pulling.py` writes one kernel for every segment.
#pragma once

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
    // What both images get of number `which`, at places of a plane without its zeros.
    __device__ void add(int which, int mine, int others, const Value& cotangent) const {
        if constexpr (BOTH) left[which * PLACES + mine] = left[which * PLACES + mine] + cotangent;
        right[which * PLACES + others] += added(cotangent);
    }
    __device__ void add_pixels(int channel, int mine, int others, const Value& cotangent, const Lanes x, real z) const {
        if constexpr (BOTH) left[channel * PLACES + mine] = left[channel * PLACES + mine] + z * cotangent;
        real total = right[channel * PLACES + others];
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

// The positions of one thread: a column of the planes, and TALL rows from `first` on. Offsets (u, v) go around: a row from
// `split` on has its partner in the first rows of the right image, and windows do not reach across.
template <int HEIGHT, int WIDTH, int PAD, int COLUMNS, int TALL>
struct Place {
    static constexpr int height = HEIGHT;
    static constexpr bool even = HEIGHT % TALL == 0;
    int number, k, n, v, column, first, u, split;
    bool idle;

    __device__ Place(int item, int start, int u)
        : number(item % COLUMNS / WIDTH), k(item % WIDTH), v(start + number), first(item / COLUMNS * TALL), u(u),
          split(HEIGHT - u), idle(v >= WIDTH || first >= HEIGHT) {
        const bool beyond = k >= WIDTH - v;
        n = k + v - (beyond ? WIDTH : 0);
        column = PAD + number * (WIDTH + 2 * PAD) + k + (beyond ? PAD : 0);
    }
    __device__ bool has(int row) const { return even || row < HEIGHT; }
    __device__ int partner(int row) const { return row + u - (row >= split ? HEIGHT : 0); }
    __device__ bool joined(int row, int other) const {
        return other >= 0 && other < HEIGHT && (row < split) == (other < split);
    }
    __device__ int mine(int row) const { return row * COLUMNS + number * WIDTH + k; }
    __device__ int others(int row) const { return partner(row) * COLUMNS + number * WIDTH + n; }
};

// Sums over windows that reach DOWN rows and ACROSS columns: calls work(row, sum) for every row of a thread.
template <int DOWN, int ACROSS, int TALL, int STRIDE, class Place, class Work>
__device__ inline void windows(const Value* plane, const Place& here, Work work) {
    const Value* corner = plane + here.first * STRIDE + here.column;
    Value lines[2 * DOWN + 1];
    auto line = [&](int t) {
        if (t < 0 && here.first + t < 0) return nothing();
        if ((t >= TALL || !Place::even) && here.first + t >= Place::height) return nothing();
        Value sum = corner[t * STRIDE - ACROSS];
#pragma unroll
        for (int j = 1 - ACROSS; j <= ACROSS; ++j) sum = sum + corner[t * STRIDE + j];
        return sum;
    };
#pragma unroll
    for (int t = -DOWN; t < DOWN; ++t) lines[t + DOWN + 1] = line(t);
#pragma unroll
    for (int t = 0; t < TALL; ++t) {
        const int row = here.first + t;
#pragma unroll
        for (int i = 0; i < 2 * DOWN; ++i) lines[i] = lines[i + 1];
        lines[2 * DOWN] = line(t + DOWN);
        if (!here.has(row)) continue;
        Value sum = lines[DOWN];
#pragma unroll
        for (int d = 1; d <= DOWN; ++d) {
            if (here.joined(row, row - d)) sum = sum + lines[DOWN - d];
            if (here.joined(row, row + d)) sum = sum + lines[DOWN + d];
        }
        work(row, sum);
    }
}

// Where the cotangent of two windows of DOWN × ACROSS stands: (U, V, row, column), where offsets go around as in exits.
template <int DOWN, int ACROSS, int TALL, int WIDE>
__device__ inline int of_windows(int row, int partner, int k, int n) {
    const int J = row / DOWN, K = k / ACROSS, U = partner / DOWN - J, V = n / ACROSS - K;
    return (((U < 0 ? U + TALL : U) * WIDE + (V < 0 ? V + WIDE : V)) * TALL + J) * WIDE + K;
}

// Adds what all units found to the images' totals: of a left image those with all columns, of a right one those with all runs
// of left images, each in order. `table` has the unit of every run and column, or -1.
extern "C" __global__ void gather_left(const Value* parts, const int* table, double* found, index elements, int size, int groups,
                                       int columns, double factor) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const int image = int(i / size), place = int(i % size);
        double total = found[i];
        for (int column = 0; column < columns; ++column) {
            const int unit = table[image / LANES * columns + column];
            if (unit < 0) continue;
            double sum = 0;
            for (int group = 0; group < groups; ++group)
                sum += parts[(index(unit) * groups + group) * size + place].v[image % LANES];
            total += factor * sum;
        }
        found[i] = total;
    }
}
extern "C" __global__ void gather_right(const real* parts, const int* table, double* found, index elements, int size, int groups,
                                        int columns, int runs, double factor) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const int column = int(i / size), place = int(i % size);
        double total = found[i];
        for (int run = 0; run < runs; ++run) {
            const int unit = table[run * columns + column];
            if (unit < 0) continue;
            double sum = 0;
            for (int group = 0; group < groups; ++group) sum += parts[(index(unit) * groups + group) * size + place];
            total += factor * sum;
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
