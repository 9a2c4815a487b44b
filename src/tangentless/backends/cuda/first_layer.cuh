// The input of a stage: inner products of pixels, or the output of the stage before.
//
// Tensor cores compute inner products of pixels and their sums over three rows at once: the inner product of two
// *patches*, columns of three pixels each. A pixel is the sum of two float16, x = h + l. Then x x' = h h' + h l' + l h'
// up to 2^-24, which is the inner product of (h, h, l) and (h', l', h'). Where there are too many channels for that,
// front.cu computes the sums over three rows.
#pragma once
#include "layout.cuh"

static_assert(!PATCHES || (LANES_K == 8 && LANES_N == 4 && BLOCK_K % 2 == 0 && BLOCK_N % 2 == 0));
static_assert(GIVEN || X_LAYERS_AT >= (PATCHES ? BLOCK_K / 2 * PATCH_STEPS * 128 : CHANNELS * SPAN_K));
static_assert(GIVEN || Z_LAYERS_AT >= (PATCHES ? BLOCK_N / 2 * PATCH_STEPS * 64 : CHANNELS * SPAN_N));

// Inner products of patches. The row of a warp is TILES_K x TILES_N tiles of 16 k by 8 n, of which each thread has 2 by
// 2 neighbouring values: `_patch_order` in planes.py chooses the columns of a tile. A step adds 16 entries of the
// patches. All tiles take a step before any takes the next, so that no instruction waits for the one before.
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

// Inner products of the pixels in one row of x and one of z.
DEVICE void pixel_products(unsigned x, unsigned z, Values& out) {
    unroll<(GIVEN ? 0 : CHANNELS)>([&](auto channel) {
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

// A row of sums that front.cu has stored, [chunk][lane][4].
DEVICE void load_sums(const float* row, Values& out) {
#pragma unroll
    for (int chunk = 0; chunk < BLOCK_K * BLOCK_N / 4; chunk++) {
        float values[4];
        load<4, 4>(row + 128 * chunk, values);
#pragma unroll
        for (int e = 0; e < 4; e++) out[(4 * chunk + e) / BLOCK_N][(4 * chunk + e) % BLOCK_N] = values[e];
    }
}

constexpr int IN_ALIGN = divisor(divisor(WIDTH, BLOCK_N), 4);

// A row of the output of the stage before, from the thread's first column on; zeros beyond the grid.
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
