// One stage of a kernel, fused: (3x3 window sum, embedding) for every layer, then a pool, for many pairs of images.
//
// A pair of images x, z has a kernel value for every pair of positions (j, k) of x and (m, n) of z. A window sum adds the
// values at (j + a, k + b, m + a, n + b): rows j and m move together, and so do columns k and n. At a fixed offset u = m - j
// rows stream by, and a row is a matrix over (k, n) in which a window runs along diagonals.
//
//   thread   BLOCK_K x BLOCK_N values of a row: of x it needs what depends on k alone, and of z what depends on n alone
//   warp     LANES_K x LANES_N threads hold a whole row; small rows share a warp, ROWS of them at different offsets u
//   team     WARPS warps work on one pair (PAIRS pairs, on very small grids), OFFSETS offsets u at a time, in PASSES passes
//   block    one image z in shared memory, TEAMS teams; the teams take the images x of the block's unit in turn
//
// Rows of x come through a ring in shared memory, copied ahead. Rows of the stage before come from global memory straight
// into registers, two steps ahead.
//
//   device.cuh        what the code asks of the machine
//   layout.cuh        parameters, shares of threads, memory
//   first_layer.cuh   the input: inner products of pixels, or the output of the stage before
//   embedding.cuh     A A' f(S / (A A'))
//   windows.cuh       window sums
//   pooling.cuh       2x2 sums, or totals
//   stream.cuh        the order of all of this
#include "stream.cuh"

// left, right: rows of the images, [image][HEIGHT][X_ROW or Z_ROW]. input: kernels after the stage before. output: pooled kernels
// [slot][POOLED_FLOATS], or totals at left * left_step + right * right_step.
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
