/* A backend for tests: the parameter `does` of a model says what it does. It declares what it uses itself. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void Error;
typedef void Object;
enum { UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED };
enum { INT32 = 8, FP32 = 11, BYTES = 13 };

Error *TRITONSERVER_ErrorNew(int, const char *);
void TRITONSERVER_ErrorDelete(Error *);
int TRITONSERVER_ErrorCode(Error *);
const char *TRITONSERVER_ErrorCodeString(Error *), *TRITONSERVER_ErrorMessage(Error *);
Error *TRITONSERVER_LogMessage(int, const char *, int, const char *);
bool TRITONSERVER_LogIsEnabled(int);
Error *TRITONSERVER_MessageSerializeToJson(Object *, const char **, size_t *);
Error *TRITONSERVER_MessageNewFromSerializedJson(Object **, const char *, size_t);
Error *TRITONSERVER_MessageDelete(Object *);
Error *TRITONSERVER_ServerInferAsync(Object *, Object *, Object *);
Error *TRITONBACKEND_ApiVersion(uint32_t *, uint32_t *);
Error *TRITONBACKEND_BackendName(Object *, const char **);
Error *TRITONBACKEND_BackendConfig(Object *, Object **);
Error *TRITONBACKEND_BackendMemoryManager(Object *, Object **);
Error *TRITONBACKEND_MemoryManagerAllocate(Object *, void **, int, int64_t, uint64_t);
Error *TRITONBACKEND_MemoryManagerFree(Object *, void *, int, int64_t);
Error *TRITONBACKEND_ModelName(Object *, const char **);
Error *TRITONBACKEND_ModelVersion(Object *, uint64_t *);
Error *TRITONBACKEND_ModelBackend(Object *, Object **);
Error *TRITONBACKEND_ModelServer(Object *, Object **);
Error *TRITONBACKEND_ModelConfig(Object *, uint32_t, Object **);
Error *TRITONBACKEND_ModelSetConfig(Object *, uint32_t, Object *);
Error *TRITONBACKEND_ModelAutoCompleteConfig(Object *, bool *);
Error *TRITONBACKEND_ModelState(Object *, void **), *TRITONBACKEND_ModelSetState(Object *, void *);
Error *TRITONBACKEND_ModelInstanceName(Object *, const char **);
Error *TRITONBACKEND_ModelInstanceModel(Object *, Object **);
Error *TRITONBACKEND_ModelInstanceSetState(Object *, void *);
Error *TRITONBACKEND_RequestId(Object *, const char **);
Error *TRITONBACKEND_RequestCorrelationId(Object *, uint64_t *);
Error *TRITONBACKEND_RequestCorrelationIdString(Object *, const char **);
Error *TRITONBACKEND_RequestFlags(Object *, uint32_t *);
Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(Object *, uint64_t *);
Error *TRITONBACKEND_RequestIsCancelled(Object *, bool *);
Error *TRITONBACKEND_RequestParameterCount(Object *, uint32_t *);
Error *TRITONBACKEND_RequestParameter(Object *, uint32_t, const char **, int *, const void **);
Error *TRITONBACKEND_RequestInputCount(Object *, uint32_t *), *TRITONBACKEND_RequestOutputCount(Object *, uint32_t *);
Error *TRITONBACKEND_RequestInputName(Object *, uint32_t, const char **);
Error *TRITONBACKEND_RequestOutputName(Object *, uint32_t, const char **);
Error *TRITONBACKEND_RequestInput(Object *, const char *, Object **);
Error *TRITONBACKEND_RequestInputByIndex(Object *, uint32_t, Object **);
Error *TRITONBACKEND_RequestRelease(Object *, uint32_t);
Error *TRITONBACKEND_InputProperties(Object *, const char **, int *, const int64_t **, uint32_t *, uint64_t *, uint32_t *);
Error *TRITONBACKEND_InputBuffer(Object *, uint32_t, const void **, uint64_t *, int *, int64_t *);
Error *TRITONBACKEND_ResponseFactoryNew(Object **, Object *), *TRITONBACKEND_ResponseFactoryDelete(Object *);
Error *TRITONBACKEND_ResponseFactorySendFlags(Object *, uint32_t);
Error *TRITONBACKEND_ResponseFactoryIsCancelled(Object *, bool *);
Error *TRITONBACKEND_ResponseNew(Object **, Object *), *TRITONBACKEND_ResponseNewFromFactory(Object **, Object *);
Error *TRITONBACKEND_ResponseDelete(Object *);
Error *TRITONBACKEND_ResponseSetStringParameter(Object *, const char *, const char *);
Error *TRITONBACKEND_ResponseSetIntParameter(Object *, const char *, int64_t);
Error *TRITONBACKEND_ResponseOutput(Object *, Object **, const char *, int, const int64_t *, uint32_t);
Error *TRITONBACKEND_OutputBuffer(Object *, void **, uint64_t, int *, int64_t *);
Error *TRITONBACKEND_ResponseSend(Object *, uint32_t, Error *);

#define EXPORTED __attribute__((visibility("default")))

typedef struct {
    char does[64];
    Object *handle;
} Model;

static void drop(Error *error) {
    if (error != NULL) TRITONSERVER_ErrorDelete(error);
}

/* Append to a text what an error says, or a value. */
typedef struct {
    char data[16384];
    size_t size;
} Text;

__attribute__((format(printf, 2, 3))) static void say(Text *text, const char *format, ...) {
    __builtin_va_list arguments;
    __builtin_va_start(arguments, format);
    text->size += (size_t)vsnprintf(text->data + text->size, sizeof text->data - text->size, format, arguments);
    __builtin_va_end(arguments);
    if (text->size >= sizeof text->data) text->size = sizeof text->data - 1;
}

static void say_error(Text *text, const char *what, Error *error) {
    if (error == NULL) {
        say(text, "%s: fine\n", what);
        return;
    }
    say(text, "%s: %s: %s\n", what, TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
}

/* -- life */

EXPORTED Error *TRITONBACKEND_ModelInitialize(Object *handle) {
    Object *message;
    const char *json;
    size_t size;
    bool completes;
    Error *error = TRITONBACKEND_ModelConfig(handle, 1, &message);
    if (error != NULL) return error;
    drop(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
    drop(TRITONBACKEND_ModelAutoCompleteConfig(handle, &completes));
    Model *model = calloc(1, sizeof *model);
    model->handle = handle;
    const char *at = strstr(json, "\"does\"");
    if (at != NULL) sscanf(at, "\"does\": {\"string_value\": \"%63[^\"]", model->does);
    if (completes && strstr(json, "\"input\": []") != NULL) {
        Object *own;
        const char *told =
            "{\"max_batch_size\": 4, \"input\": [{\"name\": \"IN\", \"data_type\": \"TYPE_FP32\", \"dims\": [2]}],"
            " \"output\": [{\"name\": \"OUT\", \"data_type\": \"TYPE_FP32\", \"dims\": [2]}]}";
        drop(TRITONSERVER_MessageNewFromSerializedJson(&own, told, strlen(told)));
        error = TRITONBACKEND_ModelSetConfig(handle, 1, own);
        drop(TRITONSERVER_MessageDelete(own));
    }
    drop(TRITONSERVER_MessageDelete(message));
    if (strcmp(model->does, "crash_at_load") == 0) raise(SIGSEGV);
    if (strcmp(model->does, "fail_at_load") == 0)
        error = TRITONSERVER_ErrorNew(INVALID_ARG, "this model can't be loaded");
    drop(TRITONBACKEND_ModelSetState(handle, model));
    return error;
}

EXPORTED Error *TRITONBACKEND_ModelFinalize(Object *handle) {
    void *state;
    drop(TRITONBACKEND_ModelState(handle, &state));
    free(state);
    drop(TRITONSERVER_LogMessage(0, __FILE__, __LINE__, "the model is finalised"));
    return NULL;
}

EXPORTED Error *TRITONBACKEND_ModelInstanceInitialize(Object *instance) {
    const char *name;
    char line[256];
    drop(TRITONBACKEND_ModelInstanceName(instance, &name));
    snprintf(line, sizeof line, "instance '%s' begins", name);
    return TRITONSERVER_LogMessage(0, __FILE__, __LINE__, line);
}

EXPORTED Error *TRITONBACKEND_ModelInstanceReady(Object *instance) {
    Object *handle;
    void *state;
    drop(TRITONBACKEND_ModelInstanceModel(instance, &handle));
    drop(TRITONBACKEND_ModelState(handle, &state));
    if (strcmp(((Model *)state)->does, "never_ready") == 0) return TRITONSERVER_ErrorNew(UNAVAILABLE, "not ready");
    return NULL;
}

/* -- answering */

static Error *send_tensor(Object *response, const char *name, int type, const int64_t *shape, uint32_t dims,
                          const void *data, size_t size, bool final) {
    Object *output;
    void *buffer;
    int memory = 0;
    int64_t id = 0;
    Error *error = TRITONBACKEND_ResponseOutput(response, &output, name, type, shape, dims);
    if (error == NULL) error = TRITONBACKEND_OutputBuffer(output, &buffer, size, &memory, &id);
    if (error == NULL) memcpy(buffer, data, size);
    Error *sent = TRITONBACKEND_ResponseSend(response, final, error);
    drop(error);
    return sent;
}

static void answer_text(Object *request, const Text *text) {
    Object *response;
    const int64_t one[] = {1, 1};
    char *data = malloc(text->size + 4);
    const uint32_t size = (uint32_t)text->size;
    memcpy(data, &size, 4);
    memcpy(data + 4, text->data, text->size);
    drop(TRITONBACKEND_ResponseNew(&response, request));
    drop(send_tensor(response, "TOLD", BYTES, one, 2, data, text->size + 4, true));
    free(data);
    drop(TRITONBACKEND_RequestRelease(request, 1));
}

static void answer_error(Object *request, int code, const char *text) {
    Object *response;
    Error *error = TRITONSERVER_ErrorNew(code, text);
    drop(TRITONBACKEND_ResponseNew(&response, request));
    drop(TRITONBACKEND_ResponseSend(response, 1, error));
    TRITONSERVER_ErrorDelete(error);
    drop(TRITONBACKEND_RequestRelease(request, 1));
}

static void doubled(Object *request) {
    Object *input, *response, *output;
    const float *data;
    const int64_t *shape;
    uint32_t dims;
    uint64_t size;
    int memory = 0;
    int64_t id = 0;
    void *buffer;
    drop(TRITONBACKEND_RequestInput(request, "IN", &input));
    drop(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dims, &size, NULL));
    drop(TRITONBACKEND_InputBuffer(input, 0, (const void **)&data, &size, &memory, &id));
    drop(TRITONBACKEND_ResponseNew(&response, request));
    drop(TRITONBACKEND_ResponseOutput(response, &output, "OUT", FP32, shape, dims));
    Error *error = TRITONBACKEND_OutputBuffer(output, &buffer, size, &memory, &id);
    for (uint64_t at = 0; error == NULL && at < size / sizeof *data; ++at) ((float *)buffer)[at] = 2 * data[at];
    drop(TRITONBACKEND_ResponseSend(response, 1, error));
    drop(error);
    drop(TRITONBACKEND_RequestRelease(request, 1));
}

static void *doubled_later(void *request) {
    usleep(20000);
    doubled(request);
    return NULL;
}

static void answer_double(Object *request) {
    Object *input;
    const float *data;
    uint64_t size;
    int memory = 0;
    int64_t id = 0;
    pthread_t thread;
    drop(TRITONBACKEND_RequestInput(request, "IN", &input));
    drop(TRITONBACKEND_InputBuffer(input, 0, (const void **)&data, &size, &memory, &id));
    const float first = size ? data[0] : 0;
    if (first == 666) raise(SIGSEGV);
    if (first < 0) {
        answer_error(request, INVALID_ARG, "the first element is negative");
    } else if (first == 1000) {
        drop(TRITONBACKEND_RequestRelease(request, 1)); /* and no answer */
    } else if (first == 2000) {
        pthread_create(&thread, NULL, doubled_later, request);
        pthread_detach(thread);
    } else {
        doubled(request);
    }
}

/* -- streams: N of IN responses, then an empty last one; -1: an error; -2: until it is cancelled */

typedef struct {
    Object *factory;
    int32_t wanted;
} Stream;

static void *stream(void *argument) {
    Stream own = *(Stream *)argument;
    const int64_t one[] = {1};
    Object *response;
    free(argument);
    bool cancelled = false;
    if (own.wanted == -1) {
        Error *error = TRITONSERVER_ErrorNew(NOT_FOUND, "no stream");
        drop(TRITONBACKEND_ResponseNewFromFactory(&response, own.factory));
        drop(TRITONBACKEND_ResponseSend(response, 1, error));
        TRITONSERVER_ErrorDelete(error);
        drop(TRITONBACKEND_ResponseFactoryDelete(own.factory));
        return NULL;
    }
    for (int32_t at = 0; (own.wanted == -2 || at < own.wanted) && !cancelled; ++at) {
        drop(TRITONBACKEND_ResponseFactoryIsCancelled(own.factory, &cancelled));
        if (own.wanted == -2) {
            usleep(1000);
            if (at) continue;
        }
        drop(TRITONBACKEND_ResponseNewFromFactory(&response, own.factory));
        drop(TRITONBACKEND_ResponseSetIntParameter(response, "at", at));
        drop(send_tensor(response, "OUT", INT32, one, 1, &at, sizeof at, false));
    }
    if (own.wanted != 99) drop(TRITONBACKEND_ResponseFactorySendFlags(own.factory, 1));
    drop(TRITONBACKEND_ResponseFactoryDelete(own.factory));
    return NULL;
}

static void answer_stream(Object *request) {
    Object *input;
    const int32_t *data;
    uint64_t size;
    int memory = 0;
    int64_t id = 0;
    pthread_t thread;
    Stream *own = malloc(sizeof *own);
    drop(TRITONBACKEND_RequestInput(request, "IN", &input));
    drop(TRITONBACKEND_InputBuffer(input, 0, (const void **)&data, &size, &memory, &id));
    own->wanted = data[0];
    drop(TRITONBACKEND_ResponseFactoryNew(&own->factory, request));
    drop(TRITONBACKEND_RequestRelease(request, 1));
    pthread_create(&thread, NULL, stream, own);
    pthread_detach(thread);
}

/* -- telling what can be read, and what is said to mistakes */

static void tell(Object *request, Object *model) {
    Text *text = calloc(1, sizeof *text);
    uint32_t major, minor, count, flags;
    uint64_t number;
    const char *name;
    const void *value;
    int type;
    Object *object, *message;
    size_t size;
    drop(TRITONBACKEND_ApiVersion(&major, &minor));
    say(text, "api %u.%u\n", major, minor);
    drop(TRITONBACKEND_ModelBackend(model, &object));
    drop(TRITONBACKEND_BackendName(object, &name));
    say(text, "backend %s\n", name);
    drop(TRITONBACKEND_BackendConfig(object, &message));
    drop(TRITONSERVER_MessageSerializeToJson(message, &name, &size));
    say(text, "settings %s\n", name);
    drop(TRITONBACKEND_ModelName(model, &name));
    drop(TRITONBACKEND_ModelVersion(model, &number));
    say(text, "model %s %llu\n", name, (unsigned long long)number);
    drop(TRITONBACKEND_RequestId(request, &name));
    say(text, "id '%s'\n", name);
    Error *error = TRITONBACKEND_RequestCorrelationId(request, &number);
    if (error == NULL) say(text, "correlation %llu\n", (unsigned long long)number);
    else say_error(text, "correlation", error);
    if ((error = TRITONBACKEND_RequestCorrelationIdString(request, &name)) == NULL) say(text, "correlation '%s'\n", name);
    drop(error);
    drop(TRITONBACKEND_RequestFlags(request, &flags));
    drop(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &number));
    say(text, "flags %u timeout %llu\n", flags, (unsigned long long)number);
    drop(TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t at = 0; at < count; ++at) {
        drop(TRITONBACKEND_RequestParameter(request, at, &name, &type, &value));
        if (type == 0) say(text, "parameter %s '%s'\n", name, (const char *)value);
        if (type == 1) say(text, "parameter %s %lld\n", name, (long long)*(const int64_t *)value);
        if (type == 2) say(text, "parameter %s %s\n", name, *(const bool *)value ? "true" : "false");
        if (type == 3) say(text, "parameter %s %g\n", name, *(const double *)value);
    }
    drop(TRITONBACKEND_RequestOutputCount(request, &count));
    for (uint32_t at = 0; at < count; ++at) {
        drop(TRITONBACKEND_RequestOutputName(request, at, &name));
        say(text, "wanted %s\n", name);
    }
    drop(TRITONBACKEND_RequestInputCount(request, &count));
    for (uint32_t at = 0; at < count; ++at) {
        const int64_t *shape;
        uint32_t dims, buffers;
        drop(TRITONBACKEND_RequestInputByIndex(request, at, &object));
        drop(TRITONBACKEND_InputProperties(object, &name, &type, &shape, &dims, &number, &buffers));
        say(text, "input %s type %d bytes %llu buffers %u shape", name, type, (unsigned long long)number, buffers);
        for (uint32_t dim = 0; dim < dims; ++dim) say(text, " %lld", (long long)shape[dim]);
        say(text, "\n");
    }
    answer_text(request, text);
    free(text);
}

static void misuse(Object *request, Object *model) {
    Text *text = calloc(1, sizeof *text);
    Object *object = text, *input, *output, *server, *manager, *backend;
    const char *name;
    void *memory;
    const void *buffer;
    int type = 0;
    int64_t id = 0;
    uint64_t size;
    bool flag;
    const int64_t negative[] = {-1}, huge[] = {INT64_MAX, 4};
    drop(TRITONBACKEND_ModelServer(model, &server));
    drop(TRITONBACKEND_ModelBackend(model, &backend));
    drop(TRITONBACKEND_BackendMemoryManager(backend, &manager));
    say_error(text, "refused", TRITONSERVER_ServerInferAsync(server, NULL, NULL));
    say_error(text, "unknown input", TRITONBACKEND_RequestInput(request, "NONE", &object));
    say(text, "handle %s\n", object == NULL ? "null" : "left");
    say_error(text, "input 7", TRITONBACKEND_RequestInputByIndex(request, 7, &object));
    say_error(text, "output 7", TRITONBACKEND_RequestOutputName(request, 7, &name));
    say_error(text, "parameter 7", TRITONBACKEND_RequestParameter(request, 7, &name, &type, &buffer));
    drop(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
    say_error(text, "buffer 1", TRITONBACKEND_InputBuffer(input, 1, &buffer, &size, &type, &id));
    say_error(text, "GPU", TRITONBACKEND_MemoryManagerAllocate(manager, &memory, 2, 0, 8));
    say_error(text, "pinned", TRITONBACKEND_MemoryManagerAllocate(manager, &memory, 1, 0, 8));
    say_error(text, "CPU", TRITONBACKEND_MemoryManagerAllocate(manager, &memory, 0, 0, 8));
    drop(TRITONBACKEND_MemoryManagerFree(manager, memory, 0, 0));
    say_error(text, "reschedule", TRITONBACKEND_RequestRelease(request, 2));
    say_error(text, "config 2", TRITONBACKEND_ModelConfig(model, 2, &object));
    /* Nulls, where Triton's own backends pass them once something else has failed. */
    say_error(text, "null response", TRITONBACKEND_ResponseSetStringParameter(NULL, "a", "b"));
    say_error(text, "null output", TRITONBACKEND_OutputBuffer(NULL, &memory, 4, &type, &id));
    say_error(text, "null send", TRITONBACKEND_ResponseSend(NULL, 1, NULL));
    say_error(text, "null output of null", TRITONBACKEND_ResponseOutput(NULL, &output, "X", FP32, NULL, 0));
    say_error(text, "null request", TRITONBACKEND_RequestId(NULL, &name));
    say_error(text, "null model", TRITONBACKEND_ModelName(NULL, &name));
    say_error(text, "null factory", TRITONBACKEND_ResponseFactoryIsCancelled(NULL, &flag));
    say_error(text, "null message", TRITONSERVER_MessageSerializeToJson(NULL, &name, &size));
    drop(TRITONBACKEND_ResponseDelete(NULL));
    drop(TRITONBACKEND_ResponseFactoryDelete(NULL));
    TRITONSERVER_ErrorDelete(NULL);
    say(text, "null error '%s' %d\n", TRITONSERVER_ErrorMessage(NULL), TRITONSERVER_ErrorCode(NULL));
    /* Outputs that can't be. */
    drop(TRITONBACKEND_ResponseNew(&object, request));
    say_error(text, "negative", TRITONBACKEND_ResponseOutput(object, &output, "OUT", FP32, negative, 1));
    say_error(text, "no type", TRITONBACKEND_ResponseOutput(object, &output, "OUT", 77, negative, 0));
    say_error(text, "huge", TRITONBACKEND_ResponseOutput(object, &output, "OUT", FP32, huge, 2));
    say_error(text, "twice", TRITONBACKEND_ResponseOutput(object, &output, "OUT", FP32, huge, 1));
    drop(TRITONBACKEND_ResponseDelete(object));
    answer_text(request, text);
    free(text);
}

/* -- output sizes that do not fit their shapes, and outputs that nobody knows */

static void answer_odd(Object *request, int odd) {
    Object *response, *output;
    const int64_t four[] = {1, 4};
    void *buffer;
    int memory = 0;
    int64_t id = 0;
    drop(TRITONBACKEND_ResponseNew(&response, request));
    drop(TRITONBACKEND_ResponseOutput(response, &output, odd == 2 ? "STRANGE" : "OUT", FP32, four, 2));
    if (odd != 1) {
        drop(TRITONBACKEND_OutputBuffer(output, &buffer, odd == 0 ? 4 : 16, &memory, &id));
        memset(buffer, 0, odd == 0 ? 4 : 16);
    }
    drop(TRITONBACKEND_ResponseSend(response, 1, NULL));
    drop(TRITONBACKEND_RequestRelease(request, 1));
}

EXPORTED Error *TRITONBACKEND_ModelInstanceExecute(Object *instance, Object **requests, const uint32_t count) {
    Object *handle;
    void *state;
    drop(TRITONBACKEND_ModelInstanceModel(instance, &handle));
    drop(TRITONBACKEND_ModelState(handle, &state));
    const char *does = ((Model *)state)->does;
    if (strcmp(does, "refuse") == 0) return TRITONSERVER_ErrorNew(UNAVAILABLE, "not now");
    /* The last one first: nothing may depend on the order. */
    for (uint32_t at = count; at-- > 0;) {
        if (strcmp(does, "stream") == 0) answer_stream(requests[at]);
        else if (strcmp(does, "tell") == 0) tell(requests[at], handle);
        else if (strcmp(does, "misuse") == 0) misuse(requests[at], handle);
        else if (strncmp(does, "odd", 3) == 0) answer_odd(requests[at], does[3] - '0');
        else answer_double(requests[at]);
    }
    return NULL;
}
