// Fake libnccl.so.2 for tests: the functions that lambert calls, with the types of nccl.h, between threads and processes of one
// machine, over shared memory and with buffers in host memory. It tests lambert's calls, their order and its error handling, not NCCL.
//
// Stricter than NCCL: every call is in progress for some polls; an all-reduce is enqueued only after it was polled to completion; calls
// during another call, or on a released communicator, are counted as invalid.

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { FLOAT32 = 7, BFLOAT16 = 9 };
enum { RANKS = 8, CHUNK = 1 << 15, POLLS = 3 };

// Faults per rank: test_inject_fault(rank, sum of these).
enum { REMOTE = 1, STUCK = 2, SLOW_ABORT = 4, NO_INIT = 8, REFUSED = 16 };
static atomic_int faults[RANKS];
// Counters per rank: test_count(rank, one of these).
enum { ABORTS, INVALID_CALLS, LAUNCHES, COUNTS };
static atomic_int counts[RANKS][COUNTS];

void test_inject_fault(int rank, int fault) { faults[rank] = fault; }
int test_count(int rank, int counter) { return counts[rank][counter]; }

typedef struct {
    char bytes[128];
} unique_id;

// The first fields of ncclConfig_t.
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
} config;

// Stream of the fake GPU: calls `run` until it returns 0.
typedef struct stream {
    void (*enqueue)(struct stream *, int (*run)(void *), void *argument);
} stream;

typedef struct {
    atomic_uint joined, left;
    struct {
        _Alignas(64) atomic_ulong wrote, read;
    } ranks[RANKS];
    _Alignas(64) char area[2][RANKS][4 * CHUNK];
} segment;

typedef struct comm comm;
typedef struct {
    comm *of;
    char *data;
    size_t count, done;
    int type;
    stream *on;
} operation;

struct comm {
    segment *shared;
    char name[64];
    int world, rank;
    enum { JOINING, READY, LAUNCHING, LEAVING, LEFT } state;
    int polls;
    operation *next;
    unsigned long chunks;
    atomic_int aborted, launched;
};

static _Thread_local const char *last = "";

int ncclGetVersion(int *version) { return *version = 22809, SUCCESS; }

const char *ncclGetErrorString(int code) {
    switch (code) {
        case SUCCESS: return "no error";
        case SYSTEM_ERROR: return "unhandled system error";
        case INVALID_ARGUMENT: return "invalid argument";
        case INVALID_USAGE: return "invalid usage";
        case REMOTE_ERROR: return "remote process exited or there was a network error";
        default: return "unknown result code";
    }
}

const char *ncclGetLastError(comm *of) { return (void)of, last; }

static int failed(int code, const char *why) { return last = why, code; }

int ncclGetUniqueId(unique_id *id) {
    char path[] = "/dev/shm/nccl-XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || ftruncate(file, sizeof(segment)) != 0) return failed(SYSTEM_ERROR, "no shared memory");
    close(file);
    memset(id, 0, sizeof *id);
    strcpy(id->bytes, path);
    return SUCCESS;
}

int ncclCommInitRankConfig(comm **handle, int world, unique_id id, int rank, config *with) {
    if (with->magic != 0xcafebeef || with->size < 20 || with->version < 21400 || with->blocking != 0)
        return failed(INVALID_ARGUMENT, "unexpected ncclConfig_t");
    if (world > RANKS || rank >= world) return failed(INVALID_ARGUMENT, "invalid rank");
    int file = open(id.bytes, O_RDWR);
    if (file < 0) return failed(SYSTEM_ERROR, "no such id");
    comm *made = calloc(1, sizeof *made);
    made->shared = mmap(NULL, sizeof(segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    strcpy(made->name, id.bytes);
    made->world = world, made->rank = rank, made->state = JOINING;
    atomic_fetch_add(&made->shared->joined, 1);
    *handle = made;
    return IN_PROGRESS;
}

static void write_log(const comm *of) {
    const char *path = getenv("NCCL_DEBUG_FILE");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "here:1:1 [0] NCCL INFO Channel 00/0 : %d[0] -> %d[0] [send] via NET/Socket/0\n", of->rank, of->rank + 1);
    fclose(file);
}

static float widened(unsigned short half) {
    unsigned bits = (unsigned)half << 16;
    float value;
    return memcpy(&value, &bits, 4), value;
}

static unsigned short rounded(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    if (value != value) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static void add(const comm *of, int type, char *to, size_t count) {
    const char (*terms)[4 * CHUNK] = of->shared->area[of->chunks % 2];
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int rank = 0; rank < of->world; rank++) {
            float term = type == FLOAT32 ? ((const float *)terms[rank])[i] : widened(((const unsigned short *)terms[rank])[i]);
            sum = rank == 0 ? term : sum + term;
            if (type == BFLOAT16) sum = widened(rounded(sum));
        }
        if (type == FLOAT32) ((float *)to)[i] = sum;
        else ((unsigned short *)to)[i] = rounded(sum);
    }
}

// Advances without blocking as far as the other ranks allow; returns 0 when complete.
static int run(void *argument) {
    operation *op = argument;
    comm *of = op->of;
    segment *shared = of->shared;
    const size_t width = op->type == FLOAT32 ? 4 : 2;
    while (!of->aborted && op->done < op->count) {
        if (faults[of->rank] & (REMOTE | STUCK)) return 1;
        const size_t count = op->count - op->done < CHUNK ? op->count - op->done : CHUNK;
        char *data = op->data + op->done * width;
        if (shared->ranks[of->rank].wrote == of->chunks) {
            for (int rank = 0; rank < of->world; rank++)
                if (shared->ranks[rank].read + 1 < of->chunks) return 1;
            memcpy(shared->area[of->chunks % 2][of->rank], data, count * width);
            shared->ranks[of->rank].wrote = of->chunks + 1;
        }
        for (int rank = 0; rank < of->world; rank++)
            if (shared->ranks[rank].wrote <= of->chunks) return 1;
        add(of, op->type, data, count);
        op->done += count;
        shared->ranks[of->rank].read = ++of->chunks;
    }
    free(op);
    return 0;
}

static int invalid_call(const comm *of) { return atomic_fetch_add(&counts[of->rank][INVALID_CALLS], 1), failed(INVALID_USAGE, "invalid call"); }

int ncclCommGetAsyncError(comm *of, int *state) {
    if (of->state == LEFT) return invalid_call(of);
    *state = SUCCESS;
    if (faults[of->rank] & NO_INIT && of->state == JOINING) return *state = failed(SYSTEM_ERROR, "no route to host"), SUCCESS;
    if (of->launched && faults[of->rank] & REMOTE) return *state = failed(REMOTE_ERROR, "peer closed the connection"), SUCCESS;
    if (of->state == READY) return SUCCESS;
    if (of->polls++ < POLLS) return *state = IN_PROGRESS, SUCCESS;
    if (of->state == JOINING) {
        if (of->shared->joined < (unsigned)of->world) return *state = IN_PROGRESS, SUCCESS;
        unlink(of->name);
        write_log(of);
    } else if (of->state == LAUNCHING) {
        of->launched = 1;
        atomic_fetch_add(&counts[of->rank][LAUNCHES], 1);
        of->next->on->enqueue(of->next->on, run, of->next);
    } else if (of->shared->left < (unsigned)of->world) {
        return *state = IN_PROGRESS, SUCCESS;
    }
    of->state = READY;
    return SUCCESS;
}

static int begin(comm *of, int state) { return of->state = state, of->polls = 0, IN_PROGRESS; }

int ncclAllReduce(const void *from, void *to, size_t count, int type, int kind, comm *of, stream *on) {
    if (of->state != READY) return invalid_call(of);
    if (faults[of->rank] & REFUSED) return failed(INVALID_USAGE, "refused by the test");
    if (from != to || kind != 0 || (type != FLOAT32 && type != BFLOAT16)) return failed(INVALID_ARGUMENT, "unexpected arguments");
    operation made = {of, to, count, 0, type, on};
    of->next = malloc(sizeof made);
    *of->next = made;
    return begin(of, LAUNCHING);
}

int ncclCommFinalize(comm *of) {
    if (of->state != READY) return invalid_call(of);
    atomic_fetch_add(&of->shared->left, 1);
    return begin(of, LEAVING);
}

int ncclCommDestroy(comm *of) {
    if (of->state != READY) return invalid_call(of);
    return of->state = LEFT, SUCCESS;
}

// The memory is not freed: operations on streams may still access it.
int ncclCommAbort(comm *of) {
    if (of->state == LEFT) return invalid_call(of);
    of->state = LEFT;
    of->aborted = 1;
    unlink(of->name);
    atomic_fetch_add(&counts[of->rank][ABORTS], 1);
    if (faults[of->rank] & SLOW_ABORT) sleep(30);
    return SUCCESS;
}
