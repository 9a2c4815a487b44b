// The backward pass through the segments of a chain: from cotangents of a segment's exit to those of its entrance, of
// logarithms of norms, and of pixels. `offsets.cuh` says what offsets are. `pulling.py` writes one kernel for every
// segment.
//
// A team has a thread for each column of the left image, at one offset v or at a few beside each other. It keeps v, and
// walks down the rows of all offsets u, one u after the other. The forward pass is computed again on the way. A row
// enters at time t; a window that reaches d rows down is complete d rows later. So every step of the forward and of the
// backward pass works on a row that entered somewhat earlier. For a segment of two steps:
//
//   time t   row t                    enters
//            row t - d0               forward step 0 (window that reaches d0 rows, embedding)
//            row t - d0 - d1          forward step 1, and as the last one, its cotangent from the exit
//            row t - d0 - 2 d1        back through window 1, and through the embedding of step 0
//            row t - 2 d0 - 2 d1      back through window 0: cotangents of the entrance
//
// What a thread has to remember of these rows stays in its registers. Threads of a team exchange values of columns
// beside each other through a row of shared memory.
//
// Cotangents of logarithms of norms, and of pixels, are added up in shared memory, for each image, by all teams of a
// block. Teams are SKEW rows apart, and wait for each other every SKEW rows or more often. So no two teams add to the
// same row of an image at the same time, and the order of sums is fixed.
#pragma once

#ifdef __CUDACC__  // the tests provide these names themselves
// The same number or pointer, but the compiler cannot see how it was computed, and keeps it instead of computing it
// again in every row.
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

// Products, part by part.
__device__ inline Value operator*(const Value& a, const Value& b) {
    Value product;
    for (int i = 0; i < PARTS; ++i) product.v[i] = a.v[i] * b.v[i];
    return product;
}
// The sum over the left images of a value.
__device__ inline real added(const Value& a) {
    real total = a.v[0];
    for (int i = 1; i < LANES; ++i) total += a.v[i];
    return total;
}

// Cotangents that a block adds up in shared memory: of COUNT numbers (channels of the first segment, then norms) at
// every position, of the right image, and if BOTH, of the left images too. [number][row][column], for each of the
// offsets v that are beside each other.
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
    // What the images have so far of number `which`, at the places `mine` and `others`, row * COLUMNS + column.
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
    // Adds the cotangent of an element to the number `which` of both images. `so_far` was loaded earlier by `sums`.
    __device__ void add(int which, int mine, int others, const Sums& so_far, const Value& cotangent) const {
        if constexpr (BOTH) left[which * PLACES + mine] = so_far.left + cotangent;
        right[which * PLACES + others] = so_far.right + added(cotangent);
    }
    // The same for pixels: a product x z with the cotangent c adds c z to the cotangent of x, and c x to that of z.
    __device__ void add_pixels(int channel, int mine, int others, const Sums& so_far, const Value& cotangent, const Lanes x,
                               real z) const {
        if constexpr (BOTH) left[channel * PLACES + mine] = so_far.left + z * cotangent;
        real total = so_far.right;
        for (int i = 0; i < LANES; ++i) total += cotangent.v[i] * x.v[i];
        right[channel * PLACES + others] = total;
    }
    // Adds up the offsets v beside each other, and stores the block's result: [number][row][column].
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

// The thread's column k of the left image, n of the right one, and its place in the team's row of shared memory, which
// has PAD places more at either end. OFFSETS offsets v are followed, FIRST, FIRST + 1, ... modulo WIDTH.
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

// Factors of 1 or 0: whether windows reach the columns 1 ... ACROSS to the left and to the right, in both images. The
// factors take the place of zeros at the seam of a row: with zeros in between, neighbouring threads would not have
// neighbouring places, and accesses to shared memory would have bank conflicts.
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

// Row number `time` of a walk through HEIGHT rows of each of OFFSETS offsets u, FIRST, FIRST + 1, ... modulo HEIGHT.
// The first one has the time BEFORE * HEIGHT, so that earlier times are not negative. Rows before the first and after
// the last are not `used`, but their `row` and `partner`, in the left and the right image, are valid.
template <int HEIGHT, int OFFSETS, int FIRST, int BEFORE>
struct Row {
    static constexpr unsigned SHIFT = FIRST + HEIGHT * BEFORE - BEFORE;
    int row, partner;
    bool used;

    __device__ explicit Row(unsigned time)
        : row(time % HEIGHT), partner((time % HEIGHT + time / HEIGHT + SHIFT) % HEIGHT),
          used(time - BEFORE * HEIGHT < OFFSETS * HEIGHT) {}
    __device__ int u() const { return partner - row + (partner < row ? HEIGHT : 0); }
    // 1 if the row that is `rows` up (down) is in both images, else 0.
    __device__ real up(int rows) const { return row >= rows && partner >= rows ? 1 : 0; }
    __device__ real down(int rows) const { return row + rows < HEIGHT && partner + rows < HEIGHT ? 1 : 0; }
};

// Window sums: DOWN rows up and down, ACROSS columns to either side.
template <int DOWN, int ACROSS>
struct Windows {
    Value lines[DOWN > 0 ? 2 * DOWN : 1];  // sums along the last 2 DOWN rows, the oldest first

    __device__ void clear() {
        for (Value& line : lines) line = nothing();
    }
    // Takes the thread's value in the next row, which `beside` points at among its neighbours, and returns the sum of
    // the window that is now complete: centred DOWN rows above, in the row `above`.
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

// Delays a value by ROWS rows: after add(value), `due` is the value that was added ROWS calls before.
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

// A barrier for a team: of one warp, or of more where the block has one team only.
template <int TEAM>
__device__ inline void sync_threads_of_team() {
    if constexpr (TEAM > 32)
        sync_block();
    else
        sync_warp();
}

// How teams wait for each other, so that they add to a row in a fixed order. If teams are single warps and there are
// enough of them, pairs of teams form a ring, and each pair waits only for the pair before and the pair after it, at
// the named barriers 1 ... PAIRS:
//
//   pair 0 --1-- pair 1 --2-- pair 2 --3-- pair 3 --4-- pair 0
//
// `first` is the odd barrier of a pair, `second` the even one. Otherwise the whole block waits.
//
// A pair is at most one turn of SKEW rows ahead of its neighbours, and a row passes from team to team one turn at a
// time. If the block is CROWDED, that is, teams are at all rows, then team 0 follows the last team after a single row.
// So pairs that share an even barrier, among them the last and the first, wait after every row.
template <int TEAM, int TEAMS, int SKEW, int HEIGHT>
struct Order {
    static constexpr int PAIRS = TEAMS / 2;
    static constexpr bool CROWDED = TEAMS * SKEW >= HEIGHT, RING = TEAM == 32 && TEAMS % 4 == 0 && TEAMS > 4;
    int first, second;

    __device__ explicit Order(int team) {
        const int own = team / 2, before = own > 0 ? own : PAIRS, after = own + 1;
        first = opaque(own % 2 ? before : after), second = opaque(own % 2 ? after : before);
    }
    __device__ void wait(int step) const {
        if constexpr (!RING) {
            if (step == 0 || CROWDED) sync_block();
        } else {
            if (step == 0) sync_four(first);
            if (step == 0 || CROWDED) sync_four(second);
        }
    }
};

// Where the cotangent of an exit is stored, along one axis: of the windows of SIZE that positions `place` of the left
// image and `partner` of the right one lie in. J is the left window and U the offset to the right one, modulo LENGTH.
template <int SIZE, int LENGTH>
struct OfWindows {
    int U, J;
    __device__ OfWindows(int place, int partner) : U(partner / SIZE - place / SIZE), J(place / SIZE) {
        if (U < 0) U += LENGTH;
    }
    __device__ int place(int of_offset, int of_place) const { return U * of_offset + J * of_place; }
};

// Where a thread's columns begin in what it reads: pixels (x, z) and norms (a, b) of the left and right images,
// cotangents of exits, and the thread's place in the first of its team's two rows of shared memory, which windows use
// in turn.
struct Sources {
    const Lanes *x, *a;
    const real *z, *b;
    const Value* given;
    int line;
};

// Converts the pooled sums of `stage.cu`, [pair][u][row][k][n], into exits, [unit][u][v][row][k] with one slot, and
// multiplies them by `factor`. The LANES pairs of a unit begin at pair number LANES * unit; lanes without a pair get
// zeros.
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

// Adds cotangents of single images, (images, size), to those of the exits of images paired with themselves, at offset
// (0, 0).
extern "C" __global__ void add_own(Value* given, const double* by, index elements, int size) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const index image = i / size;
        given[image * size * size + i % size].v[image % LANES] += real(by[i]);
    }
}

// Adds what the blocks of all units found to the totals `found` of images, (images, size): for a left image over all
// right images (columns), for a right image over all runs of left images, each in order. table[run][column] is the
// unit, or -1. `parts` is (units, groups, size), one block per group, and is multiplied by *factor.
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
// The same for one number per pair: `values` (images, others).
extern "C" __global__ void gather_numbers(const double* values, double* found, index images, int others) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < images; i += index(gridDim.x) * blockDim.x) {
        double total = found[i];
        for (int other = 0; other < others; ++other) total += values[i * others + other];
        found[i] = total;
    }
}
