// matmul on Hopper where all tiles run at one time: of few rows, whose time is that of reading b, of some hundred, and of
// what whole rounds of tiles leave over.
//
// Of the blocks of a cluster SHARES have one tile of c and a share of K each. Their sums meet in shared memory, which blocks
// of a cluster read from one another, and are added in order: a split of K without a second pass over memory. ACROSS * DOWN
// blocks have neighbouring tiles, and fetch what several of them need once, by multicast. A block that has all of K rounds
// its own sums in registers.
//
// With TURNED the product is c^T = b^T a^T: the columns of b, which are many, are the rows of the products, and no more
// of a's few rows than there are is multiplied. M and N are those of c^T then, and so are all names but those of the
// maps and c.
//
// With TURNS above 1 the columns of b are K-major lines that begin anywhere. Those that are TURNS apart begin at one
// distance from a multiple of 16 bytes, and lie a multiple of 16 bytes apart, so that a map can have them as its rows: a
// tile has columns of one turn, read from the first such multiple on. The rows of a have been copied to begin with the
// same element. What lies in front of that, and behind the last whole 16 bytes, is one more product.
#define STRIPS_IN_RING 1
#include "warpgroup.cuh"

#define NAMES_8 "%0, %1, %2, %3"
#define NAMES_16 NAMES_8 ", %4, %5, %6, %7"
#define NAMES_32 TEN() "%10, %11, %12, %13, %14, %15"
#define SUMS_8 FOUR_SUMS(0)
#define SUMS_16 FOUR_SUMS(0), FOUR_SUMS(1)
#define SUMS_32 SIXTEEN_SUMS(0)
#define FEW_PRODUCTS(TYPE, ELEMENT_TYPE)                              \
    SHARED_PRODUCT(8, 16, TYPE, ELEMENT_TYPE, 4, 5, 6, ", %7, %8")    \
    SHARED_PRODUCT(16, 16, TYPE, ELEMENT_TYPE, 8, 9, 10, ", %11, %12") \
    SHARED_PRODUCT(32, 16, TYPE, ELEMENT_TYPE, 16, 17, 18, ", %19, %20")
FEW_PRODUCTS("f16", __half)
FEW_PRODUCTS("bf16", __nv_bfloat16)

#include "dependent_launch.cuh"
#include "wgmma_widths.cuh"
#include "matmul_wgmma.cuh"

#ifndef SHARES
#define SHARES 4
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1
#endif
#ifndef TURNED
#define TURNED 0
#endif
#ifndef SEVERAL  // tiles beside one another read the same columns of b, so L2 keeps these
#define SEVERAL 0
#endif
#ifndef TOGETHER  // steps of K whose copies are asked for at one time: memory gives longer pieces of lines sooner
#define TOGETHER 1
#endif
#ifndef TURNS
#define TURNS 1
#endif
#if TURNS > 1  // as b_map, of turns that have one line less; the factors as they are; elements from one line to the next
#define LINES const __grid_constant__ TensorMap fewer_map, const Element *__restrict__ a, const Element *__restrict__ b,
#define LINE_LENGTHS , i64 a_line, i64 b_line
#define FEWER_MAP fewer_map
#else
#define LINES
#define LINE_LENGTHS
#define FEWER_MAP b_map
#endif
#ifndef IS_REST  // the launch before this one computes the tiles before these; this one may begin when its blocks end
#define IS_REST 0
#endif

constexpr int ROWS = TURNED ? BLOCK_N : BLOCK_M, COLUMNS = TURNED ? BLOCK_M : BLOCK_N;  // of c
constexpr int PITCH = COLUMNS + (TURNED ? 4 : 8);  // of a row of sums, so that the values of a store are in different banks
constexpr int CONSUMER_THREADS = 128 * CONSUMERS;
constexpr bool ALONE = TURNED && SHARES == 1 && ROWS > 64;  // a block has all of K: sums are rounded in registers
constexpr bool ALL_ADD = CONSUMERS == 1 && !ALONE;  // those who fetched as well; more consumers have their registers
constexpr int ADDERS = ALL_ADD ? THREADS : CONSUMER_THREADS;
constexpr int VALUES_PITCH = COLUMNS + 8;  // of a row of rounded values
static_assert((ALONE ? cdiv(ROWS, 16) * 16 * VALUES_PITCH * 2 : ROWS * PITCH * 4) <= STAGES * STAGE_BYTES,
              "the sums lie where the stages were");

// Waits for all blocks that share a tile, and for their sums.
__device__ __forceinline__ void share_sync() {
    static_assert(SHARES * PEERS > 1 || ALL_ADD || ALONE, "all threads wait at one place");
    if constexpr (SHARES * PEERS > 1) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    } else {
        __syncthreads();
    }
}

// Four sums of the block of this rank, at the same place of its shared memory.
__device__ __forceinline__ void load_sums(float (&x)[4], const float* from, int rank) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
        : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
        : "r"(shared_address(from)), "r"(rank)
        : "memory");
}

#if TURNS > 1
constexpr int VECTOR = 16 / sizeof(Element), ENDS = 2 * VECTOR;

// The lines of a turn: `first` elements are in front of the first multiple of 16 bytes, which is element `begin` of the rows of
// the map, and `length` in whole vectors from there on.
struct Turn {
    int turn, begin, first, length;

    __device__ __forceinline__ Turn(int turn, i64 line, int K) : turn(turn) {
        begin = ((int)(turn * line) + VECTOR - 1) / VECTOR * VECTOR;
        first = begin - (int)(turn * line);
        length = (K - first) / VECTOR * VECTOR;
    }
};

// Where an element of a K-major tile is in shared memory.
__device__ __forceinline__ Element& element(unsigned char* tile, int line, int k) {
    return reinterpret_cast<Element*>(tile + line * 128 + (k / VECTOR ^ line % 8) * 16)[k % VECTOR];
}

// Starts one more product of `Count` times 32 bytes of K of what is in the tiles, and waits for it.
template <int Count>
__device__ __forceinline__ void multiply_more(Sums& sum, const unsigned char* a, const unsigned char* b) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMER_THREADS) : "memory");
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Count; step++)
#pragma unroll
        for (int i = 0; i < HEIGHT; i++)
            wgmma<A_K_MAJOR, B_K_MAJOR>(sum[i], describe<A_K_MAJOR>(a + i * BOX_BYTES, step),
                                        describe<B_K_MAJOR>(b, step), true, Element());
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < HEIGHT; i++) pin(sum[i]);
}

// The last product, of a step of which `inside` elements are of the lines.
__device__ __forceinline__ void multiply_last(Sums& sum, const Ring& ring, Place& place, int inside) {
    barrier_wait(ring.full[place.stage], place.phase);
    for (int i = threadIdx.x - 128; i < BLOCK_M * (BLOCK_K - inside); i += CONSUMER_THREADS)
        element(ring.a(place.stage), i / (BLOCK_K - inside), inside + i % (BLOCK_K - inside)) = Element(0.0f);
    multiply_more<4>(sum, ring.a(place.stage), ring.b(place.stage));
    place.advance();
}

// What of the lines of both factors is in front of whole vectors and behind them, as a step that begins with it.
struct LineEnds {
    static constexpr int COUNT = cdiv((BLOCK_M + BLOCK_N) * ENDS, CONSUMER_THREADS);
    Element values[COUNT];

    // rows: of the tile, from `place` on of this turn. M, N, K: of the product of columns of b and rows of a.
    __device__ __forceinline__ LineEnds(const Element* left, const Element* right, i64 left_line, i64 right_line,
                                        const Turn& turn, int place, int M, int N, int K) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const int i = j * CONSUMER_THREADS + threadIdx.x - 128, row = i / ENDS;
            const int k = i % ENDS < turn.first ? i % ENDS : i % ENDS + turn.length;
            const int m = (place + row) * TURNS + turn.turn, n = row - BLOCK_M;
            values[j] = Element(0.0f);
            if (k < K && row < BLOCK_M && m < M) values[j] = left[m * left_line + k];
            if (k < K && row >= BLOCK_M && n < N) values[j] = right[n * right_line + k];
        }
    }

    __device__ __forceinline__ void multiply(Sums& sum, const Ring& ring, const Place& place) const {
        unsigned char *a = ring.a(place.stage), *b = ring.b(place.stage);
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const int i = j * CONSUMER_THREADS + threadIdx.x - 128, row = i / ENDS;
            if (row < BLOCK_M) element(a, row, i % ENDS) = values[j];
            else if (row < BLOCK_M + BLOCK_N) element(b, row - BLOCK_M, i % ENDS) = values[j];
        }
        multiply_more<1>(sum, a, b);
    }
};
#endif

// Of a tile of the left factor the part that this block fetches, for all that lie beside it in the cluster; of the right one
// likewise for those below one another.
__device__ __forceinline__ void fetch_left(unsigned char* tile, const TensorMap& map, Barrier& full, int m, int k, Seat seat) {
    static_assert(BLOCK_M % (64 * ACROSS) == 0, "a part is whole boxes");
    constexpr int Boxes = BLOCK_M / 64 / ACROSS;
#pragma unroll
    for (int i = 0; i < (A_K_MAJOR ? 1 : Boxes); i++) {
        const int box = seat.x * Boxes + i, at = m + 64 * box, x = A_K_MAJOR ? k : at, y = A_K_MAJOR ? at : k;
        unsigned char* to = tile + box * BOX_BYTES;
        if constexpr (ACROSS > 1) tma_load_for(((1 << ACROSS) - 1) << (seat.first + seat.y * ACROSS), to, map, full, x, y);
        else if constexpr (TURNED && !SEVERAL) tma_load_once(to, map, full, x, y);
        else tma_load(to, map, full, x, y);
    }
}

__device__ __forceinline__ void fetch_right(unsigned char* tile, const TensorMap& map, Barrier& full, int n, int k, Seat seat) {
    constexpr int Lines = (B_K_MAJOR ? BLOCK_N : BLOCK_K) / DOWN;
    constexpr int Copies = B_K_MAJOR ? cdiv(Lines, 256) : cdiv(BLOCK_N, 64), Each = Lines / Copies;  // a box has 256 lines at most
    static_assert((B_K_MAJOR ? BLOCK_N : BLOCK_K) % (DOWN * (B_K_MAJOR ? Copies : 1)) == 0, "copies are of one size");
    const int begin = seat.y * Lines;
    unsigned below = 0;
#pragma unroll
    for (int y = 0; y < DOWN; y++) below |= 1u << y * ACROSS;
#pragma unroll
    for (int i = 0; i < Copies; i++) {
        const int x = B_K_MAJOR ? k : n + 64 * i, y = (B_K_MAJOR ? n + i * Each : k) + begin;
        unsigned char* to = tile + (B_K_MAJOR ? i * Each * 128 : i * BOX_BYTES) + begin * 128;
        if constexpr (DOWN > 1) tma_load_for(below << (seat.first + seat.x), to, map, full, x, y);
        else tma_load(to, map, full, x, y);
    }
}

// x, y: where the K of the left factor begins in its map, and the lines of the right one.
__device__ __forceinline__ void fetch(const Ring& ring, const Work& work, const TensorMap& left, const TensorMap& right, int x,
                                      int y) {
    static_assert(TOGETHER < STAGES, "a stage is left while its place is waited for");
    const Seat seat;
    Place place, last;  // of steps together
#pragma unroll
    for (int i = 1; i < TOGETHER; i++) last.advance();
    for (int k = work.k_begin, step = 0; k < work.k_end; k += BLOCK_K, step++) {
        Barrier& full = ring.full[place.stage];
        if (TOGETHER > 1 && step % TOGETHER == 0) barrier_wait(ring.empty[last.stage], last.phase ^ 1);
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        barrier_expect(full, LOADED_BYTES);
        fetch_left(ring.a(place.stage), left, full, work.m, x + k, seat);
        if (TURNS > 1 && k == work.k_begin) wait_for_previous();  // for the copies of a
        fetch_right(ring.b(place.stage), right, full, work.n + y, k, seat);
        place.advance(), last.advance();
    }
}

// Leaves the sums of a consumer where the stages were, by the rows and columns of c.
__device__ __forceinline__ void leave(float* sums, const Sums& sum) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
#pragma unroll
    for (int i = 0; i < HEIGHT; i++) {
        const int m = (warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16 + lane / 4, n = lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float pair[2] = {sum[i][j][2 * half], sum[i][j][2 * half + 1]};
                if constexpr (TURNED) {
                    float* mine = sums + (n + 8 * j) * PITCH + m + 8 * half;
                    mine[0] = pair[0], mine[PITCH] = pair[1];
                } else {
                    store(sums + (m + 8 * half) * PITCH + n + 8 * j, from_floats<float>(pair));
                }
            }
    }
}

// Rounds the sums of a tile that this block has alone, each with the bias of its column, and stores the values by whole rows
// of c: they meet where the stages were, which all consumers have left.
template <typename Activation>
__device__ __forceinline__ void store_turned(Element* values, const Sums& sum, Element* c, const Epilogue<Element>& epilogue,
                                             int row, int column, int M, int N) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
#pragma unroll
    for (int i = 0; i < HEIGHT; i++) {
        const int first = (warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16;
        float bias[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int n = column + first + lane / 4 + 8 * half;
            bias[half] = n < N ? epilogue.bias_of(n) : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j += 2) {
            unsigned four[4] = {};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (j + e / 2 == BLOCK_N / 8) break;
                const float* of = sum[i][j + e / 2] + e % 2 * 2;
                const float low = Epilogue<Element>::biased(of[0], bias[e % 2]), high = Epilogue<Element>::biased(of[1], bias[e % 2]);
                four[e] = pair_from_floats<Element>(Activation::value(low), Activation::value(high));
            }
            store_transposed(values + (8 * j + lane / 16 * 8 + lane % 8) * VALUES_PITCH + first + lane / 8 % 2 * 8, four);
        }
    }
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMER_THREADS) : "memory");
    for (int i = (threadIdx.x - 128) * C_VECTOR; i < ROWS * COLUMNS; i += CONSUMER_THREADS * C_VECTOR) {
        const int m = row + i / COLUMNS, n = column + i % COLUMNS;
        if (m < M && n < N) store(c + (i64)m * N + n, load<C_VECTOR>(values + i / COLUMNS * VALUES_PITCH + i % COLUMNS));
    }
}

// Adds what the blocks left of a part of the tile at (row, column) of c [M, N], and ends it. What other blocks have comes
// after a microsecond, so that a thread asks for much of it at a time.
__device__ __forceinline__ void add(const float* sums, Element* c, const Epilogue<Element>& epilogue, int rank, int row,
                                    int column, int M, int N, int turn) {
    constexpr int UNITS = COLUMNS / 4, STEP = SHARES * ADDERS;  // fours of a row
    constexpr int EACH = cdiv(ROWS * UNITS, STEP), AHEAD = EACH < 16 / SHARES ? EACH : 16 / SHARES;
    const int units = min(ROWS, M - row) * UNITS, peer = blockIdx.x % PEERS;
    for (int i = rank * ADDERS + threadIdx.x - (THREADS - ADDERS); i < units; i += AHEAD * STEP) {
        float part[AHEAD][SHARES][4];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int at = min(i + j * STEP, units - 1);
#pragma unroll
            for (int s = 0; s < SHARES; s++) load_sums(part[j][s], sums + at / UNITS * PITCH + at % UNITS * 4, s * PEERS + peer);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int at = i + j * STEP, y = row + at / UNITS, x = column + at % UNITS * 4;
#pragma unroll
            for (int s = 1; s < SHARES; s++)
#pragma unroll
                for (int v = 0; v < 4; v++) part[j][0][v] = add_gradual(part[j][0][v], part[j][s][v]);
#pragma unroll
            for (int v = 0; v < 4; v += C_VECTOR)
                if (const int n = (x + v) * TURNS + turn; at < units && n < N)
                    epilogue.store(c, (i64)y * N + n, n, reinterpret_cast<const float(&)[C_VECTOR]>(part[j][0][v]));
        }
    }
}

// Works are tiles, `works` in all, of which this launch has those from `first` on. The blocks of a cluster are share by share,
// in each of which are those of neighbouring tiles. k_split is a multiple of BLOCK_K, and no share is empty.
extern "C" __global__ void __cluster_dims__(PEERS * SHARES, 1, 1) __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_shares(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, LINES
                  Element* __restrict__ c EPILOGUE_PARAMETERS(Element), int M, int N, int K, int k_split, int works,
                  int first LINE_LENGTHS) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    const int rank = blockIdx.x / PEERS % SHARES, tile = first + blockIdx.x / (PEERS * SHARES) * PEERS + blockIdx.x % PEERS;
#if TURNS > 1
    const Turn turn(tile % TURNS, b_line, K);
    Work work(rank * works + tile, {works * BLOCK_M, N, turn.length, k_split, 1});
    work.m = tile / TURNS * BLOCK_M;
#else
    const Work work(rank * works + tile, {M, N, K, k_split, 1});
    struct {
        int turn = 0, begin = 0;
    } const turn;
#endif
    follow_previous();
    float* sums = reinterpret_cast<float*>(shared);
    const int row = TURNED ? work.n : work.m, column = TURNED ? work.m : work.n, rows = TURNED ? N : M;
    const int columns = TURNED ? M : N;
    if (threadIdx.x < 128) {
        fetches();
        if (threadIdx.x == 0) {
            if (TURNS > 1 && turn.turn > (M - 1) % TURNS) fetch(ring, work, FEWER_MAP, a_map, turn.begin, turn.turn * N);
            else fetch(ring, work, TURNED ? b_map : a_map, TURNED ? a_map : b_map, turn.begin, turn.turn * N);
        }
        if constexpr (!ALL_ADD && !ALONE) share_sync();
    } else {
        multiplies();
        Sums sum;  // the first product sets it
        Place place;
#if TURNS > 1
        const bool last = rank == SHARES - 1;
        const LineEnds ends(b, a, b_line, a_line, turn, work.m, M, N, last ? K : 0);
        const int inside = work.k_end == turn.length ? turn.length % BLOCK_K : 0;
        work.k_end -= inside;
        multiply(sum, ring, place, work);
        if (inside) multiply_last(sum, ring, place, inside);
        if (last) ends.multiply(sum, ring, place);
#else
        multiply(sum, ring, place, work);
#endif
        asm volatile("bar.sync 1, %0;" ::"n"(CONSUMER_THREADS) : "memory");  // all have left the stages
        if constexpr (ALONE) {
            Element* values = reinterpret_cast<Element*>(shared);
            if constexpr (SAVES) {
                store_turned<Identity>(values, sum, EPILOGUE(Element).z, EPILOGUE(Element), row, column, rows, columns);
                asm volatile("bar.sync 1, %0;" ::"n"(CONSUMER_THREADS) : "memory");
            }
            store_turned<ACTIVATION>(values, sum, c, EPILOGUE(Element), row, column, rows, columns);
        } else {
            leave(sums, sum);
        }
        if constexpr (!ALL_ADD && !ALONE) {
            share_sync();
            add(sums, c, EPILOGUE(Element), rank, row, column, rows, columns, 0);
        }
    }
    if constexpr (ALL_ADD) {
        share_sync();
        add(sums, c, EPILOGUE(Element), rank, row, column, rows, columns, turn.turn);
    }
    if constexpr (!ALONE || PEERS > 1) share_sync();  // no block leaves while another reads its sums, or frees its stages
    if constexpr (IS_REST) wait_for_previous();
}
