// Kernels of vectors. A matrix product has left the inner products of rows x and z; each kernel here turns them into
// entries, in place.
//
// For pairs of rows that are close or opposite, differences of inner products have lost the digits that matter. These
// pairs are computed again from the rows, as `classical/pairs.py` does. `classical/gpu.py` adds the constants CLOSE and
// TINY before this text, and the functions `arc` and `angle` behind it, polynomials from `forms`.
#pragma once

typedef double real;
typedef long long index;

#include "duals.cuh"

__device__ inline real arc(real near);
__device__ inline real angle(real near);

// Rows of the left and the right set: distances and gaps of pairs i, j, computed from the rows where inner products are
// too inexact.
struct Rows {
    const real* x;
    const real* z;
    int features;

    // |x - sign z|^2, in four sums: a thread reads 32 bytes of a row at a time, one sector of memory.
    __device__ real spread(index i, index j, real sign) const {
        const real *a = x + i * features, *b = z + j * features;
        real sums[4] = {0, 0, 0, 0};
        const int whole = features / 4 * 4;
        for (int k = 0; k < whole; k += 4)
            for (int s = 0; s < 4; ++s) {
                const real difference = a[k + s] - sign * b[k + s];
                sums[s] += difference * difference;
            }
        for (int k = whole; k < features; ++k) {
            const real difference = a[k] - sign * b[k];
            sums[0] += difference * difference;
        }
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }

    // |x - z|^2, where `total` is |x|^2 + |z|^2.
    __device__ real distance(real product, real total, index i, index j) const {
        const real value = total - 2 * product;
        return value > CLOSE * total ? value : spread(i, j, 1);
    }

    // 1 - |c| for the cosine c, negative if c is: TINY keeps the sign at c = -1. The rows must have length one.
    __device__ real gap(real cosine, index i, index j) const {
        real gap = 1 - fabs(cosine);
        if (gap < CLOSE) gap = fmin(spread(i, j, cosine > 0 ? 1 : -1) / 2, real(1));
        return cosine >= 0 ? gap : -fmax(gap, TINY);
    }
};

// Replaces every inner product by entry(product, i, j).
template <class Entry>
__device__ inline void replace(real* values, index elements, int columns, Entry entry) {
    const index step = index(gridDim.x) * blockDim.x;
    for (index e = index(blockIdx.x) * blockDim.x + threadIdx.x; e < elements; e += step)
        values[e] = entry(values[e], e / columns, e % columns);
}

// The first parameters of all kernels. `left` and `right` have a number for every row, which the kernel's class derives
// from the row's norm: squared norms for distances, else factors of the entries.
#define PAIRS                                                                                               \
    real *values, const real *x, const real *z, const real *left, const real *right, index elements, int columns, \
        int features

extern "C" __global__ void power_of_products(PAIRS, real offset, real degree) {
    replace(values, elements, columns, [=](real product, index, index) { return pow(product + offset, degree); });
}

extern "C" __global__ void gaussian(PAIRS, real gamma) {
    const Rows rows = {x, z, features};
    replace(values, elements, columns, [=](real product, index i, index j) {
        return exp(-gamma * rows.distance(product, left[i] + right[j], i, j));
    });
}

extern "C" __global__ void arc_cosine(PAIRS, int order) {
    const Rows rows = {x, z, features};
    replace(values, elements, columns, [=](real product, index i, index j) {
        const real gap = rows.gap(product, i, j), near = fabs(gap), root = sqrt(near);
        const real cosine = gap < 0 ? near - 1 : 1 - near;
        real value = root * angle(near);
        if (gap >= 0) value = 1 - value;  // (pi - t) / pi
        if (order == 1) value = fmax(cosine, real(0)) + near * root * arc(near);
        if (order == 2)
            value = value * (1 + 2 * cosine * cosine) + 3 / real(3.141592653589793) * sqrt(near * (2 - near)) * cosine;
        return value * (left[i] * right[j]);
    });
}

extern "C" __global__ void relu_network(PAIRS, int depth, int fixed) {
    const Rows rows = {x, z, features};
    replace(values, elements, columns, [=](real product, index i, index j) {
        const real gap = rows.gap(product, i, j);
        real near = fabs(gap), cosine = gap < 0 ? near - 1 : 1 - near, tangent = cosine;
        for (int layer = 1; layer < depth; ++layer) {
            const real root = sqrt(near), part = root * angle(near), slope = cosine < 0 ? part : 1 - part;
            near = (cosine < 0 ? real(1) : near) - near * root * arc(near);
            cosine = 1 - near;
            tangent = layer > fixed ? tangent * slope + cosine : cosine;
        }
        return left[i] * right[j] * tangent;
    });
}

// For gradients: squared distances, where left and right are squared norms, and gaps.
extern "C" __global__ void squared_distances(PAIRS) {
    const Rows rows = {x, z, features};
    replace(values, elements, columns, [=](real product, index i, index j) {
        return rows.distance(product, left[i] + right[j], i, j);
    });
}

extern "C" __global__ void gaps(PAIRS) {
    const Rows rows = {x, z, features};
    replace(values, elements, columns, [=](real product, index i, index j) { return rows.gap(product, i, j); });
}
