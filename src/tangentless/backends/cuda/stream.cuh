// The stream of rows: which row enters at each step, where its data come from, and the order of a team's work.
//
// The rows of all passes and all pairs of a team form one stream, without a pause between them:
//
//   for each round (an image x, or PAIRS of them), each pass (OFFSETS offsets u), each row j of x: m = (j + u) % HEIGHT
//
// Every step takes one row in, and each window completes the row that entered one step earlier than the row it takes:
//
//   step t   row t        enters: pixels, or the stage before. With PATCHES, layer 0 is complete for it.
//            row t        enters window 0, which completes row t - 1
//            row t - 1    enters window 1, which completes row t - 2
//            row t - d    enters window d, which completes row t - d - 1
//            row t - WINDOWS goes to the pool
//
// Where j or m goes from the last row of the grid to the first, two rows of the stream are not neighbours. The *link*
// between them is then cut: it is the factor 0 instead of 1 in sums over rows. Example with HEIGHT = 4 and u = 1:
//
//   j  0  1  2 | 3 | 0  1 ...       rows j = 0, 1, 2 have m - j = 1, row j = 3 has m - j = -3;
//   m  1  2  3 | 0 | 1  2 ...       the second cut ends the pass
#pragma once
#include "embedding.cuh"
#include "first_layer.cuh"
#include "pooling.cuh"
#include "windows.cuh"

// A position in the stream: row j of x and row m of z, at the thread's offset in `pass`, for the team's image number
// `round`.
struct Cursor {
    int j, pass, round, m;
    DEVICE void start(int rows_before) { j = HEIGHT - 1 - rows_before, pass = PASSES - 1, round = -1, m = 0; }

    // Moves to the next row, which is row `number` of the stream. Rows before the first have negative numbers.
    DEVICE void advance(int number, const Place& place) {
        if constexpr ((HEIGHT & (HEIGHT - 1)) == 0) {  // then PASSES is a power of two as well
            const unsigned wrapped = number, passes = wrapped / HEIGHT;
            j = wrapped % HEIGHT, pass = passes % PASSES, round = number < 0 ? -1 : int(passes / PASSES);
            // `number` is congruent to j modulo HEIGHT, and was measured to be faster than j. It is negative for the
            // EARLY rows before the first, which belong to the last pass. LATE: that pass begins at such an offset that
            // the sum is not negative.
            constexpr bool LATE = (PASSES - 1) * OFFSETS >= EARLY;
            m = ((LATE ? number : j) + pass * OFFSETS + place.index) % HEIGHT;
        } else if (++j == HEIGHT) {
            j = 0;
            if (++pass == PASSES) pass = 0, round++;
            m = pass * OFFSETS + place.index;
        } else if (++m == HEIGHT) {
            m = 0;
        }
    }
};

constexpr bool SOON = GIVEN && AHEAD && WINDOWS == 1;  // next row's products: load them as early as registers allow
constexpr int KEPT = WINDOWS + 1 + AHEAD;  // rows on their way through the layers, the newest first

// A thread's state.
struct Stream {
    Values newest[WINDOWS], pair[WINDOWS];  // of each window: the last row it took, and the sum of the last two
    Values next;                            // with AHEAD: inner products of patches of the next row
    Values readings[2];                     // rows of the stage before, loaded two steps ahead: by parity of steps
    unsigned z_rows[KEPT];                  // addresses of the thread's columns in z, in row m of each row on its way
    float links[KEPT];                      // 1 if the row continues the one before, 0 if the link is cut
    Cursor entering, ahead;                 // the row that enters; the row of the stage before that is loaded next
};

// How many steps after its row entered the float at position `at` of a row of x is needed.
DEVICE int delay(int at) {
    return at < X_LAYERS_AT ? -AHEAD : (at - X_LAYERS_AT) / (PLANES * SPAN_K) + !PATCHES;
}

// Row number `row + r` of the stream, r = 0 or 1, as a row of x: counted from row 0 of the unit's first image.
DEVICE int find_row(int row, int r, int team, int pair) {
    constexpr int ROUND = PASSES * HEIGHT, ROUNDS_BEFORE = 4;  // adding this many rounds makes every number positive
    if constexpr ((ROUND & (ROUND - 1)) == 0) {
        const unsigned number = row + r;
        if constexpr (SLOTS == 1) return (number / PASSES & ~(HEIGHT - 1)) | number % HEIGHT;
        return image_of(number / ROUND, team, pair) * HEIGHT + number % HEIGHT;
    } else {  // one division for both rows
        const unsigned number = row + ROUNDS_BEFORE * ROUND, passes = number / HEIGHT, j = number % HEIGHT + r;
        return image_of(int((passes + j / HEIGHT) / PASSES) - ROUNDS_BEFORE, team, pair) * HEIGHT + j % HEIGHT;
    }
}

// Starts the copies of all that the two steps of a turn need of x into the ring, for all pairs of the team. A row of
// the ring holds what one step needs, so its parts come from different rows of x. At step t (with PATCHES; else layer l
// has row t - l - 1):
//
//   | patches of row t + AHEAD | layer 0 of row t | layer 1 of row t - 1 | layer 2 of row t - 2 | ...
//
// Where there is no such row, this part of the ring keeps what it has.
DEVICE void copy_rows(const Work& work, int turn) {
    constexpr int SHARE = 4 * TEAM_THREADS;
    const int first = thread_index() % TEAM_THREADS * 4;
    const unsigned slot = work.ring + Work::slot(turn);
#pragma unroll
    for (int i = 0; i < X_ROW; i += SHARE) {
        const int at = i + first, row = 2 * turn - EARLY - delay(at);
        if (i > 0 && at >= X_ROW) continue;  // a branch only for i > 0, where few warps have something to copy
#pragma unroll
        for (int p = 0; p < PAIRS; p++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int from = find_row(row, r, work.place.team, p);
                const bool exists = unsigned(row + r) < work.last_row() && (SLOTS == 1 || from < work.unit.count * HEIGHT);
                if (at < X_ROW && exists)
                    copy_ahead(slot + 4 * ((r * PAIRS + p) * X_ROW + at), work.left + i + (long long)from * X_ROW);
            }
    }
}

// Loads row number `row` of the stream from the output of the stage before.
DEVICE void read_ahead(int row, Stream& s, const Work& work, Values& out) {
    s.ahead.advance(row, work.place);
    const int round = s.ahead.round < 0 ? 0 : s.ahead.round, u = s.ahead.pass * OFFSETS + work.place.index;
    load_row(work.input + (long long)((work.kept_image(round) * HEIGHT + u) * HEIGHT + s.ahead.j) * IN_ROW, work.place, out);
}

// Inner products of patches (three rows of pixels) of the row that entered last.
DEVICE void find_patches(unsigned x, const Stream& s, const Work& work, Values& out) {
    if constexpr (GIVEN) {
        const int round = s.entering.round < 0 ? 0 : s.entering.round, u = s.entering.pass * OFFSETS + work.place.index;
        load_sums(work.input + (long long)((work.kept_image(round) * HEIGHT + u) * HEIGHT + s.entering.j) * IN_ROW, out);
    } else {
        patch_products(x + work.x_patches, s.z_rows[0] + work.z_patches, out);
    }
}

// Row number `row` of the stream enters: finds its row of z, and whether it continues the row before.
DEVICE void enter(int row, Stream& s, const Work& work) {
    s.entering.advance(row, work.place);
    s.z_rows[0] = work.z + s.entering.m * (4 * Z_ROW);
    s.links[0] = zero_if(s.entering.j == 0 || s.entering.m == 0);
}

// Step t of all layers, where PARITY is that of t + EARLY. `leave` gets the row that leaves: its values, and the
// factors of its columns, which an exponential has not been multiplied by.
template <int PARITY, class Leave>
DEVICE void step(int t, Stream& s, const Work& work, Leave&& leave) {
    const Place& place = work.place;
#pragma unroll
    for (int d = KEPT - 1; d > 0; d--) s.z_rows[d] = s.z_rows[d - 1], s.links[d] = s.links[d - 1];
    enter(t + AHEAD, s, work);

    const unsigned x = work.x + Work::slot((t - PARITY + EARLY) / 2) + PARITY * (4 * PAIRS * X_ROW);
    const auto columns = [&](int behind) { return Columns{x, s.z_rows[behind + AHEAD], work.x_parts, work.z_parts}; };
    Values now, half, sum;
    float factor[BLOCK_N];
    if constexpr (PATCHES) {
        if constexpr (AHEAD)
            copy(s.next, half);
        else
            find_patches(x, s, work, half);
        diagonal<-1>(half, sum, place);
        if constexpr (SOON) find_patches(x, s, work, s.next);
        embed_all<0>(sum, columns(0), now, factor);
        apply_factors<0>(now, factor);
    } else if constexpr (CHANNELS > 0) {
        pixel_products(x, s.z_rows[0], now);
    } else {
        copy(s.readings[PARITY], now);
        read_ahead(t + 2, s, work, s.readings[PARITY]);
    }
    unroll<WINDOWS>([&](auto window) {
        constexpr int d = window.value, l = PATCHES ? d + 1 : d;
        const float link = s.links[d + AHEAD];
        if constexpr (ROWS_FIRST) {
            vertical(s.newest[d], s.pair[d], now, half, link);
            diagonal<l - 1>(half, sum, place);
        } else {
            diagonal<l - 1>(now, half, place);
            vertical(s.newest[d], s.pair[d], half, sum, link);
        }
        if constexpr (AHEAD && !SOON && d + 1 == WINDOWS)
            find_patches(x, s, work, s.next);
        embed_all<l>(sum, columns(d + 1), now, factor);
        if constexpr (d + 1 < WINDOWS) apply_factors<l>(now, factor);
    });
    leave(now, factor);
}

// All rows of all offsets of all pairs of the team. The stream starts EARLY rows before the first. These rows read
// zeros from the ring, and the link between them and the first row is cut.
DEVICE void stream(const Work& work) {
    const Place& place = work.place;
    Stream s = {};
#pragma unroll
    for (int d = 0; d < KEPT; d++) s.z_rows[d] = work.z, s.links[d] = 0.0f;
    s.entering.start(EARLY - AHEAD), s.ahead.start(EARLY);
    if constexpr (CHANNELS == 0)
        unroll<2>([&](auto parity) { read_ahead(parity.value - EARLY, s, work, s.readings[parity.value]); });
    double total = 0.0;

    copy_rows(work, 0);
    if constexpr (APART) {
        arrive_with_copies(work.barrier);
        arrive(work.barrier);
        copy_rows(work, 1);
    }
    bool passed = false;
    const int turns = (work.last_row() + WINDOWS + EARLY + 1) / 2;
#pragma unroll 1
    for (int turn = 0; turn < turns; turn++) {
        const int t = 2 * turn - EARLY, row_pair = turn - (EARLY + WINDOWS) / 2;
        if constexpr (APART) {
            // After this, all warps are in this turn or in the one before. So the rows that left in turn - 2 are
            // complete in the exchange, and the part of the ring that turn - 2 read is free.
            if (!passed) wait_for(work.barrier, turn % 2);
            write_pooled(work, row_pair - 2);
            arrive_with_copies(work.barrier);
            arrive(work.barrier);
            copy_rows(work, turn + 2);
        } else {
            wait_for_copies();
            sync_pair(place.team);
            if constexpr (POOLED) write_pooled(work, row_pair - 1);
            copy_rows(work, turn + 1);
        }
        unroll<2>([&](auto parity) {
            constexpr int PARITY = parity.value;
            step<PARITY>(t + PARITY, s, work, [&](const Values& values, const float (&factor)[BLOCK_N]) {
                if constexpr (POOLED) {
                    if (place.owner) pool_row<PARITY>(values, factor, work.shares_left + exchange_of(row_pair));
                } else {
                    const int row = t + PARITY - WINDOWS;
                    if (row >= 0) total += row_total(values, factor, place);
                    if (row >= 0 && row < work.last_row() && (row + 1) % (PASSES * HEIGHT) == 0) {
                        write_totals(total, work, row / (PASSES * HEIGHT));
                        total = 0.0;
                    }
                }
            });
        });
        if constexpr (APART) passed = has_passed(work.barrier, (turn + 1) % 2);
    }
    if constexpr (POOLED) {
        sync_pair(place.team);
        unroll<APART ? 2 : 1>([&](auto behind) { write_pooled(work, work.last_row() / 2 - 1 - behind.value); });
    }
    wait_for_copies();
}
