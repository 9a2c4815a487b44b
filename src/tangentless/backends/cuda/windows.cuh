// Window sums: over three neighbours on a diagonal (k - 1, n - 1), (k, n), (k + 1, n + 1) of a row, and over three
// rows.
#pragma once
#include "layout.cuh"

// Equivalent ways to add, which differ in registers. Each kind of stage has the one that was measured to be fastest.
constexpr bool ROWS_FIRST = PATCHES;                   // sums over rows before sums along diagonals
constexpr bool LINK_IF = !AHEAD && WINDOWS > 1;        // links between rows are predicates, not factors of 0 or 1
constexpr bool BEYOND_IF = CHANNELS > 0 && !FACTORED;  // the same for neighbours that other threads have

// Whether layer L (-1: the input of the stage) can have values other than zero beyond the grid. Norms are zero there,
// which makes the other forms zero.
template <int L>
DEVICE constexpr bool leaves_grid() {
    if constexpr (L >= 0)
        return LAYER[L].form == ARC || LAYER[L].form == IDENTITY;
    else
        return false;
}

// Adds a neighbour that another thread has, if it is in the grid: is_there is 1 or 0.
DEVICE float add_beyond(float sum, float value, float is_there) {
    if constexpr (BEYOND_IF)
        return add_if(sum, value, is_there != 0.0f);
    else
        return fmaf(value, is_there, sum);
}

// Sums of three neighbours on a diagonal, of the values of layer L. Shuffles bring those that other threads have: from
// the threads LANES_N + 1 (above left), LANES_N (above) and 1 (left) before this one, and as many after it (below
// right, below, right). For even i, out[i][o] and out[i + 1][o + 1] share the sum of in[i][o] and in[i + 1][o + 1].
template <int L>
DEVICE void diagonal(const Values& in, Values& out, const Place& place) {
    constexpr int K = BLOCK_K - 1, N = BLOCK_N - 1;
    // The neighbours beyond the block's four sides: before_k[o] of in[0][o], before_n[i] of in[i][0], after_k[o] of
    // in[K][o], after_n[i] of in[i][N].
    float before_k[BLOCK_N], before_n[BLOCK_K], after_k[BLOCK_N], after_n[BLOCK_K];
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

// Sums of three rows, centred on the row before `in`. State between calls: `newest`, the last row, and `pair`, the sum
// of the last two. `link` is 1, or 0 if `in` does not continue the last row.
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
