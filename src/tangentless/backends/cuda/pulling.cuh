// The backward pass through the segments of a chain: from cotangents of a segment's exit to those of its entrance, of
// logarithms of norms, and of pixels. `offsets.cuh` says what offsets are. `pull_writer.py` writes one kernel for every
// segment.
//
// A team has a thread for each column of the left image, at one offset v or at a few beside each other. It keeps v, and
// walks down the rows of all offsets u. SPAN offsets u beside each other (1 or 2) are followed together. The forward
// pass is computed again on the way. A row enters at time t; a window that reaches d rows down is complete d rows later.
// So every step of the forward and of the backward pass works on a row of some *age*. For a segment of two steps:
//
//   age -1         enters
//   age d0         forward step 0 (window that reaches d0 rows, embedding)
//   age d0 + d1    forward step 1, and as the last one, its cotangent from the exit
//   age d0 + 2 d1  back through window 1, and through the embedding of step 0
//   age 2 d0 + 2 d1  back through window 0: cotangents of the entrance
//
// What a thread has to remember of these rows stays in its registers. Threads of a team exchange values of columns
// beside each other by shuffles, or through a row of shared memory where a team is no full warp.
//
// *Planes* have a number for every position: of a pixel's channel, in the first segment, or of the norm before an
// embedding. Those of the right image have HEIGHT rows of COLUMNS columns, those of the left images one more row before
// these, with zeros: where the norm is zero, an embedding and its derivatives are zero, so nothing comes from there.
// Cotangents are added up in shared memory, in planes of the same layout, by all teams of a block.
//
// With SPAN = 2, the row `row` of the left images meets the rows `row + u` and `row + u + 1` of the right one. The
// latter is met again at the next row. So numbers of the right image are read once for both, and their cotangents are
// carried to the next row. After the last row, the row of zeros takes what is left.
#pragma once

#ifdef __CUDACC__  // the tests provide these names themselves
constexpr bool ON_HOST = false, IN_STEP = false;
using Counter = volatile int;
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
// The number of the thread that is `distance` threads further on in the warp.
__device__ inline real from_beside(real number, int distance) {
    return distance < 0 ? __shfl_up_sync(~0u, number, -distance) : __shfl_down_sync(~0u, number, distance);
}
__device__ inline void order_memory() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
#else
inline real from_beside(real number, int) { return number; }
inline void order_memory() {}
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

// A value for each of SPAN offsets u, and a number of the right image for each.
template <int SPAN>
struct Values {
    Value at[SPAN];

    __device__ void clear() {
        for (Value& value : at) value = nothing();
    }
};
template <int SPAN>
__device__ inline Values<SPAN> operator*(const Values<SPAN>& a, const Values<SPAN>& b) {
    Values<SPAN> product;
    for (int s = 0; s < SPAN; ++s) product.at[s] = a.at[s] * b.at[s];
    return product;
}
template <int SPAN>
struct Numbers {
    real at[SPAN];

    // Takes the number at the last offset; the one before was at the last offset in the row above.
    __device__ const Numbers& add(real number) {
        for (int s = 0; s + 1 < SPAN; ++s) at[s] = at[s + 1];
        at[SPAN - 1] = number;
        return *this;
    }
};

// The planes of a unit. With STAGED, those of the images are copied into shared memory. Cotangents of the left images
// are added up if BOTH. A place is the distance in bytes of row * COLUMNS + column from the beginning of a plane: such
// places need no further arithmetic. Row 0 of the left images has zeros. Where the columns are those of several offsets v
// beside each other, each has a copy of the image, and cotangents of its own.
template <int COUNT, int HEIGHT, int WIDTH, int COLUMNS, int THREADS, bool BOTH, bool STAGED>
struct Planes {
    static constexpr int LEFT = (HEIGHT + 1) * COLUMNS, RIGHT = HEIGHT * COLUMNS;
    const Lanes *x, *near;  // of the left images: where they come from, and where they are read
    const real *z, *far;    // of the right image
    Value* lefts;
    real* rights;

    __device__ Planes(Value* room, const Lanes* x, const real* z) : x(x), near(x), z(z), far(z), lefts(room) {
        room += BOTH ? COUNT * LEFT : 0;
        if constexpr (STAGED) near = reinterpret_cast<Lanes*>(room), room += COUNT * LEFT;
        rights = reinterpret_cast<real*>(room);
        if constexpr (STAGED) far = rights + COUNT * RIGHT;
    }
    __device__ void* end() const { return rights + (STAGED ? 2 : 1) * COUNT * RIGHT; }
    __device__ void fill() const {
        for (int i = threadIdx.x; i < COUNT * LEFT; i += THREADS) {
            if constexpr (BOTH) lefts[i] = nothing();
            if constexpr (STAGED) const_cast<Lanes*>(near)[i] = x[i];
        }
        for (int i = threadIdx.x; i < COUNT * RIGHT; i += THREADS) {
            rights[i] = 0;
            if constexpr (STAGED) const_cast<real*>(far)[i] = z[i];
        }
    }
    template <class T>
    __device__ static T& at(T* planes, int which, int size, int place) {
        return *(T*)((char*)(planes + which * size) + place);
    }
    // The number `which` of the images.
    __device__ const Lanes& left(int which, int place) const { return at(near, which, LEFT, place); }
    __device__ real right(int which, int place) const { return at(far, which, RIGHT, place); }
    // The cotangents so far, of number `which`, of both images.
    struct Sums {
        Value left;
        real right;
    };
    __device__ Sums sums(int which, int left, int right) const {
        Sums so_far;
        if constexpr (BOTH) so_far.left = at(lefts, which, LEFT, left);
        so_far.right = at(rights, which, RIGHT, right);
        return so_far;
    }
    // Adds cotangents to the number `which` of both images. `so_far` was loaded earlier by `sums`. What belongs to the
    // next row of the right image is `carried` there.
    template <int SPAN>
    __device__ void add(int which, int left, int right, const Sums& so_far, const Values<SPAN>& cotangent,
                        real& carried) const {
        Numbers<SPAN> others;
        for (int s = 0; s < SPAN; ++s) others.at[s] = added(cotangent.at[s]);
        others.at[0] += SPAN > 1 ? so_far.right + carried : so_far.right;
        if constexpr (BOTH) {
            Value total = so_far.left;
            for (int s = 0; s < SPAN; ++s) total = total + cotangent.at[s];
            at(lefts, which, LEFT, left) = total;
        }
        at(rights, which, RIGHT, right) = others.at[0];
        if constexpr (SPAN > 1) carried = others.at[1];
    }
    // The same for pixels: a product x z with the cotangent c adds c z to the cotangent of x, and c x to that of z.
    template <int SPAN>
    __device__ void add_pixels(int channel, int left, int right, const Sums& so_far, const Values<SPAN>& cotangent,
                               const Lanes& x, const Numbers<SPAN>& z, real& carried) const {
        Numbers<SPAN> others;
        for (int s = 0; s < SPAN; ++s) {
            others.at[s] = s > 0 ? 0 : SPAN > 1 ? so_far.right + carried : so_far.right;
            for (int i = 0; i < LANES; ++i) others.at[s] += cotangent.at[s].v[i] * x.v[i];
        }
        if constexpr (BOTH) {
            Value total = so_far.left;
            for (int s = 0; s < SPAN; ++s) total = total + z.at[s] * cotangent.at[s];
            at(lefts, channel, LEFT, left) = total;
        }
        at(rights, channel, RIGHT, right) = others.at[0];
        if constexpr (SPAN > 1) carried = others.at[1];
    }
    // Adds up the offsets v beside each other, and stores the block's result: [number][row][column].
    __device__ void leave(Value* __restrict__ of_left, real* __restrict__ of_right) const {
        for (int i = threadIdx.x; i < COUNT * HEIGHT * WIDTH; i += THREADS) {
            const int place = i / WIDTH * COLUMNS + i % WIDTH;
            real sum = rights[place];
            for (int k = WIDTH; k < COLUMNS; k += WIDTH) sum += rights[place + k];
            of_right[i] = sum;
            if constexpr (BOTH) {
                const Value* mine = lefts + place + (i / (HEIGHT * WIDTH) + 1) * COLUMNS;  // rows of zeros before it
                Value total = *mine;
                for (int k = WIDTH; k < COLUMNS; k += WIDTH) total = total + mine[k];
                of_left[i] = total;
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

// A number from -LENGTH to LENGTH - 1, modulo LENGTH.
template <int LENGTH>
__device__ inline int around(int number) {
    if constexpr ((LENGTH & (LENGTH - 1)) == 0) return number & (LENGTH - 1);
    return number < 0 ? number + LENGTH : number;
}

// The rows that a thread is at, by age: -1 for the one that enters now, 0 for the one before, ..., OLDEST. Offsets u
// begin at FIRST. A walk goes from row 1 (row 0 with SPAN = 2) to HEIGHT at each of them. Rows before the walk and after
// it are the row of zeros.
template <int HEIGHT, int FIRST, int SPAN, int COLUMNS, int OLDEST>
struct Track {
    static constexpr int LEFT = COLUMNS * sizeof(Lanes), RIGHT = COLUMNS * sizeof(real);  // bytes of a row
    struct Spot {
        int left, right;  // places in the planes; `right` at the last offset u
    };
    int row, u;
    Spot spots[OLDEST + SPAN + 1];
    real links[SPAN][OLDEST + 1];  // 1 if a row and the one above it are neighbours in both images, else 0; from age -1

    __device__ void start(int mine, int others) {
        constexpr int COUNT = OLDEST + SPAN + 1;
        row = HEIGHT, u = FIRST - SPAN;
        for (int i = 0; i < COUNT; ++i)
            spots[i] = {mine * int(sizeof(Lanes)), (FIRST + HEIGHT * COUNT - 1 - i) % HEIGHT * RIGHT + others * int(sizeof(real))};
        for (int s = 0; s < SPAN; ++s)
            for (real& link : links[s]) link = 0;
    }
    __device__ void enter(bool walks, int mine, int others) {
#pragma unroll
        for (int i = OLDEST + SPAN; i > 0; --i) spots[i] = spots[i - 1];
#pragma unroll
        for (int s = 0; s < SPAN; ++s)
#pragma unroll
            for (int i = OLDEST; i > 0; --i) links[s][i] = links[s][i - 1];
        if (++row > HEIGHT) {
            row = 2 - SPAN, u += SPAN;
            if (u >= HEIGHT) u -= HEIGHT;
        }
        const int partner = around<HEIGHT>(row + u + SPAN - 2 - HEIGHT);
        spots[0] = {(walks ? row * LEFT : 0) + mine * int(sizeof(Lanes)), partner * RIGHT + others * int(sizeof(real))};
        for (int s = 0; s < SPAN; ++s) links[s][0] = row > 1 && right(-1, s) >= RIGHT ? 1 : 0;
    }
    __device__ int left(int age) const { return spots[age + 1].left; }
    __device__ int right(int age, int s = 0) const { return spots[age + SPAN - s].right; }
    __device__ real link(int age, int s) const { return links[s][age + 1]; }
    __device__ bool exists(int age) const { return left(age) >= LEFT; }
    // Rows of the images; in place of the row of zeros the first one.
    __device__ unsigned of_left(int age) const { return max(unsigned(left(age)) / LEFT, 1u) - 1; }
    __device__ unsigned of_right(int age, int s) const { return unsigned(right(age, s)) / RIGHT; }
    __device__ int offset(int age, int s) const { return around<HEIGHT>(of_right(age, s) - of_left(age)); }
    // How far apart the two rows are at the first offset u. At v = 0, LEFT where a row meets the same row.
    __device__ int apart(int age) const { return left(age) - LANES * right(age); }
};

// Factors of 1 or 0: whether windows reach the columns 1 ... ACROSS to the left and to the right, in both images. The
// factors take the place of zeros at the seam of a row: with zeros in between, neighbouring threads would not have
// neighbouring places.
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

// The values of the column that is `distance` columns to the right: of another thread of the warp, or in the team's row
// of shared memory, where `line` points at the thread's own.
template <bool SHUFFLES, int SPAN>
__device__ inline Values<SPAN> beside(const Values<SPAN>& own, const Values<SPAN>* line, int distance) {
    if constexpr (!SHUFFLES) return line[distance];
    Values<SPAN> found;
#pragma unroll
    for (int s = 0; s < SPAN; ++s)
        for (int i = 0; i < PARTS; ++i) found.at[s].v[i] = from_beside(own.at[s].v[i], distance);
    return found;
}

// Window sums: DOWN rows up and down, ACROSS columns to either side.
template <int DOWN, int ACROSS, int SPAN, bool SHUFFLES>
struct Windows {
    Values<SPAN> lines[DOWN > 0 ? DOWN : 1];    // sums along the last DOWN rows, the newest first
    Values<SPAN> pending[DOWN > 0 ? DOWN : 1];  // sums of windows centred in these rows, of the rows so far

    __device__ void clear() {
        for (auto& line : lines) line.clear();
        for (auto& sum : pending) sum.clear();
    }
    // Takes the thread's values in the next row, and returns the sums of the windows that are now complete: centred DOWN
    // rows above, in the row of this age.
    template <class Track, class Links>
    __device__ Values<SPAN> add(const Values<SPAN>& own, const Values<SPAN>* at, const Track& rows, int age,
                                const Links& links) {
        Values<SPAN> line = own;
#pragma unroll
        for (int j = 1; j <= ACROSS; ++j) {
            const Values<SPAN> before = beside<SHUFFLES>(own, at, -j), after = beside<SHUFFLES>(own, at, j);
            for (int s = 0; s < SPAN; ++s) {
                line.at[s] = line.at[s] + links.left[j - 1] * before.at[s];
                line.at[s] = line.at[s] + links.right[j - 1] * after.at[s];
            }
        }
        if constexpr (DOWN == 0) return line;
        Values<SPAN> sum = line;
#pragma unroll
        for (int s = 0; s < SPAN; ++s) {
            real link = 1;  // 1 if the row and the one that is d rows above it are in the same window
#pragma unroll
            for (int d = 1; d <= DOWN; ++d) {
                link *= rows.link(age - DOWN + d - 1, s);
                pending[d - 1].at[s] = pending[d - 1].at[s] + link * line.at[s];
                sum.at[s] = sum.at[s] + link * lines[d - 1].at[s];
            }
        }
        const Values<SPAN> complete = pending[DOWN - 1];
#pragma unroll
        for (int i = DOWN - 1; i > 0; --i) lines[i] = lines[i - 1], pending[i] = pending[i - 1];
        lines[0] = line, pending[0] = sum;
        return complete;
    }
};

// Delays values by ROWS rows: after add(values), `due` are the values that were added ROWS calls before.
template <int ROWS, int SPAN>
struct Delayed {
    Values<SPAN> kept[ROWS > 0 ? ROWS : 1], due;

    __device__ void clear() {
        for (auto& values : kept) values.clear();
    }
    __device__ void add(const Values<SPAN>& values) {
        if constexpr (ROWS == 0) {
            due = values;
        } else {
            due = kept[ROWS - 1];
#pragma unroll
            for (int i = ROWS - 1; i > 0; --i) kept[i] = kept[i - 1];
            kept[0] = values;
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

// How teams wait for each other, so that they add to a row in a fixed order, one at a time. A team works in rounds of a
// few rows, and begins one when the team before it has finished that round. The first team begins it when the last one
// is at most AHEAD rounds behind: in between, no row of either image comes back. Counters take the place of barriers, for
// which teams that could go on would wait: with them a gradient took a quarter longer.
//
// IN_STEP, in the tests, every team is one round behind the team before it instead.
template <int TEAM, int TEAMS, int AHEAD>
struct Turns {
    Counter* finished;  // rounds, by team
    int team, seen = 0;

    __device__ explicit Turns(void* room) : finished(static_cast<Counter*>(room)), team(threadIdx.x / TEAM) {}
    __device__ void clear() const {
        if (threadIdx.x < TEAMS) finished[threadIdx.x] = 0;
    }
    __device__ void wait(int round) {
        if (TEAMS == 1 || IN_STEP || seen > round) return;
        do seen = team ? finished[team - 1] : finished[TEAMS - 1] + AHEAD + 1;
        while (seen <= round);
        order_memory();
    }
    __device__ void finish(int round) const {
        if (TEAMS == 1 || IN_STEP) return;
        sync_warp();
        order_memory();
        finished[team] = round + 1;
    }
};

// Where the cotangent of an exit is stored, along one axis: of the windows of SIZE that positions `place` of the left
// image and `partner` of the right one lie in. J is the left window and U the offset to the right one, modulo LENGTH.
template <int SIZE, int LENGTH>
struct OfWindows {
    int U, J;
    __device__ OfWindows(unsigned place, unsigned partner) : U(around<LENGTH>(partner / SIZE - place / SIZE)), J(place / SIZE) {}
    __device__ int place(int of_offset, int of_place) const { return U * of_offset + J * of_place; }
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
