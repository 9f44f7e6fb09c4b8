/* What the objects of the C API are here, and who holds them.
 *
 *     Backend 1 -- n Model 1 -- n Instance        made and freed by the host: `host.c`
 *     Batch   1 -- n Request 1 -- n Input         made for one execution, from one description
 *     Request 1 -- n Response 1 -- n Output       made by the backend, taken by `ResponseSend`
 *     Request 1 -- n ResponseFactory              made and deleted by the backend
 *
 * A batch is one block of memory with all its requests. It is kept by its `holders`: the host, each request
 * that is not released, each factory and each response. The last one to let go frees it. `lock` guards what
 * several threads change; what the description says never changes.
 *
 * A batch of a model that is not decoupled is waited for (`tritium_run`). Its outputs lie in the *room*, a
 * piece of the worker's output segment, as long as they fit. Responses of a decoupled model go through the
 * *queue*, which a thread of the host empties (`tritium_next`). */
#ifndef TRITIUM_OBJECTS_H
#define TRITIUM_OBJECTS_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "interface.h"

struct TRITONSERVER_Error {
    TRITONSERVER_Error_Code code;
    char text[];
};

struct TRITONSERVER_Message {
    size_t size;
    char text[];
};

typedef union {
    int64_t integer;
    bool boolean;
    double number;
} Scalar;

struct TRITONSERVER_Parameter {
    struct TRITONSERVER_Parameter *next; /* of a response or a request */
    char *name;
    TRITONSERVER_ParameterType type;
    size_t size; /* of the text */
    char *text;
    Scalar value;
};

struct TRITONSERVER_BufferAttributes {
    size_t byte_size;
    TRITONSERVER_MemoryType memory_type;
    int64_t memory_type_id;
    void *cuda_ipc_handle;
};

struct TRITONBACKEND_Backend {
    char *name;
    char *directory;
    TRITONSERVER_Message *config;
    TRITONBACKEND_ExecutionPolicy policy;
    void *state;
};

struct TRITONBACKEND_BackendAttribute {
    bool parallel_loading;
};

/* One declared input or output. */
typedef struct {
    char *name;
    TRITONSERVER_DataType datatype;
    int64_t row_bytes; /* of an output with a size that is known beforehand; else -1 */
} Declared;

typedef struct Queue Queue;

struct TRITONBACKEND_Model {
    TRITONBACKEND_Backend *backend;
    char *name;
    uint64_t version;
    char *directory;
    TRITONSERVER_Message *config;
    TRITONSERVER_Message *completed; /* by ModelSetConfig */
    bool completes;                  /* whether the host asks for that */
    bool batches;
    bool decoupled;
    uint32_t input_count, output_count;
    Declared *inputs, *outputs;
    Queue *queue;
    void *state;
};

/* Bytes that are written one behind the other. */
typedef struct {
    uint8_t *data;
    size_t size, room;
} Text;

struct TRITONBACKEND_ModelInstance {
    TRITONBACKEND_Model *model;
    char *name;
    TRITONSERVER_InstanceGroupKind kind;
    int32_t device_id;
    TRITONSERVER_Message *host_policy;
    void *state;
    Text result; /* of the last execution, for the host */
};

typedef struct Batch Batch;

struct TRITONBACKEND_Input {
    const char *name;
    TRITONSERVER_DataType datatype;
    uint32_t dims;
    const int64_t *shape;
    const void *data;
    uint64_t size;
    TRITONSERVER_BufferAttributes attributes;
};

struct TRITONBACKEND_Request {
    Batch *batch;
    uint32_t index;
    uint64_t first_row, rows;
    const char *id;
    const char *correlation_text; /* NULL if it is a number */
    uint64_t correlation_id;
    uint32_t flags;
    uint64_t timeout;
    uint32_t parameter_count;
    TRITONSERVER_Parameter *parameters;
    uint32_t input_count;
    TRITONBACKEND_Input *inputs;
    uint32_t output_count;
    const char **outputs;

    /* Guarded by the batch's lock. */
    bool released, final, told_gone;
    uint32_t answerers; /* factories and responses that can still answer */
    TRITONBACKEND_Response *first;  /* the response whose outputs go where all requests' rows lie together */
    TRITONBACKEND_Response *answer; /* the one response of a model that is not decoupled */
    uint32_t surplus;               /* responses after that */
};

struct TRITONBACKEND_ResponseFactory {
    TRITONBACKEND_Request *request;
};

struct TRITONBACKEND_Output {
    TRITONBACKEND_Output *next;
    TRITONBACKEND_Response *response;
    char *name;
    int64_t declared; /* its place among the model's outputs; -1 for one that is not among them */
    TRITONSERVER_DataType datatype;
    uint32_t dims;
    int64_t *shape;
    void *data;
    uint64_t size;
    int64_t at; /* where in the room it lies; -1 if it has memory of its own */
    bool has_buffer;
    TRITONSERVER_BufferAttributes attributes;
};

struct TRITONBACKEND_Response {
    TRITONBACKEND_Response *next; /* in the queue */
    TRITONBACKEND_Request *request;
    uint32_t output_count;
    TRITONBACKEND_Output *outputs, **last_output;
    uint32_t parameter_count;
    TRITONSERVER_Parameter *parameters, **last_parameter;
    TRITONSERVER_Error *error;
};

/* A piece of memory of a batch that is given out from front to back. */
typedef struct Chunk {
    struct Chunk *next;
    size_t size, used;
    char data[];
} Chunk;

struct Batch {
    TRITONBACKEND_Model *model;
    uint64_t token; /* the host's name for it */
    Chunk *memory;
    uint32_t count;
    uint64_t rows;
    TRITONBACKEND_Request *requests;
    TRITONBACKEND_Request **pointers;
    const volatile uint8_t *cancelled; /* a flag for each of the first `cancellable` requests */
    uint32_t cancellable;
    char *room;
    uint64_t room_size;
    uint64_t *stacked_at; /* for each output: where its rows of all requests lie in the room; or UINT64_MAX */

    pthread_mutex_t lock;
    pthread_cond_t settled;
    uint32_t holders;
    uint32_t unsettled; /* requests that are not released, or may still be answered */
    uint64_t room_used;
    uint64_t outside; /* bytes of outputs that had no place in the room */
    bool closed;      /* the host does not look into the room any more */
};

/* values.c */
TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *msg);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error);
TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *message);
TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, const TRITONSERVER_ParameterType type,
                                                  const void *value);
TRITONSERVER_Error *fail(TRITONSERVER_Error_Code code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
TRITONSERVER_Error *refuse(const char *name);
TRITONSERVER_Error *error_copy(const TRITONSERVER_Error *error);
TRITONSERVER_Message *message_new(const char *text, size_t size);
void *allocated(size_t size);
char *copied(const char *text);
void parameters_delete(TRITONSERVER_Parameter *first);
uint32_t size_of(TRITONSERVER_DataType datatype);
void log_line(TRITONSERVER_LogLevel level, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern int64_t live_errors, live_messages;

/* requests.c */
void batch_hold(Batch *batch);
void batch_let_go(Batch *batch);
void request_settle(TRITONBACKEND_Request *request);
bool request_is_cancelled(const TRITONBACKEND_Request *request);

/* host.c */
void write_bytes(Text *text, const void *data, size_t size);
void write_response(Text *text, const TRITONBACKEND_Response *response);

/* responses.c */
void response_free(TRITONBACKEND_Response *response);
extern int64_t live_responses, live_factories;

/* queue.c */
Queue *queue_new(void);
void queue_free(Queue *queue);
void queue_response(Queue *queue, TRITONBACKEND_Request *request, TRITONBACKEND_Response *response, bool final);
void queue_gone(Queue *queue, uint64_t token, uint32_t index);

#define COUNT(counter, change) __atomic_add_fetch(&(counter), (change), __ATOMIC_RELAXED)

#define REQUIRE(pointer)                                                                                     \
    do {                                                                                                     \
        if ((pointer) == NULL)                                                                               \
            return fail(TRITONSERVER_ERROR_INVALID_ARG, "%s: '" #pointer "' is null", __func__);              \
    } while (0)

/* An out parameter that may be null. */
#define TELL(out, value)                                                                                     \
    do {                                                                                                     \
        if ((out) != NULL) *(out) = (value);                                                                 \
    } while (0)

#endif
