// The functions that the C++ lines written by `duals.py` call, in the type `real` of the kernel: fast approximations in
// float32, accurate functions in float64, polynomials, tables.
#pragma once

#ifdef __CUDACC__  // the tests provide these names themselves
__device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// |x|. `abs.f32` is folded into the instruction that reads it; fabs with -ftz, which flushes x, takes one of its own.
__device__ inline float magnitude(float x) {
    float y;
    asm("abs.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float root(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// In float64: one iteration of third order from an approximation of 20 binary digits. The result is within two units in
// the last place, and there are no branches to rare cases, as correct rounding has. At zero the reciprocal is NaN, and
// the root zero.
__device__ inline double reciprocal(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    const double rest = fma(-x, y, 1.0);
    return fma(y, fma(rest, rest, rest), y);
}
__device__ inline double root(double x) {
    double y;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    y = __hiloint2double(min(__double2hiint(y), 0x5ff00000), 0);  // finite at x = 0, too
    const double near = x * y, rest = fma(-near, y, 1.0);
    return fma(near * rest, fma(0.375, rest, 0.5), near);
}
#else
inline double reciprocal(double x) { return 1 / x; }
inline double root(double x) { return sqrt(x); }
#endif
__device__ inline double magnitude(double x) { return fabs(x); }
__device__ inline double power(double x) { return exp2(x); }

// max(x, 0), and 0 where x is NaN. In float64 a comparison costs half of what fmax does.
__device__ inline float positive(float x) { return fmax(x, 0.0f); }
__device__ inline double positive(double x) { return x > 0 ? x : 0; }

// coefficients[0] + coefficients[1] x + ...
template <int COUNT>
__device__ inline real polynomial(const real (&coefficients)[COUNT], real x) {
    real total = coefficients[COUNT - 1];
    for (int k = COUNT - 2; k >= 0; --k) total = total * x + coefficients[k];
    return total;
}

// f or a derivative at a cosine, from a table of `forms.tabulate`, [side c >= 0, c < 0][PIECES + 1][TERMS]. With t = 1
// - |c|, piece p is the polynomial for 2^-(p + 1) <= t < 2^-p; the last one is for t = 0.
template <int PIECES, int TERMS>
__device__ inline real tabulated(const real* table, real cosine) {
    const real t = real(1) - fabs(cosine);
    const real* side = table + (cosine < 0 ? (PIECES + 1) * TERMS : 0);
    int piece = PIECES, exponent = 0;
    real x = 0;
    if (t > 0) {
        frexp(t, &exponent);
        piece = exponent > 0 ? 0 : min(-exponent, PIECES - 1);
        x = ldexp(t, piece + 2) - 3;
    }
    const real* coefficients = side + piece * TERMS;
    real total = coefficients[TERMS - 1];
    for (int k = TERMS - 2; k >= 0; --k) total = total * x + coefficients[k];
    return total;
}
