// A first segment of equal windows, an embedding after each, and a 2x2 pool, in registers: it needs no planes, and one
// barrier for every u and parity of V. `offsets.cuh` includes this file.
//
// A window reaches REACH columns to either side, and HIGH rows up and down. A team of 16 or 32 threads follows the
// offsets v = 2V and 2V + 1 at once. Thread t has the columns k = 2t and 2t + 1, which are one window of the pool. So
// it has four values per row, always named [offset][column]:
//
//   [0][0]  v = 2V,     k = 2t        n = 2(t + V)            the pool adds these three to V,
//   [0][1]  v = 2V,     k = 2t + 1    n = 2(t + V) + 1
//   [1][0]  v = 2V + 1, k = 2t        n = 2(t + V) + 1
//   [1][1]  v = 2V + 1, k = 2t + 1    n = 2(t + V) + 2        and this one to V + 1
//
// A team goes down the rows. For each, it multiplies pixels, and then in every layer adds up columns (by shuffles) and
// rows: a thread keeps sums of two successive rows, of which a window sum adds every other one. A layer completes the
// row that is HIGH above the one it was given, which is what the next layer is given.
//
// Teams at V and at V + 1 add to the same place. So even and odd V take turns, with a barrier between them, and no two
// threads ever add to the same place between two barriers.
#pragma once

#ifdef __CUDACC__  // the tests provide these names themselves
// The value of the thread that is DISTANCE before this one in its team, or after it if negative; the thread's own if
// there is none.
template <int DISTANCE, int TEAM>
__device__ inline real from_before(real value) {
    return DISTANCE > 0 ? __shfl_up_sync(~0u, value, DISTANCE, TEAM) : __shfl_down_sync(~0u, value, -DISTANCE, TEAM);
}
#endif

// A value of each thread of a team. On a GPU a thread holds its own (SHARE = 1). In the tests one thread may do the
// work of all, and then holds all of them (SHARE = SIZE).
template <int SIZE, int SHARE>
struct Team {
    Value of[SHARE];

    // The values of the threads DISTANCE before, or after if negative; meaningless where there are none.
    template <int DISTANCE>
    __device__ Team shifted() const {
        Team result;
#pragma unroll
        for (int i = 0; i < SHARE; ++i)
            if constexpr (SHARE > 1)
                result.of[i] = of[min(max(i - DISTANCE, 0), SHARE - 1)];
            else
                for (int part = 0; part < PARTS; ++part) result.of[i].v[part] = from_before<DISTANCE, SIZE>(of[i].v[part]);
        return result;
    }
};
template <int SIZE, int SHARE>
__device__ inline Team<SIZE, SHARE> operator+(const Team<SIZE, SHARE>& a, const Team<SIZE, SHARE>& b) {
    Team<SIZE, SHARE> sum;
#pragma unroll
    for (int i = 0; i < SHARE; ++i) sum.of[i] = a.of[i] + b.of[i];
    return sum;
}
template <int SIZE, int SHARE>
__device__ inline void clear(Team<SIZE, SHARE> (&values)[2][2]) {
#pragma unroll
    for (int which = 0; which < 4; ++which)
#pragma unroll
        for (int i = 0; i < SHARE; ++i) values[which / 2][which % 2].of[i] = nothing();
}

// Which neighbours of a thread's columns belong to the same sums, as factors of 1 or 0: those in the image, on the same
// side of the seam between v and v - WIDTH (`offsets.cuh`). `before[i]` and `after[i]` are for the nearer column of the
// thread that is i + 1 before or after this one. `together` is for the thread's own two columns: at odd v the seam may
// lie between them.
template <int REACH, int WIDTH>
struct Links {
    static constexpr int FAR = (REACH + 1) / 2;  // how many threads away a window reaches
    real before[FAR], after[FAR], together;

    __device__ void set(int thread, int v) {
        const auto behind = [&](int k) { return k >= WIDTH - v; };
        const int k = 2 * thread;
        together = behind(k) == behind(k + 1) ? 1 : 0;
#pragma unroll
        for (int i = 0; i < FAR; ++i) {
            const int far = 2 * (i + 1);
            before[i] = k - far >= 0 && behind(k - far + 1) == behind(k) ? 1 : 0;
            after[i] = k + far < WIDTH && behind(k + far) == behind(k + 1) ? 1 : 0;
        }
    }
};

// Two neighbouring columns of left images, by one load where their alignment is known and 16 bytes hold them.
template <bool ALIGNED>
__device__ inline void read_two(const Lanes* __restrict__ from, Lanes (&two)[2]) {
    struct alignas(2 * sizeof(Lanes)) Both {
        Lanes of[2];
    };
    if constexpr (ALIGNED && sizeof(Both) <= 16) {
        const Both both = *reinterpret_cast<const Both*>(from);
        two[0] = both.of[0], two[1] = both.of[1];
    } else {
        two[0] = from[0], two[1] = from[1];
    }
}

// A whole segment. EVEN_NORMS: whether norms of all layers begin at even numbers, so that `read_two` may take them by
// one load.
template <int CHANNELS, int LAYERS, int REACH, int HIGH, int HEIGHT, int WIDTH, bool EVEN_NORMS, int THREADS>
struct Sliding {
    static constexpr int SIZE = WIDTH > 32 ? 32 : 16, TEAM = THREADS < SIZE ? 1 : SIZE, SHARE = SIZE / TEAM, TEAMS = THREADS / TEAM;
    static constexpr int WINDOWS = WIDTH / 2, TURNS = (WINDOWS / 2 + TEAMS - 1) / TEAMS, GRID = HEIGHT * WIDTH;
    static constexpr int PERIOD = 2 * HIGH;  // sums of two rows that a thread keeps of each layer, in a ring
    typedef Team<SIZE, SHARE> Values;
    typedef Links<REACH, WIDTH> Masks;
    static_assert(WINDOWS % 2 == 0 && WINDOWS <= SIZE && HEIGHT % 2 == 0 && REACH > 0 && HIGH > 0);

    const Lanes* __restrict__ x;
    const real* __restrict__ z;
    const Lanes* __restrict__ a;
    const real* __restrict__ b;
    int norms[LAYERS];  // where the norms before each embedding begin

    // The columns of a thread at offsets 2V and 2V + 1.
    struct Place {
        int left[SHARE], right[SHARE][3];  // the first k; the three n: of [v][k] it is right[v + k]
        Masks even[SHARE], odd[SHARE];

        __device__ explicit Place(int V) {
#pragma unroll
            for (int i = 0; i < SHARE; ++i) {
                const int thread = threadIdx.x % TEAM + i;
                left[i] = min(2 * thread, WIDTH - 2);
#pragma unroll
                for (int j = 0; j < 3; ++j) right[i][j] = (left[i] + 2 * V + j) % WIDTH;
                even[i].set(thread, 2 * V);
                odd[i].set(thread, 2 * V + 1);
            }
        }
    };

    // All rows at all v, for the group of the offsets u = 2g and 2g + 1. needed[u + HEIGHT - 1] says whether u is
    // needed. `offsets` are the v that are needed, `count` of them.
    template <class Out, class Embed>
    __device__ void run(const Out& out, int group, const signed char* needed, const int* __restrict__ offsets, int count,
                        const Embed& embed) const {
        const auto needs = [&](int u) { return needed[u + HEIGHT - 1] || (u > 0 && needed[u - 1]); };
        const bool all = count == WIDTH && needs(2 * group) && needs(2 * group + 1);  // no need to clear()
        if (!all) out.clear(group);
        for (int u = 2 * group; u < 2 * group + 2; ++u) {
            if (!needs(u)) continue;
            for (int odd = 0; odd < 2; ++odd) {
                sync_block();
                for (int turn = 0; turn < TURNS; ++turn) {
                    const int V = 2 * (int(threadIdx.x) / TEAM + turn * TEAMS) + odd;
                    bool there = V < WINDOWS && count == WIDTH;
                    for (int i = 0; i < count && !there && V < WINDOWS; ++i) there = offsets[i] == 2 * V;
                    const bool first = all && odd == 0;
                    follow(out, u, min(V, WINDOWS - 1), there, first && u % 2 == 0, first, embed);
                }
            }
        }
    }

    // All rows at offsets (u, 2V) and (u, 2V + 1). Rows feed U = u / 2 in slot 0, and at odd u the odd rows feed U + 1
    // in slot 1: see pooling.cuh. `first` (of slot 1: `first_below`) says that nothing is there yet, so that sums are
    // stored, not added. A team that is not `there` computes along with the others and stores nothing.
    template <class Out, class Embed>
    __device__ void follow(const Out& out, int u, int V, bool there, bool first, bool first_below, const Embed& embed) const {
        const Place place(V);
        const int U = u / 2, next_U = U + 1 == HEIGHT / 2 ? 0 : U + 1, next_V = V + 1 == WINDOWS ? 0 : V + 1;
        const int thread = threadIdx.x % TEAM;
        Value *to = out.at(0, U, V, thread), *below = out.at(1, next_U, V, thread);
        const int beside = (next_V - V) * (HEIGHT / 2 * WINDOWS);
        const Rows<HEIGHT, true> both(u);
        for (int part = 0; part < 2; ++part) {
            const int low = both.low(part), count = both.high(part) - low, offset = both.offset(part);
            if (count <= 0) continue;
            Values pairs[LAYERS][PERIOD][2][2], newest[LAYERS][2][2], held[2];  // [offset][column]
#pragma unroll
            for (int layer = 0; layer < LAYERS; ++layer) {
                clear(newest[layer]);
#pragma unroll
                for (int i = 0; i < PERIOD; ++i) clear(pairs[layer][i]);
            }
            for (int base = 0; base < count + LAYERS * HIGH; base += PERIOD)
#pragma unroll
                for (int step = 0; step < PERIOD; ++step) {
                    const int last = base + step - LAYERS * HIGH, row = low + last;  // which the last layer completes
                    if (last >= count) break;
                    Values values[2][2];
                    if (base + step < count) multiply(place, low + base + step, low + base + step + offset, values);
                    const bool waits = u % 2 == 0 && (step + LAYERS * HIGH) % 2 == 0;  // for the next row
                    const bool further = u % 2 && row % 2, grows = last >= 0 && !waits && !(further ? first_below : first);
                    Value* here = (further ? below : to) + row / 2 * WINDOWS;
                    Values before[2];  // what is stored at V and V + 1, loaded before it is needed
#pragma unroll
                    for (int layer = 0; layer < LAYERS; ++layer) {
                        const int fed = base + step - layer * HIGH;
                        if (fed < 0) break;
                        Values sums[2][2];
                        sum_rows(place, fed < count, (step + LAYERS * PERIOD - layer * HIGH) % PERIOD, values, pairs[layer],
                                 newest[layer], sums);
                        if (layer == LAYERS - 1)
                            at_windows(there && grows, [&](int i, int which) { before[which].of[i] = here[which * beside + i]; });
                        const int done = low + fed - HIGH;
                        if (fed >= HIGH && fed - HIGH < count) embed_all(place, layer, done, done + offset, sums, embed, values);
                    }
                    if (last < 0) continue;
                    Values found[2] = {values[0][0] + values[0][1] + values[1][0], values[1][1]};
#pragma unroll
                    for (int which = 0; which < 2; ++which) {
                        if (u % 2 == 0 && !waits) found[which] = held[which] + found[which];
                        held[which] = found[which];
                    }
                    at_windows(there && !waits, [&](int i, int which) {
                        here[which * beside + i] = grows ? before[which].of[i] + found[which].of[i] : found[which].of[i];
                    });
                }
        }
    }

    // Calls action(i, 0) for V and action(i, 1) for V + 1, if the thread has a window of the pool.
    template <class Action>
    __device__ static void at_windows(bool there, const Action& action) {
#pragma unroll
        for (int which = 0; which < 2; ++which)
#pragma unroll
            for (int i = 0; i < SHARE; ++i)
                if (there && int(threadIdx.x) % TEAM + i < WINDOWS) action(i, which);
    }

    // Inner products of pixels, [offset][column], of row `row` of the left image and row `other` of the right one.
    __device__ void multiply(const Place& place, int row, int other, Values (&products)[2][2]) const {
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            Value values[2][2] = {{nothing(), nothing()}, {nothing(), nothing()}};
            const Lanes* p = x + row * WIDTH + place.left[i];
            const real* q = z + other * WIDTH;
#pragma unroll(CHANNELS < 4 ? CHANNELS : 4)
            for (int c = 0; c < CHANNELS; ++c) {
                Lanes left[2];
                read_two<true>(p + c * GRID, left);
#pragma unroll
                for (int j = 0; j < 3; ++j) {
                    const real right = q[place.right[i][j] + c * GRID];
#pragma unroll
                    for (int k = 0; k < 2; ++k)
                        if (j == k || j == k + 1)
                            for (int lane = 0; lane < LANES; ++lane) values[j - k][k].v[lane] += left[k].v[lane] * right;
                }
            }
#pragma unroll
            for (int which = 0; which < 4; ++which) products[which / 2][which % 2].of[i] = values[which / 2][which % 2];
        }
    }

    // One row enters a layer: its values, or zeros if it is not `inside`, that is, beyond the last row. `sums` gets the
    // sums of the windows whose last row it is. `slot` is the row's place in the ring of pairs.
    __device__ static void sum_rows(const Place& place, bool inside, int slot, const Values (&values)[2][2],
                                    Values (&pairs)[PERIOD][2][2], Values (&newest)[2][2], Values (&sums)[2][2]) {
        Values lines[2][2];
        clear(lines);
        if (inside) {
            add_beside<false>(values[0], place.even, lines[0]);
            add_beside<true>(values[1], place.odd, lines[1]);
        }
#pragma unroll
        for (int which = 0; which < 4; ++which) {
            const int v = which / 2, k = which % 2;
            sums[v][k] = lines[v][k];
#pragma unroll
            for (int back = 1; back < PERIOD; back += 2) sums[v][k] = sums[v][k] + pairs[(slot + PERIOD - back) % PERIOD][v][k];
            pairs[slot][v][k] = newest[v][k] + lines[v][k];
            newest[v][k] = lines[v][k];
        }
    }

    // Sums over REACH columns to either side. Only at ODD offsets may the seam lie between the two columns of a thread.
    template <bool ODD>
    __device__ static void add_beside(const Values (&own)[2], const Masks (&masks)[SHARE], Values (&sums)[2]) {
        constexpr int FAR = Masks::FAR;
        Values from_here[2];  // both columns, as threads after this one add them, and as threads before it do
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            const real together = ODD ? masks[i].together : real(1);
            from_here[0].of[i] = added(own[1].of[i], together, own[0].of[i]);
            from_here[1].of[i] = ODD ? added(own[0].of[i], together, own[1].of[i]) : from_here[0].of[i];
        }
        sums[0] = from_here[1], sums[1] = from_here[0];
        add_from<ODD, 1>(own, from_here, masks, sums);
        if constexpr (FAR > 1) add_from<ODD, 2>(own, from_here, masks, sums);
        static_assert(FAR <= 2);
    }
    // Adds what threads FAR before and after have: both of their columns to both of the thread's own. At the end of a
    // window's reach it is one column less: the nearer own column gets both and the other one gets one, or, for an odd
    // REACH, one and none.
    template <bool ODD, int FAR>
    __device__ static void add_from(const Values (&own)[2], const Values (&from_here)[2], const Masks (&masks)[SHARE],
                                    Values (&sums)[2]) {
        constexpr bool end = FAR == Masks::FAR, single = end && REACH % 2 == 1;
        const Values before = single ? own[1].template shifted<FAR>() : from_here[0].template shifted<FAR>();
        const Values after = single ? own[0].template shifted<-FAR>() : from_here[1].template shifted<-FAR>();
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            sums[0].of[i] = added(sums[0].of[i], masks[i].before[FAR - 1], before.of[i]);
            sums[1].of[i] = added(sums[1].of[i], masks[i].after[FAR - 1], after.of[i]);
        }
        if constexpr (!single) {
            const Values nearer = end ? own[1].template shifted<FAR>() : before;
            const Values nearer_after = end ? own[0].template shifted<-FAR>() : after;
#pragma unroll
            for (int i = 0; i < SHARE; ++i) {
                const real together = ODD ? masks[i].together : real(1);
                sums[1].of[i] = added(sums[1].of[i], masks[i].before[FAR - 1] * together, nearer.of[i]);
                sums[0].of[i] = added(sums[0].of[i], masks[i].after[FAR - 1] * together, nearer_after.of[i]);
            }
        }
    }
    __device__ static Value added(Value sum, real factor, const Value& value) {
        for (int i = 0; i < PARTS; ++i) sum.v[i] += factor * value.v[i];
        return sum;
    }

    // Embeds sums of windows of a layer, at row `row` of the left image and `other` of the right one.
    template <class Embed>
    __device__ void embed_all(const Place& place, int layer, int row, int other, const Values (&sums)[2][2], const Embed& embed,
                              Values (&values)[2][2]) const {
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            Lanes left[2];
            read_two<EVEN_NORMS>(a + norms[layer] + row * WIDTH + place.left[i], left);
#pragma unroll
            for (int j = 0; j < 3; ++j) {
                const real right = b[norms[layer] + other * WIDTH + place.right[i][j]];
#pragma unroll
                for (int k = 0; k < 2; ++k)
                    if (j == k || j == k + 1) values[j - k][k].of[i] = embed(layer, sums[j - k][k].of[i], left[k], right);
            }
        }
    }
};
