/* CUDA's driver, libcuda.so.1: contexts are the runtime's; virtual memory, of which sleep mode and expandable segments
 * are made; modules and kernels, which are not run. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

API CUresult cuInit(unsigned flags) { return null_num_devices() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
API CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
API CUresult cuGetErrorString(CUresult error, const char **text) { *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the null GPU"; return CUDA_SUCCESS; }
API CUresult cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }
API CUresult cuDeviceGetCount(int *count) { *count = null_num_devices(); return CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice *device, int number) { *device = number; return CUDA_SUCCESS; }
API CUresult cuDeviceGetName(char *name, int length, CUdevice device) { snprintf(name, length, "null GPU"); return CUDA_SUCCESS; }
API CUresult cuDeviceTotalMem_v2(size_t *num_bytes, CUdevice device) { *num_bytes = null_total_bytes(); return CUDA_SUCCESS; }
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[0] = 1;
    uuid->bytes[15] = null_physical(device);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute name, CUdevice device) {
    switch (name) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 49152; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

/* Context d + 1 is the primary one of device d. */
static __thread long pushed;
API CUresult cuCtxGetCurrent(CUcontext *context) {
    int device = null_current();
    *context = (CUcontext)(pushed ? pushed : null_has_context(device) ? device + 1 : 0);
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
    pushed = (long)context;
    if (pushed) null_set_current(pushed - 1);
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *device) { *device = pushed ? pushed - 1 : null_current(); return CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
    if (flags) *flags = 0;
    *is_active = null_has_context(device);
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    null_make_context(device);
    *context = (CUcontext)(long)(device + 1);
    return CUDA_SUCCESS;
}

/* Virtual memory: an address range without memory, and memory that is mapped there */
typedef struct { int file, device; size_t num_bytes; } Memory;
API CUresult cuMemGetAllocationGranularity(size_t *found, const CUmemAllocationProp *wanted, CUmemAllocationGranularity_flags flags) { *found = PAGE_BYTES; return CUDA_SUCCESS; }
API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t num_bytes, size_t alignment, CUdeviceptr near, unsigned long long flags) {
    char *found = mmap(NULL, num_bytes + PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = ((CUdeviceptr)found + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    return CUDA_SUCCESS;
}
API CUresult cuMemAddressFree(CUdeviceptr address, size_t num_bytes) { munmap((void *)address, num_bytes); return CUDA_SUCCESS; }
API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t num_bytes, const CUmemAllocationProp *wanted, unsigned long long flags) {
    int device = wanted->location.id;
    if (null_take(device, num_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    Memory *memory = malloc(sizeof *memory);
    *memory = (Memory){memfd_create("null-gpu-memory", 0), device, num_bytes};
    if (memory->file < 0 || ftruncate(memory->file, num_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUmemGenericAllocationHandle)memory;
    return CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr address, size_t num_bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    Memory *memory = (Memory *)handle;
    void *found = mmap((void *)address, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, memory->file, offset);
    return found == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr address, size_t num_bytes) {
    mmap((void *)address, num_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    return CUDA_SUCCESS;
}
/* for another process, which takes the file over from this one */
API CUresult cuMemExportToShareableHandle(void *found, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    *(int *)found = dup(((Memory *)handle)->file);
    return CUDA_SUCCESS;
}
API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *given, CUmemAllocationHandleType type) {
    Memory *memory = malloc(sizeof *memory);
    *memory = (Memory){dup((int)(long)given), null_current(), 0}; /* the other process has taken it */
    *handle = (CUmemGenericAllocationHandle)memory;
    return memory->file < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    Memory *memory = (Memory *)handle;
    close(memory->file);
    null_give_back(memory->device, memory->num_bytes);
    free(memory);
    return CUDA_SUCCESS;
}
API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = null_total_bytes();
    *free_bytes = null_free_bytes(null_current());
    return CUDA_SUCCESS;
}
API CUresult cuPointerGetAttribute(void *found, CUpointer_attribute name, CUdeviceptr address) {
    if (name == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *(CUdeviceptr *)found = address;
    else *(int *)found = name == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE : 0;
    return CUDA_SUCCESS;
}

/* NVIDIA's own runtime asks for these when somebody calls it, past the one here: it is told that it cannot start */
API CUresult cuGetExportTable(const void **table, const CUuuid *id) { *table = NULL; return CUDA_ERROR_NOT_FOUND; }

/* Modules and kernels */
API CUresult cuModuleLoadData(CUmodule *module, const void *image) { *module = null_handle(); return CUDA_SUCCESS; }
API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) { *module = null_handle(); return CUDA_SUCCESS; }
API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) { *function = null_handle(); return CUDA_SUCCESS; }
API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *a, void **b, unsigned c, CUlibraryOption *d, void **e, unsigned f) { *library = null_handle(); return CUDA_SUCCESS; }
API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) { *kernel = null_handle(); return CUDA_SUCCESS; }
API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute name, CUfunction function) { *value = name == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 32; return CUDA_SUCCESS; }
API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *result) {
    *function = null_driver_function(name);
    if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
