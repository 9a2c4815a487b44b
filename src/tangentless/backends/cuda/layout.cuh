// The layout of a fused stage: its parameters, the work of each thread, and where things lie in memory.
//
// `layout.py` computes every size and defines it on the compiler's command line; this file checks what the code relies
// on.
//
// The problem:
//   HEIGHT WIDTH            the grid
//   CHANNELS                channels of the images; 0: the input is the output of the stage before
//   LAYER_LIST LAYERS       the embeddings, and how many there are
//   LAST                    1: the pool takes the whole grid, and the output is one double per pair
// The work of threads (stage.cu has a picture):
//   BLOCK_K BLOCK_N         a thread's block of values in a row, along k and along n
//   LANES_K LANES_N LANES   threads that share a row: LANES = LANES_K LANES_N
//   ROWS                    rows that a warp works on at a time, each at an offset of its own
//   WARPS TEAM_THREADS      warps and threads of a team
//   PAIRS                   pairs of images that a team works on at a time
//   TEAMS THREADS BLOCKS    teams and threads of a block; blocks of a multiprocessor
//   SLOTS                   pairs of images that a block works on at a time: TEAMS PAIRS
//   OFFSETS PASSES          offsets u that a team works on at a time; passes that it takes for all HEIGHT of them
//   WINDOWS                 sums over three rows that run in registers; a row leaves WINDOWS steps after it entered
// Tensor cores:
//   PATCH_STEPS             steps of 16 entries in an inner product of patches; 0: no tensor cores in the first layer
//   AHEAD                   1: inner products of patches are computed one step before they are needed
//   OUTER                   1: tensor cores compute the products xr zr of embedding.cuh
//   GIVEN                   1: inner products of patches are read from memory, where front.cu has left them
// Memory, in floats:
//   RING                    rows of x in shared memory, per pair: 4, or 8 where warps of a team may be a turn apart
//   SPAN_K SPAN_N           columns of a row of x and of z, including those beyond the grid
//   PLANES                  planes of a layer in a row (one number per column each): 2, or 3 with OUTER
//   X_LAYERS_AT Z_LAYERS_AT where the planes of layer 0 begin in a row, behind the patches or channels
//   X_ROW Z_ROW             length of a row of x and of z
//   EXCHANGE_ROW            pooled values of one row at one offset
//   EXCHANGE EXCHANGES      pooled values of two rows at all offsets; how many such buffers take turns
//   EXCHANGE_AT BARRIER_AT  where the buffers (or totals) and the barrier begin in a team's share of shared memory
//   TEAM_FLOATS             length of a team's share
//   SHARED_BYTES            shared memory of a block, in bytes
//   HALF_HEIGHT HALF_WIDTH  the grid after a 2x2 pool
//   POOLED_FLOATS           length of a pair's pooled output: [offset][row][k][n]
//
// Shared memory:
//   block   z: HEIGHT rows of Z_ROW | team 0: TEAM_FLOATS | team 1 | ...
//   team    ring: [RING / 2 turns][2 steps][PAIRS][X_ROW] | EXCHANGES buffers, or totals in float64 | barrier
//   row     patches, or pixels by channel | layer 0: PLANES spans | layer 1 | ...
#pragma once
#include "device.cuh"

// The forms of an embedding; `layout.py` shares the numbers.
constexpr int EXPONENTIAL = 0, ARC = 1, SERIES = 2, IDENTITY = 3;
constexpr int MAX_COEFFICIENTS = 32;

struct Layer {
    int form;
    int coefficients;  // how many: of an arc's polynomial all but the leading one, which is 1; of a series all
    bool positive;     // its input is never negative
    float linear, arc;
    float coefficient[MAX_COEFFICIENTS];
};

constexpr Layer LAYER[] = {LAYER_LIST};
static_assert(sizeof(LAYER) / sizeof(Layer) == LAYERS);

constexpr bool POOLED = !LAST, PATCHES = PATCH_STEPS > 0 || GIVEN;
// Steps before the first row enters: AHEAD needs a turn of two steps, and an odd number of windows one step, so that
// rows 2i and 2i + 1 leave in the same turn.
constexpr int EARLY = WINDOWS % 2 + 2 * AHEAD;

// Warps of a team synchronise every two steps (a *turn*). With a long ring they may be a turn apart: a warp begins a
// turn as soon as all warps have finished the turn before the last.
constexpr bool APART = RING > 4;

// Whether rows leave the last layer without their factors A' (one per column n), which the pool then multiplies by.
constexpr bool FACTORED = LAYER[LAYERS - 1].form == EXPONENTIAL;

// Whether the threads' blocks fill the grid exactly. If not, columns from CUT_K (CUT_N) on of the last block are beyond
// the grid; 0: none are.
constexpr bool FITS = SPAN_K == WIDTH && SPAN_N == WIDTH;
constexpr int CUT_K = WIDTH % BLOCK_K, CUT_N = WIDTH % BLOCK_N;

// Floats of an input row: [k][n] from the stage before, [chunk][lane][4] from front.cu. Floats of a pooled row, [k][n].
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

// A thread's block of a row: [k][n].
using Values = float[BLOCK_K][BLOCK_N];

DEVICE void copy(const Values& from, Values& to) {
#pragma unroll
    for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
        for (int o = 0; o < BLOCK_N; o++) to[i][o] = from[i][o];
}

// The part of the work that a thread has: a block of (k, n) at one offset of one pair.
struct Place {
    int warp, lane, team;
    int pair, index;  // number among the team's PAIRS, and among a pass's OFFSETS: u = pass * OFFSETS + index
    int at, k, n;     // the thread's number among the LANES of its row; the first k and n of its block
    bool owner;       // false: a spare thread, which repeats the work of another one and writes nothing
    // 1 if the grid goes on beyond this side of the block, else 0: above and below along k, left and right along n.
    float has_above, has_above_left, has_left, has_below, has_below_right, has_right;
    float inside_k, inside_n, inside;  // 1 if the block's k from CUT_K on, n from CUT_N on, or both, are in the grid
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

// A block's work: images x = left ... left + count - 1, each with image z = right. Kernels between stages are stored by
// pair, those of this unit from `slot` on.
struct Unit {
    int right, left, count, slot;
};

// The image of the unit, counted from its first, that is pair number `pair` of a team in a round.
DEVICE int image_of(int round, int team, int pair) { return (round * TEAMS + team) * PAIRS + pair; }

// A thread's constants. Each pointer and address already points at the thread's own part.
struct Work {
    Place place;
    Unit unit;
    int rounds;          // in which the team takes all its images of the unit
    const float* left;   // rows of the unit's first image x
    const float* input;  // the unit's first pair, after the stage before
    float* pooled;       // the unit's first pair, after this stage
    // Addresses in shared memory: the ring, and the thread's columns in the ring's first row and in row 0 of z.
    unsigned ring, x, z;
    int x_patches, z_patches;  // distances in bytes from x and z to what the lane loads of patches
    int x_parts, z_parts;      // and to what it loads of the parts of xr and zr, with OUTER
    unsigned shares_left, shares_taken;  // pooled values: where it stores its own, where it loads those that it writes
    unsigned barrier;                    // the team's
    double* totals;                      // the team's, in shared memory
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
