// front.cu for the host, as a library with one function; it returns null, or a message that says what went wrong.
#include "front.cu"

extern "C" const char* run(const float* left, const float* right, const float*, float* output, const Unit* units, int blocks,
                           int copies_late, int last_first) {
    return emulation::launch({copies_late != 0, last_first != 0}, blocks, FRONT_THREADS, FRONT_BYTES,
                             [=] { front(left, right, output, units); });
}
