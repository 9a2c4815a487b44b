// What the lines of `duals.py` call, in the type `real`: quick functions in float32, exact ones in float64, polynomials, tables.
#pragma once

#ifdef __CUDACC__  // the tests provide these names themselves
__device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float magnitude(float x) {  // within another instruction, which fabs of flushed numbers is not
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
#endif
__device__ inline double reciprocal(double x) { return 1 / x; }
__device__ inline double magnitude(double x) { return fabs(x); }
__device__ inline double root(double x) { return sqrt(x); }
__device__ inline double power(double x) { return exp2(x); }

template <int COUNT>
__device__ inline real polynomial(const real (&coefficients)[COUNT], real x) {
    real total = coefficients[COUNT - 1];
    for (int k = COUNT - 2; k >= 0; --k) total = total * x + coefficients[k];
    return total;
}

// f or f' from a table of `forms.tabulate`: pieces that halve towards c = 1 and -1, a polynomial on each.
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
