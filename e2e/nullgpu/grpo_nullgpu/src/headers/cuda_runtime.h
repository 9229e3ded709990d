/* What nccl.h includes, without the part for C++ compilers of kernels. */
#include <cuda_runtime_api.h>
