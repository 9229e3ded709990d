/* Devices, contexts, and the account of their memory over all processes of a job.
 *
 * NULL_GPUS          how many devices the machine has (1)
 * NULL_GPU_GIB       memory of each (8)
 * NULL_GPU_ACCOUNT   file with the bytes that each process has in use on each device; all of a job have the same
 * NULL_GPU_LOG       file with a line for each context, opened handle and communicator
 * NULL_GPU_TRACE     with it: the Python stack behind each line
 */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static __thread int current;
static int has_context[MOST_DEVICES];
static pid_t owner; /* the process that made the first context */

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* CUDA_VISIBLE_DEVICES is a list of numbers. */
int null_num_devices(void) {
    int on_machine = number("NULL_GPUS", 1);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible) return on_machine;
    if (!*visible) return 0;
    int listed = 1;
    for (const char *at = visible; *at; at++) listed += *at == ',';
    return listed < on_machine ? listed : on_machine;
}

int null_physical(int device) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible || !*visible) return device;
    while (device-- > 0 && (visible = strchr(visible, ','))) visible++;
    return visible ? atoi(visible) : 0;
}

size_t null_total_bytes(void) { return (size_t)number("NULL_GPU_GIB", 8) << 30; }

/* What a process has in use. One that has ended has nothing, however it did. */
#define MOST_PROCESSES 256
typedef struct { pid_t pid; int64_t used[MOST_DEVICES]; } Account;

static Account *accounts(void) {
    static Account *shared;
    if (shared) return shared;
    const char *name = getenv("NULL_GPU_ACCOUNT");
    int file = name ? open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600) : memfd_create("null-gpu-account", 0);
    size_t size = MOST_PROCESSES * sizeof *shared;
    if (file < 0 || ftruncate(file, size)) abort();
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found == MAP_FAILED) abort();
    close(file);
    return shared = found;
}

static int is_alive(pid_t pid) { return pid && (kill(pid, 0) == 0 || errno == EPERM); }

static Account *own_account(void) {
    static __thread Account *own; /* of each thread, so that a fork looks again */
    if (own && own->pid == getpid()) return own;
    for (Account *each = accounts(); each < accounts() + MOST_PROCESSES; each++)
        if (each->pid == getpid()) return own = each;
    for (Account *each = accounts(); each < accounts() + MOST_PROCESSES; each++) {
        pid_t before = each->pid;
        if (is_alive(before) || !__atomic_compare_exchange_n(&each->pid, &before, getpid(), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) continue;
        memset(each->used, 0, sizeof each->used);
        return own = each;
    }
    abort();
}

size_t null_used_bytes(int device) {
    int64_t used = 0;
    for (Account *each = accounts(); each < accounts() + MOST_PROCESSES; each++)
        if (is_alive(each->pid)) used += __atomic_load_n(&each->used[null_physical(device)], __ATOMIC_SEQ_CST);
    return used;
}

size_t null_free_bytes(int device) {
    size_t used = null_used_bytes(device), total = null_total_bytes();
    return used < total ? total - used : 0; /* a test may have more in use than there is */
}

int null_take(int device, size_t num_bytes) {
    int64_t *used = &own_account()->used[null_physical(device)];
    __atomic_add_fetch(used, num_bytes, __ATOMIC_SEQ_CST);
    if (null_used_bytes(device) <= null_total_bytes()) return 0;
    __atomic_sub_fetch(used, num_bytes, __ATOMIC_SEQ_CST);
    return 1;
}

void null_give_back(int device, size_t num_bytes) {
    __atomic_sub_fetch(&own_account()->used[null_physical(device)], num_bytes, __ATOMIC_SEQ_CST);
}

int null_current(void) { return current; }
void null_set_current(int device) { current = device; }
int null_has_context(int device) { return has_context[device] && owner == getpid(); }

void null_require_not_forked(void) {
    if (!owner || owner == getpid()) return;
    fprintf(stderr, "null GPU: CUDA is used in a fork of a process that has a context\n");
    null_note("used in a fork");
    abort();
}

void null_make_context(int device) {
    null_require_not_forked();
    if (has_context[device]) return;
    owner = getpid();
    has_context[device] = 1;
    null_note("context");
}

void null_note(const char *what) {
    const char *name = getenv("NULL_GPU_LOG");
    if (!name) return;
    char thread[17] = {0}, line[300];
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    int length = snprintf(line, sizeof line, "%d %s device %d: %s\n", getpid(), thread, null_physical(current), what);
    int file = open(name, O_CREAT | O_APPEND | O_WRONLY, 0600);
    if (file < 0 || write(file, line, length) < 0) perror("null GPU: the log");
    void (*dump)(int, void *) = dlsym(RTLD_DEFAULT, "_Py_DumpTraceback");
    void *(*state)(void) = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    if (getenv("NULL_GPU_TRACE") && dump && state && state()) dump(file, state());
    close(file);
}
