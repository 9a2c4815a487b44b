// One stage of a program, fused: (3x3 window sum, embedding) for every layer, then a pool, for many pairs of images.
//
// A pair of images x, z has a kernel value for every pair of positions (j, k) of x and (m, n) of z. At a fixed offset
// (u, v) = (m - j, n - k) a window sum is a plain 3x3 box filter over (j, k), so every offset is a stencil problem of its own
// through all layers of the stage. Offsets count modulo the size of the grid; where j or m (k or n) passes from the last row
// (column) to the first, the *link* between neighbours is cut. That way all offsets have the same shape and no lane idles.
//
//   thread   STRIP neighbouring columns k  x  LINES neighbouring offsets v; neighbours in k come by shuffle
//   warp     a whole row: WIDTH / STRIP strips  x  GROUPS groups of lines  (x PAIRS pairs, on small grids)
//   team     the warps of one pair: WARPS_ACROSS to cover all v, times PARTS that share out the offsets u
//   block    one image z, TEAMS teams; the teams take the images x of the block's unit in turn
//
// Rows stream through the thread's registers: at every step row t enters, and layer l works on row t - l. A layer keeps two
// rows of horizontal sums. u runs through its part in order, all rows of one u after those of the last.
//
// Pooling 2x2: offset u of row j goes to offset (u + (j & 1)) >> 1 of row j >> 1, so a pooled value gathers from three u,
// 2U - 1, 2U and 2U + 1, and from three v. The thread that owns it visits these u in order and keeps the sum in shared
// memory until it is complete, then writes it once. Values from the last line of a group are handed to the owner by
// shuffle; across warps and parts they go to places of their own in the output ("over" rows), and the next stage
// adds them when it reads. Every sum has one fixed order: the results do not depend on tiles, launches or timing.
//
// Parameters, all set on the compiler's command line:
//   HEIGHT WIDTH       the grid
//   CHANNELS           of the images; 0: the input is the output of another stage, with IN_PARTS, IN_WARPS, IN_SLOTS its layout
//   LAYER_LIST         the forms of the embeddings
//   LAST               1: the pool takes the whole grid, and the output is one double per pair
//   STRIP LINES GROUPS PAIRS PARTS TEAMS BLOCKS   the shares above; BLOCKS per multiprocessor
//   SHARED_BYTES OUTPUT_FLOATS                    the sizes the launch goes by
#include "device.cuh"

constexpr Layer LAYER[] = {LAYER_LIST};
constexpr int LAYERS = sizeof(LAYER) / sizeof(Layer);

constexpr int STRIPS = WIDTH / STRIP;
constexpr int LINE_GROUPS = WIDTH / LINES;
constexpr int WARPS_ACROSS = ceiling(LINE_GROUPS, GROUPS);
constexpr int LANES = STRIPS * GROUPS;  // of one pair in a warp
constexpr int TEAM_WARPS = WARPS_ACROSS * PARTS;
constexpr int TEAM_THREADS = 32 * TEAM_WARPS;
constexpr int THREADS = TEAMS * TEAM_THREADS;
constexpr int OFFSETS = HEIGHT / PARTS;  // offsets u of one part
constexpr int SLOTS = TEAMS * PAIRS;     // pairs a block works on at a time
static_assert(WIDTH % STRIP == 0 && WIDTH % LINES == 0 && HEIGHT % PARTS == 0 && LANES * PAIRS <= 32);

// Link cuts inside a thread's columns can only be where n is a multiple of COMMON.
constexpr int COMMON = divisor(STRIP, LINES);
constexpr int REACH = STRIP + LINES - 1;  // columns n that a thread touches

// Shared memory, in floats. Images x: planes [CHANNELS + 2 * LAYERS][HEIGHT][WIDTH]. Image z: values used together lie together,
// and rows run on beyond the end, with the first columns again.
constexpr int X_PLANE = ceiling(HEIGHT * WIDTH, 4) * 4;
constexpr int X_PLANES = CHANNELS + 2 * LAYERS;
constexpr int X_FLOATS = X_PLANES * X_PLANE;
constexpr int Z_COLUMNS = ceiling(WIDTH + REACH, 4) * 4;
constexpr int Z_PLANE = HEIGHT * Z_COLUMNS;
constexpr int CHANNEL_PAIRS = CHANNELS / 2;
constexpr int Z_LAYERS_AT = ceiling(CHANNELS, 2) * 2 * Z_PLANE;
constexpr int Z_FLOATS = Z_LAYERS_AT + 2 * LAYERS * Z_PLANE;

// The pooled output of a pair, in floats: [PARTS][POOLED_OFFSETS + 1][HEIGHT / 2][POOLED_ROW]; the last offset of a part
// belongs to the first of the next. A row holds [offset v][column k], then the over rows of each warp across.
constexpr bool POOLED = !LAST;
constexpr int HALF_HEIGHT = HEIGHT / 2, HALF_WIDTH = WIDTH / 2;
constexpr int HALF_STRIP = POOLED ? STRIP / 2 : 1, HALF_LINES = POOLED ? LINES / 2 : 1;
constexpr int POOLED_OFFSETS = OFFSETS / 2;
constexpr int POOLED_ROW = (HALF_WIDTH + WARPS_ACROSS) * HALF_WIDTH;
constexpr long long POOLED_FLOATS = (long long)PARTS * (POOLED_OFFSETS + 1) * HALF_HEIGHT * POOLED_ROW;
static_assert(!POOLED || (STRIP % 2 == 0 && LINES % 2 == 0 && OFFSETS % 2 == 0));

constexpr int SUM_FLOATS = POOLED ? HALF_HEIGHT * 32 * HALF_LINES * HALF_STRIP : 0;  // of a warp
constexpr int OVER_FLOATS = POOLED ? ceiling(HALF_HEIGHT * PAIRS * STRIPS * HALF_STRIP, 4) * 4 : 0;
constexpr int WARP_FLOATS = SUM_FLOATS + OVER_FLOATS;
constexpr int TOTAL_FLOATS = LAST ? 2 * THREADS : 0;
constexpr int SHARED_FLOATS = Z_FLOATS + SLOTS * X_FLOATS + TEAMS * TEAM_WARPS * WARP_FLOATS + TOTAL_FLOATS;
static_assert(4 * SHARED_FLOATS == SHARED_BYTES && (LAST || POOLED_FLOATS == OUTPUT_FLOATS), "plan.py sees other sizes");

// The input from another stage, if it is one: its layout as above, on this grid.
constexpr int IN_ROW = (WIDTH + IN_WARPS) * WIDTH;
constexpr int IN_OFFSETS = HEIGHT / IN_PARTS;
constexpr long long IN_FLOATS = (long long)IN_PARTS * (IN_OFFSETS + 1) * HEIGHT * IN_ROW;

// A block's work: `count` images x from `left` on, against image z = `right`; the pairs' kernels lie from `slot` on.
struct Unit {
    int right, left, count, slot;
};

using Values = float[LINES][STRIP];

// What a thread is responsible for.
struct Place {
    int warp, lane, team, part, pair;  // pair: within the warp
    int strip, line_group;
    int left_lane, right_lane, lower_lane;  // neighbours in k, and the thread with the lines before these
    float lower;                            // 1: that thread is in this warp, 0: it is not
    bool last_group;                        // the thread with the lines after these is not, so this one keeps what is over
    bool owner;                             // not a stand-in for another lane
    int across;
    int column;         // the first n
    float in[REACH + 1];  // links into column + d from the left; the ends also know the ends of the strips
    float ends[2];      // is there a strip on the left, on the right
};

DEVICE int lane_of(int group, int strip) {
    // Neighbouring lanes share what they load: lanes 2i and 2i + 1 have the same columns n, lanes i and i ^ 2 the same k.
    if constexpr (GROUPS % 4 == 0 && STRIP == 4 && (LINES == 2 || LINES == 4)) {
        const int low = group & 3;
        const int mixed = LINES == 2 ? (low >> 1) | ((low & 1) << 1) : low;
        return (strip + (mixed & 1)) % STRIPS * GROUPS + (group & ~3) + mixed;
    } else {
        return strip * GROUPS + group;
    }
}

DEVICE Place find_place() {
    Place p;
    p.warp = uniform(thread_index() / 32);
    p.lane = thread_index() % 32;
    p.team = p.warp / TEAM_WARPS;
    p.part = p.warp % TEAM_WARPS / WARPS_ACROSS;
    p.across = p.warp % WARPS_ACROSS;
    const int worker = p.lane % (PAIRS * LANES);
    p.pair = worker / LANES;
    int group = 0;
    for (int g = 0; g < GROUPS; g++)
        for (int s = 0; s < STRIPS; s++)
            if (lane_of(g, s) == worker % LANES) group = g, p.strip = s;
    const int base = p.pair * LANES;
    p.left_lane = base + lane_of(group, (p.strip + STRIPS - 1) % STRIPS);
    p.right_lane = base + lane_of(group, (p.strip + 1) % STRIPS);
    p.lower_lane = base + lane_of(group == 0 ? 0 : group - 1, p.strip);
    p.lower = group > 0 ? 1.0f : 0.0f;
    const int wanted = p.across * GROUPS + group;
    p.line_group = wanted % LINE_GROUPS;
    p.owner = p.lane < PAIRS * LANES && wanted < LINE_GROUPS;
    p.last_group = p.owner && (group == GROUPS - 1 || wanted == LINE_GROUPS - 1);
    p.column = (p.strip * STRIP + p.line_group * LINES) % WIDTH;
    for (int d = 0; d <= REACH; d++) p.in[d] = (p.column + d) % WIDTH == 0 ? 0.0f : 1.0f;
    p.ends[0] = p.strip == 0 ? 0.0f : 1.0f;
    p.ends[1] = p.strip == STRIPS - 1 ? 0.0f : 1.0f;
    return p;
}

// ---------------------------------------------------------------------------------------------------- loading the images

// x: planes as they come, but the rows of layer l's planes turned by l + 1, since that layer runs so many rows behind.
DEVICE void load_left(const float* image, float* shared, int index, int threads) {
    for (int i = index; i < X_PLANES * HEIGHT * WIDTH; i += threads) {
        const int plane = i / (HEIGHT * WIDTH), at = i % (HEIGHT * WIDTH);
        const int turn = plane < CHANNELS ? 0 : (plane - CHANNELS) / 2 + 1;
        const int row = (at / WIDTH + turn) % HEIGHT;
        shared[plane * X_PLANE + row * WIDTH + at % WIDTH] = image[i];
    }
}

// z: channels in pairs, an odd last one alone but with as much room; the two planes of a layer as pairs.
DEVICE void load_right(const float* image, float* shared, int index, int threads) {
    for (int i = index; i < X_PLANES * HEIGHT * Z_COLUMNS; i += threads) {
        const int plane = i / (HEIGHT * Z_COLUMNS), row = i / Z_COLUMNS % HEIGHT, column = i % Z_COLUMNS;
        const float value = image[(plane * HEIGHT + row) * WIDTH + column % WIDTH];
        const int at = row * Z_COLUMNS + column;
        if (plane < 2 * CHANNEL_PAIRS)
            shared[plane / 2 * 2 * Z_PLANE + 2 * at + plane % 2] = value;
        else if (plane < CHANNELS)
            shared[2 * CHANNEL_PAIRS * Z_PLANE + at + row * Z_COLUMNS] = value;
        else
            shared[Z_LAYERS_AT + (plane - CHANNELS) / 2 * 2 * Z_PLANE + 2 * at + (plane - CHANNELS) % 2] = value;
    }
}

// ---------------------------------------------------------------------------------------------------- arithmetic

constexpr int X_ALIGN = WIDTH % 4 == 0 && STRIP % 4 == 0 ? 4 : WIDTH % 2 == 0 && STRIP % 2 == 0 ? 2 : 1;

// Inner products of pixels: the kernel of the images themselves, at one row of x and one of z.
DEVICE void products(const float* x, const float* z, Values& out, const Place& place) {
    unroll<CHANNEL_PAIRS>([&](auto pair) {
        constexpr int c = 2 * pair.value;
        float x0[STRIP], x1[STRIP], zz[2 * REACH];
        load<STRIP, X_ALIGN>(x + c * X_PLANE, x0);
        load<STRIP, X_ALIGN>(x + (c + 1) * X_PLANE, x1);
        load<2 * REACH, 2 * COMMON>(z + c * Z_PLANE, zz);
#pragma unroll
        for (int o = 0; o < LINES; o++)
#pragma unroll
            for (int i = 0; i < STRIP; i++) {
                const float first = x0[i] * zz[2 * (i + o)];
                out[o][i] = fmaf(x1[i], zz[2 * (i + o) + 1], c == 0 ? first : fmaf(x0[i], zz[2 * (i + o)], out[o][i]));
            }
    });
    if constexpr (CHANNELS % 2 == 1) {
        constexpr int c = CHANNELS - 1;
        float xx[STRIP], zz[REACH];
        load<STRIP, X_ALIGN>(x + c * X_PLANE, xx);
        load<REACH, COMMON>(z + c * Z_PLANE - place.column, zz);
#pragma unroll
        for (int o = 0; o < LINES; o++)
#pragma unroll
            for (int i = 0; i < STRIP; i++)
                out[o][i] = c == 0 ? xx[i] * zz[i + o] : fmaf(xx[i], zz[i + o], out[o][i]);
    }
}

template <int L, int I>
DEVICE float polynomial(float x) {
    constexpr float coefficient = LAYER[L].coefficient[I];
    if constexpr (I + 1 < LAYER[L].coefficients)
        return fmaf(polynomial<L, I + 1>(x), x, coefficient);
    else
        return coefficient;
}

// A A' f(S / (A A')), from what the planes of layer L hold for x (xr, xa) and for z (zr, za):
//   exponential   xr zr = gamma log2(e) / (A A'),  xa = log2(A) - gamma log2(e),  za = A'
//   others        xr zr = 1 / (A A'),  xa = A,  za = A'
// all zero (xa of the exponential: far below) where A is zero.
template <int L>
DEVICE float embed(float sum, float xr, float xa, float zr, float za) {
    constexpr Layer layer = LAYER[L];
    if constexpr (layer.form == EXPONENTIAL) {
        return fast_exp2(fmaf(sum * xr, zr, xa)) * za;
    } else if constexpr (layer.form == ARC) {
        // linear S + arc (max(S, 0) + D sqrt(w) Q(w)) with D = A A' - |S| and w = D / (A A'); arc is folded into Q.
        const float distance = fmaf(xa, za, -fabsf(sum));
        const float relative = saturate(distance * (xr * zr));
        const float bend = distance * fast_sqrt(relative);
        const float positive = fmaxf(sum, 0.0f);
        float straight = positive;
        if constexpr (layer.linear != 0.0f || layer.arc != 1.0f) straight = fmaf(layer.arc, positive, layer.linear * sum);
        return fmaf(bend, polynomial<L, 0>(relative), straight);
    } else if constexpr (layer.form == SERIES) {
        return polynomial<L, 0>(sum * xr * zr) * (xa * za);
    } else {
        return sum;
    }
}

template <int L, class Consume>
DEVICE void embed_all(const Values& sum, const float* x, const float* z, Consume&& consume) {
    float xr[STRIP], xa[STRIP], zz[2 * REACH];
    load<STRIP, X_ALIGN>(x + (CHANNELS + 2 * L) * X_PLANE, xr);
    load<2 * REACH, 2 * COMMON>(z + Z_LAYERS_AT + 2 * L * Z_PLANE, zz);
    load<STRIP, X_ALIGN>(x + (CHANNELS + 2 * L + 1) * X_PLANE, xa);
#pragma unroll
    for (int o = 0; o < LINES; o++)
#pragma unroll
        for (int i = 0; i < STRIP; i++)
            consume(o, i, embed<L>(sum[o][i], xr[i], xa[i], zz[2 * (i + o)], zz[2 * (i + o) + 1]));
}

// Sums of three neighbours along k. Where a link cannot be cut, two outputs share the sum of a pair.
DEVICE void horizontal(const Values& in, Values& out, const Place& place) {
#pragma unroll
    for (int o = 0; o < LINES; o++) {
        const float from_left = from_lane(in[o][STRIP - 1], place.left_lane);
        const float from_right = from_lane(in[o][0], place.right_lane);
        auto add_left = [&](int i, float sum) {  // the value at i - 1
            if (i == 0) {
                const float link = o % COMMON == 0 ? place.in[o] * place.ends[0] : place.ends[0];
                return fmaf(from_left, link, sum);
            }
            return (i + o) % COMMON == 0 ? fmaf(in[o][i - 1], place.in[i + o], sum) : sum + in[o][i - 1];
        };
        auto add_right = [&](int i, float sum) {  // the value at i + 1
            if (i == STRIP - 1) {
                const float link = (STRIP + o) % COMMON == 0 ? place.in[STRIP + o] * place.ends[1] : place.ends[1];
                return fmaf(from_right, link, sum);
            }
            return (i + 1 + o) % COMMON == 0 ? fmaf(in[o][i + 1], place.in[i + 1 + o], sum) : sum + in[o][i + 1];
        };
#pragma unroll
        for (int i = 0; i < STRIP; i++) {
            const bool even = (i + o) % 2 == 0;
            if (COMMON % 2 == 0 && even && i + 1 < STRIP)
                out[o][i] = add_left(i, in[o][i] + in[o][i + 1]);
            else if (COMMON % 2 == 0 && !even && i > 0)
                out[o][i] = add_right(i, in[o][i - 1] + in[o][i]);
            else
                out[o][i] = add_right(i, add_left(i, in[o][i]));
        }
    }
}

// Sums of three neighbours along j, for the row before the one that enters. The steps take turns, so that two rows share the
// sum of a pair: before a first step `older` is two rows back and `newer` one; before a second, `older` is the sum of both.
template <bool FIRST>
DEVICE void vertical(Values& older, Values& newer, const Values& in, Values& out, bool linked) {
#pragma unroll
    for (int o = 0; o < LINES; o++)
#pragma unroll
        for (int i = 0; i < STRIP; i++) {
            if (linked) {
                const float pair = newer[o][i] + in[o][i];
                out[o][i] = older[o][i] + (FIRST ? pair : in[o][i]);
                older[o][i] = FIRST ? pair : newer[o][i];
            } else {
                out[o][i] = FIRST ? older[o][i] + newer[o][i] : older[o][i];
                older[o][i] = FIRST ? in[o][i] : 0.0f;
            }
            newer[o][i] = in[o][i];
        }
}

// ---------------------------------------------------------------------------------------------------- pooling

// Where the row that leaves the last layer belongs, and the sums under way.
constexpr int SHARES = HALF_LINES * HALF_STRIP;
constexpr int SHARES_ALIGN = SHARES % 4 == 0 ? 4 : SHARES % 2 == 0 ? 2 : 1;
constexpr int OVER_ALIGN = HALF_STRIP % 2 == 0 ? 2 : 1;

struct Pool {
    int offset, half_row;       // u within the part, j / 2
    float held[SHARES], held_over[HALF_STRIP];  // the even row of an even offset waits for the odd one
    float* sums;                // of this thread, in shared memory: [HALF_HEIGHT][32 lanes]
    float* overs;
    float* output;              // of the pair and part, at this thread's first place
    float* over_output;
    bool write;
    double total;
};

template <int COUNT>
DEVICE void add_to(float (&sum)[COUNT], const float (&more)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) sum[i] += more[i];
}

// A completed row of pooled values, at an offset of the part.
DEVICE void write_pooled(const float (&share)[SHARES], const float (&over)[HALF_STRIP], const Pool& pool, const Place& place,
                         int offset) {
    const int row = (offset * HALF_HEIGHT + pool.half_row) * POOLED_ROW;
    if (pool.write) {
#pragma unroll
        for (int m = 0; m < HALF_LINES; m++) {
            float line[HALF_STRIP];
#pragma unroll
            for (int k = 0; k < HALF_STRIP; k++) line[k] = share[m * HALF_STRIP + k];
            store<HALF_STRIP, OVER_ALIGN>(pool.output + row + m * HALF_WIDTH, line);
        }
        if (place.last_group) store<HALF_STRIP, OVER_ALIGN>(pool.over_output + row, over);
    }
}

// One row's share of the pooled sums: `share` for places of this thread, `over` for those of the next group of lines. An odd
// offset completes sums with its even rows and starts the next ones with its odd rows; an even offset adds in between.
template <bool ODD_ROW>
DEVICE void pool_row(const Values& in, Pool& pool, const Place& place) {
    float share[SHARES], over[HALF_STRIP];
#pragma unroll
    for (int k = 0; k < HALF_STRIP; k++) {
#pragma unroll
        for (int m = 0; m < HALF_LINES; m++) {
            float sum = in[2 * m][2 * k] + in[2 * m][2 * k + 1];
            sum += in[2 * m + 1][2 * k];
            if (m > 0) sum += in[2 * m - 1][2 * k + 1];
            share[m * HALF_STRIP + k] = sum;
        }
        over[k] = in[LINES - 1][2 * k + 1];
    }
    const bool odd_offset = pool.offset % 2 == 1;
    if (!ODD_ROW && !odd_offset) {
#pragma unroll
        for (int i = 0; i < SHARES; i++) pool.held[i] = share[i];
#pragma unroll
        for (int k = 0; k < HALF_STRIP; k++) pool.held_over[k] = over[k];
        return;
    }
    if (ODD_ROW && !odd_offset) add_to(share, pool.held), add_to(over, pool.held_over);
#pragma unroll
    for (int k = 0; k < HALF_STRIP; k++) share[k] = fmaf(from_lane(over[k], place.lower_lane), place.lower, share[k]);

    float* sums = pool.sums + pool.half_row * 32 * SHARES;
    float* overs = pool.overs + pool.half_row * PAIRS * STRIPS * HALF_STRIP;
    const bool start = odd_offset ? ODD_ROW : pool.offset == 0;
    const bool ends = ODD_ROW && pool.offset == OFFSETS - 1;
    if (!start) {
        float before[SHARES], over_before[HALF_STRIP];
        load<SHARES, SHARES_ALIGN>(sums, before);
        add_to(share, before);
        if (place.last_group) {
            load<HALF_STRIP, OVER_ALIGN>(overs, over_before);
            add_to(over, over_before);
        }
    }
    if (odd_offset && (!ODD_ROW || ends)) {
        write_pooled(share, over, pool, place, pool.offset / 2 + ODD_ROW);
    } else {
        store<SHARES, SHARES_ALIGN>(sums, share);
        if (place.last_group) store<HALF_STRIP, OVER_ALIGN>(overs, over);
    }
    if (ODD_ROW && ++pool.half_row == HALF_HEIGHT) pool.half_row = 0, pool.offset++;
}

DEVICE void pool_all(const Values& in, Pool& pool) {
    float sum = 0.0f;
#pragma unroll
    for (int o = 0; o < LINES; o++) {
        float line = in[o][0];
#pragma unroll
        for (int i = 1; i < STRIP; i++) line += in[o][i];
        sum += line;
    }
    pool.total += sum;
}

// ---------------------------------------------------------------------------------------------------- the stream of rows

// A row of another stage's output: offset u of this grid, row j. What other warps and parts had to add comes second and third.
DEVICE void add_row(const float* row, const Place& place, Values& out, bool first) {
    constexpr int ALIGN = X_ALIGN;
#pragma unroll
    for (int o = 0; o < LINES; o++) {
        const int v = place.line_group * LINES + o;
        float main[STRIP];
        load<STRIP, ALIGN>(row + v * WIDTH + place.strip * STRIP, main);
        if (v % IN_SLOTS == 0) {
            const int over = (v / IN_SLOTS + IN_WARPS - 1) % IN_WARPS;
            float handed[STRIP];
            load<STRIP, ALIGN>(row + (WIDTH + over) * WIDTH + place.strip * STRIP, handed);
#pragma unroll
            for (int i = 0; i < STRIP; i++) main[i] += handed[i];
        }
#pragma unroll
        for (int i = 0; i < STRIP; i++) out[o][i] = first ? main[i] : out[o][i] + main[i];
    }
}

DEVICE void read_row(const float* pair, int u, int j, const Place& place, Values& out) {
    const int part = u / IN_OFFSETS, offset = u % IN_OFFSETS;
    add_row(pair + ((part * (IN_OFFSETS + 1) + offset) * HEIGHT + j) * IN_ROW, place, out, true);
    if (offset == 0) {
        const int before = (part + IN_PARTS - 1) % IN_PARTS;
        add_row(pair + ((before * (IN_OFFSETS + 1) + IN_OFFSETS) * HEIGHT + j) * IN_ROW, place, out, false);
    }
}

constexpr int STEPS = OFFSETS * HEIGHT + LAYERS;

// The state of a stream between steps.
struct Stream {
    Values older[LAYERS], newer[LAYERS];
    Values next;      // input read ahead
    const float* x;   // this thread's columns in the rows that are entering now
    const float* z;
    int calm;         // so many further steps meet no cut link
};

// Row t of the stream: row j of x at offset u of the part, so row m of z. Rows from before the start are any rows.
struct Row {
    int j, m;
    DEVICE Row(int t, int first_offset) {
        j = (t + HEIGHT) % HEIGHT;
        m = (j + (t + HEIGHT) / HEIGHT - 1 + first_offset + HEIGHT) % HEIGHT;
    }
    DEVICE bool cut() const { return j == 0 || m == 0; }
};

// One step of all layers at time t. CUT: some row on its way has no link to the one before. Otherwise the rows of z follow one
// another in memory, as those of x always do, and the pointers just move on.
template <int TURN, bool CUT>
DEVICE void step(int t, Stream& s, Pool& pool, const Place& place, const float* x, const float* z, const float* input) {
    bool linked[LAYERS];
    const float* z_rows[LAYERS + 1];
    if constexpr (CUT) {
        const int first_offset = place.part * OFFSETS;
        bool still = false;
#pragma unroll
        for (int l = 0; l <= LAYERS; l++) {
            const Row row(t - l, first_offset);
            z_rows[l] = z + 2 * (row.m * Z_COLUMNS + place.column);
            if (l < LAYERS) linked[l] = !row.cut();
            if (l < LAYERS - 1) still = still || row.cut();
        }
        const Row row(t, first_offset);
        const int ahead = row.j > row.m ? HEIGHT - row.j : HEIGHT - row.m;  // the next cut enters so many steps later
        s.calm = still ? 0 : ahead - 1;
        s.x = x + row.j * WIDTH;
        s.z = z_rows[0];
    } else {
        s.calm--;
        s.x += WIDTH;
        s.z += 2 * Z_COLUMNS;
#pragma unroll
        for (int l = 0; l <= LAYERS; l++) {
            z_rows[l] = s.z - 2 * l * Z_COLUMNS;
            if (l < LAYERS) linked[l] = true;
        }
    }

    Values sum, now, wide;
    if constexpr (CHANNELS > 0) {
        products(s.x, s.z, now, place);
    } else {
#pragma unroll
        for (int o = 0; o < LINES; o++)
#pragma unroll
            for (int i = 0; i < STRIP; i++) now[o][i] = s.next[o][i];
        read_row(input, ((t + 1) / HEIGHT + place.part * OFFSETS) % HEIGHT, (t + 1) % HEIGHT, place, s.next);
    }
    horizontal(now, wide, place);
    vertical<TURN % 2 == 0>(s.older[0], s.newer[0], wide, sum, linked[0]);
    unroll<LAYERS>([&](auto layer) {
        constexpr int l = layer.value;
        embed_all<l>(sum, s.x, z_rows[l + 1], [&](int o, int i, float value) { now[o][i] = value; });
        if constexpr (l + 1 < LAYERS) {
            horizontal(now, wide, place);
            vertical<(TURN + l + 1) % 2 == 0>(s.older[l + 1], s.newer[l + 1], wide, sum, linked[l + 1]);
        }
    });
    if (t >= LAYERS && t < STEPS) {
        if constexpr (LAST)
            pool_all(now, pool);
        else
            pool_row<(TURN + LAYERS) % 2 == 1>(now, pool, place);
    }
}

// All rows of all offsets u of the part. The first row has no link to what is before it, so the zeros the registers start
// with reach nothing that is kept, nor do the rows that enter after the end. Six steps to a turn of the loop: after so many, every row of sums is back in the registers
// it came from.
DEVICE void stream(Pool& pool, const Place& place, const float* x, const float* z, const float* input) {
    Stream s;
#pragma unroll
    for (int l = 0; l < LAYERS; l++)
#pragma unroll
        for (int o = 0; o < LINES; o++)
#pragma unroll
            for (int i = 0; i < STRIP; i++) s.older[l][o][i] = 0.0f, s.newer[l][o][i] = 0.0f;
    s.calm = 0;
    s.x = x, s.z = z;
    if constexpr (CHANNELS == 0) read_row(input, place.part * OFFSETS, 0, place, s.next);
#pragma unroll 1
    for (int t = 0; t < STEPS; t += 6)
        unroll<6>([&](auto turn) {
            constexpr int n = turn.value;
            if (s.calm > 0)
                step<n, false>(t + n, s, pool, place, x, z, input);
            else
                step<n, true>(t + n, s, pool, place, x, z, input);
        });
}

// ---------------------------------------------------------------------------------------------------- the kernel

DEVICE void sync_pair(int team) {
    if constexpr (TEAM_WARPS == 1)
        sync_warp();
    else
        sync_team(team, TEAM_THREADS);
}

// The totals of a team's threads, added up in the order of the threads.
DEVICE void write_totals(double total, double* shared, const Place& place, const Unit& unit, int first, double* output,
                         int left_step, int right_step) {
    const int index = thread_index() % TEAM_THREADS;
    double* team = shared + place.team * TEAM_THREADS;
    team[index] = place.owner ? total : 0.0;
    sync_pair(place.team);
    if (index < PAIRS && first + index < unit.count) {
        double sum = 0.0;
        for (int w = 0; w < TEAM_WARPS; w++)
            for (int lane = 0; lane < LANES; lane++) sum += team[w * 32 + index * LANES + lane];
        output[(long long)(unit.left + first + index) * left_step + (long long)unit.right * right_step] = sum;
    }
}

// left, right: planes of the images, [image][X_PLANES][HEIGHT][WIDTH]. input: kernels of the stage before. output: pooled kernels
// [slot][POOLED_FLOATS], or totals at left * left_step + right * right_step.
KERNEL(THREADS, BLOCKS)
stage(const float* left, const float* right, const float* input, void* output, const Unit* units, int left_step,
      int right_step) {
    Unit unit = units[block_index()];
    unit.count = uniform(unit.count);
    const Place place = find_place();
    float* z = reinterpret_cast<float*>(shared_memory());
    float* x_all = z + Z_FLOATS;
    float* sums = x_all + SLOTS * X_FLOATS;
    constexpr long long IMAGE = (long long)X_PLANES * HEIGHT * WIDTH;
    load_right(right + unit.right * IMAGE, z, thread_index(), THREADS);
    sync_block();
    const int index = thread_index() % TEAM_THREADS;
    float* x_team = x_all + place.team * PAIRS * X_FLOATS;
    for (int first = place.team * PAIRS; first < unit.count; first += SLOTS) {
        for (int p = 0; p < PAIRS; p++) {
            const int member = first + p < unit.count ? first + p : unit.count - 1;
            load_left(left + (unit.left + member) * IMAGE, x_team + p * X_FLOATS, index, TEAM_THREADS);
        }
        sync_pair(place.team);
        const bool wanted = place.owner && first + place.pair < unit.count;
        const long long slot = unit.slot + (first + place.pair < unit.count ? first + place.pair : unit.count - 1);
        Pool pool;
        pool.offset = pool.half_row = 0;
        pool.total = 0.0;
        if constexpr (POOLED) {
            constexpr long long PART = (long long)(POOLED_OFFSETS + 1) * HALF_HEIGHT * POOLED_ROW;
            float* pair = static_cast<float*>(output) + slot * POOLED_FLOATS + place.part * PART + place.strip * HALF_STRIP;
            pool.output = pair + place.line_group * HALF_LINES * HALF_WIDTH;
            pool.over_output = pair + (HALF_WIDTH + place.across) * HALF_WIDTH;
            float* warp_sums = sums + place.warp * WARP_FLOATS;
            pool.sums = warp_sums + place.lane * HALF_LINES * HALF_STRIP;
            pool.overs = warp_sums + SUM_FLOATS + (place.pair * STRIPS + place.strip) * HALF_STRIP;
            pool.write = wanted;
        }
        stream(pool, place, x_team + place.pair * X_FLOATS + place.strip * STRIP, z, input + slot * IN_FLOATS);
        if constexpr (LAST)
            write_totals(pool.total, reinterpret_cast<double*>(sums), place, unit, first, static_cast<double*>(output),
                         left_step, right_step);
        sync_pair(place.team);
    }
}
