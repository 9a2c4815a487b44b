// One stage of a program, fused: (3x3 window sum, embedding) for every layer, then a pool, for many pairs of images.
//
// A pair of images x, z has a kernel value for every pair of positions (j, k) of x and (m, n) of z. A window sum adds the
// values at (j + a, k + b, m + a, n + b): rows j and m move together, and so do columns k and n. At a fixed offset u = m - j
// rows stream by, and a row is a matrix over (k, n) in which a window runs along diagonals.
//
//   thread   BLOCK_K x BLOCK_N values of a row; what it needs of x depends on k alone and what it needs of z on n alone
//   warp     LANES_K x LANES_N threads hold a whole row; ROWS rows at different offsets u where they are small
//   team     WARPS warps work on one pair (PAIRS pairs, on very small grids), OFFSETS offsets u at a time, in PASSES passes
//   block    one image z in shared memory, TEAMS teams; the teams take the images x of the block's unit in turn
//
// At every step row t enters, and the d-th window works on row t - d. A window keeps the last row and the sum of the last two
// in registers. Offsets count modulo HEIGHT; where j or m passes from the last row to the first, the *link* between rows is cut.
// So all offsets have the same shape, and passes and pairs follow one another without a pause. Rows of x come through a ring in
// shared memory, copied ahead.
//
// The first layer, where the images have few channels: the sum over three rows is the inner product of two columns of three
// pixels, so tensor cores compute whole rows of it, and only the sums along diagonals are left. Every number is split into two
// float16, x = h + l; h h' + h l' + l h' misses the product by 2^-24, and is the inner product of (h, h, l) and (h', l', h').
//
// Pooling 2x2: rows (j, m) go to row (j >> 1, m >> 1), so an even offset u is joined by the even rows of u + 1 and the odd rows of
// u - 1. All three are done at the same time; they meet in shared memory. What belongs to the pass before or after goes to a
// place of its own in the output ("over"), and the next stage adds it when it reads. Every sum has one fixed order: the results
// do not depend on tiles, launches or timing.
//
// Parameters, all set on the compiler's command line:
//   HEIGHT WIDTH       the grid
//   CHANNELS           of the images; 0: the input is the output of another stage, IN_OFFSETS of its offsets to a pass
//   PATCH_STEPS        steps of 16 entries that make up a column; 0: the first layer runs without tensor cores
//   LAYER_LIST         the forms of the embeddings
//   LAST               1: the pool takes the whole grid, and the output is one double per pair
//   BLOCK_K BLOCK_N LANES_K LANES_N PAIRS WARPS TEAMS BLOCKS   the shares above; BLOCKS per multiprocessor
//   RING UNROLL        rows of x in shared memory, steps in one turn of the loop
//   MEETING            steps after which the warps of a team meet
//   SHARED_BYTES OUTPUT_FLOATS X_FLOATS Z_FLOATS               the sizes the launch goes by; the last two of a row
#include "device.cuh"

constexpr Layer LAYER[] = {LAYER_LIST};
constexpr int LAYERS = sizeof(LAYER) / sizeof(Layer);
constexpr bool POOLED = !LAST, PATCHES = PATCH_STEPS > 0;
constexpr int WINDOWS = PATCHES ? LAYERS - 1 : LAYERS;  // in registers; the row that leaves is so many steps behind

constexpr int LANES = LANES_K * LANES_N;
constexpr int ROWS = 32 / LANES;
constexpr int OFFSETS = PAIRS > 1 || ROWS * WARPS > HEIGHT ? HEIGHT : ROWS * WARPS;
constexpr int PASSES = HEIGHT / OFFSETS;
constexpr int TEAM_THREADS = 32 * WARPS;
constexpr int THREADS = TEAMS * TEAM_THREADS;
constexpr int SLOTS = TEAMS * PAIRS;  // pairs a block works on at a time
constexpr int SPAN_K = LANES_K * BLOCK_K, SPAN_N = LANES_N * BLOCK_N;
static_assert(LANES <= 32 && SPAN_K >= WIDTH && SPAN_N >= WIDTH && HEIGHT % OFFSETS == 0 && HEIGHT > 1);
static_assert(PAIRS == 1 || (WARPS == 1 && PAIRS * HEIGHT <= ROWS));
static_assert(!PATCHES || (LANES_K == 8 && LANES_N == 4 && BLOCK_K % 2 == 0 && BLOCK_N % 2 == 0));
static_assert(!POOLED || (BLOCK_K % 2 == 0 && BLOCK_N % 2 == 0 && OFFSETS % 2 == 0 && WIDTH % 2 == 0));
static_assert((RING & (RING - 1)) == 0 && RING >= WINDOWS + 2 * MEETING && UNROLL % 2 == 0 && (MEETING == 2 || MEETING == 4));

// A thread's block may reach beyond the grid: the first column (row) of a block that can be beyond its end.
constexpr int CUT_K = WIDTH % BLOCK_K, CUT_N = WIDTH % BLOCK_N;

// Shared memory, in floats: a row of x or z is its patches or channels, then two planes for each layer.
constexpr int X_LAYERS_AT = PATCHES ? BLOCK_K / 2 * PATCH_STEPS * 128 : CHANNELS * SPAN_K;
constexpr int Z_LAYERS_AT = PATCHES ? BLOCK_N / 2 * PATCH_STEPS * 64 : CHANNELS * SPAN_N;
constexpr int X_ROW = ceiling(X_LAYERS_AT + 2 * LAYERS * SPAN_K, 4) * 4;
constexpr int Z_ROW = ceiling(Z_LAYERS_AT + 2 * LAYERS * SPAN_N, 4) * 4;
constexpr int HALF_K = POOLED ? BLOCK_K / 2 : 1, HALF_N = POOLED ? BLOCK_N / 2 : 1;
constexpr int SHARES = HALF_K * HALF_N;                           // pooled values of a thread
constexpr int EXCHANGE_ROW = LANES * SHARES;                      // of an even or odd row at one offset
constexpr int EXCHANGE = POOLED ? PAIRS * OFFSETS * 2 * EXCHANGE_ROW : 0;  // of one pair of rows; MEETING of them take turns
constexpr int TOTALS = LAST ? 2 * TEAM_THREADS : 0;
constexpr int TEAM_FLOATS = PAIRS * RING * X_ROW + MEETING * EXCHANGE + TOTALS;
static_assert(4 * (HEIGHT * Z_ROW + TEAMS * TEAM_FLOATS) == SHARED_BYTES && X_ROW == X_FLOATS && Z_ROW == Z_FLOATS);

// The pooled output of a pair: [PASSES][OFFSETS / 2 + 1][HEIGHT / 2][k][n]; the last offset of a pass belongs to the next one.
constexpr int HALF_HEIGHT = HEIGHT / 2, HALF_WIDTH = WIDTH / 2;
constexpr int POOLED_ROW = HALF_WIDTH * HALF_WIDTH;
constexpr long long POOLED_FLOATS = (long long)PASSES * (OFFSETS / 2 + 1) * HALF_HEIGHT * POOLED_ROW;
static_assert(LAST || POOLED_FLOATS == OUTPUT_FLOATS);
constexpr long long IN_FLOATS = (long long)(HEIGHT / IN_OFFSETS) * (IN_OFFSETS + 1) * HEIGHT * WIDTH * WIDTH;

// A block's work: `count` images x from `left` on, against image z = `right`; the pairs' kernels lie from `slot` on.
struct Unit {
    int right, left, count, slot;
};

using Values = float[BLOCK_K][BLOCK_N];

// What a thread is responsible for.
struct Place {
    int warp, lane, team, pair, index;      // pair: of those the team works on; index: of the offset
    int at, k, n;                           // in the row: the thread, and the first of its columns
    bool owner;                             // not a stand-in for another thread
    float has_above, has_above_left, has_left, has_below, has_below_right, has_right;
    float inside_k, inside_n, inside;       // does the grid go on beyond CUT_K, CUT_N, both
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
    p.owner = p.lane == worker && row < PAIRS * OFFSETS && p.k < WIDTH && p.n < WIDTH;
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

DEVICE void sync_pair(int team) {
    if constexpr (WARPS == 1)
        sync_warp();
    else
        sync_team(team, TEAM_THREADS);
}

// ---------------------------------------------------------------------------------------------------- the first layer

// Sums over three rows, on the tensor cores. All tiles take each step together, so that none waits for the result of its last
// one.
template <int STEPS>
DEVICE void patch_products(const float* x, const float* z, Values& out) {
    constexpr int TILES_K = BLOCK_K / 2, TILES_N = BLOCK_N / 2;
    float sum[TILES_K][TILES_N][4] = {}, of_x[TILES_K][STEPS][4], of_z[TILES_N][2 * STEPS];
#pragma unroll
    for (int r = 0; r < TILES_K; r++)
#pragma unroll
        for (int s = 0; s < STEPS; s++) load<4, 4>(x + (r * STEPS + s) * 128, of_x[r][s]);
#pragma unroll
    for (int c = 0; c < TILES_N; c++) load<2 * STEPS, STEPS % 2 == 0 ? 4 : 2>(z + c * STEPS * 64, of_z[c]);
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int c = 0; c < TILES_N; c++)
#pragma unroll
            for (int r = 0; r < TILES_K; r++) multiply(sum[r][c], of_x[r][s], of_z[c][2 * s], of_z[c][2 * s + 1]);
#pragma unroll
    for (int r = 0; r < TILES_K; r++)
#pragma unroll
        for (int c = 0; c < TILES_N; c++) {
            out[2 * r][2 * c] = sum[r][c][0], out[2 * r][2 * c + 1] = sum[r][c][1];
            out[2 * r + 1][2 * c] = sum[r][c][2], out[2 * r + 1][2 * c + 1] = sum[r][c][3];
        }
}

// Inner products of pixels: the kernel of the images themselves, at one row of x and one of z.
DEVICE void pixel_products(const float* x, const float* z, Values& out) {
    unroll<CHANNELS>([&](auto channel) {
        constexpr int c = channel.value;
        float xs[BLOCK_K], zs[BLOCK_N];
        load<BLOCK_K, BLOCK_K>(x + c * SPAN_K, xs);
        load<BLOCK_N, BLOCK_N>(z + c * SPAN_N, zs);
#pragma unroll
        for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
            for (int o = 0; o < BLOCK_N; o++) out[i][o] = c == 0 ? xs[i] * zs[o] : fmaf(xs[i], zs[o], out[i][o]);
    });
}

constexpr int IN_ALIGN = divisor(divisor(WIDTH, BLOCK_N), 4);

// A row of another stage's output, or what the pass before has to add to it.
DEVICE void add_row(const float* row, const Place& place, Values& out, bool first) {
#pragma unroll
    for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
        for (int o = 0; o < BLOCK_N; o += IN_ALIGN) {
            float values[IN_ALIGN] = {};
            if ((CUT_K == 0 || place.k + i < WIDTH) && (CUT_N == 0 || place.n + o < WIDTH))
                load<IN_ALIGN, IN_ALIGN>(row + (place.k + i) * WIDTH + place.n + o, values);
#pragma unroll
            for (int e = 0; e < IN_ALIGN; e++) out[i][o + e] = first ? values[e] : out[i][o + e] + values[e];
        }
}

DEVICE void read_row(const float* pair, int u, int j, const Place& place, Values& out) {
    const int part = u / IN_OFFSETS, offset = u % IN_OFFSETS;
    add_row(pair + ((part * (IN_OFFSETS + 1) + offset) * HEIGHT + j) * WIDTH * WIDTH, place, out, true);
    if (offset == 0) {
        const int before = part == 0 ? HEIGHT / IN_OFFSETS - 1 : part - 1;
        add_row(pair + ((before * (IN_OFFSETS + 1) + IN_OFFSETS) * HEIGHT + j) * WIDTH * WIDTH, place, out, false);
    }
}

// ---------------------------------------------------------------------------------------------------- embeddings

template <int L, int I>
DEVICE float polynomial(float x) {
    constexpr float coefficient = LAYER[L].coefficient[I];
    if constexpr (I + 1 < LAYER[L].coefficients)
        return fmaf(polynomial<L, I + 1>(x), x, coefficient);
    else
        return coefficient;
}

// linear s + arc max(s, 0)
template <int L>
DEVICE float straight(float s) {
    const float positive = fmaxf(s, 0.0f);
    if constexpr (LAYER[L].linear != 0.0f || LAYER[L].arc != 1.0f)
        return fmaf(LAYER[L].arc, positive, LAYER[L].linear * s);
    else
        return positive;
}

// A A' f(S / (A A')), from what the planes of layer L hold for x (xr, xa) and for z (zr, za):
//   exponential   xr zr = gamma log2(e) / (A A'),  xa = log2(A) - gamma log2(e),  za = A', by which the caller multiplies
//   others        xr zr = 1 / (A A'),  xa = A,  za = A'
// all zero (xa of the exponential: far below) where A is zero.
template <int L>
DEVICE float embed(float sum, float xr, float xa, float zr, float za) {
    constexpr int form = LAYER[L].form;
    if constexpr (form == EXPONENTIAL) {
        return fast_exp2(fmaf(sum * xr, zr, xa));
    } else if constexpr (form == ARC) {
        // linear S + arc (max(S, 0) + D sqrt(w) Q(w)) with D = A A' - |S| and w = D / (A A'); arc is folded into Q.
        const float distance = fmaf(xa, za, -fabsf(sum));
        const float relative = saturate(distance * (xr * zr));
        return fmaf(distance * fast_sqrt(relative), polynomial<L, 0>(relative), straight<L>(sum));
    } else if constexpr (form == SERIES) {
        return polynomial<L, 0>(sum * xr * zr) * (xa * za);
    } else {
        return sum;
    }
}

// `factor`: what the values of a column are still to be multiplied by, if they are exponentials.
template <int L>
DEVICE void embed_all(const Values& sum, const float* x, const float* z, Values& out, float (&factor)[BLOCK_N]) {
    float xr[BLOCK_K], xa[BLOCK_K], zr[BLOCK_N];
    load<BLOCK_K, BLOCK_K>(x + X_LAYERS_AT + 2 * L * SPAN_K, xr);
    load<BLOCK_N, BLOCK_N>(z + Z_LAYERS_AT + 2 * L * SPAN_N, zr);
    load<BLOCK_K, BLOCK_K>(x + X_LAYERS_AT + (2 * L + 1) * SPAN_K, xa);
    load<BLOCK_N, BLOCK_N>(z + Z_LAYERS_AT + (2 * L + 1) * SPAN_N, factor);
#pragma unroll
    for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
        for (int o = 0; o < BLOCK_N; o++) out[i][o] = embed<L>(sum[i][o], xr[i], xa[i], zr[o], factor[o]);
}

// ---------------------------------------------------------------------------------------------------- windows

// Whether layer L, or the stage's input where it is -1, can have values other than zero beyond the grid.
template <int L>
DEVICE constexpr bool leaves_grid() {
    if constexpr (L >= 0)
        return LAYER[L].form == ARC || LAYER[L].form == IDENTITY;
    else
        return false;
}

// A neighbour of another thread, if there is one. Predicates save bandwidth of registers, but three windows need them all.
DEVICE float add_beyond(float sum, float value, float is_there) {
    if constexpr (CHANNELS > 0 && !PATCHES)
        return add_if(sum, value, is_there != 0.0f);
    else
        return fmaf(value, is_there, sum);
}

// Sums of three neighbours along the diagonal, of values that layer L left. Two outputs share the sum of a pair.
template <int L>
DEVICE void diagonal(const Values& in, Values& out, const Place& place) {
    constexpr int K = BLOCK_K - 1, N = BLOCK_N - 1;
    float before_k[BLOCK_N], before_n[BLOCK_K], after_k[BLOCK_N], after_n[BLOCK_K];  // beyond the block's four sides
    before_k[0] = from_before<LANES_N + 1>(in[K][N]);
    after_k[N] = from_after<LANES_N + 1>(in[0][0]);
#pragma unroll
    for (int o = 1; o < BLOCK_N; o++) {
        before_k[o] = from_before<LANES_N>(in[K][o - 1]);
        after_k[o - 1] = from_after<LANES_N>(in[0][o]);
    }
#pragma unroll
    for (int i = 1; i < BLOCK_K; i++) {
        before_n[i] = from_before<1>(in[i - 1][N]);
        after_n[i - 1] = from_after<1>(in[i][0]);
    }
    auto add_before = [&](int i, int o, float sum) {
        if (i == 0) return add_beyond(sum, before_k[o], o == 0 ? place.has_above_left : place.has_above);
        return o == 0 ? add_beyond(sum, before_n[i], place.has_left) : sum + in[i - 1][o - 1];
    };
    auto add_after = [&](int i, int o, float sum) {
        const bool cut_k = leaves_grid<L>() && CUT_K > 0 && i + 1 == CUT_K;
        const bool cut_n = leaves_grid<L>() && CUT_N > 0 && o + 1 == CUT_N;
        const float inside = cut_k && cut_n ? place.inside : cut_k ? place.inside_k : place.inside_n;
        if (i == K && o == N) return add_beyond(sum, after_k[o], place.has_below_right);
        if (i == K) return add_beyond(sum, after_k[o], cut_n ? place.has_below * inside : place.has_below);
        if (o == N) return add_beyond(sum, after_n[i], cut_k ? place.has_right * inside : place.has_right);
        return cut_k || cut_n ? fmaf(in[i + 1][o + 1], inside, sum) : sum + in[i + 1][o + 1];
    };
#pragma unroll
    for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
        for (int o = 0; o < BLOCK_N; o++) {
            if (i % 2 == 0 && i < K && o < N) {
                const float pair = add_after(i, o, in[i][o]);
                out[i][o] = add_before(i, o, pair);
                out[i + 1][o + 1] = add_after(i + 1, o + 1, pair);
            } else if (i % 2 == 0 || o == 0) {
                out[i][o] = add_after(i, o, add_before(i, o, in[i][o]));
            }
        }
}

// Sums of three rows, for the row before the one that enters; `link` is 0 where the latter is the first of its kind.
DEVICE void vertical(Values& newest, Values& pair, const Values& in, Values& out, float link) {
#pragma unroll
    for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
        for (int o = 0; o < BLOCK_N; o++) {
            out[i][o] = add_if(pair[i][o], in[i][o], link != 0.0f);
            pair[i][o] = fmaf(newest[i][o], link, in[i][o]);
            newest[i][o] = in[i][o];
        }
}

// ---------------------------------------------------------------------------------------------------- the stream of rows

// Where a stream of rows is: row j of the image x number `round` of this team, at its offset of `pass`.
struct Cursor {
    int j, pass, round, m;
    DEVICE void start(int rows_before) { j = HEIGHT - 1 - rows_before, pass = PASSES - 1, round = -1, m = 0; }
    DEVICE void advance(const Place& place) {
        if (++j == HEIGHT) {
            j = 0;
            if (++pass == PASSES) pass = 0, round++;
            m = pass * OFFSETS + place.index;
        } else if (++m == HEIGHT) {
            m = 0;
        }
    }
};

struct Stream {
    Values newest[WINDOWS + 1], pair[WINDOWS + 1];  // one more than needed: there may be none
    Values next;                                    // input read ahead
    int z_rows[WINDOWS + 1];                        // where the rows that entered last are in z
    float links[WINDOWS + 1];
    Cursor entering, ahead;
};

// Everything a thread works with that does not change.
struct Work {
    Place place;
    Unit unit;
    int rounds;
    const float* left;
    const float* input;
    void* output;
    int left_step, right_step;
    float *z, *ring, *exchange;
    unsigned copies;  // where this thread's copies go, in the first row of the ring

    DEVICE int image(int round) const { return (round * TEAMS + place.team) * PAIRS + place.pair; }
    DEVICE int kept_image(int round) const { return image(round) < unit.count ? image(round) : unit.count - 1; }
    DEVICE int last_row() const { return rounds * PASSES * HEIGHT; }
    // A row of x or z, at this thread's columns or at its share of the patches.
    DEVICE const float* x_row(int t) const { return ring + place.pair * X_ROW + place.k + ring_at(t); }
    DEVICE const float* x_patches(int t) const { return ring + 4 * place.lane + ring_at(t); }
    DEVICE const float* z_row(int at) const { return z + place.n + at; }
    DEVICE const float* z_patches(int at) const { return z + 2 * PATCH_STEPS * place.lane + at; }
    DEVICE static int ring_at(int t) { return (t & (RING - 1)) * PAIRS * X_ROW; }
};

// Row t of the stream of x, for all pairs of the team.
DEVICE void copy_row(const Work& work, int t) {
    constexpr int SHARE = 4 * TEAM_THREADS;
    if (t < 0) return;
    const int round = t / (PASSES * HEIGHT), j = t % HEIGHT, first = thread_index() % TEAM_THREADS * 4;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const int image = (round * TEAMS + work.place.team) * PAIRS + p;
        const int kept = work.unit.left + (image < work.unit.count ? image : work.unit.count - 1);
        const float* from = work.left + first + (long long)(kept * HEIGHT + j) * X_ROW;
        const unsigned to = work.copies + 4 * (Work::ring_at(t) + p * X_ROW);
#pragma unroll
        for (int i = 0; i < X_ROW; i += SHARE)
            if (i + SHARE <= X_ROW || i + first < X_ROW) copy_ahead(to + 4 * i, from + i);
    }
}

DEVICE void read_ahead(Stream& s, const Work& work) {
    s.ahead.advance(work.place);
    const int u = s.ahead.pass * OFFSETS + work.place.index, round = s.ahead.round < 0 ? 0 : s.ahead.round;
    const long long slot = work.unit.slot + work.kept_image(round);
    read_row(work.input + slot * IN_FLOATS, u, s.ahead.j, work.place, s.next);
}

// The two halves of a window sum can change places. Which order leaves the compiler more registers was measured.
constexpr bool ROWS_FIRST = PATCHES && WINDOWS > 1;

// What an exponential leaves to its caller.
template <int L>
DEVICE void apply_factors(Values& values, const float (&factor)[BLOCK_N]) {
    if constexpr (LAYER[L].form == EXPONENTIAL)
#pragma unroll
        for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
            for (int o = 0; o < BLOCK_N; o++) values[i][o] *= factor[o];
}

// One step of all layers at time t. `leave` takes the row that leaves: its values and the factors of its columns.
template <class Leave>
DEVICE void step(int t, Stream& s, const Work& work, Leave&& leave) {
    const Place& place = work.place;
#pragma unroll
    for (int d = WINDOWS; d > 0; d--) s.z_rows[d] = s.z_rows[d - 1], s.links[d] = s.links[d - 1];
    s.entering.advance(place);
    s.z_rows[0] = s.entering.m * Z_ROW;
    s.links[0] = zero_if(s.entering.j == 0 || s.entering.m == 0);

    Values now, half, sum;
    float factor[BLOCK_N];
    if constexpr (PATCHES) {
        patch_products<PATCH_STEPS>(work.x_patches(t), work.z_patches(s.z_rows[0]), half);
        diagonal<-1>(half, sum, place);
        embed_all<0>(sum, work.x_row(t), work.z_row(s.z_rows[0]), now, factor);
        if constexpr (WINDOWS > 0) apply_factors<0>(now, factor);
    } else if constexpr (CHANNELS > 0) {
        pixel_products(work.x_row(t), work.z_row(s.z_rows[0]), now);
    } else {
#pragma unroll
        for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
            for (int o = 0; o < BLOCK_N; o++) now[i][o] = s.next[i][o];
        read_ahead(s, work);
    }
    unroll<WINDOWS>([&](auto window) {
        constexpr int d = window.value, l = PATCHES ? d + 1 : d;
        if constexpr (ROWS_FIRST) {
            vertical(s.newest[d], s.pair[d], now, half, s.links[d]);
            diagonal<l - 1>(half, sum, place);
        } else {
            diagonal<l - 1>(now, half, place);
            vertical(s.newest[d], s.pair[d], half, sum, s.links[d]);
        }
        embed_all<l>(sum, work.x_row(t - d - 1), work.z_row(s.z_rows[d + 1]), now, factor);
        if constexpr (d + 1 < WINDOWS) apply_factors<l>(now, factor);
    });
    leave(now, factor);
}

// Whether a row leaves the last layer without its columns' factors.
constexpr bool FACTORED = LAYER[LAYERS - 1].form == EXPONENTIAL;

// ---------------------------------------------------------------------------------------------------- pooling

constexpr int CHUNK = SHARES % 4 == 0 ? 4 : SHARES % 2 == 0 ? 2 : 1;

DEVICE float* exchange_row(const Work& work, int row_pair, int odd, int index) {
    const int row = ((row_pair & (MEETING - 1)) * PAIRS + work.place.pair) * OFFSETS + index;
    return work.exchange + (row * 2 + odd) * EXCHANGE_ROW + work.place.at * CHUNK;
}

// The 2x2 sums of a row over (k, n), left where other threads find them.
DEVICE void pool_row(const Values& in, const float (&factor)[BLOCK_N], float* row) {
    float share[SHARES];
#pragma unroll
    for (int i = 0; i < HALF_K; i++)
#pragma unroll
        for (int o = 0; o < HALF_N; o++) {
            const float first = in[2 * i][2 * o] + in[2 * i + 1][2 * o];
            const float second = in[2 * i][2 * o + 1] + in[2 * i + 1][2 * o + 1];
            share[i * HALF_N + o] = FACTORED ? fmaf(second, factor[2 * o + 1], first * factor[2 * o]) : first + second;
        }
#pragma unroll
    for (int at = 0; at < SHARES; at += CHUNK) {
        float values[CHUNK];
#pragma unroll
        for (int e = 0; e < CHUNK; e++) values[e] = share[at + e];
        store<CHUNK, CHUNK>(row + at * LANES, values);
    }
}

constexpr int OUT_ALIGN = divisor(divisor(HALF_WIDTH, HALF_N), CHUNK);

// Pooled values number `at` and following of a thread, of a row of the output.
DEVICE void write_chunk(const float (&values)[CHUNK], float* row, int at, const Place& place) {
#pragma unroll
    for (int e = 0; e < CHUNK; e += OUT_ALIGN) {
        float some[OUT_ALIGN];
#pragma unroll
        for (int i = 0; i < OUT_ALIGN; i++) some[i] = values[e + i];
        const int k = place.k / 2 + (at + e) / HALF_N, n = place.n / 2 + (at + e) % HALF_N;
        float* to = row + k * HALF_WIDTH + n;
        if (k < HALF_WIDTH && n < HALF_WIDTH) {
            if constexpr (OUT_ALIGN == 4)
                store_four(to, some[0], some[1], some[2], some[3]);
            else
                store<OUT_ALIGN, OUT_ALIGN>(to, some);
        }
    }
}

// A pair of rows that all offsets of the pass have left behind: complete sums go to the output. Two neighbouring offsets share
// the work where there is enough of it.
DEVICE void write_pooled(const Work& work, int row_pair) {
    constexpr int CHUNKS = SHARES / CHUNK;
    constexpr bool TWO = CHUNKS % 2 == 0;
    constexpr int MINE = TWO ? CHUNKS / 2 : CHUNKS;
    const Place& place = work.place;
    const int u = place.index / 2 * 2, begin = TWO ? place.index % 2 * MINE : 0;
    const int half_row = row_pair % HALF_HEIGHT, pass = row_pair / HALF_HEIGHT % PASSES;
    const int image = work.image(row_pair / (HALF_HEIGHT * PASSES));
    const bool wanted = row_pair >= 0 && 2 * row_pair < work.last_row() && image < work.unit.count && place.owner &&
                        (TWO || place.index % 2 == 0);
    float* pair = static_cast<float*>(work.output) + (work.unit.slot + image) * POOLED_FLOATS;
    float* row = pair + ((pass * (OFFSETS / 2 + 1) + u / 2) * HALF_HEIGHT + half_row) * POOLED_ROW;
#pragma unroll
    for (int c = 0; c < MINE; c++) {
        const int at = (begin + c) * CHUNK;
        float share[CHUNK], more[CHUNK];
        auto read = [&](int odd, int index) { load<CHUNK, CHUNK>(exchange_row(work, row_pair, odd, index) + at * LANES, more); };
        load<CHUNK, CHUNK>(exchange_row(work, row_pair, 0, u) + at * LANES, share);
        read(1, u);
#pragma unroll
        for (int e = 0; e < CHUNK; e++) share[e] += more[e];
        read(0, u + 1);
#pragma unroll
        for (int e = 0; e < CHUNK; e++) share[e] += more[e];
        read(1, u == 0 ? 0 : u - 1);
#pragma unroll
        for (int e = 0; e < CHUNK; e++) share[e] += u == 0 ? 0.0f : more[e];
        if (wanted) write_chunk(share, row, at, place);
        if (wanted && u + 2 == OFFSETS) {
            read(1, u + 1);
            write_chunk(more, row + HALF_HEIGHT * POOLED_ROW, at, place);
        }
    }
}

// The sum of a whole row.
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

// The totals of a team's threads, added up in one fixed order and written.
DEVICE void write_totals(double total, const Work& work, int round) {
    constexpr int GROUP = PAIRS > 1 ? OFFSETS * LANES : 32;  // lanes of a warp that share a pair
    constexpr bool TREE = 32 % GROUP == 0;
    constexpr int PARTIAL = TREE ? WARPS : 32 * WARPS;
    const Place& place = work.place;
    if (!place.owner) total = 0.0;
    if constexpr (TREE)
#pragma unroll
        for (int d = 1; d < GROUP; d *= 2) total += from_lane(total, place.lane ^ d);
    double* totals = reinterpret_cast<double*>(work.exchange);
    const int warp = place.warp % WARPS;
    if (!TREE)
        totals[warp * 32 + place.lane] = total;
    else if (place.lane % GROUP == 0)
        totals[place.lane / GROUP * PARTIAL + warp] = total;
    sync_pair(place.team);
    const int pair = thread_index() % TEAM_THREADS;
    const int image = (round * TEAMS + place.team) * PAIRS + pair;
    if (pair < PAIRS && image < work.unit.count) {
        const double* of_pair = totals + (TREE ? pair * PARTIAL : pair * GROUP);
        double sum = 0.0;
        for (int i = 0; i < (PAIRS > 1 && !TREE ? GROUP : PARTIAL); i++) sum += of_pair[i];
        static_cast<double*>(work.output)[(long long)(work.unit.left + image) * work.left_step +
                                          (long long)work.unit.right * work.right_step] = sum;
    }
}

// ---------------------------------------------------------------------------------------------------- the kernel

// All rows of all offsets of all pairs of the team. The stream starts one row early where that makes the leaving rows come in
// pairs. The rows before the first are made of zeros in the ring; none of them is linked to the first.
DEVICE void stream(const Work& work) {
    constexpr int EARLY = WINDOWS % 2;
    const Place& place = work.place;
    Stream s;
#pragma unroll
    for (int d = 0; d <= WINDOWS; d++) {
#pragma unroll
        for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
            for (int o = 0; o < BLOCK_N; o++) s.newest[d][i][o] = 0.0f, s.pair[d][i][o] = 0.0f;
        s.z_rows[d] = 0, s.links[d] = 0.0f;
    }
    s.entering.start(EARLY), s.ahead.start(EARLY);
    if constexpr (CHANNELS == 0) read_ahead(s, work);
    double total = 0.0;

#pragma unroll
    for (int i = 0; i < MEETING; i++) copy_row(work, i - EARLY);
    const int end = work.last_row() + WINDOWS;
    int turn = -EARLY;
#pragma unroll 1
    for (; turn < end; turn += UNROLL)
        unroll<UNROLL / 2>([&](auto period) {
            const int t = turn + 2 * period.value, row_pair = (t - WINDOWS) >> 1;
            if (MEETING == 2 || (t + EARLY) % MEETING == 0) {
                wait_for_copies();
                sync_pair(place.team);
                if constexpr (POOLED)
#pragma unroll
                    for (int i = MEETING / 2; i > 0; i--) write_pooled(work, row_pair - i);
#pragma unroll
                for (int i = 0; i < MEETING; i++) copy_row(work, t + MEETING + i);
            }
            unroll<2>([&](auto parity) {
                step(t + parity.value, s, work, [&](const Values& values, const float (&factor)[BLOCK_N]) {
                    if constexpr (POOLED) {
                        if (place.owner) pool_row(values, factor, exchange_row(work, row_pair, parity.value, place.index));
                    } else {
                        const int row = t + parity.value - WINDOWS;
                        if (row >= 0) total += row_total(values, factor, place);
                        if (row >= 0 && row < work.last_row() && (row + 1) % (PASSES * HEIGHT) == 0) {
                            write_totals(total, work, row / (PASSES * HEIGHT));
                            total = 0.0;
                        }
                    }
                });
            });
        });
    if constexpr (POOLED) {
        sync_pair(place.team);
        // Some of them may be written already, and are written once more.
#pragma unroll
        for (int i = MEETING / 2; i > 0; i--) write_pooled(work, work.last_row() / 2 - i);
    }
    wait_for_copies();
}

// left, right: rows of the images, [image][HEIGHT][X_ROW or Z_ROW]. input: kernels of the stage before. output: pooled kernels
// [slot][POOLED_FLOATS], or totals at left * left_step + right * right_step.
KERNEL(THREADS, BLOCKS)
stage(const float* left, const float* right, const float* input, void* output, const Unit* units, int left_step,
      int right_step) {
    Unit unit = units[block_index()];
    unit.left = uniform(unit.left), unit.count = uniform(unit.count), unit.slot = uniform(unit.slot);
    Work work{find_place(), unit, 0, left, input, output, left_step, right_step, nullptr, nullptr, nullptr, 0};
    const int index = thread_index(), team = work.place.team;
    work.z = reinterpret_cast<float*>(shared_memory());
    work.ring = work.z + HEIGHT * Z_ROW + team * TEAM_FLOATS;
    work.exchange = work.ring + PAIRS * RING * X_ROW;
    const float* z = right + (long long)unit.right * HEIGHT * Z_ROW;
    work.copies = shared_address(work.ring + index % TEAM_THREADS * 4);
    const unsigned z_copies = shared_address(work.z);
    for (int i = 4 * index; i < HEIGHT * Z_ROW; i += 4 * THREADS) copy_ahead(z_copies + 4 * i, z + i);
    for (int i = index % TEAM_THREADS; i < PAIRS * RING * X_ROW; i += TEAM_THREADS) work.ring[i] = 0.0f;
    wait_for_copies();
    sync_block();
    work.rounds = uniform((unit.count - team * PAIRS + SLOTS - 1) / SLOTS);
    if (work.rounds > 0) stream(work);
}
