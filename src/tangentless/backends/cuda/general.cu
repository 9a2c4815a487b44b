// The general path: any program, one operation at a time, in float64. Slow beside the fused stages, simple and exact.
//
// A batch of pairs holds its kernels as [pair][position of x][position of z]. Every output is written by one thread, which
// adds in a fixed order.
#include "device.cuh"

struct Pair {
    int left, right;
};

constexpr int EXPONENTIAL = 0, ARC = 1, SERIES = 2, IDENTITY = 3, TABLE = 4;
constexpr int TABLE_PIECES = 53, TABLE_TERMS = 20;  // as in general.py and forms.py

// f(c) from the table that forms.py describes: which piece is in the exponent of 1 - |c|.
DEVICE double from_table(double cosine, const double* table) {
    const double distance = 1.0 - fabs(cosine);
    const int halvings = distance > 0.0 ? -1 - ilogb(distance) : TABLE_PIECES;
    const int piece = halvings < 0 ? 0 : halvings;  // c = 0 is the end of the first
    const double place = ldexp(distance, piece + 2) - 3.0;
    const double* coefficient = table + ((cosine < 0.0) * (TABLE_PIECES + 1) + piece) * TABLE_TERMS;
    double value = 0.0;
    for (int i = TABLE_TERMS - 1; i >= 0; i--) value = value * place + coefficient[i];
    return value;
}

// f(c): the forms of forms.py, in full.
DEVICE double dual(double cosine, int form, double linear, double arc, double gamma, const double* coefficient, int coefficients) {
    if (form == EXPONENTIAL) return exp(gamma * (cosine - 1.0));
    if (form == ARC) {
        constexpr double PI = 3.14159265358979323846;
        return linear * cosine + arc * (sqrt(1.0 - cosine * cosine) + cosine * (PI - acos(cosine))) / PI;
    }
    if (form == TABLE) return from_table(cosine, coefficient);
    double value = 0.0;
    for (int i = coefficients - 1; i >= 0; i--) value = value * cosine + coefficient[i];
    return value;
}

DEVICE double embedded(double sum, double left_norm, double right_norm, int form, double linear, double arc, double gamma,
                       const double* coefficient, int coefficients, int keep_norms) {
    if (form == IDENTITY) return sum;
    const double scale = left_norm * right_norm;
    if (!(scale > 0.0)) return 0.0;
    double cosine = sum / scale;
    cosine = cosine > 1.0 ? 1.0 : cosine < -1.0 ? -1.0 : cosine;
    const double value = dual(cosine, form, linear, arc, gamma, coefficient, coefficients);
    return keep_norms ? value * scale : value;
}

// Inner products of the images' features: images are [image][position][channel].
KERNEL(256, 4)
products(const double* left, const double* right, const Pair* pairs, double* output, long long count, int positions, int channels) {
    const long long each = (long long)positions * positions;
    for (long long i = global_index(); i < count * each; i += global_threads()) {
        const Pair pair = pairs[i / each];
        const double* x = left + ((long long)pair.left * positions + i % each / positions) * channels;
        const double* z = right + ((long long)pair.right * positions + i % positions) * channels;
        double sum = 0.0;
        for (int c = 0; c < channels; c++) sum += x[c] * z[c];
        output[i] = sum;
    }
}

// A window sum, then an embedding. Norms are [image][norm_step], at the plane of this step.
KERNEL(256, 4)
window_and_embed(const double* input, double* output, const double* left_norms, const double* right_norms, const Pair* pairs,
                 long long count, long long norm_step, int height, int width, int window_height, int window_width, int form,
                 double linear, double arc, double gamma, const double* coefficient, int coefficients, int keep_norms) {
    const int positions = height * width;
    const long long each = (long long)positions * positions;
    for (long long i = global_index(); i < count * each; i += global_threads()) {
        const int a = i % each / positions, b = i % positions;
        const int j = a / width, k = a % width, m = b / width, n = b % width;
        double sum = 0.0;
        for (int d = -(window_height / 2); d <= window_height / 2; d++) {
            if (j + d < 0 || j + d >= height || m + d < 0 || m + d >= height) continue;
            for (int e = -(window_width / 2); e <= window_width / 2; e++) {
                if (k + e < 0 || k + e >= width || n + e < 0 || n + e >= width) continue;
                sum += input[i + (long long)(d * width + e) * (positions + 1)];
            }
        }
        const Pair pair = pairs[i / each];
        output[i] = embedded(sum, left_norms[pair.left * norm_step + a], right_norms[pair.right * norm_step + b], form, linear,
                             arc, gamma, coefficient, coefficients, keep_norms);
    }
}

// Means over the windows of a pool, in x and in z.
KERNEL(256, 4)
pool(const double* input, double* output, long long count, int height, int width, int pool_height, int pool_width) {
    const int rows = height / pool_height, columns = width / pool_width, pooled = rows * columns, positions = height * width;
    const long long each = (long long)pooled * pooled;
    const double size = (double)pool_height * pool_width;
    for (long long i = global_index(); i < count * each; i += global_threads()) {
        const int a = i % each / pooled, b = i % pooled;
        const double* kernel = input + i / each * positions * positions;
        double sum = 0.0;
        for (int p = 0; p < pool_height * pool_width; p++) {
            const int x = (a / columns * pool_height + p / pool_width) * width + a % columns * pool_width + p % pool_width;
            for (int q = 0; q < pool_height * pool_width; q++) {
                const int z = (b / columns * pool_height + q / pool_width) * width + b % columns * pool_width + q % pool_width;
                sum += kernel[(long long)x * positions + z];
            }
        }
        output[i] = sum / (size * size);
    }
}

// The values of a batch's pairs, to their places in the matrix [left][right].
KERNEL(256, 4)
place(const double* input, double* output, const Pair* pairs, long long count, int columns) {
    for (long long i = global_index(); i < count; i += global_threads())
        output[(long long)pairs[i].left * columns + pairs[i].right] = input[i];
}

// One embedding of the head, on the matrix [left][right] in place.
KERNEL(256, 4)
head(double* values, const double* left_norms, const double* right_norms, int rows, int columns, int form, double linear,
     double arc, double gamma, const double* coefficient, int coefficients, int keep_norms) {
    for (long long i = global_index(); i < (long long)rows * columns; i += global_threads())
        values[i] = embedded(values[i], left_norms[i / columns], right_norms[i % columns], form, linear, arc, gamma, coefficient,
                             coefficients, keep_norms);
}
