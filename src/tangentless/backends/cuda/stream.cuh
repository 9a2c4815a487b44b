// The stream of rows: which row enters at each step, where its data come from, and the order of a team's work.
//
// At every step one row enters, and the d-th window works on the row that entered d steps before. Offsets count modulo HEIGHT.
// Where j or m passes from the last row to the first, the *link* between rows is cut. So all offsets have the same shape, and
// passes and pairs follow one another without a pause.
#pragma once
#include "embedding.cuh"
#include "first_layer.cuh"
#include "pooling.cuh"
#include "windows.cuh"

// A position in the stream: row j of x and row m of z, at the team's offset in `pass`, for its image number `round`.
struct Cursor {
    int j, pass, round, m;
    DEVICE void start(int rows_before) { j = HEIGHT - 1 - rows_before, pass = PASSES - 1, round = -1, m = 0; }

    // Moves to the next row, which is row `number` of the stream.
    DEVICE void advance(int number, const Place& place) {
        if constexpr ((HEIGHT & (HEIGHT - 1)) == 0) {  // then PASSES is a power of two as well
            const unsigned wrapped = number, passes = wrapped / HEIGHT;
            j = wrapped % HEIGHT, pass = passes % PASSES, round = number < 0 ? -1 : int(passes / PASSES);
            // j would do in place of `number`, but `number` was measured to be faster. It is negative for rows before the
            // first, which count as rows of the last pass; if that pass starts late enough, the sum is not negative.
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

constexpr bool SOON = GIVEN && AHEAD && WINDOWS == 1;  // memory is read as early as registers allow
constexpr int KEPT = WINDOWS + 1 + AHEAD;  // rows whose places are kept, the newest first

struct Stream {
    Values newest[WINDOWS], pair[WINDOWS];  // of each window: the last row, and the sum of the last two
    Values next;                            // patches of the next row
    Values readings[2];                     // rows of the stage before that are read ahead, for even and odd steps
    unsigned z_rows[KEPT];                  // addresses of the thread's columns of z
    float links[KEPT];
    Cursor entering, ahead;
};

// How many steps after its row entered the data at `at` in a row of x are needed.
DEVICE int delay(int at) {
    return at < X_LAYERS_AT ? -AHEAD : (at - X_LAYERS_AT) / (PLANES * SPAN_K) + !PATCHES;
}

// Row number `row + r` of the stream, r = 0 or 1, as a number of rows after the first one of the unit's first image x.
DEVICE int find_row(int row, int r, int team, int pair) {
    constexpr int ROUND = PASSES * HEIGHT, ROUNDS_BEFORE = 4;  // adding so many rounds makes every number positive
    if constexpr ((ROUND & (ROUND - 1)) == 0) {
        const unsigned number = row + r;
        if constexpr (SLOTS == 1) return (number / PASSES & ~(HEIGHT - 1)) | number % HEIGHT;
        return image_of(number / ROUND, team, pair) * HEIGHT + number % HEIGHT;
    } else {  // one division for both rows
        const unsigned number = row + ROUNDS_BEFORE * ROUND, passes = number / HEIGHT, j = number % HEIGHT + r;
        return image_of(int((passes + j / HEIGHT) / PASSES) - ROUNDS_BEFORE, team, pair) * HEIGHT + j % HEIGHT;
    }
}

// Copies the rows of x that a turn needs into the ring, for all pairs of the team. A slot has all that one step needs, so the
// planes of a later layer arrive later. Where there is no such row, the slot keeps what it has.
DEVICE void copy_rows(const Work& work, int turn) {
    constexpr int SHARE = 4 * TEAM_THREADS;
    const int first = thread_index() % TEAM_THREADS * 4;
    const unsigned slot = work.ring + Work::slot(turn);
#pragma unroll
    for (int i = 0; i < X_ROW; i += SHARE) {
        const int at = i + first, row = 2 * turn - EARLY - delay(at);
        if (i > 0 && at >= X_ROW) continue;  // a branch only where few warps have something to do
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

// Reads row number `row` of the stream from the output of the stage before.
DEVICE void read_ahead(int row, Stream& s, const Work& work, Values& out) {
    s.ahead.advance(row, work.place);
    const int round = s.ahead.round < 0 ? 0 : s.ahead.round, u = s.ahead.pass * OFFSETS + work.place.index;
    load_row(work.input + (long long)((work.kept_image(round) * HEIGHT + u) * HEIGHT + s.ahead.j) * IN_ROW, work.place, out);
}

// Sums over three rows of the row that entered last.
DEVICE void find_patches(unsigned x, const Stream& s, const Work& work, Values& out) {
    if constexpr (GIVEN) {
        const int round = s.entering.round < 0 ? 0 : s.entering.round, u = s.entering.pass * OFFSETS + work.place.index;
        load_sums(work.input + (long long)((work.kept_image(round) * HEIGHT + u) * HEIGHT + s.entering.j) * IN_ROW, out);
    } else {
        patch_products(x + work.x_patches, s.z_rows[0] + work.z_patches, out);
    }
}

// Finds row number `row` of the stream in z, and whether it continues the row before.
DEVICE void enter(int row, Stream& s, const Work& work) {
    s.entering.advance(row, work.place);
    s.z_rows[0] = work.z + s.entering.m * (4 * Z_ROW);
    s.links[0] = zero_if(s.entering.j == 0 || s.entering.m == 0);
}

// One step of all layers at time t. `leave` is called with the row that leaves: its values and the factors of its columns.
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

// All rows of all offsets of all pairs of the team. The stream starts EARLY rows before the first. These rows are zeros from
// the ring, and no link connects them to the first.
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
            // All warps are in this turn or in the one before. So the pair of rows of the turn before that is complete, and its
            // slots of the ring are free.
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
