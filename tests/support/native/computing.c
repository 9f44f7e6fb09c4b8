/* The models of `tests.support.kits` as a backend in C. Which one a model is, its inputs say. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef void Error;
typedef void Object;
enum { INVALID_ARG = 3, FP32 = 11 };

Error *TRITONSERVER_ErrorNew(int, const char *);
void TRITONSERVER_ErrorDelete(Error *);
Error *TRITONBACKEND_RequestInput(Object *, const char *, Object **);
Error *TRITONBACKEND_RequestRelease(Object *, uint32_t);
Error *TRITONBACKEND_RequestOutputCount(Object *, uint32_t *);
Error *TRITONBACKEND_RequestOutputName(Object *, uint32_t, const char **);
Error *TRITONBACKEND_InputProperties(Object *, const char **, int *, const int64_t **, uint32_t *, uint64_t *, uint32_t *);
Error *TRITONBACKEND_InputBuffer(Object *, uint32_t, const void **, uint64_t *, int *, int64_t *);
Error *TRITONBACKEND_ResponseNew(Object **, Object *);
Error *TRITONBACKEND_ResponseOutput(Object *, Object **, const char *, int, const int64_t *, uint32_t);
Error *TRITONBACKEND_OutputBuffer(Object *, void **, uint64_t, int *, int64_t *);
Error *TRITONBACKEND_ResponseSend(Object *, uint32_t, Error *);

typedef struct {
    int type;
    const int64_t *shape;
    uint32_t dims, buffers;
    uint64_t size;
    Object *handle;
} Input;

/* The weights of `tests.support.kits.WEIGHTS`. */
static float weight(int at) { return (float)(at * 7 % 5 - 2) / 4; }

static bool find(Object *request, const char *name, Input *input) {
    Error *error = TRITONBACKEND_RequestInput(request, name, &input->handle);
    if (error == NULL)
        error = TRITONBACKEND_InputProperties(
            input->handle, NULL, &input->type, &input->shape, &input->dims, &input->size, &input->buffers);
    TRITONSERVER_ErrorDelete(error);
    return error == NULL;
}

/* The bytes of an input from a place on that is in one of its buffers, and how many are there. */
static const char *bytes_at(const Input *input, uint64_t place, uint64_t *count) {
    for (uint32_t at = 0; at < input->buffers; ++at) {
        const void *data;
        int memory = 0;
        int64_t id = 0;
        TRITONSERVER_ErrorDelete(TRITONBACKEND_InputBuffer(input->handle, at, &data, count, &memory, &id));
        if (place < *count) {
            *count -= place;
            return (const char *)data + place;
        }
        place -= *count;
    }
    *count = 0;
    return NULL;
}

static void read_bytes(const Input *input, uint64_t place, void *to, uint64_t size) {
    for (uint64_t done = 0, count; done < size; done += count) {
        const char *from = bytes_at(input, place + done, &count);
        if (from == NULL) return;
        if (count > size - done) count = size - done;
        memcpy((char *)to + done, from, count);
    }
}

static float number(const Input *input, int64_t at) {
    float value = 0;
    read_bytes(input, (uint64_t)at * sizeof value, &value, sizeof value);
    return value;
}

static bool wanted(Object *request, const char *name) {
    uint32_t count = 0;
    const char *each;
    TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestOutputCount(request, &count));
    for (uint32_t at = 0; at < count; ++at) {
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestOutputName(request, at, &each));
        if (strcmp(each, name) == 0) return true;
    }
    return false;
}

/* Where an output goes; NULL, with the error, if there is none. */
static void *output(Object *response, const char *name, int type, const int64_t *shape, uint32_t dims, uint64_t size,
                    Error **error) {
    Object *handle;
    void *buffer = NULL;
    int memory = 0;
    int64_t id = 0;
    if (*error == NULL) *error = TRITONBACKEND_ResponseOutput(response, &handle, name, type, shape, dims);
    if (*error == NULL) *error = TRITONBACKEND_OutputBuffer(handle, &buffer, size, &memory, &id);
    return *error == NULL ? buffer : NULL;
}

static Error *add_sub(Object *request, Object *response, const Input *a, const Input *b) {
    Error *error = NULL;
    const int64_t count = (int64_t)(a->size / sizeof(float));
    for (int sign = 1; sign >= -1; sign -= 2) {
        const char *name = sign > 0 ? "SUM" : "DIFFERENCE";
        if (!wanted(request, name)) continue;
        float *to = output(response, name, FP32, a->shape, a->dims, a->size, &error);
        for (int64_t at = 0; to != NULL && at < count; ++at) to[at] = number(a, at) + (float)sign * number(b, at);
    }
    return error;
}

static Error *selected(Object *response, const Input *a, const Input *places) {
    Error *error = NULL;
    for (int64_t row = 0; row < a->shape[0]; ++row) {
        int64_t place;
        read_bytes(places, (uint64_t)row * sizeof place, &place, sizeof place);
        if (place < 0 || place > 2) return TRITONSERVER_ErrorNew(INVALID_ARG, "there is no such element");
    }
    float *to = output(response, "Y", FP32, places->shape, places->dims, (uint64_t)a->shape[0] * sizeof(float), &error);
    for (int64_t row = 0; to != NULL && row < a->shape[0]; ++row) {
        int64_t place;
        read_bytes(places, (uint64_t)row * sizeof place, &place, sizeof place);
        to[row] = number(a, 3 * row + place);
    }
    return error;
}

static Error *network(Object *response, const Input *rows) {
    Error *error = NULL;
    const int64_t shape[] = {rows->shape[0], 3};
    float *to = output(response, "SCORE", FP32, shape, 2, (uint64_t)shape[0] * 3 * sizeof(float), &error);
    for (int64_t at = 0; to != NULL && at < shape[0] * 3; ++at) {
        float sum = 0;
        for (int column = 0; column < 4; ++column)
            sum += number(rows, at / 3 * 4 + column) * weight(column * 3 + (int)(at % 3));
        to[at] = sum > 0 ? sum : 0;
    }
    return error;
}

static Error *identity(Object *response, const Input *x) {
    Error *error = NULL;
    void *to = output(response, "Y", x->type, x->shape, x->dims, x->size, &error);
    if (to != NULL) read_bytes(x, 0, to, x->size);
    return error;
}

static Error *answer(Object *request, Object *response) {
    Input first, second;
    if (find(request, "X", &first)) return identity(response, &first);
    if (find(request, "ROW", &first)) return network(response, &first);
    if (find(request, "A", &first) && find(request, "I", &second)) return selected(response, &first, &second);
    if (find(request, "A", &first) && find(request, "B", &second)) return add_sub(request, response, &first, &second);
    return TRITONSERVER_ErrorNew(INVALID_ARG, "none of the models has these inputs");
}

__attribute__((visibility("default"))) Error *TRITONBACKEND_ModelInstanceExecute(Object *instance, Object **requests,
                                                                                 uint32_t count) {
    (void)instance;
    for (uint32_t at = 0; at < count; ++at) {
        Object *response;
        TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseNew(&response, requests[at]));
        Error *error = answer(requests[at], response);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, 1, error));
        TRITONSERVER_ErrorDelete(error);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[at], 1));
    }
    return NULL;
}
