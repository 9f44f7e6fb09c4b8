/* What the worker's Python code calls: `engine.worker.native.shim` declares the same functions for ctypes. */
#ifndef TRITIUM_HOST_H
#define TRITIUM_HOST_H

#include "interface.h"

typedef struct Batch Batch;
typedef void (*LogLine)(int level, const char *file, int line, const char *text);
typedef TRITONSERVER_Error *(*Execute)(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests,
                                       const uint32_t count);

/* Bytes for the host to read (`engine.worker.native.descriptions`), and the batch that they are about. */
typedef struct {
    const uint8_t *data;
    size_t size;
    Batch *batch;
} Outcome;

/* Lines of libraries go to `callback` from now on, from any thread; verbose ones only if it is said. */
EXPORTED void tritium_log_to(LogLine callback, int with_verbose);

EXPORTED TRITONBACKEND_Backend *tritium_backend_new(const char *name, const char *directory,
                                                    const char *config);
EXPORTED void tritium_backend_free(TRITONBACKEND_Backend *backend);

/* `row_bytes` of outputs: the size of one row, or of the whole tensor without batching; -1 if it varies. */
EXPORTED TRITONBACKEND_Model *tritium_model_new(TRITONBACKEND_Backend *backend, const char *name,
                                                uint64_t version, const char *directory, const char *config,
                                                int completes, int batches, int decoupled,
                                                uint32_t input_count, const char *const *input_names,
                                                const int32_t *input_datatypes, uint32_t output_count,
                                                const char *const *output_names,
                                                const int32_t *output_datatypes, const int64_t *row_bytes);
EXPORTED void tritium_model_free(TRITONBACKEND_Model *model);
/* What ModelSetConfig was given; NULL if it was not called. */
EXPORTED const char *tritium_model_completed(TRITONBACKEND_Model *model);

EXPORTED TRITONBACKEND_ModelInstance *tritium_instance_new(TRITONBACKEND_Model *model, const char *name,
                                                           int kind, int32_t device_id,
                                                           const char *host_policy);
EXPORTED void tritium_instance_free(TRITONBACKEND_ModelInstance *instance);

/* Execute one batch. Where the model is not decoupled, also wait until all of it is released and answered. The
 * outcome's bytes are valid until the next call for this instance. Its batch must be freed by the host: tensors
 * outside of the room go with it. */
EXPORTED void tritium_execute(Execute execute, TRITONBACKEND_ModelInstance *instance,
                              const uint8_t *description, size_t size, Outcome *outcome);
EXPORTED void tritium_batch_free(Batch *batch);

/* Wait for what has become of requests of a decoupled model. False once the queue is closed and empty. */
EXPORTED int tritium_next(TRITONBACKEND_Model *model, Outcome *outcome);
EXPORTED void tritium_close(TRITONBACKEND_Model *model);

/* How many errors, messages, responses and factories there are. */
EXPORTED void tritium_alive(int64_t counts[4]);

/* Call a library's function of one argument. Takes the error apart: its code and text, or -1 and nothing. */
EXPORTED int tritium_call(TRITONSERVER_Error *(*function)(void *), void *argument, char *text, size_t size);
EXPORTED int tritium_attribute_call(TRITONSERVER_Error *(*function)(TRITONBACKEND_Backend *,
                                                                    TRITONBACKEND_BackendAttribute *),
                                    TRITONBACKEND_Backend *backend, char *text, size_t size);

#endif
