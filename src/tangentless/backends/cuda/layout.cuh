// The layout of a fused stage: its parameters, what each thread is responsible for, and where things lie in memory.
//
// `layout.py` computes every size and sets it on the compiler's command line; this file checks what the code relies on.
//
// The problem:
//   HEIGHT WIDTH            the grid
//   CHANNELS                of the images; 0: the input is the output of another stage
//   LAYER_LIST LAYERS       the embeddings, and how many there are
//   LAST                    1: the pool takes the whole grid, and the output is one double a pair
// The shares of threads:
//   BLOCK_K BLOCK_N         values of a thread, along k and n
//   LANES_K LANES_N LANES   threads that hold a row
//   ROWS                    rows of a warp, each at its own offset
//   WARPS TEAM_THREADS      of a team
//   PAIRS                   pairs that a team works on at a time
//   TEAMS THREADS BLOCKS    teams and threads of a block; blocks of a multiprocessor
//   SLOTS                   pairs that a block works on at a time
//   OFFSETS PASSES          offsets that a team works on at a time; passes that it takes for all of them
//   WINDOWS                 window sums that run in registers; the row that leaves is so many steps behind
// The tensor cores:
//   PATCH_STEPS             steps of 16 entries that make up a column; 0: the first layer runs without tensor cores
//   AHEAD                   1: patches are computed one step before they are needed
//   OUTER                   1: tensor cores multiply what x and z contribute to a layer
//   GIVEN                   1: patches come from memory, where front.cu has left them
// The memory, in floats:
//   RING                    rows of x in shared memory: 4, or 8 where the warps of a team may be a turn apart
//   SPAN_K SPAN_N           columns of a row of x and of z, including those beyond the grid
//   PLANES                  of a layer in a row
//   X_LAYERS_AT Z_LAYERS_AT where the planes begin in a row, behind its patches or channels
//   X_ROW Z_ROW             a row of x and of z
//   EXCHANGE_ROW            pooled values of one row at one offset
//   EXCHANGE EXCHANGES      pooled values of a pair of rows at all offsets; such pairs that are on their way at a time
//   EXCHANGE_AT BARRIER_AT  where these begin in a team's share of shared memory, which is TEAM_FLOATS long
//   SHARED_BYTES            shared memory of a block, in bytes
//   HALF_HEIGHT HALF_WIDTH  the grid after a 2x2 pool
//   POOLED_FLOATS           the pooled output of a pair: [offset][row][k][n]
#pragma once
#include "device.cuh"

// The forms of an embedding; `layout.py` shares the numbers.
constexpr int EXPONENTIAL = 0, ARC = 1, SERIES = 2, IDENTITY = 3;
constexpr int MAX_COEFFICIENTS = 32;

struct Layer {
    int form;
    int coefficients;  // of the polynomial: of an arc's without the first, which is 1; or the series itself
    bool positive;     // its input is never negative
    float linear, arc;
    float coefficient[MAX_COEFFICIENTS];
};

constexpr Layer LAYER[] = {LAYER_LIST};
static_assert(sizeof(LAYER) / sizeof(Layer) == LAYERS);

constexpr bool POOLED = !LAST, PATCHES = PATCH_STEPS > 0 || GIVEN;
constexpr int EARLY = WINDOWS % 2 + 2 * AHEAD;  // steps before the first row: patches are ahead, and rows leave in pairs

// Warps of a team synchronise every two steps (a *turn*). With a long ring they may be a turn apart: a warp goes on as soon as
// all have finished the turn before the last.
constexpr bool APART = RING > 4;

// Whether a row leaves the last layer without the factors of its columns.
constexpr bool FACTORED = LAYER[LAYERS - 1].form == EXPONENTIAL;

// Whether rows fill the grid exactly. If not: the first column of a thread's block that can be beyond the grid.
constexpr bool FITS = SPAN_K == WIDTH && SPAN_N == WIDTH;
constexpr int CUT_K = WIDTH % BLOCK_K, CUT_N = WIDTH % BLOCK_N;

// What is read of the kernel or front before: a row, as a matrix or by lanes.
constexpr int IN_ROW = GIVEN ? SPAN_K * SPAN_N : WIDTH * WIDTH, POOLED_ROW = HALF_WIDTH * HALF_WIDTH;

static_assert(LANES == LANES_K * LANES_N && ROWS * LANES <= 32 && SPAN_K >= WIDTH && SPAN_N >= WIDTH);
static_assert(HEIGHT > 1 && HEIGHT == PASSES * OFFSETS && OFFSETS <= ROWS * WARPS);
static_assert(PAIRS == 1 || (WARPS == 1 && OFFSETS == HEIGHT && PAIRS * HEIGHT <= ROWS));
static_assert(LAYERS > PATCHES && (PATCHES || !OUTER && !AHEAD));
static_assert(RING == 4 || (RING == 8 && POOLED && WARPS > 1 && ROWS == 1));
static_assert(SPAN_K % 4 == 0 && SPAN_N % 4 == 0 && X_LAYERS_AT % 4 == 0 && X_ROW % 4 == 0 && Z_ROW % 4 == 0);
static_assert(X_ROW >= X_LAYERS_AT + PLANES * LAYERS * SPAN_K && Z_ROW >= Z_LAYERS_AT + PLANES * LAYERS * SPAN_N);
static_assert(EXCHANGE_AT >= PAIRS * RING * X_ROW && TEAM_FLOATS >= EXCHANGE_AT && TEAM_FLOATS >= BARRIER_AT);
static_assert(SHARED_BYTES >= 4 * (HEIGHT * Z_ROW + TEAMS * TEAM_FLOATS));

using Values = float[BLOCK_K][BLOCK_N];

DEVICE void copy(const Values& from, Values& to) {
#pragma unroll
    for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
        for (int o = 0; o < BLOCK_N; o++) to[i][o] = from[i][o];
}

// What a thread is responsible for.
struct Place {
    int warp, lane, team;
    int pair, index;                   // the pair, of those that the team works on; the number of the offset
    int at, k, n;                      // the number of the thread in its row, and its first columns
    bool owner;                        // false: another thread does the same work, and writes the results
    float has_above, has_above_left, has_left, has_below, has_below_right, has_right;  // neighbours: 1, or 0 if missing
    float inside_k, inside_n, inside;  // 1 if columns from CUT_K on, from CUT_N on, and from both on are in the grid
};

DEVICE Place find_place() {
    Place p;
    p.warp = uniform(thread_index() / 32);
    p.lane = thread_index() % 32;
    p.team = TEAMS == 1 ? 0 : p.warp / WARPS;
    const int worker = p.lane % (ROWS * LANES);
    const int row = p.warp % WARPS * ROWS + worker / LANES;
    p.pair = PAIRS == 1 ? 0 : row / HEIGHT % PAIRS;
    p.index = row % OFFSETS;
    p.at = worker % LANES;
    p.k = p.at / LANES_N * BLOCK_K, p.n = p.at % LANES_N * BLOCK_N;
    p.owner = p.lane == worker && row < PAIRS * OFFSETS;
    p.has_above = p.k > 0 ? 1.0f : 0.0f;
    p.has_left = p.n > 0 ? 1.0f : 0.0f;
    p.has_below = p.k + BLOCK_K < WIDTH ? 1.0f : 0.0f;
    p.has_right = p.n + BLOCK_N < WIDTH ? 1.0f : 0.0f;
    p.has_above_left = p.has_above * p.has_left;
    p.has_below_right = p.has_below * p.has_right;
    p.inside_k = p.k + CUT_K < WIDTH ? 1.0f : 0.0f;
    p.inside_n = p.n + CUT_N < WIDTH ? 1.0f : 0.0f;
    p.inside = p.inside_k * p.inside_n;
    return p;
}

// A block's work: `count` images x from `left` on, with image z = `right`. Kernels of the pairs are stored from `slot` on.
struct Unit {
    int right, left, count, slot;
};

// Which image of a unit a team works on in this round, for its pair number `pair`.
DEVICE int image_of(int round, int team, int pair) { return (round * TEAMS + team) * PAIRS + pair; }

// What a thread works with and never changes. Pointers and addresses are those of the thread's own share.
struct Work {
    Place place;
    Unit unit;
    int rounds;
    const float* left;   // rows of the unit's first image x
    const float* input;  // the first pair's kernel after the stage before
    float* pooled;       // the first pair's kernel after this stage
    unsigned ring, x, z;                 // shared memory: the ring, columns of its first slot, columns of the first row of z
    int x_patches, z_patches;            // distance in bytes from x and z to the patches
    int x_parts, z_parts;                // and to the parts of numbers that tensor cores multiply
    unsigned shares_left, shares_taken;  // pooled values that this thread leaves for others, and that it takes to the output
    unsigned barrier;                    // of the team
    double* totals;                      // of the team, in shared memory
    void* output;
    int left_step, right_step;

    DEVICE int image(int round) const { return image_of(round, place.team, place.pair); }
    DEVICE int kept_image(int round) const { return image(round) < unit.count ? image(round) : unit.count - 1; }
    DEVICE int last_row() const { return rounds * PASSES * HEIGHT; }
    DEVICE static unsigned slot(unsigned turn) { return turn % (RING / 2) * (8 * PAIRS * X_ROW); }
};

DEVICE void sync_pair(int team) {
    if constexpr (WARPS == 1)
        sync_warp();
    else
        sync_team(team, TEAM_THREADS);
}
