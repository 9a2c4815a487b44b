// Work on single images: norms, and the layouts that other kernels read. Each step is one launch: the array operations
// that it replaces would take longer than a batch of pairs.
#pragma once

#include "offsets.cuh"

// Zero-padded sums over windows: `values` (images, rows, columns) to `sums` (images, row_windows, column_windows). A
// window reads the positions row * row_stride + taps[0 ... tall - 1], column * column_stride + taps[tall ... tall +
// wide - 1].
extern "C" __global__ void sum_windows(const double* values, double* sums, const int* taps, index elements, int rows, int columns,
                                       int row_windows, int column_windows, int row_stride, int column_stride, int tall,
                                       int wide) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const int row = int(i / column_windows % row_windows) * row_stride, column = int(i % column_windows) * column_stride;
        const double* image = values + i / column_windows / row_windows * rows * columns;
        double sum = 0;
        for (int b = 0; b < wide; ++b) {
            const int n = column + taps[tall + b];
            if (n < 0 || n >= columns) continue;
            double line = 0;
            for (int a = 0; a < tall; ++a) {
                const int m = row + taps[a];
                if (m >= 0 && m < rows) line += image[m * columns + n];
            }
            sum += line;
        }
        sums[i] = sum;
    }
}

// Norms from their squares, (images, size): stored at `place` and following of an image's `count` norms. Those below
// `smallest` count as zero.
extern "C" __global__ void keep_norms(const double* squares, real* norms, index elements, int size, int place, int count,
                                      double smallest) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const double norm = sqrt(squares[i]);
        norms[i / size * count + place + i % size] = real(norm >= smallest ? norm : 0);
    }
}

// Interleaves left images, LANES at a time: `rows` (images, count) to `beside` (runs, count, LANES). The last run is
// filled up with image 0.
extern "C" __global__ void lay_beside(const real* rows, real* beside, index elements, int count, int images) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const index image = i / LANES / count * LANES + i % LANES;
        beside[i] = rows[(image < images ? image : 0) * count + i / LANES % count];
    }
}

// Squared norms, (images, size), from the exits of images paired with themselves: the values at offset (0, 0), which
// come first in every slot, added up over slots. `numbers` is the length of an image's exit.
extern "C" __global__ void own_squares(const Value* exits, double* squares, index elements, int size, int numbers, double scale) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const index image = i / size;
        const Value* own = exits + image * numbers + i % size;
        double total = 0;
        for (int slot = 0; slot < numbers; slot += size * size) total += own[slot].v[image % LANES];
        squares[i] = total * scale;
    }
}
