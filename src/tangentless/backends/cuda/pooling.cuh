// Pooling: 2x2 sums that go to the next stage, or one total per pair.
//
// The pool takes row (j, m) to the pooled row (j / 2, m / 2), rounded down, at the pooled offset U = m / 2 - j / 2:
//
//   offset of the row   2U - 1 (odd)   2U (even)   2U + 1 (odd)
//   even j goes to      U - 1          U           U
//   odd j goes to       U              U           U + 1
//
// So the pooled row of U, for j = 2J and 2J + 1, is the sum of four rows: both of offset u = 2U, the even one of u + 1
// and the odd one of u - 1. They are finished in the same turn. The threads of each offset store their 2x2 sums over
// (k, n) in shared memory (the *exchange*). In the next turn, or with APART in the one after it, the threads of u and
// u + 1 load all four, add them and write the pooled row.
//
// If u - 1 belongs to the pass before, that pass has stored its odd rows in the output, and the other three are added
// to them there. For U = 0, where u - 1 wraps to the last offset, it is the other way round: the first pass stores, and
// the last pass adds. So every sum has one fixed order, and results do not depend on tiles, launches or timing.
//
// An exchange buffer, for rows 2J and 2J + 1: [PAIRS][OFFSETS][even, odd row][EXCHANGE_ROW], where the values of a row
// are [chunk][LANES][CHUNK]. Buffers take turns, by `row_pair`, the number of (2J, 2J + 1) in the stream.
#pragma once
#include "layout.cuh"

constexpr int HALF_K = POOLED ? BLOCK_K / 2 : 1, HALF_N = POOLED ? BLOCK_N / 2 : 1;
constexpr int SHARES = HALF_K * HALF_N;  // pooled values of a thread
constexpr int CHUNK = SHARES % 4 == 0 ? 4 : SHARES % 2 == 0 ? 2 : 1;  // floats that are loaded and stored at a time

// The threads of u and u + 1, which have the same (k, n), share the writing of a pooled offset: each writes half of the
// chunks, or where their number is odd, all chunks of every other pair of rows. MINE: values that a thread writes at a
// time.
constexpr bool BY_CHUNKS = SHARES / CHUNK % 2 == 0;
constexpr int MINE = BY_CHUNKS ? SHARES / 2 : SHARES;

static_assert(!BY_CHUNKS || MINE % HALF_N == 0);
static_assert(!POOLED || (BLOCK_K % 2 == 0 && BLOCK_N % 2 == 0 && OFFSETS % 2 == 0 && WIDTH % 2 == 0));
static_assert(!POOLED || (EXCHANGE_ROW >= LANES * SHARES && EXCHANGE >= PAIRS * OFFSETS * 2 * EXCHANGE_ROW));
static_assert(TEAM_FLOATS >= EXCHANGE_AT + (POOLED ? EXCHANGES * EXCHANGE : 2 * TEAM_THREADS));
static_assert(EXCHANGES >= (APART ? 3 : 2) && (EXCHANGES & (EXCHANGES - 1)) == 0);
static_assert(!POOLED || POOLED_FLOATS == HALF_HEIGHT * HALF_HEIGHT * POOLED_ROW);

// The first pooled column k that a thread writes.
DEVICE int first_k(const Place& place) { return place.k / 2 + (BY_CHUNKS ? place.index % 2 * (MINE / HALF_N) : 0); }

// Distance in bytes from the first exchange buffer to that of a pair of rows.
DEVICE unsigned exchange_of(unsigned row_pair) { return row_pair % EXCHANGES * (4 * EXCHANGE); }

// Stores the 2x2 sums over (k, n) of a thread's block in the exchange, at the address `shares`. ODD: the parity of the
// row.
template <int ODD>
DEVICE void pool_row(const Values& in, const float (&factor)[BLOCK_N], unsigned shares) {
    float share[SHARES];
#pragma unroll
    for (int i = 0; i < HALF_K; i++)
#pragma unroll
        for (int o = 0; o < HALF_N; o++) {
            const float first = in[2 * i][2 * o] + in[2 * i + 1][2 * o];
            const float second = in[2 * i][2 * o + 1] + in[2 * i + 1][2 * o + 1];
            share[i * HALF_N + o] = FACTORED ? fmaf(second, factor[2 * o + 1], first * factor[2 * o]) : first + second;
        }
    unroll<SHARES / CHUNK>([&](auto chunk) {
        constexpr int at = chunk.value * CHUNK;
        float values[CHUNK];
#pragma unroll
        for (int e = 0; e < CHUNK; e++) values[e] = share[at + e];
        store_shared<ODD * EXCHANGE_ROW + at * LANES>(shares, values);
    });
}

constexpr int OUT_ALIGN = divisor(divisor(HALF_WIDTH, HALF_N), CHUNK);  // alignment of a chunk in the output, in floats

// Writes a chunk of the values that a thread writes, from number `at` on, to a row of the output: stores it, or adds it
// to what is there. Not if `wanted` is false.
DEVICE void write_chunk(const float (&values)[CHUNK], float* row, int at, const Place& place, bool wanted, bool add) {
#pragma unroll
    for (int e = 0; e < CHUNK; e += OUT_ALIGN) {
        float some[OUT_ALIGN];
#pragma unroll
        for (int i = 0; i < OUT_ALIGN; i++) some[i] = values[e + i];
        const int k = (at + e) / HALF_N, n = (at + e) % HALF_N;
        const bool inside = FITS || (first_k(place) + k < HALF_WIDTH && place.n / 2 + n < HALF_WIDTH);
        put(row + k * HALF_WIDTH + n, some, wanted && inside && !add, wanted && inside && add);
    }
}

// Writes the pooled rows that a pair of rows gives, once all offsets of the pass have stored theirs. Pairs before the
// first have negative numbers, which are large unsigned ones here, and so are not wanted.
DEVICE void write_pooled(const Work& work, unsigned row_pair) {
    const Place& place = work.place;
    const int u = place.index / 2 * 2;  // the even offset, within the pass
    const bool my_turn = BY_CHUNKS || row_pair % 2 == place.index % 2;
    const unsigned passes = row_pair / HALF_HEIGHT;  // before this one, in all rounds
    const int pass = passes % PASSES, image = work.image(passes / PASSES);
    const bool wanted = row_pair < work.last_row() / 2u && (SLOTS == 1 || image < work.unit.count) && place.owner && my_turn;
    if (!APART && !wanted) return;
    const int offset = (SLOTS == 1 ? passes : image * PASSES + pass) * (OFFSETS / 2) + u / 2;
    float* row = work.pooled + (long long)(offset * HALF_HEIGHT + int(row_pair % HALF_HEIGHT)) * POOLED_ROW;
    const unsigned shares = work.shares_taken + exchange_of(row_pair);
    const bool is_first = u == 0, is_last = u + 2 == OFFSETS;
    const unsigned odd_before = shares + (is_first ? (PASSES == 1 ? 2 * OFFSETS - 1 : 0) : -1) * (4 * EXCHANGE_ROW);
    unroll<MINE / CHUNK>([&](auto chunk) {
        constexpr int at = chunk.value * CHUNK;
        float share[CHUNK], odd[CHUNK], even_after[CHUNK], before[CHUNK];
        load_shared<CHUNK, CHUNK, at * LANES>(shares, share);
        load_shared<CHUNK, CHUNK, at * LANES + EXCHANGE_ROW>(shares, odd);
        load_shared<CHUNK, CHUNK, at * LANES + 2 * EXCHANGE_ROW>(shares, even_after);
        load_shared<CHUNK, CHUNK, at * LANES>(odd_before, before);
#pragma unroll
        for (int e = 0; e < CHUNK; e++)
            share[e] = add_if(share[e] + odd[e] + even_after[e], before[e], PASSES == 1 || !is_first);
        write_chunk(share, row, at, place, wanted, is_first && pass > 0);
    });
    if (PASSES > 1 && is_last) {
        const bool around = pass + 1 == PASSES;
        float* next = row + (around ? 1 - HALF_HEIGHT : 1) * (HALF_HEIGHT * POOLED_ROW);
        unroll<MINE / CHUNK>([&](auto chunk) {
            constexpr int at = chunk.value * CHUNK;
            float over[CHUNK];
            load_shared<CHUNK, CHUNK, at * LANES + 3 * EXCHANGE_ROW>(shares, over);
            write_chunk(over, next, at, place, wanted, around);
        });
    }
}

// The sum of a thread's block of a row, without what lies beyond the grid.
DEVICE float row_total(const Values& in, const float (&factor)[BLOCK_N], const Place& place) {
    float total = 0.0f;
#pragma unroll
    for (int o = 0; o < BLOCK_N; o++) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < BLOCK_K; i++) sum = CUT_K > 0 && i >= CUT_K ? fmaf(in[i][o], place.inside_k, sum) : sum + in[i][o];
        if (FACTORED) sum *= factor[o];
        total = CUT_N > 0 && o >= CUT_N ? fmaf(sum, place.inside_n, total) : total + sum;
    }
    return total;
}

// Adds up the totals of all threads of each pair, in one fixed order, and writes the team's pairs of this round to the
// output.
DEVICE void write_totals(double total, const Work& work, int round) {
    constexpr int GROUP = PAIRS > 1 ? OFFSETS * LANES : 32;  // lanes of a warp that share a pair
    constexpr bool TREE = 32 % GROUP == 0;                   // shuffles can add up the totals of a group
    constexpr int PARTIAL = TREE ? WARPS : 32 * WARPS;       // totals in shared memory: of a pair, or of all threads
    const Place& place = work.place;
    if (!place.owner || place.k >= WIDTH || place.n >= WIDTH) total = 0.0;
    if constexpr (TREE)
#pragma unroll
        for (int d = 1; d < GROUP; d *= 2) total += from_lane(total, place.lane ^ d);
    double* totals = work.totals;
    const int warp = place.warp % WARPS;
    if (!TREE)
        totals[warp * 32 + place.lane] = total;
    else if (place.lane % GROUP == 0)
        totals[place.lane / GROUP * PARTIAL + warp] = total;
    sync_pair(place.team);
    const int pair = thread_index() % TEAM_THREADS;
    const int image = image_of(round, place.team, pair);
    if (pair < PAIRS && image < work.unit.count) {
        const double* of_pair = totals + (TREE ? pair * PARTIAL : pair * GROUP);
        double sum = 0.0;
        for (int i = 0; i < (PAIRS > 1 && !TREE ? GROUP : PARTIAL); i++) sum += of_pair[i];
        static_cast<double*>(work.output)[(long long)(work.unit.left + image) * work.left_step +
                                          (long long)work.unit.right * work.right_step] = sum;
    }
}
