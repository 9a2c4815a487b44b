// Nodes of a graph on the general path, at one offset u between the rows of two images.
//
// A value is an array (pairs of images, rows, pairs of columns). Row r stands for row r + max(0, -u) of the left image
// and the row u further of the right one. A table lists the pairs of columns (k, n). `nodes.py` writes a short kernel
// for every node whose value windows or pools read, and these kernels call the functions here.
//
// Every element is computed by one thread in a fixed order of sums, so bits depend neither on the launch nor on the
// batch. Threads walk over elements in strides of the whole grid, so a host can run the same code as one thread.
#pragma once

typedef double real;
typedef long long index;

#include "duals.cuh"

// An inner product k and, in a tangent graph, the tangent t beside it.
struct Value {
    real k, t;
};

// An element: pair of images, row, pair of columns.
struct Place {
    index pair;
    int row, column;
};

__device__ inline Place place_of(index element, int rows, int columns) {
    const index line = element / columns;
    return {line / rows, int(line % rows), int(element % columns)};
}

__device__ inline index first_element() { return index(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline index element_step() { return index(gridDim.x) * blockDim.x; }

// A value that a kernel reads: its inner products k and, unless null, its tangents t. It has its own rows and its own
// list of pairs of columns.
struct Source {
    const real* k;
    const real* t;
    int rows, columns;

    __device__ Value at(const Place& place, int row, int column) const {
        const index i = (place.pair * rows + row) * columns + column;
        return {k[i], t ? t[i] : real(0)};
    }
};

// Sums over a window of Rows by Columns: rows by arithmetic, columns by a table, taps[t][column], of pairs of columns
// in the source; -1 for those outside.
template <int Rows, int Stride, int Dilation, int Columns>
__device__ inline Value window(const Source& source, const int* taps, int start, int columns, const Place& place,
                               real scale) {
    Value total = {0, 0};
    for (int t = 0; t < Columns; ++t) {
        const int column = taps[t * columns + place.column];
        if (column < 0) continue;
        for (int a = 0; a < Rows; ++a) {
            const int row = place.row * Stride + start + a * Dilation;
            if (row < 0 || row >= source.rows) continue;
            const Value value = source.at(place, row, column);
            total.k += value.k;
            total.t += value.t;
        }
    }
    return {total.k * scale, total.t * scale};
}

// Norms of both images at an element, and whether its two features are the same one. `itself`: each image is paired
// with itself.
struct Norms {
    const real* left;
    const real* right;
    const int* columns;  // the `count` columns k of the left image, then the n of the right one
    int count, height, width, u, itself;

    __device__ real product(const Place& place) const {
        const int row = place.row + max(0, -u);
        const index image = place.pair * height;
        return left[(image + row) * width + columns[place.column]] *
               right[(image + row + u) * width + columns[count + place.column]];
    }
    __device__ bool same(const Place& place) const {
        return itself && u == 0 && columns[place.column] == columns[count + place.column];
    }
};

// Inner products of pixels.
extern "C" __global__ void products(const real* left, const real* right, const int* columns, real* out, index elements,
                                    int rows, int count, int height, int width, int channels, int u) {
    for (index i = first_element(); i < elements; i += element_step()) {
        const Place place = place_of(i, rows, count);
        const index row = place.pair * height + place.row + max(0, -u);
        const real* x = left + (row * width + columns[place.column]) * channels;
        const real* z = right + ((row + u) * width + columns[count + place.column]) * channels;
        real total = 0;
        for (int c = 0; c < channels; ++c) total += x[c] * z[c];
        out[i] = total;
    }
}

// Adds to a pool's values at one target offset what its source has at offset u: of each window the rows [first, last),
// and the pairs of columns in the table taps[t][column].
extern "C" __global__ void pool(const real* source, const int* taps, real* out, index elements, int rows, int count,
                                int source_rows, int source_count, int windows, int stride, int dilation,
                                int start, int first, int last, real scale) {
    for (index i = first_element(); i < elements; i += element_step()) {
        const Place place = place_of(i, rows, count);
        real total = 0;
        for (int a = first; a < last; ++a) {
            const index line = (place.pair * source_rows + place.row * stride + start + a * dilation) * source_count;
            for (int t = 0; t < windows; ++t) {
                const int column = taps[t * count + place.column];
                if (column >= 0) total += source[line + column];
            }
        }
        out[i] += total * scale;
    }
}

// The first half of a pool into one pair of columns: sums over the rows [first, last) of each window, for each of its
// pairs of columns.
extern "C" __global__ void add_rows(const real* source, const int* taps, real* out, index elements, int rows, int count,
                                    int source_rows, int source_count, int stride, int dilation, int start,
                                    int first, int last) {
    for (index i = first_element(); i < elements; i += element_step()) {
        const Place place = place_of(i, rows, count);
        const int column = taps[place.column];
        real total = 0;
        for (int a = first; a < last && column >= 0; ++a)
            total += source[(place.pair * source_rows + place.row * stride + start + a * dilation) * source_count + column];
        out[i] = total;
    }
}

// The second half, one launch at a time: lines of `count` numbers become lines of `half`, half of count rounded up.
// Launches repeat until one number is left.
extern "C" __global__ void fold(const real* source, real* out, index elements, int count, int half) {
    for (index i = first_element(); i < elements; i += element_step()) {
        const real* line = source + i / half * count;
        const int place = int(i % half);
        real total = line[place];
        if (place + half < count) total += line[place + half];
        out[i] = total;
    }
}
