/* NCCL over TCP, with the bytes and the sums that it would give.
 *
 * As with NCCL, the process that makes an id listens at an address that is part of it, until all members were there;
 * each of them learns the addresses of the others, and connects to them. A communicator that does not block is made in
 * a thread (ncclInProgress until all are there). What NCCL would queue is done before its call returns: a thread that
 * calls waits for its peers. A peer that is gone, and an abort, end every call.
 *
 * NULL_GPU_HANG=collective:N   the Nth collective of this process, from 1, waits until its group is aborted
 * NULL_GPU_KILL=1              the next collective kills its process
 */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <arpa/inet.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <nccl.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define MOST_MEMBERS 64
#define POLL_MS 20 /* how often a call looks whether its group was aborted */

typedef struct { uint32_t address; uint16_t port; uint16_t unused; uint64_t secret; } Id; /* first in an ncclUniqueId */
typedef struct { uint64_t secret; int rank, size; struct sockaddr_in address; } Member;

struct ncclComm {
    int rank, size, device, blocks;
    int peers[MOST_MEMBERS]; /* sockets */
    Id id;
    pthread_t joining;
    volatile ncclResult_t state; /* ncclInProgress while it joins */
    volatile int aborted;
};
typedef struct ncclComm Comm;

static int all_of(int file, void *bytes, size_t count, int sends) {
    for (size_t done = 0; done < count;) {
        ssize_t part = sends ? send(file, (char *)bytes + done, count - done, MSG_NOSIGNAL) : recv(file, (char *)bytes + done, count - done, 0);
        if (part == 0 || (part < 0 && errno != EINTR && errno != EAGAIN)) return -1;
        if (part > 0) done += part;
    }
    return 0;
}

static uint32_t own_address(void) {
    const char *wanted = getenv("NCCL_SOCKET_IFNAME");
    struct ifaddrs *all, *each;
    uint32_t found = htonl(INADDR_LOOPBACK);
    if (getifaddrs(&all)) return found;
    for (each = all; each; each = each->ifa_next) {
        if (!each->ifa_addr || each->ifa_addr->sa_family != AF_INET || !(each->ifa_flags & IFF_UP)) continue;
        if (wanted ? strncmp(each->ifa_name, wanted, strlen(wanted)) : each->ifa_flags & IFF_LOOPBACK) continue;
        found = ((struct sockaddr_in *)each->ifa_addr)->sin_addr.s_addr;
        break;
    }
    freeifaddrs(all);
    return found;
}

static int listen_at(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = own_address()};
    if (file < 0 || bind(file, (void *)address, length) || listen(file, MOST_MEMBERS) || getsockname(file, (void *)address, &length)) return -1;
    return file;
}

static int connect_to(const struct sockaddr_in *address) {
    int one = 1, file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (file < 0 || connect(file, (void *)address, sizeof *address)) {
        if (file >= 0) close(file);
        return -1;
    }
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return file;
}

/* The end in the process that made the id: tell every member where all are, once they have come. */
static void *gather_members(void *given) {
    int *own = given, files[MOST_MEMBERS], count = 0, size = 1;
    uint64_t secret = *(uint64_t *)(own + 2);
    Member members[MOST_MEMBERS];
    while (count < size) {
        int file = accept(own[0], NULL, NULL);
        Member member;
        if (file < 0) break;
        if (all_of(file, &member, sizeof member, 0) || member.secret != secret || member.size > MOST_MEMBERS) {
            close(file);
            continue;
        }
        size = member.size;
        members[member.rank] = member;
        files[count++] = file;
    }
    for (int at = 0; at < count; at++) {
        all_of(files[at], members, size * sizeof *members, 1);
        close(files[at]);
    }
    close(own[0]);
    free(own);
    return NULL;
}

ncclResult_t API ncclGetUniqueId(ncclUniqueId *unique) {
    memset(unique, 0, sizeof *unique);
    struct sockaddr_in address;
    int *given = malloc(2 * sizeof(int) + sizeof(uint64_t));
    given[0] = listen_at(&address);
    Id *id = (Id *)unique;
    if (given[0] < 0 || getrandom(&id->secret, sizeof id->secret, 0) < 0) return ncclSystemError;
    id->address = address.sin_addr.s_addr;
    id->port = address.sin_port;
    *(uint64_t *)(given + 2) = id->secret;
    pthread_t thread;
    if (pthread_create(&thread, NULL, gather_members, given)) return ncclSystemError;
    pthread_detach(thread);
    return ncclSuccess;
}

/* Wait for something to read, and return 0; 1 once the group was aborted. */
static int wait_to_read(Comm *comm, int file) {
    struct pollfd one = {file, POLLIN, 0};
    while (!comm->aborted)
        if (poll(&one, 1, POLL_MS) > 0) return 0;
    return 1;
}

static ncclResult_t join_members(Comm *comm) {
    struct sockaddr_in root = {.sin_family = AF_INET, .sin_addr.s_addr = comm->id.address, .sin_port = comm->id.port};
    Member own = {comm->id.secret, comm->rank, comm->size}, members[MOST_MEMBERS];
    int listener = listen_at(&own.address), file = connect_to(&root);
    if (listener < 0 || file < 0) return ncclRemoteError;
    if (all_of(file, &own, sizeof own, 1) || wait_to_read(comm, file)) return ncclRemoteError;
    if (all_of(file, members, comm->size * sizeof *members, 0)) return ncclRemoteError;
    close(file);
    for (int rank = 0; rank < comm->rank; rank++) {
        comm->peers[rank] = connect_to(&members[rank].address);
        if (comm->peers[rank] < 0 || all_of(comm->peers[rank], &comm->rank, sizeof comm->rank, 1)) return ncclRemoteError;
    }
    for (int left = comm->size - comm->rank - 1; left > 0; left--) {
        int rank, one = 1;
        if (wait_to_read(comm, listener)) return ncclRemoteError;
        file = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (file < 0 || all_of(file, &rank, sizeof rank, 0)) return ncclRemoteError;
        setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        comm->peers[rank] = file;
    }
    close(listener);
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank) fcntl(comm->peers[rank], F_SETFL, O_NONBLOCK);
    return ncclSuccess;
}

static void *join_in_thread(void *given) {
    Comm *comm = given;
    comm->state = join_members(comm);
    return NULL;
}

static ncclResult_t join(ncclComm_t *found, int size, const Id *id, int rank, const ncclConfig_t *config) {
    if (size > MOST_MEMBERS) return ncclInvalidArgument;
    Comm *comm = calloc(1, sizeof *comm);
    *comm = (Comm){.rank = rank, .size = size, .device = null_current(), .id = *id, .state = ncclInProgress};
    comm->blocks = !config || config->blocking != 0; /* undefined is blocking */
    for (int peer = 0; peer < size; peer++) comm->peers[peer] = -1;
    null_make_context(comm->device);
    char text[80];
    snprintf(text, sizeof text, "joins a group as rank %d of %d%s", rank, size, comm->blocks ? "" : ", not blocking");
    null_note(text);
    *found = comm;
    if (pthread_create(&comm->joining, NULL, join_in_thread, comm)) return ncclSystemError;
    if (!comm->blocks) {
        pthread_detach(comm->joining);
        return ncclInProgress;
    }
    pthread_join(comm->joining, NULL);
    return comm->state;
}
ncclResult_t API ncclCommInitRankConfig(ncclComm_t *found, int size, ncclUniqueId id, int rank, ncclConfig_t *config) { return join(found, size, (Id *)&id, rank, config); }
ncclResult_t API ncclCommInitRank(ncclComm_t *found, int size, ncclUniqueId id, int rank) { return join(found, size, (Id *)&id, rank, NULL); }
ncclResult_t API ncclCommInitRankScalable(ncclComm_t *found, int size, int rank, int num_ids, ncclUniqueId *ids, ncclConfig_t *config) { return join(found, size, (Id *)ids, rank, config); }

/* Parts of a call: what goes to a peer or comes from it */
typedef struct { int peer, sends; char *bytes; size_t count, done; } Part;

static int has_joined(Comm *comm) {
    while (comm->state == ncclInProgress && !comm->aborted) usleep(200);
    return comm->state == ncclSuccess && !comm->aborted;
}

/* Give and take all parts at once, those with one peer in their order. */
static ncclResult_t transfer(Comm *comm, Part *parts, int count) {
    for (;;) {
        struct pollfd waits[2 * MOST_MEMBERS];
        int at[2 * MOST_MEMBERS], num_waits = 0, is_busy[MOST_MEMBERS][2] = {{0}};
        for (int place = 0; place < count; place++) {
            Part *part = &parts[place];
            if (part->done == part->count || is_busy[part->peer][part->sends]) continue;
            is_busy[part->peer][part->sends] = 1;
            waits[num_waits] = (struct pollfd){comm->peers[part->peer], part->sends ? POLLOUT : POLLIN, 0};
            at[num_waits++] = place;
        }
        if (!num_waits) return ncclSuccess;
        if (comm->aborted) return comm->state = ncclRemoteError;
        poll(waits, num_waits, POLL_MS);
        for (int place = 0; place < num_waits; place++) {
            Part *part = &parts[at[place]];
            if (!waits[place].revents) continue;
            size_t left = part->count - part->done;
            ssize_t moved = part->sends ? send(waits[place].fd, part->bytes + part->done, left, MSG_NOSIGNAL) : recv(waits[place].fd, part->bytes + part->done, left, 0);
            if (moved > 0) part->done += moved;
            else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) return comm->state = ncclRemoteError;
        }
    }
}

static void hang_if_told(Comm *comm) {
    static long num_calls;
    const char *told = getenv("NULL_GPU_HANG");
    if (!told || strncmp(told, "collective:", 11) || comm->size == 1) return;
    if (__atomic_add_fetch(&num_calls, 1, __ATOMIC_SEQ_CST) != atol(told + 11)) return;
    null_note("hangs in a collective");
    while (!comm->aborted) usleep(1000);
}

static void end_if_told(Comm *comm) {
    const char *told = getenv("NULL_GPU_KILL");
    if (!told || !*told || comm->size == 1) return;
    null_note("is killed in a collective");
    kill(getpid(), SIGKILL);
}

/* Before every call: its stream is done up to here, and the group is there. */
static ncclResult_t begin(Comm *comm, cudaStream_t stream) {
    null_run(stream);
    if (!has_joined(comm)) return ncclRemoteError;
    hang_if_told(comm);
    end_if_told(comm);
    return ncclSuccess;
}
#define BEGIN(comm, stream) do { ncclResult_t found = begin(comm, stream); if (found) return found; } while (0)

static size_t width(ncclDataType_t type) {
    switch (type) {
    case ncclInt8: case ncclUint8: case ncclFloat8e4m3: case ncclFloat8e5m2: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    default: return 8;
    }
}

ncclResult_t API ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    BEGIN(comm, stream);
    Part parts[MOST_MEMBERS];
    int num_parts = 0;
    size_t size = count * width(type);
    if (comm->rank != root) parts[num_parts++] = (Part){root, 0, to, size};
    else for (int peer = 0; peer < comm->size; peer++)
        if (peer != root) parts[num_parts++] = (Part){peer, 1, (char *)from, size};
    if (comm->rank == root && from != to) memmove(to, from, size);
    return transfer(comm, parts, num_parts);
}
ncclResult_t API ncclBcast(void *bytes, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) { return ncclBroadcast(bytes, bytes, count, type, root, comm, stream); }

/* All members' `size` bytes at `from`, one after the other at `to`; what goes to rank r begins at from + r * step. */
static ncclResult_t exchange(Comm *comm, const char *from, size_t step, char *to, size_t size) {
    Part parts[2 * MOST_MEMBERS];
    int num_parts = 0;
    for (int peer = 0; peer < comm->size; peer++) {
        if (peer == comm->rank) {
            memmove(to + peer * size, from + peer * step, size);
            continue;
        }
        parts[num_parts++] = (Part){peer, 1, (char *)from + peer * step, size};
        parts[num_parts++] = (Part){peer, 0, to + peer * size, size};
    }
    return transfer(comm, parts, num_parts);
}
ncclResult_t API ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    BEGIN(comm, stream);
    return exchange(comm, from, 0, to, count * width(type));
}
ncclResult_t API ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    BEGIN(comm, stream);
    return exchange(comm, from, count * width(type), to, count * width(type));
}

/* Sums, in the order of the ranks, so that all have the same bits. An operator from 16 on is a sum with a factor before
 * it, which torch asks for. */
static double factors[256];
static float of_bfloat16(uint16_t bits) { union { uint32_t bits; float value; } both = {(uint32_t)bits << 16}; return both.value; }
static uint16_t to_bfloat16(float value) {
    union { float value; uint32_t bits; } both = {value};
    if (value != value) return both.bits >> 16 | 64;
    return (both.bits + 0x7fff + (both.bits >> 16 & 1)) >> 16;
}
static double as_number(const void *value, ncclDataType_t type) {
    switch (type) {
    case ncclFloat16: return *(const _Float16 *)value;
    case ncclBfloat16: return of_bfloat16(*(const uint16_t *)value);
    case ncclFloat32: return *(const float *)value;
    case ncclFloat64: return *(const double *)value;
    default: return 1;
    }
}
ncclResult_t API ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *factor, ncclDataType_t type, ncclScalarResidence_t where, ncclComm_t comm) {
    static int last;
    int place = __atomic_fetch_add(&last, 1, __ATOMIC_SEQ_CST) % 256;
    factors[place] = as_number(factor, type);
    *op = (ncclRedOp_t)(16 + place);
    return ncclSuccess;
}
ncclResult_t API ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) { return ncclSuccess; }

#define SAME(x) (x)
#define REDUCE(type, wide, get, put) \
    for (size_t at = 0; at < count; at++) { \
        wide sum = 0; \
        for (int rank = 0; rank < num_ranks; rank++) { \
            wide value = get(((const type *)from)[rank * count + at]); \
            if (op >= 16) value *= factor; \
            if (!rank) sum = value; \
            else sum = op == ncclMax ? (value > sum ? value : sum) : op == ncclMin ? (value < sum ? value : sum) : op == ncclProd ? sum * value : sum + value; \
        } \
        ((type *)to)[at] = put(op == ncclAvg ? sum / num_ranks : sum); \
    } \
    break;
static void reduce(void *to, const void *from, size_t count, int num_ranks, ncclDataType_t type, int op) {
    double factor = op >= 16 ? factors[op - 16] : 1;
    switch (type) {
    case ncclInt8: REDUCE(int8_t, int, SAME, SAME)
    case ncclUint8: REDUCE(uint8_t, unsigned, SAME, SAME)
    case ncclInt32: REDUCE(int32_t, int64_t, SAME, SAME)
    case ncclUint32: REDUCE(uint32_t, uint64_t, SAME, SAME)
    case ncclInt64: REDUCE(int64_t, int64_t, SAME, SAME)
    case ncclUint64: REDUCE(uint64_t, uint64_t, SAME, SAME)
    case ncclFloat16: REDUCE(_Float16, float, SAME, SAME)
    case ncclFloat32: REDUCE(float, float, SAME, SAME)
    case ncclFloat64: REDUCE(double, double, SAME, SAME)
    case ncclBfloat16: REDUCE(uint16_t, float, of_bfloat16, to_bfloat16)
    default: fprintf(stderr, "null NCCL: no sum of type %d\n", type); abort();
    }
}
ncclResult_t API ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    BEGIN(comm, stream);
    size_t size = count * width(type);
    char *all = malloc(size * comm->size + 1);
    ncclResult_t found = exchange(comm, from, 0, all, size);
    if (!found) reduce(to, all, count, comm->size, type, op);
    free(all);
    return found;
}
ncclResult_t API ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    char *unused = comm->rank == root ? to : malloc(count * width(type) + 1);
    ncclResult_t found = ncclAllReduce(from, unused, count, type, op, comm, stream);
    if (unused != to) free(unused);
    return found;
}
ncclResult_t API ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    BEGIN(comm, stream);
    size_t size = count * width(type);
    char *all = malloc(size * comm->size + 1);
    ncclResult_t found = exchange(comm, from, size, all, size);
    if (!found) reduce(to, all, count, comm->size, type, op);
    free(all);
    return found;
}

/* Point to point: all of a group of calls goes together */
#define MOST_PARTS 1024
static __thread Part grouped[MOST_PARTS];
static __thread Comm *group_of[MOST_PARTS];
static __thread int num_grouped, depth;
static ncclResult_t flush(void) {
    ncclResult_t found = ncclSuccess;
    while (num_grouped && !found) { /* those of one communicator after the other */
        Part parts[MOST_PARTS];
        Comm *comm = group_of[0];
        int num_parts = 0, num_left = 0;
        for (int place = 0; place < num_grouped; place++) {
            if (group_of[place] == comm) {
                parts[num_parts++] = grouped[place];
                continue;
            }
            grouped[num_left] = grouped[place];
            group_of[num_left++] = group_of[place];
        }
        num_grouped = num_left;
        found = transfer(comm, parts, num_parts);
    }
    num_grouped = 0;
    return found;
}
static ncclResult_t put(int sends, void *bytes, size_t count, ncclDataType_t type, int peer, Comm *comm, cudaStream_t stream) {
    BEGIN(comm, stream);
    if (num_grouped == MOST_PARTS) return ncclInternalError;
    grouped[num_grouped] = (Part){peer, sends, bytes, count * width(type)};
    group_of[num_grouped++] = comm;
    return depth ? ncclSuccess : flush();
}
ncclResult_t API ncclGroupStart(void) { depth++; return ncclSuccess; }
ncclResult_t API ncclGroupEnd(void) { return --depth ? ncclSuccess : flush(); }
ncclResult_t API ncclSend(const void *bytes, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) { return put(1, (void *)bytes, count, type, peer, comm, stream); }
ncclResult_t API ncclRecv(void *bytes, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) { return put(0, bytes, count, type, peer, comm, stream); }

/* A part of a group: who has the same color, by key. The lowest of them makes the id. */
ncclResult_t API ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *found, ncclConfig_t *config) {
    struct { int color, key; Id id; } own = {color, key}, all[MOST_MEMBERS];
    BEGIN(comm, NULL);
    ncclUniqueId unique;
    ncclResult_t result = ncclGetUniqueId(&unique);
    own.id = *(Id *)&unique;
    if (!result) result = exchange(comm, (char *)&own, 0, (char *)all, sizeof own);
    if (result) return result;
    *found = NULL;
    if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    int rank = 0, size = 0, first = -1;
    for (int member = 0; member < comm->size; member++) {
        if (all[member].color != color) continue;
        if (first < 0) first = member;
        size++;
        rank += all[member].key < key || (all[member].key == key && member < comm->rank);
    }
    return join(found, size, &all[first].id, rank, config);
}

/* State, and the end */
ncclResult_t API ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *found) { *found = comm->aborted ? ncclRemoteError : comm->state; return ncclSuccess; }
static ncclResult_t leave(Comm *comm) {
    comm->aborted = 1;
    for (int peer = 0; peer < comm->size; peer++)
        if (comm->peers[peer] >= 0) shutdown(comm->peers[peer], SHUT_RDWR);
    return ncclSuccess; /* its memory stays: a call of another thread may still look at it */
}
ncclResult_t API ncclCommAbort(ncclComm_t comm) { null_note("aborts a group"); return leave(comm); }
ncclResult_t API ncclCommDestroy(ncclComm_t comm) { return leave(comm); }
ncclResult_t API ncclCommFinalize(ncclComm_t comm) { return ncclSuccess; }
ncclResult_t API ncclCommCount(const ncclComm_t comm, int *count) { *count = comm->size; return ncclSuccess; }
ncclResult_t API ncclCommUserRank(const ncclComm_t comm, int *rank) { *rank = comm->rank; return ncclSuccess; }
ncclResult_t API ncclCommCuDevice(const ncclComm_t comm, int *device) { *device = comm->device; return ncclSuccess; }
ncclResult_t API ncclGetVersion(int *version) { *version = NCCL_VERSION_CODE; return ncclSuccess; }
const char API *ncclGetErrorString(ncclResult_t result) { return result == ncclInProgress ? "in progress" : result ? "a peer is gone, or the group was aborted" : "no error"; }
const char API *ncclGetLastError(ncclComm_t comm) { return ""; }
ncclResult_t API ncclMemAlloc(void **address, size_t num_bytes) { return cudaMalloc(address, num_bytes) ? ncclUnhandledCudaError : ncclSuccess; }
ncclResult_t API ncclMemFree(void *address) { return cudaFree(address) ? ncclUnhandledCudaError : ncclSuccess; }
