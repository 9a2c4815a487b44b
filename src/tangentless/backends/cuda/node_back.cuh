// The backward pass through the nodes of a graph, at one offset u between the rows of two images.
//
// `node_back.py` writes a kernel for every kept value, from its cotangents to those of all that it read, element by
// element. The kernels here add up the results: for every element of a source, for every position of an image, and for
// every image over its pairs. Every sum is made by one thread in a fixed order, so bits depend neither on the launch
// nor on the batch.
#pragma once

#include "nodes.cuh"

// Derivatives of an embedding at one element, from (s, t0) to (k, t) with a = A A'. Cotangents gk, gt of (k, t) give
//   of s      gk slope + gt twist           of log a   gk by_kernel + gt by_tangent
//   of t0     gt slope
struct Bend {
    real slope, twist, by_kernel, by_tangent;
    real a, c;  // the product of norms, and the cosine
};

// The cotangents of a source, from those of the windows or pools that read it. `source` is the array of the reader's
// cotangents, `out` that of the source's. Row `row` of the reader has read the rows row * stride + start + a * dilation
// for a in [first, last). For each pair of columns, readers[0 ... depth - 1] are those that read it, in order, -1 after
// the last. `add`: adds to `out`.
extern "C" __global__ void spread(const real* source, const int* readers, real* out, index elements, int rows, int count,
                                  int source_rows, int source_count, int depth, int stride, int dilation, int start,
                                  int first, int last, real scale, int add) {
    for (index i = first_element(); i < elements; i += element_step()) {
        const Place place = place_of(i, rows, count);
        const int highest = place.row - start - first * dilation, lowest = place.row - start - (last - 1) * dilation;
        const int end = highest < 0 ? 0 : min(source_rows, highest / stride + 1);
        real total = 0;
        for (int row = lowest <= 0 ? 0 : (lowest + stride - 1) / stride; row < end; ++row) {
            if ((highest - row * stride) % dilation) continue;
            const real* line = source + (place.pair * source_rows + row) * source_count;
            for (int t = 0; t < depth; ++t) {
                const int reader = readers[t * count + place.column];
                if (reader < 0) break;
                total += line[reader];
            }
        }
        out[i] = add ? out[i] + total * scale : total * scale;
    }
}

// Adds to every position of an image the values of all pairs of columns that it is in: places[v][column] is the pair at
// the v-th offset, or -1. Row 0 of the values is row `first` of the image.
extern "C" __global__ void add_positions(const real* source, const int* places, real* out, index elements, int rows,
                                         int width, int count, int offsets, int height, int first) {
    for (index i = first_element(); i < elements; i += element_step()) {
        const Place place = place_of(i, rows, width);
        const real* line = source + (place.pair * rows + place.row) * count;
        real total = 0;
        for (int v = 0; v < offsets; ++v) {
            const int at = places[v * width + place.column];
            if (at >= 0) total += line[at];
        }
        out[(place.pair * height + place.row + first) * width + place.column] += total;
    }
}

// The same for pixels: each value times the pixel of the other image, in which row 0 of the values is row
// `other_first`. `columns` are the other image's columns of all pairs.
extern "C" __global__ void add_pixels(const real* source, const int* places, const int* columns, const real* others,
                                      real* out, index elements, int rows, int width, int count, int offsets,
                                      int height, int channels, int first, int other_first) {
    for (index i = first_element(); i < elements; i += element_step()) {
        const Place place = place_of(i / channels, rows, width);
        const int channel = int(i % channels);
        const real* line = source + (place.pair * rows + place.row) * count;
        const real* pixels = others + (place.pair * height + place.row + other_first) * width * channels + channel;
        real total = 0;
        for (int v = 0; v < offsets; ++v) {
            const int at = places[v * width + place.column];
            if (at >= 0) total += line[at] * pixels[columns[at] * channels];
        }
        out[((place.pair * height + place.row + first) * width + place.column) * channels + channel] += total;
    }
}

// Adds to every image what its pairs have: pairs order[i] for i from starts[image] to starts[image + 1] - 1.
extern "C" __global__ void add_pairs(const real* source, const index* order, const index* starts, real* out,
                                     index elements, int size) {
    for (index i = first_element(); i < elements; i += element_step()) {
        const index image = i / size, last = starts[image + 1];
        if (starts[image] == last) continue;
        const real* values = source + i % size;
        real total = out[i];
        for (index k = starts[image]; k < last; ++k) total += values[order[k] * size];
        out[i] = total;
    }
}
