/* A management library without a driver: two GPUs, or as many as NVML_GPUS says, and processes.
   It answers what the probe asks; NVML_LOST names a file that, where it exists, loses the GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static void note(const char *what) {
    const char *path = getenv("NVML_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) { fprintf(file, "%s\n", what); fclose(file); }
}

static int lost(void) {
    const char *path = getenv("NVML_LOST");
    return path && access(path, F_OK) == 0;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; note("init"); return 0; }
int nvmlInit_v2(void) { note("init"); return 0; }
int nvmlShutdown(void) { note("shutdown"); return 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "an error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("NVML_GPUS", 2); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(size_t)(index + 1);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    if (lost()) return 15;
    memory->total = 1000 * (size_t)device;
    memory->used = 100 * (size_t)device;
    memory->free = memory->total - memory->used;
    return 0;
}

static int list(unsigned *count, Process *found, unsigned pid, unsigned long long used) {
    if (*count < 1) { *count = 1; return 7; }
    *count = 1;
    found->pid = pid;
    found->used = used;
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    if ((size_t)device != 1) { *count = 0; return 0; }
    return list(count, found, number("NVML_PID", 42), 60);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    return list(count, found, 7, (size_t)device == 1 ? 30 : ~0ULL);
}
