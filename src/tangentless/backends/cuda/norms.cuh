// What images have alone, each step in one launch: as many of NumPy's operations would take longer than a batch of pairs.
#pragma once

#include "offsets.cuh"

// Zero-padded sums over windows of (rows, columns) positions; `taps` has those down, and then those across.
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

// Norms from their squares, (images, size), to their place among the `count` of an image.
extern "C" __global__ void keep_norms(const double* squares, real* norms, index elements, int size, int place, int count,
                                      double smallest) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const double norm = sqrt(squares[i]);
        norms[i / size * count + place + i % size] = real(norm >= smallest ? norm : 0);
    }
}

// Rows of left images, (images, count), LANES of them beside each other: (runs, count, LANES). The first image stands for those
// that the last run lacks.
extern "C" __global__ void lay_beside(const real* rows, real* beside, index elements, int count, int images) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const index image = i / LANES / count * LANES + i % LANES;
        beside[i] = rows[(image < images ? image : 0) * count + i / LANES % count];
    }
}

// Squared norms from the exits of images with themselves, (images, size): what stands at no offset, of all slots.
extern "C" __global__ void own_squares(const Value* exits, double* squares, index elements, int size, int numbers, double scale) {
    for (index i = index(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += index(gridDim.x) * blockDim.x) {
        const index image = i / size;
        const Value* own = exits + image * numbers + i % size;
        double total = 0;
        for (int slot = 0; slot < numbers; slot += size * size) total += own[slot].v[image % LANES];
        squares[i] = total * scale;
    }
}
