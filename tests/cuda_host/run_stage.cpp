// stage.cu for the host, as a library with one entrance.
#include "stage.cu"

extern "C" void run(const float* left, const float* right, const float* input, void* output, const Unit* units, int unit_count,
                    int left_step, int right_step) {
    for (int b = 0; b < unit_count; b++)
        emulation::run_block(b, unit_count, THREADS, SHARED_BYTES,
                             [=] { stage(left, right, input, output, units, left_step, right_step); });
}
