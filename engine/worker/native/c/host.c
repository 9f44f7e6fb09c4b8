/* The host's side: it makes the objects, has a library execute a batch, and reads what became of it.
 *
 * A batch is described in bytes, in the machine's own order, without padding:
 *
 *     token u64, count u32, inputs u32, room's address u64, its size u64, address of cancel flags u64 (or 0),
 *     how many flags u32, rows u64 each
 *     each input: its place among the declared ones u32, dims u8, then either
 *         apart = 0 u8, dims i64 each, address u64, nbytes u64      all requests' rows, one behind the other
 *         apart = 1 u8, address u64, and for each request: dims i64 each, nbytes u64
 *     plain u8; if it is 0, for each request:
 *         id text, correlation text u8 (0: u64, 1: text), flags u32, timeout u64,
 *         outputs u32 (place u32 each; none: all declared), parameters u32 (key text, type u8, value each)
 *
 * A text is its length u32, then its bytes. A value is a text, an i64, a u8 or a double, by its type.
 *
 * What became of it:
 *
 *     0 u8, room needed u64, outputs u32: (place i32, datatype u8, dims u8, dims i64 each, at u64, nbytes u64)
 *     1 u8, room needed u64, for each request: 2 (no answer) u8, or a response
 *     2 u8, code u8, text        the same error for all
 *
 * A response is 1 u8, code u8, text; or 0 u8, parameters u32 (as above), outputs u32: (place i32, name text,
 * datatype u8, dims u8, dims i64 each, at i64, nbytes u64, address u64). */
#include <stdio.h>

#include "host.h"
#include "objects.h"

/* -- memory that lives as long as a batch */

static void *given(Batch *batch, size_t size) {
    size = (size + 15) & ~(size_t)15;
    Chunk *chunk = batch->memory;
    if (chunk == NULL || chunk->size - chunk->used < size) {
        const size_t room = size > 4000 ? size : 4000;
        chunk = allocated(sizeof *chunk + room + 15);
        chunk->size = room;
        chunk->next = batch->memory;
        batch->memory = chunk;
    }
    void *memory = (void *)(((uintptr_t)chunk->data + chunk->used + 15) & ~(uintptr_t)15);
    chunk->used += size;
    return memory;
}

/* -- reading a description */

typedef struct {
    const uint8_t *at, *end;
    bool failed;
} Reader;

static void take(Reader *reader, void *into, size_t size) {
    if ((size_t)(reader->end - reader->at) < size) {
        reader->failed = true;
        memset(into, 0, size);
        return;
    }
    memcpy(into, reader->at, size);
    reader->at += size;
}

#define TAKE(type, name)                                                                                     \
    type name;                                                                                               \
    take(reader, &name, sizeof name)

static const char *take_text(Reader *reader, Batch *batch, size_t *size) {
    TAKE(uint32_t, length);
    if ((size_t)(reader->end - reader->at) < length) {
        reader->failed = true;
        length = 0;
    }
    char *text = given(batch, (size_t)length + 1);
    memcpy(text, reader->at, length);
    text[length] = 0;
    reader->at += length;
    TELL(size, length);
    return text;
}

/* Whether a list of so many things of at least `least` bytes each can be there. */
static bool fits(Reader *reader, uint64_t count, size_t least) {
    if (count > (uint64_t)(reader->end - reader->at) / least) reader->failed = true;
    return !reader->failed;
}

static uint64_t elements_of(const int64_t *shape, uint32_t dims) {
    uint64_t elements = 1;
    for (uint32_t at = 0; at < dims; ++at)
        if (shape[at] < 0 || __builtin_mul_overflow(elements, (uint64_t)shape[at], &elements))
            return UINT64_MAX;
    return elements;
}

/* Return the bytes of so many strings, each behind its length; UINT64_MAX if they are not all there. */
static uint64_t string_bytes(const uint8_t *data, uint64_t size, uint64_t elements) {
    uint64_t at = 0;
    for (; elements; --elements) {
        uint32_t length;
        if (size - at < sizeof length) return UINT64_MAX;
        memcpy(&length, data + at, sizeof length);
        at += sizeof length;
        if (size - at < length) return UINT64_MAX;
        at += length;
    }
    return at;
}

static TRITONSERVER_Error *wrong_size(const Declared *declared, uint64_t size) {
    return fail(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' has %llu bytes, which its shape does not need",
                declared->name, (unsigned long long)size);
}

/* Set one request's input, with data from `*data` on, of which `left` bytes are there. */
static TRITONSERVER_Error *set_input(TRITONBACKEND_Input *input, const Declared *declared,
                                     const int64_t *shape, uint32_t dims, const uint8_t **data, uint64_t *left,
                                     bool last) {
    const uint64_t elements = elements_of(shape, dims);
    const uint64_t element = size_of(declared->datatype);
    uint64_t size;
    if (elements == UINT64_MAX) return wrong_size(declared, *left);
    if (declared->datatype == TRITONSERVER_TYPE_BYTES)
        size = string_bytes(*data, *left, elements);
    else if (__builtin_mul_overflow(elements, element, &size))
        size = UINT64_MAX;
    if (size > *left || (last && size != *left)) return wrong_size(declared, *left);
    input->name = declared->name;
    input->datatype = declared->datatype;
    input->shape = shape;
    input->dims = dims;
    input->data = *data;
    input->size = size;
    *data += size;
    *left -= size;
    return NULL;
}

static TRITONSERVER_Error *read_input(Reader *reader, Batch *batch, uint32_t place) {
    const TRITONBACKEND_Model *model = batch->model;
    TAKE(uint32_t, index);
    TAKE(uint8_t, dims);
    TAKE(uint8_t, apart);
    if (index >= model->input_count) reader->failed = true;
    if (reader->failed) return NULL;
    const Declared *declared = &model->inputs[index];
    TRITONSERVER_Error *error = NULL;
    if (apart) {
        TAKE(uint64_t, address);
        const uint8_t *data = (const uint8_t *)(uintptr_t)address;
        for (uint32_t at = 0; at < batch->count && error == NULL && !reader->failed; ++at) {
            int64_t *shape = given(batch, dims * sizeof *shape);
            take(reader, shape, dims * sizeof *shape);
            TAKE(uint64_t, size);
            if (!reader->failed)
                error = set_input(&batch->requests[at].inputs[place], declared, shape, dims, &data, &size, true);
        }
        return error;
    }
    int64_t *whole = given(batch, dims * sizeof *whole);
    take(reader, whole, dims * sizeof *whole);
    TAKE(uint64_t, address);
    TAKE(uint64_t, size);
    const uint8_t *data = (const uint8_t *)(uintptr_t)address;
    for (uint32_t at = 0; at < batch->count && error == NULL && !reader->failed; ++at) {
        TRITONBACKEND_Request *request = &batch->requests[at];
        int64_t *shape = whole;
        if (model->batches && dims && batch->count > 1) {
            shape = given(batch, dims * sizeof *shape);
            memcpy(shape, whole, dims * sizeof *shape);
            shape[0] = (int64_t)request->rows;
        }
        error = set_input(&request->inputs[place], declared, shape, dims, &data, &size, at + 1 == batch->count);
    }
    return error;
}

static void read_parameter(Reader *reader, Batch *batch, TRITONBACKEND_Request *request) {
    const char *key = take_text(reader, batch, NULL);
    TAKE(uint8_t, type);
    TRITONSERVER_Parameter *parameter = NULL;
    if (type == TRITONSERVER_PARAMETER_STRING) {
        parameter = TRITONSERVER_ParameterNew(key, type, take_text(reader, batch, NULL));
    } else if (type == TRITONSERVER_PARAMETER_INT) {
        TAKE(int64_t, value);
        parameter = TRITONSERVER_ParameterNew(key, type, &value);
    } else if (type == TRITONSERVER_PARAMETER_BOOL) {
        TAKE(uint8_t, byte);
        const bool value = byte != 0;
        parameter = TRITONSERVER_ParameterNew(key, type, &value);
    } else if (type == TRITONSERVER_PARAMETER_DOUBLE) {
        TAKE(double, value);
        parameter = TRITONSERVER_ParameterNew(key, type, &value);
    } else {
        reader->failed = true;
    }
    if (parameter == NULL) return;
    TRITONSERVER_Parameter **last = &request->parameters;
    while (*last != NULL) last = &(*last)->next;
    *last = parameter;
    ++request->parameter_count;
}

static void all_outputs(Batch *batch, TRITONBACKEND_Request *request) {
    const TRITONBACKEND_Model *model = batch->model;
    request->output_count = model->output_count;
    request->outputs = given(batch, model->output_count * sizeof *request->outputs);
    for (uint32_t at = 0; at < model->output_count; ++at) request->outputs[at] = model->outputs[at].name;
}

static void read_request(Reader *reader, Batch *batch, TRITONBACKEND_Request *request) {
    request->id = take_text(reader, batch, NULL);
    TAKE(uint8_t, is_text);
    if (is_text)
        request->correlation_text = take_text(reader, batch, NULL);
    else
        take(reader, &request->correlation_id, sizeof request->correlation_id);
    take(reader, &request->flags, sizeof request->flags);
    take(reader, &request->timeout, sizeof request->timeout);
    TAKE(uint32_t, outputs);
    if (!fits(reader, outputs, 4)) return;
    if (outputs) {
        request->outputs = given(batch, outputs * sizeof *request->outputs);
        request->output_count = outputs;
        for (uint32_t at = 0; at < outputs; ++at) {
            TAKE(uint32_t, index);
            if (index >= batch->model->output_count) {
                reader->failed = true;
                return;
            }
            request->outputs[at] = batch->model->outputs[index].name;
        }
    } else {
        all_outputs(batch, request);
    }
    TAKE(uint32_t, parameters);
    if (!fits(reader, parameters, 6)) return;
    for (uint32_t at = 0; at < parameters && !reader->failed; ++at) read_parameter(reader, batch, request);
}

/* Find for each output of a known size where the rows of all requests lie in the room. */
static void lay_out(Batch *batch) {
    const TRITONBACKEND_Model *model = batch->model;
    batch->stacked_at = allocated(model->output_count * sizeof *batch->stacked_at);
    for (uint32_t at = 0; at < model->output_count; ++at) {
        batch->stacked_at[at] = UINT64_MAX;
        uint64_t size;
        if (batch->room == NULL || model->outputs[at].row_bytes < 0 ||
            __builtin_mul_overflow((uint64_t)model->outputs[at].row_bytes, batch->rows, &size) ||
            size > batch->room_size || batch->room_used > batch->room_size - size)
            continue;
        batch->stacked_at[at] = batch->room_used;
        batch->room_used = (batch->room_used + size + 63) & ~(uint64_t)63;
        if (batch->room_used > batch->room_size) batch->room_used = batch->room_size;
    }
}

static TRITONSERVER_Error *read_batch(Reader *reader, Batch *batch) {
    TAKE(uint32_t, inputs);
    TAKE(uint64_t, room);
    take(reader, &batch->room_size, sizeof batch->room_size);
    TAKE(uint64_t, flags);
    take(reader, &batch->cancellable, sizeof batch->cancellable);
    batch->room = (char *)(uintptr_t)room;
    batch->cancelled = (const volatile uint8_t *)(uintptr_t)flags;
    if (inputs > batch->model->input_count) reader->failed = true;
    for (uint32_t at = 0; at < batch->count && !reader->failed; ++at) {
        TRITONBACKEND_Request *request = &batch->requests[at];
        take(reader, &request->rows, sizeof request->rows);
        request->batch = batch;
        request->index = at;
        request->id = "";
        request->first_row = batch->rows;
        request->input_count = inputs;
        request->inputs = given(batch, inputs * sizeof *request->inputs);
        batch->rows += request->rows;
        batch->pointers[at] = request;
    }
    TRITONSERVER_Error *error = NULL;
    for (uint32_t at = 0; at < inputs && error == NULL && !reader->failed; ++at)
        error = read_input(reader, batch, at);
    if (error != NULL) return error;
    TAKE(uint8_t, plain);
    for (uint32_t at = 0; at < batch->count && !reader->failed; ++at) {
        if (plain)
            all_outputs(batch, &batch->requests[at]);
        else
            read_request(reader, batch, &batch->requests[at]);
    }
    if (reader->failed || reader->at != reader->end)
        return fail(TRITONSERVER_ERROR_INTERNAL, "the description of a batch can't be read");
    lay_out(batch);
    return NULL;
}

static Batch *batch_new(TRITONBACKEND_Model *model, const uint8_t *description, size_t size,
                        TRITONSERVER_Error **error) {
    Reader whole = {description, description + size, false}, *reader = &whole;
    Batch *batch = allocated(sizeof *batch);
    batch->model = model;
    batch->holders = 1;
    pthread_mutex_init(&batch->lock, NULL);
    pthread_cond_init(&batch->settled, NULL);
    take(reader, &batch->token, sizeof batch->token);
    TAKE(uint32_t, count);
    if (fits(reader, count, sizeof(uint64_t))) {
        batch->requests = given(batch, count * sizeof *batch->requests);
        batch->pointers = given(batch, count * sizeof *batch->pointers);
        batch->count = count;
    }
    *error = read_batch(reader, batch);
    if (*error == NULL) {
        batch->unsettled = count;
        batch->holders += count;
    }
    return batch;
}

/* -- writing what became of it */

void write_bytes(Text *text, const void *data, size_t size) {
    if (text->room - text->size < size) {
        text->room = 2 * text->room + size + 256;
        text->data = realloc(text->data, text->room);
        if (text->data == NULL) abort();
    }
    if (size) memcpy(text->data + text->size, data, size);
    text->size += size;
}

#define WRITE(text, type, value)                                                                             \
    do {                                                                                                     \
        const type written_ = (type)(value);                                                                 \
        write_bytes((text), &written_, sizeof written_);                                                     \
    } while (0)

static void write_text(Text *text, const char *data, size_t size) {
    WRITE(text, uint32_t, size);
    write_bytes(text, data, size);
}

static void write_error(Text *text, const TRITONSERVER_Error *error) {
    WRITE(text, uint8_t, error->code);
    write_text(text, error->text, strlen(error->text));
}

static void write_shape(Text *text, const TRITONBACKEND_Output *output) {
    WRITE(text, uint8_t, output->datatype);
    WRITE(text, uint8_t, output->dims);
    write_bytes(text, output->shape, output->dims * sizeof *output->shape);
}

void write_response(Text *text, const TRITONBACKEND_Response *response) {
    if (response->error != NULL) {
        WRITE(text, uint8_t, 1);
        write_error(text, response->error);
        return;
    }
    WRITE(text, uint8_t, 0);
    WRITE(text, uint32_t, response->parameter_count);
    for (const TRITONSERVER_Parameter *each = response->parameters; each != NULL; each = each->next) {
        write_text(text, each->name, strlen(each->name));
        WRITE(text, uint8_t, each->type);
        if (each->type == TRITONSERVER_PARAMETER_STRING)
            write_text(text, each->text, each->size);
        else if (each->type == TRITONSERVER_PARAMETER_INT)
            WRITE(text, int64_t, each->value.integer);
        else if (each->type == TRITONSERVER_PARAMETER_BOOL)
            WRITE(text, uint8_t, each->value.boolean);
        else
            WRITE(text, double, each->value.number);
    }
    WRITE(text, uint32_t, response->output_count);
    for (const TRITONBACKEND_Output *each = response->outputs; each != NULL; each = each->next) {
        WRITE(text, int32_t, each->declared);
        write_text(text, each->name, each->declared < 0 ? strlen(each->name) : 0);
        write_shape(text, each);
        WRITE(text, int64_t, each->at);
        WRITE(text, uint64_t, each->size);
        WRITE(text, uint64_t, (uintptr_t)each->data);
    }
}

/* Whether an answer is nothing but outputs in the room. */
static bool is_bare(const TRITONBACKEND_Response *answer) {
    if (answer == NULL || answer->error != NULL || answer->parameters != NULL) return false;
    for (const TRITONBACKEND_Output *each = answer->outputs; each != NULL; each = each->next)
        if (each->at < 0 || each->declared < 0) return false;
    return true;
}

/* Whether the outputs of request `at` lie behind those of the first, as one tensor of all rows. */
static bool continues(const Batch *batch, uint32_t at) {
    const TRITONBACKEND_Request *request = &batch->requests[at];
    if (!is_bare(request->answer)) return false;
    const TRITONBACKEND_Output *each = request->answer->outputs;
    const TRITONBACKEND_Output *first = batch->requests[0].answer->outputs;
    for (; each != NULL && first != NULL; each = each->next, first = first->next) {
        if (each->declared != first->declared || each->datatype != first->datatype ||
            each->dims != first->dims || !each->dims || each->shape[0] != (int64_t)request->rows ||
            memcmp(each->shape + 1, first->shape + 1, (each->dims - 1) * sizeof *each->shape) != 0)
            return false;
        const uint64_t from = batch->stacked_at[each->declared];
        if (from == UINT64_MAX) return false;
        const uint64_t row = (uint64_t)batch->model->outputs[each->declared].row_bytes;
        if ((uint64_t)each->at != from + row * request->first_row) return false;
        if (each->size != row * request->rows) return false;
    }
    return each == NULL && first == NULL;
}

static void write_outcome(Text *text, const Batch *batch) {
    bool stacked = batch->count > 0 && is_bare(batch->requests[0].answer);
    if (batch->count > 1)
        for (uint32_t at = 0; at < batch->count && stacked; ++at) stacked = continues(batch, at);
    WRITE(text, uint8_t, stacked ? 0 : 1);
    WRITE(text, uint64_t, batch->room_used + batch->outside);
    if (stacked) {
        WRITE(text, uint32_t, batch->requests[0].answer->output_count);
        for (const TRITONBACKEND_Output *each = batch->requests[0].answer->outputs; each; each = each->next) {
            WRITE(text, int32_t, each->declared);
            WRITE(text, uint8_t, each->datatype);
            WRITE(text, uint8_t, each->dims);
            if (batch->count > 1) {
                WRITE(text, int64_t, batch->rows);
                write_bytes(text, each->shape + 1, (each->dims - 1) * sizeof *each->shape);
            } else {
                write_bytes(text, each->shape, each->dims * sizeof *each->shape);
            }
            WRITE(text, uint64_t, each->at);
            const uint64_t all = batch->count > 1 ? (uint64_t)batch->model->outputs[each->declared].row_bytes *
                                                        batch->rows
                                                  : each->size;
            WRITE(text, uint64_t, all);
        }
        return;
    }
    for (uint32_t at = 0; at < batch->count; ++at) {
        const TRITONBACKEND_Response *answer = batch->requests[at].answer;
        if (answer == NULL)
            WRITE(text, uint8_t, 2);
        else
            write_response(text, answer);
    }
}

/* -- executing */

/* The library has taken nothing of a batch: release what it has not. */
static void take_back(Batch *batch) {
    uint32_t left = 0;
    pthread_mutex_lock(&batch->lock);
    batch->closed = true;
    for (uint32_t at = 0; at < batch->count; ++at) {
        left += !batch->requests[at].released;
        batch->requests[at].released = batch->requests[at].final = true;
    }
    pthread_mutex_unlock(&batch->lock);
    while (left--) batch_let_go(batch);
}

static void wait_for(Batch *batch) {
    pthread_mutex_lock(&batch->lock);
    while (batch->unsettled) pthread_cond_wait(&batch->settled, &batch->lock);
    batch->closed = true;
    pthread_mutex_unlock(&batch->lock);
    for (uint32_t at = 0; at < batch->count; ++at)
        if (batch->requests[at].surplus)
            log_line(TRITONSERVER_LOG_ERROR,
                     "%u responses to a request were dropped after its first: model '%s' is not decoupled",
                     batch->requests[at].surplus, batch->model->name);
}

EXPORTED void tritium_execute(Execute execute, TRITONBACKEND_ModelInstance *instance,
                              const uint8_t *description, size_t size, Outcome *outcome) {
    Text *text = &instance->result;
    TRITONSERVER_Error *error;
    Batch *batch = batch_new(instance->model, description, size, &error);
    text->size = 0;
    outcome->batch = batch;
    if (error == NULL) {
        error = execute(instance, batch->pointers, batch->count);
        if (error != NULL) take_back(batch);
    }
    if (error != NULL) {
        WRITE(text, uint8_t, 2);
        write_error(text, error);
        TRITONSERVER_ErrorDelete(error);
    } else if (!instance->model->decoupled) {
        wait_for(batch);
        write_outcome(text, batch);
    }
    outcome->data = text->data;
    outcome->size = text->size;
}

EXPORTED void tritium_batch_free(Batch *batch) { batch_let_go(batch); }

/* -- making and freeing what lasts longer */

EXPORTED TRITONBACKEND_Backend *tritium_backend_new(const char *name, const char *directory,
                                                    const char *config) {
    TRITONBACKEND_Backend *backend = allocated(sizeof *backend);
    backend->name = copied(name);
    backend->directory = copied(directory);
    backend->config = message_new(config, strlen(config));
    return backend;
}

EXPORTED void tritium_backend_free(TRITONBACKEND_Backend *backend) {
    TRITONSERVER_MessageDelete(backend->config);
    free(backend->name);
    free(backend->directory);
    free(backend);
}

static Declared *declared(uint32_t count, const char *const *names, const int32_t *datatypes,
                          const int64_t *row_bytes) {
    Declared *made = allocated(count * sizeof *made);
    for (uint32_t at = 0; at < count; ++at) {
        made[at].name = copied(names[at]);
        made[at].datatype = (TRITONSERVER_DataType)datatypes[at];
        made[at].row_bytes = row_bytes == NULL ? -1 : row_bytes[at];
    }
    return made;
}

EXPORTED TRITONBACKEND_Model *tritium_model_new(TRITONBACKEND_Backend *backend, const char *name,
                                                uint64_t version, const char *directory, const char *config,
                                                int completes, int batches, int decoupled,
                                                uint32_t input_count, const char *const *input_names,
                                                const int32_t *input_datatypes, uint32_t output_count,
                                                const char *const *output_names,
                                                const int32_t *output_datatypes, const int64_t *row_bytes) {
    TRITONBACKEND_Model *model = allocated(sizeof *model);
    model->backend = backend;
    model->name = copied(name);
    model->version = version;
    model->directory = copied(directory);
    model->config = message_new(config, strlen(config));
    model->completes = completes;
    model->batches = batches;
    model->decoupled = decoupled;
    model->input_count = input_count;
    model->inputs = declared(input_count, input_names, input_datatypes, NULL);
    model->output_count = output_count;
    model->outputs = declared(output_count, output_names, output_datatypes, row_bytes);
    model->queue = queue_new();
    return model;
}

EXPORTED void tritium_model_free(TRITONBACKEND_Model *model) {
    for (uint32_t at = 0; at < model->input_count; ++at) free(model->inputs[at].name);
    for (uint32_t at = 0; at < model->output_count; ++at) free(model->outputs[at].name);
    free(model->inputs);
    free(model->outputs);
    TRITONSERVER_MessageDelete(model->config);
    TRITONSERVER_MessageDelete(model->completed);
    queue_free(model->queue);
    free(model->name);
    free(model->directory);
    free(model);
}

EXPORTED const char *tritium_model_completed(TRITONBACKEND_Model *model) {
    return model->completed == NULL ? NULL : model->completed->text;
}

EXPORTED TRITONBACKEND_ModelInstance *tritium_instance_new(TRITONBACKEND_Model *model, const char *name,
                                                           int kind, int32_t device_id,
                                                           const char *host_policy) {
    TRITONBACKEND_ModelInstance *instance = allocated(sizeof *instance);
    instance->model = model;
    instance->name = copied(name);
    instance->kind = (TRITONSERVER_InstanceGroupKind)kind;
    instance->device_id = device_id;
    instance->host_policy = message_new(host_policy, strlen(host_policy));
    return instance;
}

EXPORTED void tritium_instance_free(TRITONBACKEND_ModelInstance *instance) {
    TRITONSERVER_MessageDelete(instance->host_policy);
    free(instance->result.data);
    free(instance->name);
    free(instance);
}

static int told(TRITONSERVER_Error *error, char *text, size_t size) {
    if (error == NULL) return -1;
    const int code = (int)error->code;
    snprintf(text, size, "%s", error->text);
    TRITONSERVER_ErrorDelete(error);
    return code;
}

EXPORTED int tritium_call(TRITONSERVER_Error *(*function)(void *), void *argument, char *text, size_t size) {
    return told(function(argument), text, size);
}

EXPORTED int tritium_attribute_call(TRITONSERVER_Error *(*function)(TRITONBACKEND_Backend *,
                                                                    TRITONBACKEND_BackendAttribute *),
                                    TRITONBACKEND_Backend *backend, char *text, size_t size) {
    TRITONBACKEND_BackendAttribute attributes = {false};
    return told(function(backend, &attributes), text, size);
}

EXPORTED void tritium_alive(int64_t counts[4]) {
    counts[0] = __atomic_load_n(&live_errors, __ATOMIC_RELAXED);
    counts[1] = __atomic_load_n(&live_messages, __ATOMIC_RELAXED);
    counts[2] = __atomic_load_n(&live_responses, __ATOMIC_RELAXED);
    counts[3] = __atomic_load_n(&live_factories, __ATOMIC_RELAXED);
}
