/* Reading of files into memory: the second part of the C interface, apart from the kernels. Loaded
   with ctypes: engine/native/file_reads.py holds the same signatures. */
#pragma once

#include "headrace_native.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  HEADRACE_READ_OK = 0,
  HEADRACE_READ_CANCELLED = 1,
  HEADRACE_READ_CANNOT_OPEN = 2, /* system_error says why */
  HEADRACE_READ_FAILED = 3,      /* system_error says why */
  HEADRACE_READ_SHORT = 4,       /* the file ends at `offset` */
  HEADRACE_READ_CHANGED = 5,     /* somebody wrote to the file meanwhile */
  HEADRACE_READ_OUT_OF_MEMORY = 6,
};

/* `bytes` at `offset` of the file with this number, to be put at the address `to`. */
typedef struct {
  int64_t file, offset, bytes;
  uint64_t to;
} headrace_file_range;

typedef struct {
  int64_t direct; /* bytes that did not pass through the system's cache */
  int64_t offset; /* of what failed */
  int32_t file;   /* that failed; -1 for none */
  int32_t system_error;
} headrace_read_outcome;

typedef struct headrace_reading headrace_reading;

/* Starts to read with so many threads of its own and returns; NULL if there is no memory. Paths are
   UTF-8 on Windows, the system's bytes elsewhere. Paths and ranges are copied. */
HEADRACE_EXPORT headrace_reading *headrace_read_begin(const char *const *paths, int64_t files,
                                                      const headrace_file_range *ranges,
                                                      int64_t count, int32_t threads);
/* Bytes that are in their place by now. */
HEADRACE_EXPORT int64_t headrace_read_done(const headrace_reading *reading);
/* 1 if it has ended, or does within so many milliseconds; else 0. */
HEADRACE_EXPORT int32_t headrace_read_wait(headrace_reading *reading, int32_t milliseconds);
/* Ends soon, without the ranges that are not read yet. */
HEADRACE_EXPORT void headrace_read_cancel(headrace_reading *reading);
/* Waits for the end, frees the reading and returns what became of it. */
HEADRACE_EXPORT int32_t headrace_read_end(headrace_reading *reading,
                                          headrace_read_outcome *outcome);

#ifdef __cplusplus
}
#endif
