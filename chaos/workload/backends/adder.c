/* `add_sub` as a backend in C: SUM, DIFFERENCE and REMAINDER of A and B, all INT32, with what harms it. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef void Error;
typedef void Object;
/* Of B: `chaos.workload.answers.DIVISORS` has them. */
enum { TRAPS = -1, HANGS = -2 };
enum { INVALID_ARG = 3, INT32 = 8, FINAL = 1, RELEASE_ALL = 1 };

Error *TRITONSERVER_ErrorNew(int, const char *);
void TRITONSERVER_ErrorDelete(Error *);
Error *TRITONBACKEND_RequestInput(Object *, const char *, Object **);
Error *TRITONBACKEND_RequestRelease(Object *, uint32_t);
Error *TRITONBACKEND_InputProperties(Object *, const char **, int *, const int64_t **, uint32_t *, uint64_t *, uint32_t *);
Error *TRITONBACKEND_InputBuffer(Object *, uint32_t, const void **, uint64_t *, int *, int64_t *);
Error *TRITONBACKEND_ResponseNew(Object **, Object *);
Error *TRITONBACKEND_ResponseOutput(Object *, Object **, const char *, int, const int64_t *, uint32_t);
Error *TRITONBACKEND_OutputBuffer(Object *, void **, uint64_t, int *, int64_t *);
Error *TRITONBACKEND_ResponseSend(Object *, uint32_t, Error *);

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        Error *error_ = (call);                                                                              \
        if (error_ != NULL) return error_;                                                                   \
    } while (0)

/* Volatile: a compiler that knows the divisor negates the number, and nothing traps. */
static volatile int32_t smallest = INT32_MIN, traps = TRAPS;

/* The numbers of an input, which come in one piece, and its shape. */
static Error *numbers(Object *request, const char *name, const int32_t **data, const int64_t **shape) {
    Object *input;
    uint64_t size;
    int memory = 0;
    int64_t id = 0;
    TRY(TRITONBACKEND_RequestInput(request, name, &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, shape, NULL, NULL, NULL));
    return TRITONBACKEND_InputBuffer(input, 0, (const void **)data, &size, &memory, &id);
}

/* Do the harm that a row asks for. */
static Error *harm(int32_t divisor) {
    if (divisor == 0) return TRITONSERVER_ErrorNew(INVALID_ARG, "there is no remainder of a division by 0");
    if (divisor == TRAPS) smallest = smallest / traps;
    while (divisor == HANGS) pause();
    return NULL;
}

static int32_t value(const char *name, int32_t a, int32_t b) {
    if (name[0] == 'S') return a + b;
    return name[0] == 'D' ? a - b : a % b;
}

static Error *answer(Object *request, Object *response) {
    static const char *const names[] = {"SUM", "DIFFERENCE", "REMAINDER"};
    const int32_t *a, *b;
    const int64_t *shape;
    TRY(numbers(request, "A", &a, &shape));
    TRY(numbers(request, "B", &b, &shape));
    for (int64_t row = 0; row < shape[0]; ++row) TRY(harm(b[row]));
    for (int at = 0; at < 3; ++at) {
        Object *output;
        void *to;
        int memory = 0;
        int64_t id = 0;
        TRY(TRITONBACKEND_ResponseOutput(response, &output, names[at], INT32, shape, 2));
        TRY(TRITONBACKEND_OutputBuffer(output, &to, (uint64_t)shape[0] * sizeof *a, &memory, &id));
        for (int64_t row = 0; row < shape[0]; ++row) ((int32_t *)to)[row] = value(names[at], a[row], b[row]);
    }
    return NULL;
}

__attribute__((visibility("default"))) Error *TRITONBACKEND_ModelInstanceExecute(Object *instance, Object **requests,
                                                                                 uint32_t count) {
    (void)instance;
    for (uint32_t at = 0; at < count; ++at) {
        Object *response;
        TRY(TRITONBACKEND_ResponseNew(&response, requests[at]));
        Error *error = answer(requests[at], response);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, FINAL, error));
        TRITONSERVER_ErrorDelete(error);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[at], RELEASE_ALL));
    }
    return NULL;
}
