/* Responses and their factories: what a backend answers with, from any thread. */
#include <stdio.h>

#include "objects.h"

int64_t live_responses, live_factories;

/* -- factories */

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryNew(TRITONBACKEND_ResponseFactory **factory,
                                                              TRITONBACKEND_Request *request) {
    REQUIRE(factory);
    *factory = NULL;
    REQUIRE(request);
    *factory = allocated(sizeof **factory);
    (*factory)->request = request;
    COUNT(live_factories, 1);
    batch_hold(request->batch);
    pthread_mutex_lock(&request->batch->lock);
    ++request->answerers;
    pthread_mutex_unlock(&request->batch->lock);
    return NULL;
}

/* One that could answer does not exist any more. */
static void answerer_gone(TRITONBACKEND_Request *request) {
    Batch *batch = request->batch;
    pthread_mutex_lock(&batch->lock);
    --request->answerers;
    request_settle(request);
    pthread_mutex_unlock(&batch->lock);
    batch_let_go(batch);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory *factory) {
    if (factory == NULL) return NULL;
    TRITONBACKEND_Request *request = factory->request;
    free(factory);
    COUNT(live_factories, -1);
    answerer_gone(request);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryIsCancelled(TRITONBACKEND_ResponseFactory *factory,
                                                                      bool *is_cancelled) {
    REQUIRE(factory);
    TELL(is_cancelled, request_is_cancelled(factory->request));
    return NULL;
}

/* With the lock held: whether a response may still be sent. */
static TRITONSERVER_Error *still_open(const TRITONBACKEND_Request *request) {
    if (!request->final) return NULL;
    return fail(TRITONSERVER_ERROR_INVALID_ARG, "the last response to this request has been sent already");
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseFactorySendFlags(TRITONBACKEND_ResponseFactory *factory,
                                                                    const uint32_t send_flags) {
    REQUIRE(factory);
    if (!(send_flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)) return NULL;
    TRITONBACKEND_Request *request = factory->request;
    Batch *batch = request->batch;
    pthread_mutex_lock(&batch->lock);
    TRITONSERVER_Error *error = still_open(request);
    if (error == NULL) {
        request->final = true;
        if (batch->model->decoupled) queue_response(batch->model->queue, request, NULL, true);
    }
    pthread_mutex_unlock(&batch->lock);
    return error;
}

/* -- responses */

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **response,
                                                       TRITONBACKEND_Request *request) {
    REQUIRE(response);
    *response = NULL;
    REQUIRE(request);
    TRITONBACKEND_Response *made = allocated(sizeof *made);
    made->request = request;
    made->last_output = &made->outputs;
    made->last_parameter = &made->parameters;
    COUNT(live_responses, 1);
    batch_hold(request->batch);
    pthread_mutex_lock(&request->batch->lock);
    ++request->answerers;
    if (request->first == NULL) request->first = made;
    pthread_mutex_unlock(&request->batch->lock);
    *response = made;
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseNewFromFactory(TRITONBACKEND_Response **response,
                                                                  TRITONBACKEND_ResponseFactory *factory) {
    REQUIRE(response);
    *response = NULL;
    REQUIRE(factory);
    return TRITONBACKEND_ResponseNew(response, factory->request);
}

void response_free(TRITONBACKEND_Response *response) {
    for (TRITONBACKEND_Output *output = response->outputs, *next; output != NULL; output = next) {
        next = output->next;
        if (output->at < 0) free(output->data);
        free(output->name);
        free(output->shape);
        free(output);
    }
    parameters_delete(response->parameters);
    TRITONSERVER_ErrorDelete(response->error);
    free(response);
    COUNT(live_responses, -1);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseDelete(TRITONBACKEND_Response *response) {
    if (response == NULL) return NULL;
    TRITONBACKEND_Request *request = response->request;
    pthread_mutex_lock(&request->batch->lock);
    if (request->first == response) request->first = NULL;
    pthread_mutex_unlock(&request->batch->lock);
    response_free(response);
    answerer_gone(request);
    return NULL;
}

static TRITONSERVER_Error *add_parameter(TRITONBACKEND_Response *response, const char *name,
                                         TRITONSERVER_ParameterType type, const void *value) {
    REQUIRE(response);
    REQUIRE(name);
    REQUIRE(value);
    TRITONSERVER_Parameter *parameter = TRITONSERVER_ParameterNew(name, type, value);
    *response->last_parameter = parameter;
    response->last_parameter = &parameter->next;
    ++response->parameter_count;
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseSetStringParameter(TRITONBACKEND_Response *response,
                                                                      const char *name, const char *value) {
    return add_parameter(response, name, TRITONSERVER_PARAMETER_STRING, value);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseSetIntParameter(TRITONBACKEND_Response *response,
                                                                   const char *name, const int64_t value) {
    return add_parameter(response, name, TRITONSERVER_PARAMETER_INT, &value);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseSetBoolParameter(TRITONBACKEND_Response *response,
                                                                    const char *name, const bool value) {
    return add_parameter(response, name, TRITONSERVER_PARAMETER_BOOL, &value);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseSetDoubleParameter(TRITONBACKEND_Response *response,
                                                                      const char *name, const double value) {
    return add_parameter(response, name, TRITONSERVER_PARAMETER_DOUBLE, &value);
}

/* -- outputs */

enum { MOST_DIMS = 64 };

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *response,
                                                          TRITONBACKEND_Output **output, const char *name,
                                                          const TRITONSERVER_DataType datatype,
                                                          const int64_t *shape, const uint32_t dims_count) {
    REQUIRE(output);
    *output = NULL;
    REQUIRE(response);
    REQUIRE(name);
    if (dims_count) REQUIRE(shape);
    if (dims_count > MOST_DIMS)
        return fail(TRITONSERVER_ERROR_INVALID_ARG, "output '%s' has %u dimensions, more than %d", name,
                    dims_count, MOST_DIMS);
    if (datatype <= TRITONSERVER_TYPE_INVALID || datatype > TRITONSERVER_TYPE_BF16)
        return fail(TRITONSERVER_ERROR_INVALID_ARG, "output '%s' has the unknown datatype %d", name,
                    (int)datatype);
    for (uint32_t at = 0; at < dims_count; ++at)
        if (shape[at] < 0)
            return fail(TRITONSERVER_ERROR_INVALID_ARG, "output '%s' has a dimension of %lld", name,
                        (long long)shape[at]);
    for (TRITONBACKEND_Output *other = response->outputs; other != NULL; other = other->next)
        if (strcmp(other->name, name) == 0)
            return fail(TRITONSERVER_ERROR_ALREADY_EXISTS, "the response has output '%s' already", name);
    TRITONBACKEND_Output *made = allocated(sizeof *made);
    made->response = response;
    made->name = copied(name);
    made->datatype = datatype;
    made->dims = dims_count;
    made->shape = allocated(dims_count * sizeof *shape);
    if (dims_count) memcpy(made->shape, shape, dims_count * sizeof *shape);
    made->at = made->declared = -1;
    const TRITONBACKEND_Model *model = response->request->batch->model;
    for (uint32_t at = 0; at < model->output_count; ++at)
        if (strcmp(model->outputs[at].name, name) == 0) made->declared = at;
    *response->last_output = made;
    response->last_output = &made->next;
    ++response->output_count;
    *output = made;
    return NULL;
}

/* With the lock held: give an output a place in the room, if it has one for it. */
static void place(TRITONBACKEND_Output *output, uint64_t size) {
    const TRITONBACKEND_Request *request = output->response->request;
    Batch *batch = request->batch;
    const TRITONBACKEND_Model *model = batch->model;
    uint64_t at = batch->room_used;
    if (batch->closed || batch->room == NULL) return;
    if (output->declared >= 0 && batch->stacked_at[output->declared] != UINT64_MAX &&
        request->first == output->response) {
        /* Where all requests' rows of this output lie one behind the other. */
        const uint64_t row = (uint64_t)model->outputs[output->declared].row_bytes;
        if (size == row * request->rows) {
            output->at = (int64_t)(batch->stacked_at[output->declared] + row * request->first_row);
            output->data = batch->room + output->at;
            return;
        }
    }
    if (size > batch->room_size || at > batch->room_size - size) return;
    output->at = (int64_t)at;
    output->data = batch->room + at;
    batch->room_used = (at + size + 63) & ~(uint64_t)63;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *output, void **buffer,
                                                        const uint64_t buffer_byte_size,
                                                        TRITONSERVER_MemoryType *memory_type,
                                                        int64_t *memory_type_id) {
    REQUIRE(buffer);
    *buffer = NULL;
    REQUIRE(output);
    if (output->has_buffer && output->size != buffer_byte_size)
        return fail(TRITONSERVER_ERROR_ALREADY_EXISTS, "output '%s' has a buffer of %llu bytes already",
                    output->name, (unsigned long long)output->size);
    if (!output->has_buffer) {
        Batch *batch = output->response->request->batch;
        pthread_mutex_lock(&batch->lock);
        place(output, buffer_byte_size);
        if (output->data == NULL) batch->outside += (buffer_byte_size + 63) & ~(uint64_t)63;
        pthread_mutex_unlock(&batch->lock);
        if (output->data == NULL) {
            /* Not cleared: what a client gets is what the library writes. */
            output->data = malloc(buffer_byte_size ? buffer_byte_size : 1);
            if (output->data == NULL)
                return fail(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for %llu bytes of output '%s'",
                            (unsigned long long)buffer_byte_size, output->name);
        }
        output->has_buffer = true;
        output->size = output->attributes.byte_size = buffer_byte_size;
    }
    *buffer = output->data;
    TELL(memory_type, TRITONSERVER_MEMORY_CPU);
    TELL(memory_type_id, 0);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_OutputBufferAttributes(
    TRITONBACKEND_Output *output, TRITONSERVER_BufferAttributes **buffer_attributes) {
    REQUIRE(buffer_attributes);
    *buffer_attributes = NULL;
    REQUIRE(output);
    *buffer_attributes = &output->attributes;
    return NULL;
}

/* -- sending */

/* Return what is wrong with a response whose outputs are to be sent. */
static TRITONSERVER_Error *unsendable(const TRITONBACKEND_Response *response) {
    for (const TRITONBACKEND_Output *output = response->outputs; output != NULL; output = output->next) {
        uint64_t elements = 1;
        for (uint32_t at = 0; at < output->dims; ++at)
            if (__builtin_mul_overflow(elements, (uint64_t)output->shape[at], &elements))
                return fail(TRITONSERVER_ERROR_INTERNAL, "the shape of output '%s' is too large", output->name);
        const uint64_t element = size_of(output->datatype);
        if (!output->has_buffer && elements)
            return fail(TRITONSERVER_ERROR_INTERNAL, "output '%s' was sent without a buffer", output->name);
        uint64_t size;
        if (element && (__builtin_mul_overflow(elements, element, &size) || size != output->size))
            return fail(TRITONSERVER_ERROR_INTERNAL, "output '%s' has a buffer of %llu bytes; its shape needs %llu",
                        output->name, (unsigned long long)output->size,
                        (unsigned long long)(elements * element));
    }
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *response,
                                                        const uint32_t send_flags,
                                                        TRITONSERVER_Error *error) {
    REQUIRE(response);
    TRITONBACKEND_Request *request = response->request;
    Batch *batch = request->batch;
    response->error = error != NULL ? error_copy(error) : unsendable(response);
    bool final = send_flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL;
    bool kept = false;
    pthread_mutex_lock(&batch->lock);
    TRITONSERVER_Error *late = still_open(request);
    if (late == NULL) {
        request->final = final;
        if (batch->model->decoupled) {
            queue_response(batch->model->queue, request, response, final);
            kept = true;
        } else if (request->answer == NULL && !batch->closed) {
            request->answer = response;
            kept = true;
        } else {
            ++request->surplus;
        }
    }
    pthread_mutex_unlock(&batch->lock);
    if (!kept) response_free(response);
    answerer_gone(request);
    return late;
}
