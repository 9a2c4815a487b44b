// stage.cu for the host, as a library with one function; it returns null, or a message that says what went wrong.
#include "stage.cu"

extern "C" const char* run(const float* left, const float* right, const float* input, void* output, const Unit* units,
                           int unit_count, int left_step, int right_step, int copies_late, int last_first) {
    return emulation::launch({copies_late != 0, last_first != 0}, unit_count, THREADS, SHARED_BYTES,
                             [=] { stage(left, right, input, output, units, left_step, right_step); });
}
