/* Backends, models and instances: what a library reads of them, and the few things it may set. */
#include "objects.h"

/* -- backends */

EXPORTED TRITONSERVER_Error *TRITONBACKEND_BackendName(TRITONBACKEND_Backend *backend, const char **name) {
    REQUIRE(backend);
    TELL(name, backend->name);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_BackendConfig(TRITONBACKEND_Backend *backend,
                                                         TRITONSERVER_Message **backend_config) {
    REQUIRE(backend);
    TELL(backend_config, backend->config);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_BackendExecutionPolicy(TRITONBACKEND_Backend *backend,
                                                                  TRITONBACKEND_ExecutionPolicy *policy) {
    REQUIRE(backend);
    TELL(policy, backend->policy);
    return NULL;
}

/* One thread for each instance does for both policies: there are no devices that instances share. */
EXPORTED TRITONSERVER_Error *TRITONBACKEND_BackendSetExecutionPolicy(TRITONBACKEND_Backend *backend,
                                                                     TRITONBACKEND_ExecutionPolicy policy) {
    REQUIRE(backend);
    backend->policy = policy;
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_BackendArtifacts(TRITONBACKEND_Backend *backend,
                                                            TRITONBACKEND_ArtifactType *artifact_type,
                                                            const char **location) {
    REQUIRE(backend);
    TELL(artifact_type, TRITONBACKEND_ARTIFACT_FILESYSTEM);
    TELL(location, backend->directory);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_BackendMemoryManager(TRITONBACKEND_Backend *backend,
                                                                TRITONBACKEND_MemoryManager **manager) {
    REQUIRE(backend);
    /* It has nothing to remember: any pointer that is not null will do. */
    TELL(manager, (TRITONBACKEND_MemoryManager *)backend);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_BackendState(TRITONBACKEND_Backend *backend, void **state) {
    REQUIRE(backend);
    TELL(state, backend->state);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_BackendSetState(TRITONBACKEND_Backend *backend, void *state) {
    REQUIRE(backend);
    backend->state = state;
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
    TRITONBACKEND_BackendAttribute *backend_attributes, const TRITONSERVER_InstanceGroupKind kind,
    const uint64_t count, const uint64_t *device_ids, const uint64_t id_count) {
    (void)kind, (void)count, (void)device_ids, (void)id_count;
    REQUIRE(backend_attributes);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(
    TRITONBACKEND_BackendAttribute *backend_attributes, bool enabled) {
    REQUIRE(backend_attributes);
    backend_attributes->parallel_loading = enabled;
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_MemoryManagerAllocate(TRITONBACKEND_MemoryManager *manager,
                                                                 void **buffer,
                                                                 const TRITONSERVER_MemoryType memory_type,
                                                                 const int64_t memory_type_id,
                                                                 const uint64_t byte_size) {
    (void)memory_type_id;
    REQUIRE(manager);
    REQUIRE(buffer);
    *buffer = NULL;
    if (memory_type != TRITONSERVER_MEMORY_CPU)
        return fail(TRITONSERVER_ERROR_UNSUPPORTED, "there is no memory of type %s here, only CPU memory",
                    memory_type == TRITONSERVER_MEMORY_GPU ? "GPU" : "CPU_PINNED");
    *buffer = malloc(byte_size ? byte_size : 1);
    if (*buffer == NULL)
        return fail(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for %llu bytes", (unsigned long long)byte_size);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_MemoryManagerFree(TRITONBACKEND_MemoryManager *manager,
                                                             void *buffer,
                                                             const TRITONSERVER_MemoryType memory_type,
                                                             const int64_t memory_type_id) {
    (void)memory_type_id;
    REQUIRE(manager);
    if (memory_type != TRITONSERVER_MEMORY_CPU)
        return fail(TRITONSERVER_ERROR_UNSUPPORTED, "there is only CPU memory here");
    free(buffer);
    return NULL;
}

/* -- models */

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelName(TRITONBACKEND_Model *model, const char **name) {
    REQUIRE(model);
    TELL(name, model->name);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *model, uint64_t *version) {
    REQUIRE(model);
    TELL(version, model->version);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *model,
                                                           TRITONBACKEND_ArtifactType *artifact_type,
                                                           const char **location) {
    REQUIRE(model);
    TELL(artifact_type, TRITONBACKEND_ARTIFACT_FILESYSTEM);
    TELL(location, model->directory);
    return NULL;
}

static TRITONSERVER_Error *first_version(uint32_t config_version) {
    if (config_version == 1) return NULL;
    return fail(TRITONSERVER_ERROR_UNSUPPORTED,
                "model configuration version %u is not supported; there is only version 1", config_version);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelConfig(TRITONBACKEND_Model *model,
                                                       const uint32_t config_version,
                                                       TRITONSERVER_Message **model_config) {
    REQUIRE(model);
    REQUIRE(model_config);
    *model_config = NULL;
    TRITONSERVER_Error *error = first_version(config_version);
    if (error != NULL) return error;
    const TRITONSERVER_Message *now = model->completed != NULL ? model->completed : model->config;
    *model_config = message_new(now->text, now->size);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelAutoCompleteConfig(TRITONBACKEND_Model *model,
                                                                   bool *auto_complete_config) {
    REQUIRE(model);
    TELL(auto_complete_config, model->completes);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelSetConfig(TRITONBACKEND_Model *model,
                                                          const uint32_t config_version,
                                                          TRITONSERVER_Message *model_config) {
    REQUIRE(model);
    REQUIRE(model_config);
    TRITONSERVER_Error *error = first_version(config_version);
    if (error != NULL) return error;
    TRITONSERVER_MessageDelete(model->completed);
    model->completed = message_new(model_config->text, model_config->size);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelServer(TRITONBACKEND_Model *model,
                                                       TRITONSERVER_Server **server) {
    REQUIRE(model);
    /* Every function that takes it is refused: any pointer that is not null will do. */
    TELL(server, (TRITONSERVER_Server *)model);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelBackend(TRITONBACKEND_Model *model,
                                                        TRITONBACKEND_Backend **backend) {
    REQUIRE(model);
    TELL(backend, model->backend);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *model, void **state) {
    REQUIRE(model);
    TELL(state, model->state);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *model, void *state) {
    REQUIRE(model);
    model->state = state;
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelReportMemoryUsage(TRITONBACKEND_Model *model,
                                                                  TRITONSERVER_BufferAttributes **usage,
                                                                  uint32_t usage_size) {
    (void)usage, (void)usage_size;
    REQUIRE(model);
    return NULL;
}

/* -- instances */

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceName(TRITONBACKEND_ModelInstance *instance,
                                                             const char **name) {
    REQUIRE(instance);
    TELL(name, instance->name);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance *instance,
                                                             TRITONSERVER_InstanceGroupKind *kind) {
    REQUIRE(instance);
    TELL(kind, instance->kind);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance *instance,
                                                                 int32_t *device_id) {
    REQUIRE(instance);
    TELL(device_id, instance->device_id);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceHostPolicy(TRITONBACKEND_ModelInstance *instance,
                                                                   TRITONSERVER_Message **host_policy) {
    REQUIRE(instance);
    TELL(host_policy, instance->host_policy);
    return NULL;
}

/* A passive instance is never started. */
EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceIsPassive(TRITONBACKEND_ModelInstance *instance,
                                                                  bool *is_passive) {
    REQUIRE(instance);
    TELL(is_passive, false);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceProfileCount(TRITONBACKEND_ModelInstance *instance,
                                                                     uint32_t *count) {
    REQUIRE(instance);
    TELL(count, 0);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceProfileName(TRITONBACKEND_ModelInstance *instance,
                                                                    const uint32_t index,
                                                                    const char **profile_name) {
    REQUIRE(instance);
    TELL(profile_name, NULL);
    return fail(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u: instance '%s' has 0 profiles", index,
                instance->name);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSecondaryDeviceCount(
    TRITONBACKEND_ModelInstance *instance, uint32_t *count) {
    REQUIRE(instance);
    TELL(count, 0);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
    TRITONBACKEND_ModelInstance *instance, uint32_t index, const char **kind, int64_t *id) {
    (void)kind, (void)id;
    REQUIRE(instance);
    return fail(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u: instance '%s' has 0 secondary devices",
                index, instance->name);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *instance,
                                                              TRITONBACKEND_Model **model) {
    REQUIRE(instance);
    TELL(model, instance->model);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *instance,
                                                              void **state) {
    REQUIRE(instance);
    TELL(state, instance->state);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *instance,
                                                                 void *state) {
    REQUIRE(instance);
    instance->state = state;
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportMemoryUsage(
    TRITONBACKEND_ModelInstance *instance, TRITONSERVER_BufferAttributes **usage, uint32_t usage_size) {
    (void)usage, (void)usage_size;
    REQUIRE(instance);
    return NULL;
}

/* -- statistics: the worker measures each batch itself, and the server counts by that */

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request, const bool success,
    const uint64_t exec_start_ns, const uint64_t compute_start_ns, const uint64_t compute_end_ns,
    const uint64_t exec_end_ns) {
    (void)request, (void)success, (void)exec_start_ns, (void)compute_start_ns;
    (void)compute_end_ns, (void)exec_end_ns;
    REQUIRE(instance);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(
    TRITONBACKEND_ModelInstance *instance, const uint64_t batch_size, const uint64_t exec_start_ns,
    const uint64_t compute_start_ns, const uint64_t compute_end_ns, const uint64_t exec_end_ns) {
    (void)batch_size, (void)exec_start_ns, (void)compute_start_ns, (void)compute_end_ns, (void)exec_end_ns;
    REQUIRE(instance);
    return NULL;
}

struct TRITONBACKEND_ModelInstanceResponseStatistics {
    char nothing;
};

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsNew(
    TRITONBACKEND_ModelInstanceResponseStatistics **response_statistics) {
    REQUIRE(response_statistics);
    *response_statistics = allocated(sizeof **response_statistics);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsDelete(
    TRITONBACKEND_ModelInstanceResponseStatistics *response_statistics) {
    free(response_statistics);
    return NULL;
}

#define STATISTIC(Name, type)                                                                                \
    EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstance##Name(                                          \
        TRITONBACKEND_ModelInstanceResponseStatistics *response_statistics, type value) {                    \
        (void)value;                                                                                         \
        REQUIRE(response_statistics);                                                                        \
        return NULL;                                                                                         \
    }

STATISTIC(ResponseStatisticsSetModelInstance, TRITONBACKEND_ModelInstance *)
STATISTIC(ResponseStatisticsSetResponseFactory, TRITONBACKEND_ResponseFactory *)
STATISTIC(ResponseStatisticsSetResponseStart, uint64_t)
STATISTIC(ResponseStatisticsSetComputeOutputStart, uint64_t)
STATISTIC(ResponseStatisticsSetResponseEnd, uint64_t)
STATISTIC(ResponseStatisticsSetError, TRITONSERVER_Error *)

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportResponseStatistics(
    TRITONBACKEND_ModelInstanceResponseStatistics *response_statistics) {
    REQUIRE(response_statistics);
    return NULL;
}
