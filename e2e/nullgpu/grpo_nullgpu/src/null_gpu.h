/* A GPU that computes nothing: what the parts of the library know of each other.
 *
 * Memory of the device is memory of the host, in files that other processes can map. Copies and fills are made,
 * kernels are not. Every process of a job accounts its memory in one file, so that a GPU can be full.
 */
#ifndef NULL_GPU_H
#define NULL_GPU_H
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define MOST_DEVICES 16
#define PAGE_BYTES (2UL << 20) /* of the device: what it allocates is a multiple of that */

/* devices.c: the devices that this process sees, and the memory in use on each of them */
API int null_num_devices(void);
API int null_physical(int device); /* its number on the machine, whatever CUDA_VISIBLE_DEVICES says */
API size_t null_total_bytes(void);
API size_t null_used_bytes(int device);
API size_t null_free_bytes(int device);
API int null_take(int device, size_t num_bytes); /* 0, or 1 where it has no room */
API void null_give_back(int device, size_t num_bytes);
API int null_current(void); /* the device of this thread */
API void null_set_current(int device);
API int null_has_context(int device);
API void null_make_context(int device); /* with the first call that needs one */
API void null_note(const char *what);   /* a line in the log, with process, thread and device */
API void null_require_not_forked(void); /* CUDA does not work in a fork of a process that has a context */

/* streams.c: what is asked of a stream is done at once, or with NULL_GPU_DELAY when somebody waits for it */
typedef void (*null_act)(void *to, const void *from, size_t num_bytes, int value);
API void null_enqueue(void *stream, null_act act, void *to, const void *from, size_t num_bytes, int value);
API void null_run(void *stream);  /* everything that the stream was asked */
API void null_run_all(void);
API int null_is_delayed(void);

/* runtime.c */
API void *null_handle(void); /* one that was not given before */
API void *null_driver_function(const char *name);

/* memory.c */
API int null_is_pinned(const void *address);
API int null_is_of_device(const void *address);
#endif
