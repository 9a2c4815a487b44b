// Embeddings: A A' f(S / (A A')) for all values of a thread. S is an inner product, A a norm of x and A' one of z.
//
// The planes of a layer hold two numbers for every column k of x (xr, xa) and every column n of z (zr, za). `planes.py`
// makes them:
//
//   form          result                      xr zr                              xa              za
//   exponential   za 2^(S xr zr + xa)         rate / (A A')                      log2(A) - rate  A'
//   arc           see `bend`                  1 / (A A'), times the arc's scale  A               A'
//   series        xa za polynomial(S xr zr)   1 / (A A')                         A               A'
//
// The factor za of an exponential is applied by the caller (`apply_factors`, or the pool). All numbers are zero where
// the norm is zero, except xa of the exponential, which is a large negative number, so that the power is zero. After
// `normalize`, xa and za stand for norms of 1.
//
// With OUTER, tensor cores compute xr zr. xr and zr each are the sum of two parts with eleven binary digits, whose
// products are exact. There are three planes then: the two parts of xr (zr), and xa (za).
#pragma once
#include "layout.cuh"

// The series of layer L, from coefficient I on.
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

// linear S + arc (max(S, 0) + D sqrt(w) Q(w)), where D = A A' - |S| and w = D / (A A'). `distance` is D, and `ratio` is
// 1 / (A A') times a scale of w at which the leading coefficient of Q is 1. `plan.py` folds arc into the coefficients
// of Q, and the scale into xr. With n `coefficients`, Q has the powers 0 ... n - 1 and n + 1: Horner's scheme starts
// from q = w.
template <int L>
DEVICE float bend(float sum, float distance, float ratio) {
    const float w = saturate(distance * ratio), root = fast_sqrt(w);
    float q = w;
#pragma unroll
    for (int i = 0; i < LAYER[L].coefficients; i++) q = fmaf(q, w, LAYER[L].coefficient[i]);
    return fmaf(distance * root, q, straight<L>(sum));
}

// One value of layer L; of an exponential, without its factor za.
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

// The thread's columns of plane number PLANE of layer L.
template <int L, int PLANE>
DEVICE void load_planes(unsigned x, unsigned z, float (&of_x)[BLOCK_K], float (&of_z)[BLOCK_N]) {
    load_shared<BLOCK_K, BLOCK_K, X_LAYERS_AT + (PLANES * L + PLANE) * SPAN_K>(x, of_x);
    load_shared<BLOCK_N, BLOCK_N, Z_LAYERS_AT + (PLANES * L + PLANE) * SPAN_N>(z, of_z);
}

// Addresses of a thread's columns in a row of x and of z, and with OUTER the distance in bytes from there to the parts
// that its lane loads.
struct Columns {
    unsigned x, z;
    int x_parts, z_parts;
};

// xr zr of layer L, on tensor cores: the inner product of (x0, x0, x1, x1) and (z0, z1, z0, z1), where x0 + x1 = xr and
// z0 + z1 = zr. Lane t = lane % 4 loads entry t of both. Planes 0 and 1 hold the parts, in the order in which lanes
// load them.
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

// Embeds a thread's values. `factor` gets za: columns n of an exponential are still to be multiplied by it.
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

// Multiplies the columns n of an exponential by their factors za; other forms have them already.
template <int L>
DEVICE void apply_factors(Values& values, const float (&factor)[BLOCK_N]) {
    if constexpr (LAYER[L].form == EXPONENTIAL)
#pragma unroll
        for (int i = 0; i < BLOCK_K; i++)
#pragma unroll
            for (int o = 0; o < BLOCK_N; o++) values[i][o] *= factor[o];
}
