/* What the mathematical libraries answer other than 0: that they are there. All of their other functions are in the
 * table that build.py writes. */
#include "null_gpu.h"

static int opened(void **handle) { *handle = (void *)64; return 0; }
API int cublasCreate_v2(void **handle) { return opened(handle); }
API int cublasLtCreate(void **handle) { return opened(handle); }
API int cudnnCreate(void **handle) { return opened(handle); }
API int cusolverDnCreate(void **handle) { return opened(handle); }
API int cusparseCreate(void **handle) { return opened(handle); }
API int cublasGetMathMode(void *handle, int *mode) { *mode = 0; return 0; }
API int cublasGetPointerMode_v2(void *handle, int *mode) { *mode = 0; return 0; }
API size_t cublasLtGetVersion(void) { return 130101; }
API size_t cudnnGetVersion(void) { return 92000; }
API size_t cudnnGetCudartVersion(void) { return 13000; }
API const char *cudnnGetErrorString(int error) { return "null"; }
API int cublasLtMatmulAlgoGetHeuristic(void *a, void *b, void *c, void *d, void *e, void *f, void *g, int wanted, char *found, int *count) {
    for (int at = 0; at < 96; at++) found[at] = 0;
    *count = 1;
    return 0;
}
