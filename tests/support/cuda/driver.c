/* A stand-in for libcuda.so.1, whose device memory lies in files of the folder FAKE_CUDA: so that processes can
 * share it by handles as they do on a GPU. FAKE_CUDA_DEVICES says how many devices there are (1). A device whose
 * number is in FAKE_CUDA/lost answers every call with CUDA_ERROR_ILLEGAL_ADDRESS, as a lost context does. Each copy
 * is a line of FAKE_CUDA/copies: the process, the direction, the length. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, MAP_FAILED_ = 205, INVALID_HANDLE = 400, ILLEGAL_ADDRESS = 700 };
enum { MOST = 4096 };

static struct { uintptr_t at; size_t size; char name[40]; int opened; int device; } known[MOST];
static int contexts[64], ready;
static _Thread_local int stack[64], depth;
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;

static void unlock(pthread_mutex_t **held) { pthread_mutex_unlock(*held); }
#define ALONE pthread_mutex_t *held __attribute__((cleanup(unlock))) = &table; pthread_mutex_lock(held)

static int devices(void) { const char *said = getenv("FAKE_CUDA_DEVICES"); return said ? atoi(said) : 1; }

static void path_of(const char *name, char *path) { snprintf(path, 512, "%s/%s", getenv("FAKE_CUDA"), name); }

static int lost(void) {
    char path[512], name[16];
    snprintf(name, sizeof name, "lost.%d", depth ? stack[depth - 1] : 0);
    path_of(name, path);
    return access(path, F_OK) == 0;
}

static int usable(void) {
    if (!ready) return NOT_INITIALIZED;
    if (!depth) return INVALID_CONTEXT;
    return lost() ? ILLEGAL_ADDRESS : SUCCESS;
}

static int entry_of(uintptr_t at, size_t nbytes) {
    for (int i = 0; i < MOST; i++)
        if (known[i].size && at >= known[i].at && at + nbytes <= known[i].at + known[i].size) return i;
    return -1;
}

static int free_entry(void) {
    for (int i = 0; i < MOST; i++) if (!known[i].size) return i;
    return -1;
}

int cuInit(unsigned flags) {
    (void)flags;
    if (!getenv("FAKE_CUDA") || !devices()) return NO_DEVICE;
    ready = 1;
    return SUCCESS;
}

int cuDeviceGetCount(int *count) { *count = devices(); return ready ? SUCCESS : NOT_INITIALIZED; }

int cuDeviceGet(int *handle, int device) {
    if (!ready) return NOT_INITIALIZED;
    if (device < 0 || device >= devices()) return INVALID_DEVICE;
    *handle = device;
    return SUCCESS;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    memset(uuid, 0, 16);
    uuid[0] = 0xfa; uuid[15] = (unsigned char)device;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { contexts[device] = device; *context = &contexts[device]; return SUCCESS; }

int cuCtxPushCurrent_v2(void *context) {
    if (depth == 64) return INVALID_VALUE;
    stack[depth++] = *(int *)context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context) { if (!depth) return INVALID_CONTEXT; *context = &contexts[stack[--depth]]; return SUCCESS; }

int cuCtxSynchronize(void) { return usable(); }

int cuMemAlloc_v2(uint64_t *address, size_t size) {
    static int count;
    ALONE;
    int wrong = usable(), i = free_entry();
    if (wrong) return wrong;
    if (i < 0 || !size) return OUT_OF_MEMORY;
    char path[512];
    snprintf(known[i].name, sizeof known[i].name, "memory.%d.%d", getpid(), count++);
    path_of(known[i].name, path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)size)) return OUT_OF_MEMORY;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    known[i].at = (uintptr_t)at; known[i].size = size; known[i].opened = 0; known[i].device = stack[depth - 1];
    *address = (uint64_t)(uintptr_t)at;
    return SUCCESS;
}

int cuMemFree_v2(uint64_t address) {
    ALONE;
    int i = entry_of(address, 1);
    char path[512];
    if (i < 0 || known[i].opened) return INVALID_VALUE;
    path_of(known[i].name, path);
    unlink(path);
    munmap((void *)known[i].at, known[i].size);
    known[i].size = 0;
    return SUCCESS;
}

static void record(const char *kind, size_t nbytes) {
    char path[512], line[64];
    path_of("copies", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    int length = snprintf(line, sizeof line, "%d %s %zu\n", getpid(), kind, nbytes);
    if (fd < 0) return;
    if (write(fd, line, (size_t)length) != length) abort();
    close(fd);
}

static int copy(const char *kind, uintptr_t target, uintptr_t source, size_t nbytes, uintptr_t on_device) {
    int wrong = usable();
    if (wrong) return wrong;
    if (entry_of(on_device, nbytes) < 0) return INVALID_VALUE;
    memcpy((void *)target, (void *)source, nbytes);
    record(kind, nbytes);
    return SUCCESS;
}

int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t nbytes) { return copy("DtoH", (uintptr_t)target, source, nbytes, source); }
int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t nbytes) { return copy("HtoD", target, (uintptr_t)source, nbytes, target); }
int cuMemcpyDtoD_v2(uint64_t target, uint64_t source, size_t nbytes) {
    return entry_of(target, nbytes) < 0 ? INVALID_VALUE : copy("DtoD", target, source, nbytes, source);
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
    int i = entry_of(address, 1);
    if (i < 0) return INVALID_VALUE;
    *base = known[i].at; *size = known[i].size;
    return SUCCESS;
}

typedef struct { char name[64]; } Handle;

int cuIpcGetMemHandle(Handle *handle, uint64_t address) {
    int i = entry_of(address, 1);
    if (i < 0 || known[i].opened) return INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    handle->name[0] = (char)known[i].device;
    strcpy(handle->name + 1, known[i].name);
    return SUCCESS;
}

int cuIpcOpenMemHandle_v2(uint64_t *address, Handle handle, unsigned flags) {
    (void)flags;
    ALONE;
    int wrong = usable(), i = free_entry(), owner = 0;
    char path[512];
    struct stat status;
    if (wrong) return wrong;
    if (i < 0) return OUT_OF_MEMORY;
    handle.name[63] = 0;
    if (strncmp(handle.name + 1, "memory.", 7) || strchr(handle.name + 1, '/') || handle.name[0] != stack[depth - 1])
        return INVALID_HANDLE;
    /* A driver opens no memory of its own process. */
    if (sscanf(handle.name + 1, "memory.%d.", &owner) == 1 && owner == getpid()) return INVALID_CONTEXT;
    path_of(handle.name + 1, path);
    int fd = open(path, O_RDWR);
    if (fd < 0 || fstat(fd, &status)) return MAP_FAILED_;
    void *at = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return MAP_FAILED_;
    known[i].at = (uintptr_t)at; known[i].size = (size_t)status.st_size; known[i].opened = 1; known[i].device = stack[depth - 1];
    *address = (uint64_t)(uintptr_t)at;
    return SUCCESS;
}

int cuIpcCloseMemHandle(uint64_t address) {
    ALONE;
    int i = entry_of(address, 1);
    if (i < 0 || !known[i].opened) return INVALID_VALUE;
    munmap((void *)known[i].at, known[i].size);
    known[i].size = 0;
    return SUCCESS;
}

int cuGetErrorName(int status, const char **name) {
    *name = status == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : status == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE"
          : status == INVALID_HANDLE ? "CUDA_ERROR_INVALID_HANDLE" : status == MAP_FAILED_ ? "CUDA_ERROR_MAP_FAILED"
          : status == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
          : status == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : status == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : "CUDA_ERROR_INVALID_VALUE";
    return SUCCESS;
}

#include "streams.c"
