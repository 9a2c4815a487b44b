// The front of a first stage whose images have many channels: inner products of pixels and their sums over three rows,
// for all offsets. `stage.cu` reads them where GIVEN is set.
//
// A block has one image z and FRONT_WARPS neighbouring offsets u = first, first + 1, ..., a warp each. Rows j of its
// images x stream by, one in every step. All warps need the same row of x, and warp w needs row m = (j + first + w) %
// HEIGHT of z, which warp w + 1 needed one step before. So each step copies one new row of x and one of z:
//
//   step            0  1  2  3     with first = 0, and HEIGHT > 6
//   row of x        0  1  2  3
//   row of z: w = 0 0  1  2  3
//             w = 1 1  2  3  4
//             w = 2 2  3  4  5     the newest row of z, which the last warp needs first
//
// Offsets count modulo HEIGHT, and links between rows are cut, as in stream.cuh.
//
// A number is the sum of two float16, x = h + l, and x x' = h h' + h l' + l h' up to 2^-24, as in first_layer.cuh. Rows
// lie in memory as the lanes of a warp load them: x as [step][part h, l][tile][lane][4],
// z as [step][tile][lane][part h, l][2].
//
//   FRONT_STEPS FRONT_PASSES   steps of 16 channels in a pass; passes over the rows until all channels are done
//   FRONT_WARPS FRONT_GROUPS   offsets of a block; blocks that share the offsets of a unit
//   FRONT_X FRONT_Z            a row of x and of z, with the channels of one pass, in floats
//   FRONT_BYTES                shared memory of a block: two rows of x, and a ring of rows of z
#include "windows.cuh"

constexpr int FRONT_THREADS = 32 * FRONT_WARPS, FRONT_RING = FRONT_WARPS + 1;
constexpr int TILES_K = BLOCK_K / 2, TILES_N = BLOCK_N / 2;

static_assert(GIVEN && LANES_K == 8 && LANES_N == 4 && BLOCK_K * BLOCK_N % 4 == 0);
static_assert(FRONT_X == FRONT_STEPS * TILES_K * 256 && FRONT_Z == FRONT_STEPS * TILES_N * 128);
static_assert(FRONT_BYTES >= 4 * (2 * FRONT_X + FRONT_RING * FRONT_Z));

DEVICE void copy_row(unsigned to, const float* from, int floats) {
    for (int i = 4 * thread_index(); i < floats; i += 4 * FRONT_THREADS) copy_ahead(to + 4 * i, from + i);
}

// Inner products of the pixels in one row of x and one of z. Small products come first: l h', h l', h h'.
DEVICE void row_products(unsigned x, unsigned z, Values& out) {
    float sum[TILES_K][TILES_N][4] = {};
    unroll<FRONT_STEPS>([&](auto step) {
        constexpr int at = step.value * TILES_K * 256, of_z = step.value * TILES_N * 128;
        float high[TILES_K][4], low[TILES_K][4];
        unroll<TILES_K>([&](auto tile) {
            load_shared<4, 4, at + tile.value * 128>(x, high[tile.value]);
            load_shared<4, 4, at + (TILES_K + tile.value) * 128>(x, low[tile.value]);
        });
        unroll<TILES_N>([&](auto tile) {
            constexpr int c = tile.value;
            float part[4];
            load_shared<4, 4, of_z + c * 128>(z, part);
#pragma unroll
            for (int r = 0; r < TILES_K; r++) multiply(sum[r][c], low[r], part[0], part[1]);
#pragma unroll
            for (int r = 0; r < TILES_K; r++) multiply(sum[r][c], high[r], part[2], part[3]);
#pragma unroll
            for (int r = 0; r < TILES_K; r++) multiply(sum[r][c], high[r], part[0], part[1]);
        });
    });
#pragma unroll
    for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
        for (int o = 0; o < BLOCK_N; o++) out[i][o] = sum[i / 2][o / 2][i % 2 * 2 + o % 2];
}

// left, right: rows of the images, [image][pass][HEIGHT][FRONT_X or FRONT_Z].
// output: [slot][offset][row][chunk][lane][4]; the first pass stores, and the others add. FRONT_GROUPS blocks per unit.
KERNEL(FRONT_THREADS, 2)
front(const float* left, const float* right, float* output, const Unit* units) {
    const Unit unit = units[block_index() / FRONT_GROUPS];
    const int warp = uniform(thread_index() / 32), lane = thread_index() % 32;
    const int first = block_index() % FRONT_GROUPS * FRONT_WARPS, u = first + warp, rows = unit.count * HEIGHT;
    const unsigned x_slots = shared_address(reinterpret_cast<float*>(shared_memory())), ring = x_slots + 8 * FRONT_X;
    float* out = output + ((long long)unit.slot * HEIGHT + u) * (HEIGHT * IN_ROW) + 4 * lane;
#pragma unroll 1
    for (int pass = 0; pass < FRONT_PASSES; pass++) {
        const auto copy_x = [&](int s) {
            const long long row = ((long long)(unit.left + s / HEIGHT) * FRONT_PASSES + pass) * HEIGHT + s % HEIGHT;
            copy_row(x_slots + s % 2 * (4 * FRONT_X), left + row * FRONT_X, FRONT_X);
        };
        const auto copy_z = [&](int s) {  // the row that warp 0 needs in step s, and warp w in step s - w
            const long long row = ((long long)unit.right * FRONT_PASSES + pass) * HEIGHT + (s + first) % HEIGHT;
            copy_row(ring + s % FRONT_RING * (4 * FRONT_Z), right + row * FRONT_Z, FRONT_Z);
        };
        copy_x(0);
#pragma unroll 1
        for (int s = 0; s < FRONT_WARPS; s++) copy_z(s);
        Values newest = {}, pair = {}, now = {}, sum;
#pragma unroll 1
        for (int s = 0; s <= rows; s++) {  // row s enters, and row s - 1 leaves
            wait_for_copies();
            sync_block();
            if (s + 1 < rows) copy_x(s + 1), copy_z(s + FRONT_WARPS);
            const unsigned x = x_slots + s % 2 * (4 * FRONT_X), z = ring + (s + warp) % FRONT_RING * (4 * FRONT_Z);
            if (s < rows) row_products(x + 16 * lane, z + 16 * lane, now);
            vertical(newest, pair, now, sum, zero_if(s % HEIGHT == 0 || (s + u) % HEIGHT == 0));
            if (s == 0 || u >= HEIGHT) continue;
            float* to = out + ((long long)((s - 1) / HEIGHT) * (HEIGHT * HEIGHT) + (s - 1) % HEIGHT) * IN_ROW;
#pragma unroll
            for (int chunk = 0; chunk < BLOCK_K * BLOCK_N / 4; chunk++) {
                float some[4];
#pragma unroll
                for (int e = 0; e < 4; e++) some[e] = sum[(4 * chunk + e) / BLOCK_N][(4 * chunk + e) % BLOCK_N];
                put(to + 128 * chunk, some, pass == 0, pass > 0);
            }
        }
    }
}
