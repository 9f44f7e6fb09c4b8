/* A backend in one C file, for Triton's C API: OUTPUT is INPUT times the model's parameter `factor`.
 *
 *     cc -O2 -shared -fPIC -o backends/scale/libtriton_scale.so scale.c
 *
 * The same library runs in Triton. Triton's own headers (core/include/triton/core) are C++, so that this file
 * declares what it uses of them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct Error Error;
typedef struct Instance Instance;
typedef struct Input Input;
typedef struct Message Message;
typedef struct Model Model;
typedef struct Output Output;
typedef struct Request Request;
typedef struct Response Response;
enum { ERROR_INVALID_ARG = 3, TYPE_FP32 = 11, CPU = 0, FINAL = 1, RELEASE_ALL = 1 };

Error *TRITONSERVER_ErrorNew(int code, const char *text);
void TRITONSERVER_ErrorDelete(Error *error);
Error *TRITONSERVER_MessageSerializeToJson(Message *message, const char **base, size_t *size);
Error *TRITONSERVER_MessageDelete(Message *message);
Error *TRITONBACKEND_ModelConfig(Model *model, uint32_t version, Message **config);
Error *TRITONBACKEND_ModelState(Model *model, void **state);
Error *TRITONBACKEND_ModelSetState(Model *model, void *state);
Error *TRITONBACKEND_ModelInstanceModel(Instance *instance, Model **model);
Error *TRITONBACKEND_RequestInput(Request *request, const char *name, Input **input);
Error *TRITONBACKEND_RequestRelease(Request *request, uint32_t flags);
Error *TRITONBACKEND_InputProperties(Input *input, const char **name, int *datatype, const int64_t **shape,
                                     uint32_t *dims, uint64_t *size, uint32_t *buffers);
Error *TRITONBACKEND_InputBuffer(Input *input, uint32_t index, const void **buffer, uint64_t *size, int *memory,
                                 int64_t *memory_id);
Error *TRITONBACKEND_ResponseNew(Response **response, Request *request);
Error *TRITONBACKEND_ResponseOutput(Response *response, Output **output, const char *name, int datatype,
                                    const int64_t *shape, uint32_t dims);
Error *TRITONBACKEND_OutputBuffer(Output *output, void **buffer, uint64_t size, int *memory, int64_t *memory_id);
Error *TRITONBACKEND_ResponseSend(Response *response, uint32_t flags, Error *error);

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        Error *error_ = (call);                                                                              \
        if (error_ != NULL) return error_;                                                                   \
    } while (0)

/* The configuration is JSON; a real backend would parse it. */
static float factor_of(const char *config) {
    const char *at = strstr(config, "\"factor\"");
    if (at != NULL) at = strstr(at, "\"string_value\"");
    if (at != NULL) at = strchr(at + strlen("\"string_value\""), '"');
    return at == NULL ? 0 : strtof(at + 1, NULL);
}

__attribute__((visibility("default"))) Error *TRITONBACKEND_ModelInitialize(Model *model) {
    Message *message;
    const char *config;
    size_t size;
    TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
    TRY(TRITONSERVER_MessageSerializeToJson(message, &config, &size));
    float *factor = malloc(sizeof *factor);
    *factor = factor_of(config);
    TRY(TRITONSERVER_MessageDelete(message));
    TRY(TRITONBACKEND_ModelSetState(model, factor));
    return *factor ? NULL : TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "the model has no parameter 'factor'");
}

__attribute__((visibility("default"))) Error *TRITONBACKEND_ModelFinalize(Model *model) {
    void *factor;
    TRY(TRITONBACKEND_ModelState(model, &factor));
    free(factor);
    return NULL;
}

static Error *scale(Request *request, Response *response, float factor) {
    Input *input;
    Output *output;
    const int64_t *shape;
    const void *from;
    void *to;
    uint32_t dims;
    uint64_t size;
    int memory = CPU;
    int64_t memory_id = 0;
    TRY(TRITONBACKEND_RequestInput(request, "INPUT", &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dims, &size, NULL));
    TRY(TRITONBACKEND_InputBuffer(input, 0, &from, &size, &memory, &memory_id));
    TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUTPUT", TYPE_FP32, shape, dims));
    TRY(TRITONBACKEND_OutputBuffer(output, &to, size, &memory, &memory_id));
    for (uint64_t at = 0; at < size / sizeof(float); ++at) ((float *)to)[at] = factor * ((const float *)from)[at];
    return NULL;
}

/* The one function that every backend must have. Each request is answered and released, errors included. */
__attribute__((visibility("default"))) Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance,
                                                                                 Request **requests,
                                                                                 uint32_t count) {
    Model *model;
    void *factor;
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    TRY(TRITONBACKEND_ModelState(model, &factor));
    for (uint32_t at = 0; at < count; ++at) {
        Response *response;
        TRY(TRITONBACKEND_ResponseNew(&response, requests[at]));
        Error *error = scale(requests[at], response, *(float *)factor);
        TRITONBACKEND_ResponseSend(response, FINAL, error);
        if (error != NULL) TRITONSERVER_ErrorDelete(error);
        TRITONBACKEND_RequestRelease(requests[at], RELEASE_ALL);
    }
    return NULL;
}
