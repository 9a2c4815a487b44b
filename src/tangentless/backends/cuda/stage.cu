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
// shared memory, copied ahead; a slot of it has all that one step needs, so what belongs to a later layer comes later. Rows of
// the stage before come from global memory straight into registers, two steps ahead.
//
// The first layer, where the images have few channels and tensor cores are used: the sum over three rows is the inner product
// of two columns of three pixels, so tensor cores compute whole rows of it (*patches*), and only the sums along diagonals are
// left. Every number is split into two float16, x = h + l; h h' + h l' + l h' misses the product by 2^-24, and is the inner
// product of (h, h, l) and (h', l', h'). Where registers allow, they work on the row that enters next while the special
// functions work on this one.
//
// In the same stages, where shared memory allows, tensor cores multiply what x and z bring to a layer: 1 / (A A'). Here a number
// is the sum of two of eleven binary digits, whose products are exact.
//
// Pooling 2x2: rows (j, m) go to row (j >> 1, m >> 1), so an even offset u is joined by the even rows of u + 1 and the odd rows
// of u - 1. All three are done at the same time; they meet in shared memory. Where u - 1 belongs to the pass before, its odd rows
// are in the output already, and the rest is added to them there; offset 0 is there first, and the last pass adds to it. So every
// sum has one fixed order, and the results do not depend on tiles, launches or timing.
//
// Parameters, all set on the compiler's command line:
//   HEIGHT WIDTH       the grid
//   CHANNELS           of the images; 0: the input is the output of another stage
//   PATCH_STEPS        steps of 16 entries that make up a column; 0: the first layer runs without tensor cores
//   LAYER_LIST         the forms of the embeddings
//   LAST               1: the pool takes the whole grid, and the output is one double per pair
//   BLOCK_K BLOCK_N LANES_K LANES_N PAIRS WARPS TEAMS BLOCKS   the shares above; BLOCKS per multiprocessor
//   RING               rows of x in shared memory: 4, or 8 where the warps of a team may be apart
//   AHEAD              1: patches are made a step before they are needed
//   OUTER              1: tensor cores multiply what x and z bring to a layer
//   SHARED_BYTES OUTPUT_FLOATS X_FLOATS Z_FLOATS               the sizes the launch goes by; the last two of a row
#include "device.cuh"

constexpr Layer LAYER[] = {LAYER_LIST};
constexpr int LAYERS = sizeof(LAYER) / sizeof(Layer);
constexpr bool POOLED = !LAST, PATCHES = PATCH_STEPS > 0;
constexpr int PLANES = OUTER ? 3 : 2;                   // of a layer in a row of x or z
constexpr int WINDOWS = PATCHES ? LAYERS - 1 : LAYERS;  // in registers; the row that leaves is so many steps behind
constexpr int EARLY = WINDOWS % 2 + 2 * AHEAD;          // rows before the first: patches are ahead, and rows leave in pairs

// Whether a row leaves the last layer without its columns' factors.
constexpr bool FACTORED = LAYER[LAYERS - 1].form == EXPONENTIAL;

// Choices that mean the same sums. Which of them leaves the compiler the registers it needs was measured.
constexpr bool ROWS_FIRST = PATCHES;                      // rows are added before diagonals
constexpr bool LINK_IF = !AHEAD && WINDOWS > 1;           // links are predicates, not factors
constexpr bool BEYOND_IF = CHANNELS > 0 && !FACTORED;     // and so is whether a neighbour is there

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
static_assert(LAYERS > PATCHES && (PATCHES || !OUTER && !AHEAD));
static_assert(!PATCHES || (LANES_K == 8 && LANES_N == 4 && BLOCK_K % 2 == 0 && BLOCK_N % 2 == 0));
static_assert(!POOLED || (BLOCK_K % 2 == 0 && BLOCK_N % 2 == 0 && OFFSETS % 2 == 0 && WIDTH % 2 == 0));

// Warps of a team meet every two steps. With a long ring they need not be at the same place for that: a warp goes on when all
// have done their last but one *turn* of two steps, and so may be a turn ahead of another one.
constexpr bool APART = RING > 4;
constexpr int EXCHANGES = APART ? 4 : 2;  // pairs of rows on their way to the output; a power of two, though three would do
static_assert(RING == 4 || (RING == 8 && POOLED && WARPS > 1 && ROWS == 1));

// A thread's block may reach beyond the grid, if it does not fit: the first column (row) of a block that can be beyond its end.
constexpr bool FITS = SPAN_K == WIDTH && SPAN_N == WIDTH;
constexpr int CUT_K = WIDTH % BLOCK_K, CUT_N = WIDTH % BLOCK_N;

// Shared memory, in floats: a row of x or z is its patches or channels, then the planes of each layer.
constexpr int X_LAYERS_AT = PATCHES ? BLOCK_K / 2 * PATCH_STEPS * 128 : CHANNELS * SPAN_K;
constexpr int Z_LAYERS_AT = PATCHES ? BLOCK_N / 2 * PATCH_STEPS * 64 : CHANNELS * SPAN_N;
static_assert(SPAN_K % 4 == 0 && SPAN_N % 4 == 0 && X_LAYERS_AT % 4 == 0);
constexpr int X_ROW = ceiling(X_LAYERS_AT + PLANES * LAYERS * SPAN_K, 4) * 4;
constexpr int Z_ROW = ceiling(Z_LAYERS_AT + PLANES * LAYERS * SPAN_N, 4) * 4;
constexpr int HALF_K = POOLED ? BLOCK_K / 2 : 1, HALF_N = POOLED ? BLOCK_N / 2 : 1;
constexpr int SHARES = HALF_K * HALF_N;                           // pooled values of a thread
constexpr int EXCHANGE_ROW = LANES * SHARES;                      // of an even or odd row at one offset
constexpr int EXCHANGE = POOLED ? PAIRS * OFFSETS * 2 * EXCHANGE_ROW : 0;  // of one pair of rows
constexpr int TOTALS = LAST ? 2 * TEAM_THREADS : 0;
constexpr int GATE = APART ? 4 : 0;
constexpr int TEAM_FLOATS = PAIRS * RING * X_ROW + EXCHANGES * EXCHANGE + TOTALS + GATE;
static_assert(4 * (HEIGHT * Z_ROW + TEAMS * TEAM_FLOATS) == SHARED_BYTES && X_ROW == X_FLOATS && Z_ROW == Z_FLOATS);

// The pooled output of a pair: [offset][row][k][n].
constexpr int HALF_HEIGHT = HEIGHT / 2, HALF_WIDTH = WIDTH / 2;
constexpr int POOLED_ROW = HALF_WIDTH * HALF_WIDTH, IN_ROW = WIDTH * WIDTH;
constexpr long long POOLED_FLOATS = (long long)HALF_HEIGHT * HALF_HEIGHT * POOLED_ROW;
static_assert(LAST || POOLED_FLOATS == OUTPUT_FLOATS);

// A block's work: `count` images x from `left` on, against image z = `right`; the pairs' kernels lie from `slot` on.
struct Unit {
    int right, left, count, slot;
};

using Values = float[BLOCK_K][BLOCK_N];

DEVICE void copy(const Values& from, Values& to) {
#pragma unroll
    for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
        for (int o = 0; o < BLOCK_N; o++) to[i][o] = from[i][o];
}

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

DEVICE void sync_pair(int team) {
    if constexpr (WARPS == 1)
        sync_warp();
    else
        sync_team(team, TEAM_THREADS);
}

// ---------------------------------------------------------------------------------------------------- the first layer

// Sums over three rows, on the tensor cores. All tiles take each step together, so that none waits for the result of its last
// one.
DEVICE void patch_products(unsigned x, unsigned z, Values& out) {
    constexpr int TILES_K = BLOCK_K / 2, TILES_N = BLOCK_N / 2, STEPS = PATCH_STEPS > 0 ? PATCH_STEPS : 1;
    float sum[TILES_K][TILES_N][4] = {}, of_x[TILES_K][STEPS][4], of_z[TILES_N][2 * STEPS];
    unroll<TILES_K * STEPS>([&](auto part) {
        constexpr int at = part.value;
        load_shared<4, 4, at * 128>(x, of_x[at / STEPS][at % STEPS]);
    });
    unroll<TILES_N>([&](auto tile) {
        load_shared<2 * STEPS, STEPS % 2 == 0 ? 4 : 2, tile.value * STEPS * 64>(z, of_z[tile.value]);
    });
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
DEVICE void pixel_products(unsigned x, unsigned z, Values& out) {
    unroll<CHANNELS>([&](auto channel) {
        constexpr int c = channel.value;
        float xs[BLOCK_K], zs[BLOCK_N];
        load_shared<BLOCK_K, BLOCK_K, c * SPAN_K>(x, xs);
        load_shared<BLOCK_N, BLOCK_N, c * SPAN_N>(z, zs);
#pragma unroll
        for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
            for (int o = 0; o < BLOCK_N; o++) out[i][o] = c == 0 ? xs[i] * zs[o] : fmaf(xs[i], zs[o], out[i][o]);
    });
}

constexpr int IN_ALIGN = divisor(divisor(WIDTH, BLOCK_N), 4);

// A row of another stage's output, from the thread's first column on.
DEVICE void load_row(const float* row, const Place& place, Values& out) {
#pragma unroll
    for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
        for (int o = 0; o < BLOCK_N; o += IN_ALIGN) {
            float values[IN_ALIGN] = {};
            if ((CUT_K == 0 || place.k + i < WIDTH) && (CUT_N == 0 || place.n + o < WIDTH))
                load<IN_ALIGN, IN_ALIGN>(row + i * WIDTH + o, values);
#pragma unroll
            for (int e = 0; e < IN_ALIGN; e++) out[i][o + e] = values[e];
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
    const float positive = LAYER[L].positive ? s : fmaxf(s, 0.0f);
    if constexpr (LAYER[L].linear != 0.0f || LAYER[L].arc != 1.0f)
        return fmaf(LAYER[L].arc, positive, LAYER[L].linear * s);
    else
        return positive;
}

// linear S + arc (max(S, 0) + D sqrt(w) Q(w)) with D = A A' - |S| and w = D / (A A'), at a scale where the last coefficient of Q
// is 1. Q is w^2.5 + a w + b, w^4 + a w^2 + b w + c or w^5 + a w^3 + ...; arc is folded into it.
template <int L>
DEVICE float bend(float sum, float distance, float ratio) {
    const float w = saturate(distance * ratio), root = fast_sqrt(w);
    float q = LAYER[L].coefficients > 2 ? w : root;
#pragma unroll
    for (int i = 0; i < LAYER[L].coefficients; i++) q = fmaf(q, w, LAYER[L].coefficient[i]);
    return fmaf(distance * root, q, straight<L>(sum));
}

// A A' f(S / (A A')), from what the planes of layer L hold for x (xr, xa) and for z (zr, za):
//   exponential   xr zr = gamma log2(e) / (A A'),  xa = log2(A) - gamma log2(e),  za = A', by which the caller multiplies
//   others        xr zr = 1 / (A A'), of arcs at their scale,  xa = A,  za = A'
// all zero (xa of the exponential: far below) where A is zero.
template <int L>
DEVICE float embed(float sum, float xr, float zr, float xa, float za) {
    constexpr int form = LAYER[L].form;
    if constexpr (form == EXPONENTIAL)
        return fast_exp2(fmaf(sum * xr, zr, xa));
    else if constexpr (form == ARC)
        return bend<L>(sum, fmaf(xa, za, LAYER[L].positive ? -sum : -fabsf(sum)), xr * zr);
    else
        return polynomial<L, 0>(sum * xr * zr) * (xa * za);
}

// What a thread's columns of plane number PLANE of layer L hold for x and for z.
template <int L, int PLANE>
DEVICE void load_planes(unsigned x, unsigned z, float (&of_x)[BLOCK_K], float (&of_z)[BLOCK_N]) {
    load_shared<BLOCK_K, BLOCK_K, X_LAYERS_AT + (PLANES * L + PLANE) * SPAN_K>(x, of_x);
    load_shared<BLOCK_N, BLOCK_N, Z_LAYERS_AT + (PLANES * L + PLANE) * SPAN_N>(z, of_z);
}

// Where in shared memory a thread finds its columns of a row of x and of z, and from there, in bytes, its share of what tensor
// cores multiply.
struct Columns {
    unsigned x, z;
    int x_parts, z_parts;
};

// The products of what planes 0 and 1 of layer L, the two parts of a number, hold for x and for z. Lane t of four brings one of
// the four products of such parts: x's first, first, second, second part; z's first, second, first, second.
template <int L>
DEVICE void outer_products(const Columns& at, Values& out) {
    constexpr int TILES_K = BLOCK_K / 2, TILES_N = BLOCK_N / 2;
    float of_x[BLOCK_K], of_z[TILES_N];
    load_shared<BLOCK_K, BLOCK_K, X_LAYERS_AT + PLANES * L * SPAN_K>(at.x + at.x_parts, of_x);
    load_shared<TILES_N, TILES_N, Z_LAYERS_AT + PLANES * L * SPAN_N>(at.z + at.z_parts, of_z);
#pragma unroll
    for (int r = 0; r < TILES_K; r++)
#pragma unroll
        for (int c = 0; c < TILES_N; c++) {
            float product[4] = {};
            multiply_parts(product, of_x[2 * r], of_x[2 * r + 1], of_z[c]);
            out[2 * r][2 * c] = product[0], out[2 * r][2 * c + 1] = product[1];
            out[2 * r + 1][2 * c] = product[2], out[2 * r + 1][2 * c + 1] = product[3];
        }
}

// `factor`: what the values of a column are still to be multiplied by, if they are exponentials.
template <int L>
DEVICE void embed_all(const Values& sum, const Columns& at, Values& out, float (&factor)[BLOCK_N]) {
    constexpr int form = LAYER[L].form;
    float xr[BLOCK_K], xa[BLOCK_K], zr[BLOCK_N];
    if constexpr (form == IDENTITY) {
        copy(sum, out);
    } else if constexpr (OUTER) {
        Values ratio;
        outer_products<L>(at, ratio);
        load_planes<L, 2>(at.x, at.z, xa, factor);
#pragma unroll
        for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
            for (int o = 0; o < BLOCK_N; o++) out[i][o] = embed<L>(sum[i][o], 1.0f, ratio[i][o], xa[i], factor[o]);
    } else {
        load_planes<L, 0>(at.x, at.z, xr, zr);
        load_planes<L, 1>(at.x, at.z, xa, factor);
#pragma unroll
        for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
            for (int o = 0; o < BLOCK_N; o++) out[i][o] = embed<L>(sum[i][o], xr[i], zr[o], xa[i], factor[o]);
    }
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

// A neighbour of another thread, if there is one.
DEVICE float add_beyond(float sum, float value, float is_there) {
    if constexpr (BEYOND_IF)
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
            out[i][o] = LINK_IF ? add_if(pair[i][o], in[i][o], link != 0.0f) : fmaf(in[i][o], link, pair[i][o]);
            pair[i][o] = fmaf(newest[i][o], link, in[i][o]);
            newest[i][o] = in[i][o];
        }
}

// ---------------------------------------------------------------------------------------------------- the stream of rows

// Where a stream of rows is: row j of x and row m of z, at the team's offset of `pass`, for its image number `round`.
struct Cursor {
    int j, pass, round, m;
    DEVICE void start(int rows_before) { j = HEIGHT - 1 - rows_before, pass = PASSES - 1, round = -1, m = 0; }

    // To the next row of the stream, which is `number`.
    DEVICE void advance(int number, const Place& place) {
        if constexpr ((HEIGHT & (HEIGHT - 1)) == 0) {  // and so is PASSES
            const unsigned wrapped = number, passes = wrapped / HEIGHT;
            j = wrapped % HEIGHT, pass = passes % PASSES, round = number < 0 ? -1 : int(passes / PASSES);
            // j would do in place of `number`, which was faster, with all the addresses there are. Rows before the first count as
            // those of the last pass: where it is late enough, the sum is not negative.
            constexpr bool LATE = (PASSES - 1) * OFFSETS >= EARLY;
            m = ((LATE ? number : j) + pass * OFFSETS + place.index) % HEIGHT;
        } else if (++j == HEIGHT) {
            j = 0;
            if (++pass == PASSES) pass = 0, round++;
            m = pass * OFFSETS + place.index;
        } else if (++m == HEIGHT) {
            m = 0;
        }
    }
};

constexpr int KEPT = WINDOWS + 1 + AHEAD;  // rows whose places are kept, the one that entered last before the others

struct Stream {
    Values newest[WINDOWS], pair[WINDOWS];
    Values next;            // patches of the next row
    Values readings[2];     // rows read ahead, of even and of odd steps
    unsigned z_rows[KEPT];  // where this thread's columns of z are in shared memory
    float links[KEPT];
    Cursor entering, ahead;
};

// Which image of a unit a team works on for its pair number `pair`.
DEVICE int image_of(int round, int team, int pair) { return (round * TEAMS + team) * PAIRS + pair; }

// Everything a thread works with that does not change. Pointers and addresses in shared memory are those of its own share.
struct Work {
    Place place;
    Unit unit;
    int rounds;
    const float* left;   // rows of the unit's first image x, where this thread copies them
    const float* input;  // the first pair's kernel, of the stage before
    float* pooled;       // and of this stage
    unsigned ring, x, z;                 // the whole ring, columns of its first slot, columns of the first row of z
    int x_patches, z_patches;            // from there to the patches, in bytes
    int x_parts, z_parts;                // and to the parts
    unsigned shares_left, shares_taken;  // pooled values: what this thread leaves for others, and what it takes to the output
    unsigned gate;                       // of the team
    double* totals;                      // of the team, in shared memory
    void* output;
    int left_step, right_step;

    DEVICE int image(int round) const { return image_of(round, place.team, place.pair); }
    DEVICE int kept_image(int round) const { return image(round) < unit.count ? image(round) : unit.count - 1; }
    DEVICE int last_row() const { return rounds * PASSES * HEIGHT; }
    DEVICE static unsigned slot(unsigned turn) { return turn % (RING / 2) * (8 * PAIRS * X_ROW); }
};

// How many steps after its row entered the slot of a step wants what lies at `at` in a row of x.
DEVICE int delay(int at) {
    return at < X_LAYERS_AT ? -AHEAD : (at - X_LAYERS_AT) / (PLANES * SPAN_K) + !PATCHES;
}

// Where row number `row + r` of the stream is, r = 0 or 1: so many rows after the first one of the unit's first image x.
DEVICE int find_row(int row, int r, int team, int pair) {
    constexpr int ROUND = PASSES * HEIGHT, ROUNDS_BEFORE = 4;  // so many rounds before the first no number is negative
    if constexpr ((ROUND & (ROUND - 1)) == 0) {
        const unsigned number = row + r;
        if constexpr (SLOTS == 1) return (number / PASSES & ~(HEIGHT - 1)) | number % HEIGHT;
        return image_of(number / ROUND, team, pair) * HEIGHT + number % HEIGHT;
    } else {  // one division for both rows
        const unsigned number = row + ROUNDS_BEFORE * ROUND, passes = number / HEIGHT, j = number % HEIGHT + r;
        return image_of(int((passes + j / HEIGHT) / PASSES) - ROUNDS_BEFORE, team, pair) * HEIGHT + j % HEIGHT;
    }
}

// The slots of a turn, for all pairs of the team. Of rows that do not exist a slot keeps what it has.
DEVICE void copy_rows(const Work& work, int turn) {
    constexpr int SHARE = 4 * TEAM_THREADS;
    const int first = thread_index() % TEAM_THREADS * 4;
    const unsigned slot = work.ring + Work::slot(turn);
#pragma unroll
    for (int i = 0; i < X_ROW; i += SHARE) {
        const int at = i + first, row = 2 * turn - EARLY - delay(at);
        if (i > 0 && at >= X_ROW) continue;  // a branch for what few warps have to do, and none for what all do
#pragma unroll
        for (int p = 0; p < PAIRS; p++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int from = find_row(row, r, work.place.team, p);
                const bool exists = unsigned(row + r) < work.last_row() && (SLOTS == 1 || from < work.unit.count * HEIGHT);
                if (at < X_ROW && exists)
                    copy_ahead(slot + 4 * ((r * PAIRS + p) * X_ROW + at), work.left + i + (long long)from * X_ROW);
            }
    }
}

// Row number `row` of the stream, from the output of the stage before.
DEVICE void read_ahead(int row, Stream& s, const Work& work, Values& out) {
    s.ahead.advance(row, work.place);
    const int round = s.ahead.round < 0 ? 0 : s.ahead.round, u = s.ahead.pass * OFFSETS + work.place.index;
    load_row(work.input + (long long)((work.kept_image(round) * HEIGHT + u) * HEIGHT + s.ahead.j) * IN_ROW, work.place, out);
}

// What an exponential leaves to its caller.
template <int L>
DEVICE void apply_factors(Values& values, const float (&factor)[BLOCK_N]) {
    if constexpr (LAYER[L].form == EXPONENTIAL)
#pragma unroll
        for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
            for (int o = 0; o < BLOCK_N; o++) values[i][o] *= factor[o];
}

// Where row number `row` of the stream is in z, and whether it is linked to the one before.
DEVICE void enter(int row, Stream& s, const Work& work) {
    s.entering.advance(row, work.place);
    s.z_rows[0] = work.z + s.entering.m * (4 * Z_ROW);
    s.links[0] = zero_if(s.entering.j == 0 || s.entering.m == 0);
}

// One step of all layers at time t. `leave` takes the row that leaves: its values and the factors of its columns.
template <int PARITY, class Leave>
DEVICE void step(int t, Stream& s, const Work& work, Leave&& leave) {
    const Place& place = work.place;
#pragma unroll
    for (int d = KEPT - 1; d > 0; d--) s.z_rows[d] = s.z_rows[d - 1], s.links[d] = s.links[d - 1];
    enter(t + AHEAD, s, work);

    const unsigned x = work.x + Work::slot((t - PARITY + EARLY) / 2) + PARITY * (4 * PAIRS * X_ROW);
    const auto columns = [&](int behind) { return Columns{x, s.z_rows[behind + AHEAD], work.x_parts, work.z_parts}; };
    Values now, half, sum;
    float factor[BLOCK_N];
    if constexpr (PATCHES) {
        if constexpr (AHEAD)
            copy(s.next, half);
        else
            patch_products(x + work.x_patches, s.z_rows[0] + work.z_patches, half);
        diagonal<-1>(half, sum, place);
        embed_all<0>(sum, columns(0), now, factor);
        apply_factors<0>(now, factor);
    } else if constexpr (CHANNELS > 0) {
        pixel_products(x, s.z_rows[0], now);
    } else {
        copy(s.readings[PARITY], now);
        read_ahead(t + 2, s, work, s.readings[PARITY]);
    }
    unroll<WINDOWS>([&](auto window) {
        constexpr int d = window.value, l = PATCHES ? d + 1 : d;
        const float link = s.links[d + AHEAD];
        if constexpr (ROWS_FIRST) {
            vertical(s.newest[d], s.pair[d], now, half, link);
            diagonal<l - 1>(half, sum, place);
        } else {
            diagonal<l - 1>(now, half, place);
            vertical(s.newest[d], s.pair[d], half, sum, link);
        }
        if constexpr (AHEAD && d + 1 == WINDOWS)
            patch_products(x + work.x_patches, s.z_rows[0] + work.z_patches, s.next);
        embed_all<l>(sum, columns(d + 1), now, factor);
        if constexpr (d + 1 < WINDOWS) apply_factors<l>(now, factor);
    });
    leave(now, factor);
}

// ---------------------------------------------------------------------------------------------------- pooling

constexpr int CHUNK = SHARES % 4 == 0 ? 4 : SHARES % 2 == 0 ? 2 : 1;

// Two neighbouring offsets share the work on what both leave behind: half of the chunks each, or every other pair of rows.
constexpr bool BY_CHUNKS = SHARES / CHUNK % 2 == 0;
constexpr int MINE = BY_CHUNKS ? SHARES / 2 : SHARES;
static_assert(!BY_CHUNKS || MINE % HALF_N == 0);

// The first of the pooled columns k that a thread writes.
DEVICE int first_k(const Place& place) { return place.k / 2 + (BY_CHUNKS ? place.index % 2 * (MINE / HALF_N) : 0); }

// Where the exchange of a pair of rows begins, from the first one on.
DEVICE unsigned exchange_of(unsigned row_pair) { return row_pair % EXCHANGES * (4 * EXCHANGE); }

// The 2x2 sums of a row over (k, n), left where other threads find them.
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

constexpr int OUT_ALIGN = divisor(divisor(HALF_WIDTH, HALF_N), CHUNK);

// Values number `at` and following of a thread's own, to a row of the output.
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

// A pair of rows that all offsets of the pass have left behind: complete sums go to the output.
DEVICE void write_pooled(const Work& work, unsigned row_pair) {  // a large number, if it is negative
    const Place& place = work.place;
    const int u = place.index / 2 * 2;
    const bool my_turn = BY_CHUNKS || row_pair % 2 == place.index % 2;
    const unsigned passes = row_pair / HALF_HEIGHT;  // of all rounds
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

// ---------------------------------------------------------------------------------------------------- the kernel

// All rows of all offsets of all pairs of the team. The stream starts EARLY rows before the first. They are made of zeros in the
// ring, and none of them is linked to the first.
DEVICE void stream(const Work& work) {
    const Place& place = work.place;
    Stream s = {};
#pragma unroll
    for (int d = 0; d < KEPT; d++) s.z_rows[d] = work.z, s.links[d] = 0.0f;
    s.entering.start(EARLY - AHEAD), s.ahead.start(EARLY);
    if constexpr (CHANNELS == 0)
        unroll<2>([&](auto parity) { read_ahead(parity.value - EARLY, s, work, s.readings[parity.value]); });
    double total = 0.0;

    copy_rows(work, 0);
    if constexpr (APART) {
        copies_come_to_gate(work.gate);
        come_to_gate(work.gate);
        copy_rows(work, 1);
    }
    bool open = false;
    const int turns = (work.last_row() + WINDOWS + EARLY + 1) / 2;
#pragma unroll 1
    for (int turn = 0; turn < turns; turn++) {
        const int t = 2 * turn - EARLY, row_pair = turn - (EARLY + WINDOWS) / 2;
        if constexpr (APART) {
            // All warps are in the last turn or in this one: the pair of rows of the turn before the last is complete, and the
            // rows of x for it are no longer needed.
            if (!open) wait_at_gate(work.gate, turn % 2);
            write_pooled(work, row_pair - 2);
            copies_come_to_gate(work.gate);
            come_to_gate(work.gate);
            copy_rows(work, turn + 2);
        } else {
            wait_for_copies();
            sync_pair(place.team);
            if constexpr (POOLED) write_pooled(work, row_pair - 1);
            copy_rows(work, turn + 1);
        }
        unroll<2>([&](auto parity) {
            constexpr int PARITY = parity.value;
            step<PARITY>(t + PARITY, s, work, [&](const Values& values, const float (&factor)[BLOCK_N]) {
                if constexpr (POOLED) {
                    if (place.owner) pool_row<PARITY>(values, factor, work.shares_left + exchange_of(row_pair));
                } else {
                    const int row = t + PARITY - WINDOWS;
                    if (row >= 0) total += row_total(values, factor, place);
                    if (row >= 0 && row < work.last_row() && (row + 1) % (PASSES * HEIGHT) == 0) {
                        write_totals(total, work, row / (PASSES * HEIGHT));
                        total = 0.0;
                    }
                }
            });
        });
        if constexpr (APART) open = is_gate_open(work.gate, (turn + 1) % 2);
    }
    if constexpr (POOLED) {
        sync_pair(place.team);
        unroll<APART ? 2 : 1>([&](auto behind) { write_pooled(work, work.last_row() / 2 - 1 - behind.value); });
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
    const Place place = find_place();
    const int index = thread_index(), team = place.team;
    float* shared = reinterpret_cast<float*>(shared_memory());
    float* ring = shared + HEIGHT * Z_ROW + team * TEAM_FLOATS;
    constexpr int EXCHANGE_AT = PAIRS * RING * X_ROW;  // from there

    Work work{place, unit};
    work.output = output, work.left_step = left_step, work.right_step = right_step;
    work.input = input + (long long)unit.slot * HEIGHT * HEIGHT * IN_ROW + place.k * WIDTH + place.n;
    const int first = first_k(place) * HALF_WIDTH + place.n / 2;
    work.pooled = opaque(static_cast<float*>(output) + unit.slot * POOLED_FLOATS + first);
    work.left = opaque(left + (long long)unit.left * HEIGHT * X_ROW + index % TEAM_THREADS * 4);
    work.ring = shared_address(ring);
    const int row = place.pair * OFFSETS + place.index, mine = (first_k(place) - place.k / 2) * HALF_N;
    work.shares_left = work.ring + 4 * (EXCHANGE_AT + row * 2 * EXCHANGE_ROW + place.at * CHUNK);
    work.shares_taken = work.ring + 4 * (EXCHANGE_AT + row / 2 * 4 * EXCHANGE_ROW + mine * LANES + place.at * CHUNK);
    work.totals = reinterpret_cast<double*>(ring + EXCHANGE_AT);
    work.gate = work.ring + 4 * (TEAM_FLOATS - GATE);
    if (APART && index % TEAM_THREADS == 0) set_gate(work.gate, 2 * TEAM_THREADS);  // a thread and its copies
    work.x = work.ring + 4 * (place.pair * X_ROW + place.k), work.x_patches = 4 * (4 * place.lane - place.k);
    work.z = shared_address(shared) + 4 * place.n, work.z_patches = 4 * (2 * PATCH_STEPS * place.lane - place.n);
    work.x_parts = 4 * (place.k + place.lane % 4 / 2 * BLOCK_K);
    work.z_parts = 4 * (place.lane / 4 * BLOCK_N + place.lane % 2 * (BLOCK_N / 2) - place.n);

    const float* z = right + (long long)unit.right * HEIGHT * Z_ROW;
    const unsigned z_copies = shared_address(shared);
    for (int i = 4 * index; i < HEIGHT * Z_ROW; i += 4 * THREADS) copy_ahead(z_copies + 4 * i, z + i);
    for (int i = index % TEAM_THREADS; i < PAIRS * RING * X_ROW; i += TEAM_THREADS) ring[i] = 0.0f;
    wait_for_copies();
    sync_block();
    work.rounds = uniform((unit.count - team * PAIRS + SLOTS - 1) / SLOTS);
    if (work.rounds > 0) stream(work);
}
