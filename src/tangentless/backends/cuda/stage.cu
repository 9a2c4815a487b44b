// One stage of a kernel, fused: (3x3 window sum, embedding) for every layer, then a pool, for many pairs of images.
//
// A pair of images x, z has a kernel value for every pair of positions (j, k) of x and (m, n) of z. A window sum adds
// the values at (j + a, k + b, m + a, n + b) for a, b = -1, 0, 1: rows j and m move together, and so do columns k and
// n. So fix the offset u = m - j. A row of values, at one j and m = j + u, is a matrix over (k, n). A window sum then
// adds three neighbours on a diagonal of this matrix, and the same in the rows before and after. Rows stream by one
// after the other, j = 0, 1, 2, ...
//
//       n ->
//   k   +-----+-----+-----+-----+   A row: 4 x 4 threads (LANES_K x LANES_N), each with a block of values.
//   |   |  0  |  1  |  2  |  3  |
//   v   +-----+-----+-----+-----+   Of x, thread 5 needs what depends on (j, k): BLOCK_K numbers per plane.
//       |  4  |  5  |  6  |  7  |   Of z, it needs what depends on (m, n): BLOCK_N numbers per plane.
//       +-----+-----+-----+-----+
//       |  8  |  9  | 10  | 11  |   p . .   The diagonal sum at o is p + o + q. At the border of a block, p belongs to
//       +-----+-----+-----+-----+   . o .   the thread above left (0), above (1) or left (4), and q to the thread
//       | 12  | 13  | 14  | 15  |   . . q   below right (10), below (9) or right (6). Shuffles bring them.
//       +-----+-----+-----+-----+
//
//   thread   a block of BLOCK_K x BLOCK_N values of a row
//   warp     LANES_K x LANES_N threads hold a whole row; where rows are small, a warp has ROWS of them, at different u
//   team     WARPS warps work on a pair (on very small grids on PAIRS pairs), OFFSETS of u at a time, in PASSES passes
//   block    one image z in shared memory; its TEAMS teams take turns at the images x of the block's unit
//
// Offsets count modulo HEIGHT: offset u has m = (j + u) % HEIGHT, and so stands for m - j = u and for m - j =
// u - HEIGHT. Each has the rows j that the other lacks, so every offset has exactly HEIGHT rows. stream.cuh cuts the
// sums between the two.
//
// Rows of x come through a ring in shared memory, copied ahead. Rows of the stage before are loaded from global memory
// straight into registers, two steps ahead.
//
//   device.cuh        the interface to the hardware
//   layout.cuh        parameters, the work of each thread, memory
//   first_layer.cuh   the input: inner products of pixels, or the output of the stage before
//   embedding.cuh     A A' f(S / (A A'))
//   windows.cuh       window sums
//   pooling.cuh       2x2 sums, or totals
//   stream.cuh        the order in which a team does all of this
#include "stream.cuh"

// left, right: what layers need of the images, [image][HEIGHT][X_ROW or Z_ROW]. input: kernels of pairs from the stage
// before or from front.cu, [slot][HEIGHT offsets][HEIGHT rows][IN_ROW]. output: pooled kernels, [slot][POOLED_FLOATS],
// or with LAST totals in float64, at left * left_step + right * right_step. One block per unit.
KERNEL(THREADS, BLOCKS)
stage(const float* left, const float* right, const float* input, void* output, const Unit* units, int left_step,
      int right_step) {
    Unit unit = units[block_index()];
    unit.left = uniform(unit.left), unit.count = uniform(unit.count), unit.slot = uniform(unit.slot);
    const Place place = find_place();
    const int index = thread_index(), team = place.team;
    float* shared = reinterpret_cast<float*>(shared_memory());
    float* ring = shared + HEIGHT * Z_ROW + team * TEAM_FLOATS;

    Work work{place, unit};
    work.output = output, work.left_step = left_step, work.right_step = right_step;
    work.input = input + (long long)unit.slot * HEIGHT * HEIGHT * IN_ROW + (GIVEN ? 4 * place.lane : place.k * WIDTH + place.n);
    const int first = first_k(place) * HALF_WIDTH + place.n / 2;
    work.pooled = opaque(static_cast<float*>(output) + unit.slot * (long long)POOLED_FLOATS + first);
    work.left = opaque(left + (long long)unit.left * HEIGHT * X_ROW + index % TEAM_THREADS * 4);
    work.ring = shared_address(ring);
    const int row = place.pair * OFFSETS + place.index, mine = (first_k(place) - place.k / 2) * HALF_N;
    work.shares_left = work.ring + 4 * (EXCHANGE_AT + row * 2 * EXCHANGE_ROW + place.at * CHUNK);
    work.shares_taken = work.ring + 4 * (EXCHANGE_AT + row / 2 * 4 * EXCHANGE_ROW + mine * LANES + place.at * CHUNK);
    work.totals = reinterpret_cast<double*>(ring + EXCHANGE_AT);
    work.barrier = work.ring + 4 * BARRIER_AT;
    if (APART && index % TEAM_THREADS == 0) init_barrier(work.barrier, 2 * TEAM_THREADS);  // threads and their copies
    work.x = work.ring + 4 * (place.pair * X_ROW + place.k), work.x_patches = 4 * (4 * place.lane - place.k);
    work.z = shared_address(shared) + 4 * place.n, work.z_patches = 4 * (2 * PATCH_STEPS * place.lane - place.n);
    work.x_parts = 4 * (place.k + place.lane % 4 / 2 * BLOCK_K);
    work.z_parts = 4 * (place.lane / 4 * BLOCK_N + place.lane % 2 * (BLOCK_N / 2) - place.n);

    const float* z = right + (long long)unit.right * HEIGHT * Z_ROW;
    const unsigned z_copies = shared_address(shared);
    for (int i = 4 * index; i < HEIGHT * Z_ROW; i += 4 * THREADS) copy_ahead(z_copies + 4 * i, z + i);
    for (int i = index % TEAM_THREADS; i < PAIRS * RING * X_ROW; i += TEAM_THREADS) ring[i] = 0.0f;
    wait_for_copies();
    sync_block();
    work.rounds = uniform((unit.count - team * PAIRS + SLOTS - 1) / SLOTS);
    if (work.rounds > 0) stream(work);
}
