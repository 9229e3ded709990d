/* NVML, libnvidia-ml.so.1: it numbers devices as the machine does, and makes no context. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_FOUND = 2, NOT_SUPPORTED = 3 };
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } NewerMemory;
typedef struct { char legacy[16]; unsigned domain, bus, device, vendor, subsystem; char id[32]; } Pci;
typedef long Device; /* a pointer to callers: the number and one */

static int num_devices(void) { const char *text = getenv("NULL_GPUS"); return text ? atoi(text) : 1; }
/* the account is by the number on the machine, so without CUDA_VISIBLE_DEVICES */
static size_t used(Device device) {
    for (int visible = 0; visible < null_num_devices(); visible++)
        if (null_physical(visible) == device - 1) return null_total_bytes() - null_free_bytes(visible);
    return 0;
}
API int nvmlInit_v2(void) { return num_devices() ? 0 : 9; }
API int nvmlInit(void) { return nvmlInit_v2(); }
API int nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }
API int nvmlShutdown(void) { return 0; }
API const char *nvmlErrorString(int error) { return error ? "not supported by the null GPU" : "success"; }
API int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "580.0-null"); return 0; }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
API int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return 0; }
API int nvmlDeviceGetCount_v2(unsigned *count) { *count = num_devices(); return 0; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned number, Device *device) { *device = number + 1; return number < (unsigned)num_devices() ? 0 : NOT_FOUND; }
API int nvmlDeviceGetIndex(Device device, unsigned *number) { *number = device - 1; return 0; }
API int nvmlDeviceGetName(Device device, char *name, unsigned length) { snprintf(name, length, "null GPU (as an NVIDIA H100 80GB HBM3)"); return 0; }
API int nvmlDeviceGetUUID(Device device, char *text, unsigned length) { snprintf(text, length, "GPU-01000000-0000-0000-0000-%012lx", device - 1); return 0; }
API int nvmlDeviceGetHandleByUUID(const char *text, Device *device) { return nvmlDeviceGetHandleByIndex_v2(strtoul(text + strlen(text) - 4, NULL, 16), device); }
API int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
API int nvmlDeviceGetMemoryInfo(Device device, Memory *found) {
    *found = (Memory){null_total_bytes(), null_total_bytes() - used(device), used(device)};
    return 0;
}
API int nvmlDeviceGetMemoryInfo_v2(Device device, NewerMemory *found) {
    *found = (NewerMemory){found->version, null_total_bytes(), 0, null_total_bytes() - used(device), used(device)};
    return 0;
}
API int nvmlDeviceGetPciInfo_v3(Device device, Pci *found) {
    memset(found, 0, sizeof *found);
    found->bus = device;
    snprintf(found->id, sizeof found->id, "00000000:%02lX:00.0", device);
    return 0;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, Device *device) {
    unsigned domain, bus = 0;
    sscanf(text, "%x:%x", &domain, &bus);
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}
API int nvmlDeviceGetP2PStatus(Device device, Device peer, int index, int *status) { *status = 0; return 0; }
API int nvmlDeviceGetComputeRunningProcesses(Device device, unsigned *count, void *found) { *count = 0; return 0; }
API int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, void *found) { *count = 0; return 0; }

API int nvmlDeviceGetGpuFabricInfoV(Device device, void *found) { return 0; } /* its state stays 0: there is none */

/* Not supported, as on many a machine: MIG, fabrics, NVLink, confidential computing */
#define ABSENT(name) API int name(void) { return NOT_SUPPORTED; }
ABSENT(nvmlDeviceGetMigMode)
ABSENT(nvmlDeviceGetMaxMigDeviceCount)
ABSENT(nvmlDeviceGetGpuInstanceId)
ABSENT(nvmlDeviceGetGpuFabricInfo)
ABSENT(nvmlDeviceGetNvLinkState)
ABSENT(nvmlDeviceGetNvLinkCapability)
ABSENT(nvmlDeviceGetNvLinkRemoteDeviceType)
ABSENT(nvmlDeviceGetNvLinkRemotePciInfo_v2)
ABSENT(nvmlDeviceGetCpuAffinity)
ABSENT(nvmlDeviceGetFieldValues)
ABSENT(nvmlSystemGetConfComputeState)
