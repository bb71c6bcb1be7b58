// Fake libnccl.so.2 for tests. It has the functions that lambert calls, with the types of nccl.h. It connects threads
// and processes of one machine over shared memory, and its buffers are in host memory. Tests with this library check
// the calls of lambert, their order and the error handling, not NCCL.
//
// This library is stricter than NCCL. Every call stays in progress for some polls. An all-reduce is enqueued only after
// it was polled to completion. A call during another call, or on a released communicator, counts as invalid.

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

// Faults per rank. A test sets them with test_inject_fault(rank, sum of these values).
enum { REMOTE = 1, STUCK = 2, SLOW_ABORT = 4, NO_INIT = 8, REFUSED = 16, UNREAD = 32 };
static atomic_int faults[RANKS];
// Counters per rank. A test reads them with test_count(rank, one of these values).
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
    comm *communicator;
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

const char *ncclGetLastError(comm *communicator) { return (void)communicator, last; }

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
    comm *created = calloc(1, sizeof *created);
    created->shared = mmap(NULL, sizeof(segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    strcpy(created->name, id.bytes);
    created->world = world, created->rank = rank, created->state = JOINING;
    atomic_fetch_add(&created->shared->joined, 1);
    *handle = created;
    return IN_PROGRESS;
}

static void write_log(const comm *communicator) {
    const char *path = getenv("NCCL_DEBUG_FILE");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "here:1:1 [0] NCCL INFO Channel 00/0 : %d[0] -> %d[0] [send] via NET/Socket/0\n", communicator->rank, communicator->rank + 1);
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

static void add(const comm *communicator, int type, char *to, size_t count) {
    const char (*terms)[4 * CHUNK] = communicator->shared->area[communicator->chunks % 2];
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int rank = 0; rank < communicator->world; rank++) {
            float term = type == FLOAT32 ? ((const float *)terms[rank])[i] : widened(((const unsigned short *)terms[rank])[i]);
            sum = rank == 0 ? term : sum + term;
            if (type == BFLOAT16) sum = widened(rounded(sum));
        }
        if (type == FLOAT32) ((float *)to)[i] = sum;
        else ((unsigned short *)to)[i] = rounded(sum);
    }
}

// Advances without blocking as far as the other ranks allow. Returns 0 when the operation is complete.
static int run(void *argument) {
    operation *op = argument;
    comm *communicator = op->communicator;
    segment *shared = communicator->shared;
    const size_t width = op->type == FLOAT32 ? 4 : 2;
    while (!communicator->aborted && op->done < op->count) {
        if (faults[communicator->rank] & (REMOTE | STUCK)) return 1;
        const size_t count = op->count - op->done < CHUNK ? op->count - op->done : CHUNK;
        char *data = op->data + op->done * width;
        if (shared->ranks[communicator->rank].wrote == communicator->chunks) {
            for (int rank = 0; rank < communicator->world; rank++)
                if (shared->ranks[rank].read + 1 < communicator->chunks) return 1;
            memcpy(shared->area[communicator->chunks % 2][communicator->rank], data, count * width);
            shared->ranks[communicator->rank].wrote = communicator->chunks + 1;
        }
        for (int rank = 0; rank < communicator->world; rank++)
            if (shared->ranks[rank].wrote <= communicator->chunks) return 1;
        if (faults[communicator->rank] & UNREAD) return 1;
        add(communicator, op->type, data, count);
        op->done += count;
        shared->ranks[communicator->rank].read = ++communicator->chunks;
    }
    free(op);
    return 0;
}

static int invalid_call(const comm *communicator) {
    atomic_fetch_add(&counts[communicator->rank][INVALID_CALLS], 1);
    return failed(INVALID_USAGE, "invalid call");
}

int ncclCommGetAsyncError(comm *communicator, int *state) {
    if (communicator->state == LEFT) return invalid_call(communicator);
    *state = SUCCESS;
    int fault = faults[communicator->rank];
    if (fault & NO_INIT && communicator->state == JOINING) return *state = failed(SYSTEM_ERROR, "no route to host"), SUCCESS;
    if (communicator->launched && fault & REMOTE) return *state = failed(REMOTE_ERROR, "peer closed the connection"), SUCCESS;
    if (communicator->state == READY) return SUCCESS;
    if (communicator->polls++ < POLLS) return *state = IN_PROGRESS, SUCCESS;
    if (communicator->state == JOINING) {
        if (communicator->shared->joined < (unsigned)communicator->world) return *state = IN_PROGRESS, SUCCESS;
        unlink(communicator->name);
        write_log(communicator);
    } else if (communicator->state == LAUNCHING) {
        communicator->launched = 1;
        atomic_fetch_add(&counts[communicator->rank][LAUNCHES], 1);
        communicator->next->on->enqueue(communicator->next->on, run, communicator->next);
    } else if (communicator->shared->left < (unsigned)communicator->world) {
        return *state = IN_PROGRESS, SUCCESS;
    }
    communicator->state = READY;
    return SUCCESS;
}

static int begin(comm *communicator, int state) { return communicator->state = state, communicator->polls = 0, IN_PROGRESS; }

int ncclAllReduce(const void *from, void *to, size_t count, int type, int kind, comm *communicator, stream *on) {
    if (communicator->state != READY) return invalid_call(communicator);
    if (faults[communicator->rank] & REFUSED) return failed(INVALID_USAGE, "refused by the test");
    if (from != to || kind != 0 || (type != FLOAT32 && type != BFLOAT16)) return failed(INVALID_ARGUMENT, "unexpected arguments");
    operation created = {communicator, to, count, 0, type, on};
    communicator->next = malloc(sizeof created);
    *communicator->next = created;
    return begin(communicator, LAUNCHING);
}

int ncclCommFinalize(comm *communicator) {
    if (communicator->state != READY) return invalid_call(communicator);
    atomic_fetch_add(&communicator->shared->left, 1);
    return begin(communicator, LEAVING);
}

int ncclCommDestroy(comm *communicator) {
    if (communicator->state != READY) return invalid_call(communicator);
    return communicator->state = LEFT, SUCCESS;
}

// The memory is not freed, because operations on streams may still access it.
int ncclCommAbort(comm *communicator) {
    if (communicator->state == LEFT) return invalid_call(communicator);
    communicator->state = LEFT;
    communicator->aborted = 1;
    unlink(communicator->name);
    atomic_fetch_add(&counts[communicator->rank][ABORTS], 1);
    if (faults[communicator->rank] & SLOW_ABORT) sleep(30);
    return SUCCESS;
}
