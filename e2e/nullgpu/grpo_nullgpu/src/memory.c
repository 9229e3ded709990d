/* Memory of the device, pinned memory of the host, and handles to the former for other processes. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum kind { NONE, DEVICE, PINNED, REGISTERED, OF_OTHERS };

typedef struct {
    char *start;
    size_t num_bytes;
    enum kind kind;
    int file, device;
} Block;

#define MOST_BLOCKS (1 << 14)
static Block blocks[MOST_BLOCKS];
static int num_blocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

extern cudaError_t null_fail(cudaError_t error);

static void remember(Block block) {
    pthread_mutex_lock(&lock);
    int place = 0;
    while (place < num_blocks && blocks[place].kind) place++;
    if (place == MOST_BLOCKS) __builtin_trap();
    if (place == num_blocks) num_blocks++;
    blocks[place] = block;
    pthread_mutex_unlock(&lock);
}

static int holds(const Block *block, const char *address) {
    return block->kind && block->start <= address && address < block->start + block->num_bytes;
}

/* The block of an address; that of kind NONE for any other memory. */
static Block find(const void *address) {
    Block found = {0};
    pthread_mutex_lock(&lock);
    for (int place = 0; place < num_blocks && !found.kind; place++)
        if (holds(&blocks[place], address)) found = blocks[place];
    pthread_mutex_unlock(&lock);
    return found;
}

/* The same, and forget it, if it begins there and is of one of two kinds. */
static Block take(const void *start, enum kind kind, enum kind other) {
    Block found = {0};
    pthread_mutex_lock(&lock);
    for (int place = 0; place < num_blocks && !found.kind; place++) {
        Block *block = &blocks[place];
        if (block->start == start && (block->kind == kind || block->kind == other)) {
            found = *block;
            block->kind = NONE;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

int null_is_pinned(const void *address) {
    enum kind kind = find(address).kind;
    return kind == PINNED || kind == REGISTERED;
}

int null_is_of_device(const void *address) {
    enum kind kind = find(address).kind;
    return kind == DEVICE || kind == OF_OTHERS;
}

static size_t whole_pages(size_t num_bytes, size_t page) { return (num_bytes + page - 1) / page * page; }

static void *map(int file, size_t num_bytes) {
    void *found = mmap(NULL, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    return found == MAP_FAILED ? NULL : found;
}

API cudaError_t cudaMalloc(void **address, size_t num_bytes) {
    int device = null_current();
    null_make_context(device);
    size_t size = whole_pages(num_bytes ? num_bytes : 1, PAGE_BYTES);
    if (null_take(device, size)) return null_fail(cudaErrorMemoryAllocation);
    int file = memfd_create("null-gpu-memory", 0); /* zeroes, which commit nothing before they are written */
    if (file < 0 || ftruncate(file, size) || !(*address = map(file, size))) return null_fail(cudaErrorMemoryAllocation);
    remember((Block){*address, size, DEVICE, file, device});
    return cudaSuccess;
}

API cudaError_t cudaFree(void *address) {
    if (!address) return cudaSuccess;
    null_run_all(); /* it waits for the device */
    Block block = take(address, DEVICE, OF_OTHERS);
    if (!block.kind) return null_fail(cudaErrorInvalidValue);
    munmap(block.start, block.num_bytes);
    close(block.file);
    if (block.kind == DEVICE) null_give_back(block.device, block.num_bytes);
    return cudaSuccess;
}

API cudaError_t cudaMallocAsync(void **address, size_t num_bytes, cudaStream_t stream) { return cudaMalloc(address, num_bytes); }
API cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) { return cudaFree(address); }

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    null_make_context(null_current());
    *total_bytes = null_total_bytes();
    *free_bytes = null_free_bytes(null_current());
    return cudaSuccess;
}

API cudaError_t cudaHostAlloc(void **address, size_t num_bytes, unsigned flags) {
    null_make_context(null_current());
    size_t size = whole_pages(num_bytes ? num_bytes : 1, 4096);
    *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*address == MAP_FAILED) return null_fail(cudaErrorMemoryAllocation);
    remember((Block){*address, size, PINNED, -1, null_current()});
    return cudaSuccess;
}

API cudaError_t cudaFreeHost(void *address) {
    if (!address) return cudaSuccess;
    null_run_all();
    Block block = take(address, PINNED, PINNED);
    if (!block.kind) return null_fail(cudaErrorInvalidValue);
    munmap(block.start, block.num_bytes);
    return cudaSuccess;
}

API cudaError_t cudaHostRegister(void *address, size_t num_bytes, unsigned flags) {
    null_make_context(null_current());
    if (find(address).kind) return null_fail(cudaErrorHostMemoryAlreadyRegistered);
    remember((Block){address, num_bytes, REGISTERED, -1, null_current()});
    return cudaSuccess;
}

API cudaError_t cudaHostUnregister(void *address) {
    null_make_context(null_current());
    null_run_all();
    return take(address, REGISTERED, REGISTERED).kind ? cudaSuccess : null_fail(cudaErrorHostMemoryNotRegistered);
}

API cudaError_t cudaHostGetDevicePointer(void **found, void *address, unsigned flags) {
    *found = address;
    return cudaSuccess;
}

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *address) {
    Block block = find(address);
    int is_of_device = block.kind == DEVICE || block.kind == OF_OTHERS;
    memset(found, 0, sizeof *found);
    found->type = is_of_device ? cudaMemoryTypeDevice : block.kind ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    found->device = block.kind ? block.device : -1;
    found->devicePointer = block.kind ? (void *)address : NULL;
    found->hostPointer = block.kind && !is_of_device ? (void *)address : NULL;
    return cudaSuccess;
}

/* Handles: the memory's file, as the kernel names it for other processes of the same user. */
typedef struct {
    int pid, file, physical;
    size_t num_bytes;
} Handle;
_Static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t), "a handle is a handle");

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address) {
    Block block = find(address);
    if (block.kind != DEVICE) return null_fail(cudaErrorInvalidValue); /* such as that of expandable segments */
    memset(handle, 0, sizeof *handle);
    *(Handle *)handle = (Handle){getpid(), block.file, null_physical(block.device), block.num_bytes};
    return cudaSuccess;
}

API cudaError_t cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t opaque, unsigned flags) {
    null_make_context(null_current());
    Handle *handle = (Handle *)&opaque;
    if (handle->pid == getpid()) return null_fail(cudaErrorDeviceUninitialized); /* as on a GPU: its own cannot be opened */
    int device = null_current();
    for (int other = 0; other < null_num_devices(); other++)
        if (null_physical(other) == handle->physical) device = other; /* of another device too, with peer access */
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/fd/%d", handle->pid, handle->file);
    int file = open(name, O_RDWR);
    if (file < 0 || !(*address = map(file, handle->num_bytes))) return null_fail(cudaErrorInvalidResourceHandle);
    remember((Block){*address, handle->num_bytes, OF_OTHERS, file, device});
    null_note("opened a handle");
    return cudaSuccess;
}

API cudaError_t cudaIpcCloseMemHandle(void *address) { return cudaFree(address); }
