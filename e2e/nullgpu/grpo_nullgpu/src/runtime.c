/* CUDA's runtime beside memory and streams: devices, errors, kernels, which are not run, and graphs. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static __thread cudaError_t last_error;

cudaError_t null_fail(cudaError_t error) { return last_error = error; }

API cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
API cudaError_t cudaPeekAtLastError(void) { return last_error; }
API const char *cudaGetErrorName(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "an error of the null GPU"; }
API const char *cudaGetErrorString(cudaError_t error) {
    static __thread char text[60];
    if (error == cudaErrorMemoryAllocation) return "out of memory";
    snprintf(text, sizeof text, "error %d of the null GPU", error);
    return error ? text : "no error";
}

/* Devices */
API cudaError_t cudaGetDeviceCount(int *count) {
    *count = null_num_devices();
    return *count ? cudaSuccess : null_fail(cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int *device) { *device = null_current(); return cudaSuccess; }
API cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= null_num_devices()) return null_fail(cudaErrorInvalidDevice);
    null_set_current(device);
    null_make_context(device); /* since CUDA 12 */
    return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = device != peer; return cudaSuccess; }
API cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
    snprintf(id, length, "0000:%02x:00.0", null_physical(device) + 1);
    return cudaSuccess;
}

/* Those of an H100; what is not here is 0. */
static const struct { enum cudaDeviceAttr name; int value; } attributes[] = {
    {cudaDevAttrMultiProcessorCount, 132}, {cudaDevAttrComputeCapabilityMajor, 9}, {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152}, {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472}, {cudaDevAttrWarpSize, 32}, {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrMaxRegistersPerBlock, 65536}, {cudaDevAttrMaxRegistersPerMultiprocessor, 65536}, {cudaDevAttrClockRate, 1980000},
    {cudaDevAttrMemoryClockRate, 2619000}, {cudaDevAttrGlobalMemoryBusWidth, 5120}, {cudaDevAttrL2CacheSize, 52428800},
    {cudaDevAttrMaxGridDimX, 2147483647}, {cudaDevAttrMaxGridDimY, 65535}, {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxBlockDimX, 1024}, {cudaDevAttrMaxBlockDimY, 1024}, {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrCooperativeLaunch, 1}, {cudaDevAttrUnifiedAddressing, 1}, {cudaDevAttrConcurrentKernels, 1},
};
API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr name, int device) {
    *value = 0;
    for (size_t place = 0; place < sizeof attributes / sizeof *attributes; place++)
        if (attributes[place].name == name) *value = attributes[place].value;
    return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    *found = (struct cudaDeviceProp){
        .totalGlobalMem = null_total_bytes(), .sharedMemPerBlock = 49152, .regsPerBlock = 65536, .warpSize = 32,
        .maxThreadsPerBlock = 1024, .maxThreadsDim = {1024, 1024, 64}, .maxGridSize = {2147483647, 65535, 65535},
        .totalConstMem = 65536, .major = 9, .multiProcessorCount = 132, .unifiedAddressing = 1, .memoryBusWidth = 5120,
        .l2CacheSize = 52428800, .maxThreadsPerMultiProcessor = 2048, .sharedMemPerMultiprocessor = 233472,
        .regsPerMultiprocessor = 65536, .sharedMemPerBlockOptin = 232448, .pciBusID = null_physical(device) + 1,
        .cooperativeLaunch = 1, .maxBlocksPerMultiProcessor = 32,
    };
    strcpy(found->name, "null GPU (as an NVIDIA H100 80GB HBM3)");
    found->uuid.bytes[0] = 1;
    found->uuid.bytes[15] = null_physical(device);
    return cudaSuccess;
}

/* Kernels */
static cudaError_t launch(void) { null_make_context(null_current()); return cudaSuccess; }
API cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **given, size_t shared, cudaStream_t stream) { return launch(); }
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **given) { return launch(); }
API cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **given, size_t shared, cudaStream_t stream) { return launch(); }
API cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **given, size_t shared, cudaStream_t stream) { return launch(); }
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) { return 0; }
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = *block = (dim3){1, 1, 1};
    *shared = 0;
    *(void **)stream = NULL;
    return cudaSuccess;
}
API void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
API char __cudaInitModule(void **handle) { return 1; }
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) { *kernel = (cudaKernel_t)16; return cudaSuccess; }
API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
    *found = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024, .numRegs = 32, .binaryVersion = 90, .ptxVersion = 90, .maxDynamicSharedSizeBytes = 232448};
    return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads, size_t shared, unsigned flags) { *blocks = 2; return cudaSuccess; }
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) { *blocks = 2; return cudaSuccess; }
API cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) { static char zeroes[1 << 16]; *address = zeroes; return cudaSuccess; }

void *null_handle(void) {
    static long last = 4096;
    return (void *)__atomic_add_fetch(&last, 16, __ATOMIC_SEQ_CST);
}

/* Graphs: what is captured is not remembered, as it is kernels, which are not run */
static __thread cudaStream_t captured;
API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    if (!stream) return null_fail(cudaErrorStreamCaptureUnsupported);
    captured = stream;
    return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) { captured = NULL; *graph = null_handle(); return cudaSuccess; }
API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = stream && stream == captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count) {
    cudaStreamIsCapturing(stream, status);
    if (id) *id = *status != cudaStreamCaptureStatusNone;
    if (graph) *graph = (cudaGraph_t)16;
    if (nodes) *nodes = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *found, cudaGraph_t graph, unsigned long long flags) { *found = null_handle(); return cudaSuccess; }
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) { *count = 1; return cudaSuccess; }

/* The driver's functions, which torch asks for by name: the newer of two versions, NULL where there is none */
void *null_driver_function(const char *name) {
    static void *driver;
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return NULL;
    char newer[128];
    snprintf(newer, sizeof newer, "%s_v2", name);
    void *function = dlsym(driver, newer);
    return function ? function : dlsym(driver, name);
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    *function = null_driver_function(name);
    if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *function ? cudaSuccess : null_fail(cudaErrorSymbolNotFound);
}
