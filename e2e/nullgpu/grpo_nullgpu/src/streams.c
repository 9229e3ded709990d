/* Streams and events: copies and fills, at once, or with NULL_GPU_DELAY when their stream is waited for.
 *
 * With the delay, who reads the result of an asynchronous copy without waiting for it reads old bytes, and who
 * overwrites its source too early sends new ones. As on a GPU, a copy from memory that is not pinned has read all
 * of it when the call returns, and one into such memory is done by then.
 *
 * NULL_GPU_HANG=stream:N   the Nth wait for a stream, from 1, does not return
 */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern cudaError_t null_fail(cudaError_t error);

typedef struct Event Event;
typedef struct Act {
    struct Act *next;
    null_act act;
    void *to;
    const void *from;
    size_t num_bytes;
    int value;
    void *owned;         /* a copy of what is read, to be given back */
    Event *until;        /* or: first do what this event stands for */
    long until_number;
} Act;

typedef struct Stream {
    struct Stream *next;
    Act *first, **last;
    long num_asked, num_done;
} Stream;

struct Event {
    Stream *stream;
    long number; /* so many acts of the stream come before it */
};

static Stream *streams;        /* none ever goes: what is asked of one that was destroyed is still done */
static Stream of_default;      /* stream 0, and the one of each thread */
static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void prepare(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &attributes);
    of_default.last = &of_default.first;
    streams = &of_default;
}

static Stream *stream_of(void *handle) {
    pthread_once(&once, prepare);
    return (size_t)handle <= 2 ? &of_default : handle;
}

int null_is_delayed(void) {
    const char *delay = getenv("NULL_GPU_DELAY");
    return delay && *delay && *delay != '0';
}

static void run_until(Stream *stream, long number) {
    while (stream->first && stream->num_done < number) {
        Act *act = stream->first;
        stream->first = act->next;
        if (!stream->first) stream->last = &stream->first;
        stream->num_done++;
        if (act->until) run_until(act->until->stream, act->until_number);
        else act->act(act->to, act->from, act->num_bytes, act->value);
        free(act->owned);
        free(act);
    }
}

static void ask(Stream *stream, Act wanted) {
    Act *act = malloc(sizeof *act);
    *act = wanted;
    *stream->last = act;
    stream->last = &act->next;
    stream->num_asked++;
}

void null_enqueue(void *handle, null_act act, void *to, const void *from, size_t num_bytes, int value) {
    null_make_context(null_current());
    Stream *stream = stream_of(handle);
    pthread_mutex_lock(&lock);
    int reads_pageable = from && !null_is_pinned(from) && !null_is_of_device(from);
    int writes_pageable = !null_is_pinned(to) && !null_is_of_device(to);
    Act wanted = {.act = act, .to = to, .from = from, .num_bytes = num_bytes, .value = value};
    if (null_is_delayed() && reads_pageable && !writes_pageable) wanted.from = wanted.owned = memcpy(malloc(num_bytes + 1), from, num_bytes);
    ask(stream, wanted);
    if (!null_is_delayed() || writes_pageable) run_until(stream, stream->num_asked);
    pthread_mutex_unlock(&lock);
}

void null_run(void *handle) {
    Stream *stream = stream_of(handle);
    pthread_mutex_lock(&lock);
    run_until(stream, stream->num_asked);
    pthread_mutex_unlock(&lock);
}

void null_run_all(void) {
    stream_of(NULL);
    pthread_mutex_lock(&lock);
    for (Stream *stream = streams; stream; stream = stream->next) run_until(stream, stream->num_asked);
    pthread_mutex_unlock(&lock);
}

static void hang_if_told(void) {
    static long num_waits;
    const char *told = getenv("NULL_GPU_HANG");
    if (!told || strncmp(told, "stream:", 7)) return;
    if (__atomic_add_fetch(&num_waits, 1, __ATOMIC_SEQ_CST) != atol(told + 7)) return;
    null_note("hangs in a stream");
    for (;;) pause();
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *found, unsigned flags, int priority) {
    null_make_context(null_current());
    stream_of(NULL);
    Stream *stream = calloc(1, sizeof *stream);
    stream->last = &stream->first;
    pthread_mutex_lock(&lock);
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&lock);
    *found = (cudaStream_t)stream;
    return cudaSuccess;
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *found, unsigned flags) { return cudaStreamCreateWithPriority(found, flags, 0); }
API cudaError_t cudaStreamCreate(cudaStream_t *found) { return cudaStreamCreateWithPriority(found, 0, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; return cudaSuccess; }

API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    null_make_context(null_current());
    hang_if_told();
    null_run(stream);
    return cudaSuccess;
}

API cudaError_t cudaDeviceSynchronize(void) {
    null_make_context(null_current());
    hang_if_told();
    null_run_all();
    return cudaSuccess;
}

/* Whether it is done: with the delay it is not before somebody has waited, except that who asks often may continue. */
API cudaError_t cudaStreamQuery(cudaStream_t handle) {
    Stream *stream = stream_of(handle);
    static __thread int num_asked;
    if (stream->num_done == stream->num_asked) return cudaSuccess;
    if (++num_asked % 50) return cudaErrorNotReady; /* no error: it is not remembered */
    null_run(handle);
    return cudaSuccess;
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *found, unsigned flags) {
    null_make_context(null_current());
    /* so long that other threads continue meanwhile, as they do beside a real one */
    if (flags & cudaEventInterprocess) usleep(100);
    *found = (cudaEvent_t)calloc(1, sizeof(Event));
    return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t *found) { return cudaEventCreateWithFlags(found, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) { return cudaSuccess; } /* a stream may still wait for it */

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned flags) {
    Event *event = (Event *)handle;
    event->stream = stream_of(stream);
    event->number = event->stream->num_asked;
    return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }

static void run_event(Event *event) {
    if (!event->stream) return;
    pthread_mutex_lock(&lock);
    run_until(event->stream, event->number);
    pthread_mutex_unlock(&lock);
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    hang_if_told();
    run_event((Event *)event);
    return cudaSuccess;
}

API cudaError_t cudaEventQuery(cudaEvent_t handle) {
    Event *event = (Event *)handle;
    static __thread int num_asked;
    if (!event->stream || event->stream->num_done >= event->number) return cudaSuccess;
    if (++num_asked % 50) return cudaErrorNotReady;
    run_event(event);
    return cudaSuccess;
}

/* For another process: what comes before is done, as nobody there could ask for it. */
API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
    run_event((Event *)event);
    memset(handle, 0, sizeof *handle);
    return cudaSuccess;
}
API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) { return cudaEventCreate(event); }

API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) { *milliseconds = 0.01f; return cudaSuccess; }

API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    Event *until = (Event *)event;
    Stream *stream = stream_of(handle);
    if (!until->stream || until->stream == stream || !null_is_delayed()) return cudaSuccess;
    pthread_mutex_lock(&lock);
    ask(stream, (Act){.until = until, .until_number = until->number});
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static void call(void *function, const void *given, size_t is_callback, int value) {
    if (is_callback) ((cudaStreamCallback_t)function)(NULL, cudaSuccess, (void *)given);
    else ((cudaHostFn_t)function)((void *)given);
}

static void enqueue_call(cudaStream_t handle, void *function, void *given, int is_callback) {
    Stream *stream = stream_of(handle);
    pthread_mutex_lock(&lock);
    ask(stream, (Act){.act = call, .to = function, .from = given, .num_bytes = is_callback});
    if (!null_is_delayed()) run_until(stream, stream->num_asked);
    pthread_mutex_unlock(&lock);
}
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *given, unsigned flags) { enqueue_call(stream, callback, given, 1); return cudaSuccess; }
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *given) { enqueue_call(stream, function, given, 0); return cudaSuccess; }

/* Copies and fills */
static void copy(void *to, const void *from, size_t num_bytes, int value) { memmove(to, from, num_bytes); }
static void fill(void *to, const void *from, size_t num_bytes, int value) { memset(to, value, num_bytes); }

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t num_bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    null_enqueue(stream, copy, to, from, num_bytes, 0);
    return cudaSuccess;
}
API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t num_bytes, cudaStream_t stream) {
    null_enqueue(stream, copy, to, from, num_bytes, 0);
    return cudaSuccess;
}
API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    for (size_t row = 0; row < height; row++) null_enqueue(stream, copy, (char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, 0);
    return cudaSuccess;
}
API cudaError_t cudaMemcpy(void *to, const void *from, size_t num_bytes, enum cudaMemcpyKind kind) {
    null_make_context(null_current());
    null_run_all();
    memmove(to, from, num_bytes);
    return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void *to, int value, size_t num_bytes, cudaStream_t stream) {
    null_enqueue(stream, fill, to, NULL, num_bytes, value);
    return cudaSuccess;
}
API cudaError_t cudaMemset(void *to, int value, size_t num_bytes) { return cudaMemsetAsync(to, value, num_bytes, NULL); }
