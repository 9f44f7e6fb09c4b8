/* What a backend reads of a request and of its inputs, and that it lets go of it. */
#include "objects.h"

bool request_is_cancelled(const TRITONBACKEND_Request *request) {
    const Batch *batch = request->batch;
    return batch->cancelled != NULL && request->index < batch->cancellable && batch->cancelled[request->index];
}

void batch_hold(Batch *batch) { __atomic_add_fetch(&batch->holders, 1, __ATOMIC_RELAXED); }

void batch_let_go(Batch *batch) {
    if (__atomic_sub_fetch(&batch->holders, 1, __ATOMIC_ACQ_REL)) return;
    for (uint32_t at = 0; at < batch->count; ++at) {
        parameters_delete(batch->requests[at].parameters);
        if (batch->requests[at].answer != NULL) response_free(batch->requests[at].answer);
    }
    pthread_mutex_destroy(&batch->lock);
    pthread_cond_destroy(&batch->settled);
    free(batch->stacked_at);
    for (Chunk *chunk = batch->memory, *next; chunk != NULL; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(batch);
}

/* With the lock held: note whether all that could be done for a request has been done. */
void request_settle(TRITONBACKEND_Request *request) {
    Batch *batch = request->batch;
    if (!request->released || request->answerers || request->told_gone) return;
    request->told_gone = true;
    if (batch->model->decoupled) queue_gone(batch->model->queue, batch->token, request->index);
    if (--batch->unsettled == 0) pthread_cond_broadcast(&batch->settled);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *request,
                                                          uint32_t release_flags) {
    REQUIRE(request);
    if (release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return fail(TRITONSERVER_ERROR_UNSUPPORTED,
                    "a request can't be rescheduled by a library here: answer it, and release it with"
                    " TRITONSERVER_REQUEST_RELEASE_ALL");
    if (!(release_flags & TRITONSERVER_REQUEST_RELEASE_ALL))
        return fail(TRITONSERVER_ERROR_INVALID_ARG, "%s: unknown flags %u", __func__, release_flags);
    Batch *batch = request->batch;
    pthread_mutex_lock(&batch->lock);
    if (request->released) {
        pthread_mutex_unlock(&batch->lock);
        return fail(TRITONSERVER_ERROR_INVALID_ARG, "this request has been released already");
    }
    request->released = true;
    request_settle(request);
    pthread_mutex_unlock(&batch->lock);
    batch_let_go(batch);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestId(TRITONBACKEND_Request *request, const char **id) {
    REQUIRE(request);
    TELL(id, request->id);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request *request,
                                                              bool *is_cancelled) {
    REQUIRE(request);
    TELL(is_cancelled, request_is_cancelled(request));
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationId(TRITONBACKEND_Request *request, uint64_t *id) {
    REQUIRE(request);
    if (request->correlation_text != NULL)
        return fail(TRITONSERVER_ERROR_INVALID_ARG, "correlation ID in request is not an unsigned int");
    TELL(id, request->correlation_id);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request *request,
                                                                      const char **id) {
    REQUIRE(request);
    if (request->correlation_text == NULL)
        return fail(TRITONSERVER_ERROR_INVALID_ARG, "correlation ID in request is not a string");
    TELL(id, request->correlation_text);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(TRITONBACKEND_Request *request,
                                                                               uint64_t *timeout) {
    REQUIRE(request);
    TELL(timeout, request->timeout);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestFlags(TRITONBACKEND_Request *request, uint32_t *flags) {
    REQUIRE(request);
    TELL(flags, request->flags);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestTrace(TRITONBACKEND_Request *request,
                                                        TRITONSERVER_InferenceTrace **trace) {
    REQUIRE(request);
    TELL(trace, NULL);
    return NULL;
}

/* -- parameters */

static TRITONSERVER_Error *out_of_bounds(const TRITONBACKEND_Request *request, uint32_t index, uint32_t count,
                                         const char *of) {
    return fail(TRITONSERVER_ERROR_INVALID_ARG, "%s%s%sout of bounds index %u: request has %u %s",
                *request->id ? "[request id: " : "", request->id, *request->id ? "] " : "", index, count, of);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request *request,
                                                                 uint32_t *count) {
    REQUIRE(request);
    TELL(count, request->parameter_count);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestParameter(TRITONBACKEND_Request *request,
                                                            const uint32_t index, const char **key,
                                                            TRITONSERVER_ParameterType *type,
                                                            const void **vvalue) {
    REQUIRE(request);
    TELL(key, NULL);
    TELL(vvalue, NULL);
    if (index >= request->parameter_count)
        return out_of_bounds(request, index, request->parameter_count, "parameters");
    const TRITONSERVER_Parameter *parameter = request->parameters;
    for (uint32_t at = 0; at < index; ++at) parameter = parameter->next;
    TELL(key, parameter->name);
    TELL(type, parameter->type);
    const bool is_text =
        parameter->type == TRITONSERVER_PARAMETER_STRING || parameter->type == TRITONSERVER_PARAMETER_BYTES;
    TELL(vvalue, is_text ? (const void *)parameter->text : (const void *)&parameter->value);
    return NULL;
}

/* -- outputs */

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *request,
                                                              uint32_t *count) {
    REQUIRE(request);
    TELL(count, request->output_count);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *request,
                                                             const uint32_t index, const char **output_name) {
    REQUIRE(request);
    TELL(output_name, NULL);
    if (index >= request->output_count)
        return out_of_bounds(request, index, request->output_count, "requested outputs");
    TELL(output_name, request->outputs[index]);
    return NULL;
}

/* Where a client wants an output is the worker's to know: it is CPU memory, of any size. */
EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestOutputBufferProperties(TRITONBACKEND_Request *request,
                                                                         const char *name, size_t *byte_size,
                                                                         TRITONSERVER_MemoryType *memory_type,
                                                                         int64_t *memory_type_id) {
    (void)name, (void)byte_size;
    REQUIRE(request);
    TELL(memory_type, TRITONSERVER_MEMORY_CPU);
    TELL(memory_type_id, 0);
    return NULL;
}

/* -- inputs */

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request *request, uint32_t *count) {
    REQUIRE(request);
    TELL(count, request->input_count);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestInputName(TRITONBACKEND_Request *request,
                                                            const uint32_t index, const char **input_name) {
    REQUIRE(request);
    TELL(input_name, NULL);
    if (index >= request->input_count)
        return out_of_bounds(request, index, request->input_count, "inputs");
    TELL(input_name, request->inputs[index].name);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request *request,
                                                               const uint32_t index,
                                                               TRITONBACKEND_Input **input) {
    REQUIRE(request);
    REQUIRE(input);
    *input = NULL;
    if (index >= request->input_count)
        return out_of_bounds(request, index, request->input_count, "inputs");
    *input = &request->inputs[index];
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_RequestInput(TRITONBACKEND_Request *request, const char *name,
                                                        TRITONBACKEND_Input **input) {
    REQUIRE(request);
    REQUIRE(input);
    *input = NULL;
    REQUIRE(name);
    for (uint32_t at = 0; at < request->input_count; ++at)
        if (strcmp(request->inputs[at].name, name) == 0) {
            *input = &request->inputs[at];
            return NULL;
        }
    return fail(TRITONSERVER_ERROR_INVALID_ARG, "%s%s%sunknown request input name %s",
                *request->id ? "[request id: " : "", request->id, *request->id ? "] " : "", name);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *input, const char **name,
                                                           TRITONSERVER_DataType *datatype,
                                                           const int64_t **shape, uint32_t *dims_count,
                                                           uint64_t *byte_size, uint32_t *buffer_count) {
    REQUIRE(input);
    TELL(name, input->name);
    TELL(datatype, input->datatype);
    TELL(shape, input->shape);
    TELL(dims_count, input->dims);
    TELL(byte_size, input->size);
    TELL(buffer_count, 1);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_InputPropertiesForHostPolicy(
    TRITONBACKEND_Input *input, const char *host_policy_name, const char **name,
    TRITONSERVER_DataType *datatype, const int64_t **shape, uint32_t *dims_count, uint64_t *byte_size,
    uint32_t *buffer_count) {
    (void)host_policy_name;
    return TRITONBACKEND_InputProperties(input, name, datatype, shape, dims_count, byte_size, buffer_count);
}

static TRITONSERVER_Error *one_buffer(const TRITONBACKEND_Input *input, uint32_t index) {
    if (index == 0) return NULL;
    return fail(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u: input '%s' has 1 buffer", index,
                input->name);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *input, const uint32_t index,
                                                       const void **buffer, uint64_t *buffer_byte_size,
                                                       TRITONSERVER_MemoryType *memory_type,
                                                       int64_t *memory_type_id) {
    REQUIRE(input);
    REQUIRE(buffer);
    *buffer = NULL;
    TRITONSERVER_Error *error = one_buffer(input, index);
    if (error != NULL) return error;
    *buffer = input->data;
    TELL(buffer_byte_size, input->size);
    TELL(memory_type, TRITONSERVER_MEMORY_CPU);
    TELL(memory_type_id, 0);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_InputBufferForHostPolicy(
    TRITONBACKEND_Input *input, const char *host_policy_name, const uint32_t index, const void **buffer,
    uint64_t *buffer_byte_size, TRITONSERVER_MemoryType *memory_type, int64_t *memory_type_id) {
    (void)host_policy_name;
    return TRITONBACKEND_InputBuffer(input, index, buffer, buffer_byte_size, memory_type, memory_type_id);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_InputBufferAttributes(
    TRITONBACKEND_Input *input, const uint32_t index, const void **buffer,
    TRITONSERVER_BufferAttributes **buffer_attributes) {
    REQUIRE(input);
    TELL(buffer, NULL);
    TELL(buffer_attributes, NULL);
    TRITONSERVER_Error *error = one_buffer(input, index);
    if (error != NULL) return error;
    input->attributes.byte_size = input->size;
    TELL(buffer, input->data);
    TELL(buffer_attributes, &input->attributes);
    return NULL;
}
