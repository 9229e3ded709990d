/* What CUDA's headers take from the compiler's part of the toolkit, for gcc: that part is a wheel of its own. */
#ifndef NULL_GPU_HOST_DEFINES
#define NULL_GPU_HOST_DEFINES
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(a) __align__(a)
#define __location__(a)
#define __CUDA_ARCH_HAS_FEATURE__(f) 0
#define CUDARTAPI
#define CUDARTAPI_CDECL
#endif
