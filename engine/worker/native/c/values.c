/* Errors, messages, parameters, buffer attributes, names of enumerations, log lines, metrics and traces. */
#include <stdarg.h>
#include <stdio.h>

#include "host.h"
#include "objects.h"

int64_t live_errors, live_messages;

/* -- memory: a process that gets none can only end, and its supervisor starts another */

void *allocated(size_t size) {
    void *memory = calloc(1, size ? size : 1);
    if (memory == NULL) abort();
    return memory;
}

char *copied(const char *text) {
    size_t size = strlen(text) + 1;
    return memcpy(allocated(size), text, size);
}

/* -- errors */

EXPORTED TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *msg) {
    const char *text = msg == NULL ? "" : msg;
    size_t size = strlen(text) + 1;
    TRITONSERVER_Error *error = allocated(sizeof *error + size);
    error->code = code;
    memcpy(error->text, text, size);
    COUNT(live_errors, 1);
    return error;
}

EXPORTED void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error) {
    if (error == NULL) return;
    COUNT(live_errors, -1);
    free(error);
}

EXPORTED TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error *error) {
    return error == NULL ? TRITONSERVER_ERROR_UNKNOWN : error->code;
}

EXPORTED const char *TRITONSERVER_ErrorCodeString(TRITONSERVER_Error *error) {
    static const char *const names[] = {
        "Unknown",     "Internal",    "Not found",      "Invalid argument",
        "Unavailable", "Unsupported", "Already exists", "Cancelled",
    };
    unsigned code = (unsigned)TRITONSERVER_ErrorCode(error);
    return code < sizeof names / sizeof *names ? names[code] : "<invalid code>";
}

EXPORTED const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *error) {
    return error == NULL ? "" : error->text;
}

TRITONSERVER_Error *fail(TRITONSERVER_Error_Code code, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return TRITONSERVER_ErrorNew(code, text);
}

TRITONSERVER_Error *refuse(const char *name) {
    return fail(TRITONSERVER_ERROR_UNSUPPORTED, "%s is not provided by this server", name);
}

TRITONSERVER_Error *error_copy(const TRITONSERVER_Error *error) {
    return error == NULL ? NULL : TRITONSERVER_ErrorNew(error->code, error->text);
}

/* -- messages: JSON texts, kept with a zero behind them */

TRITONSERVER_Message *message_new(const char *text, size_t size) {
    TRITONSERVER_Message *message = allocated(sizeof *message + size + 1);
    message->size = size;
    if (size) memcpy(message->text, text, size);
    COUNT(live_messages, 1);
    return message;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MessageNewFromSerializedJson(TRITONSERVER_Message **message,
                                                                       const char *base, size_t byte_size) {
    REQUIRE(message);
    *message = NULL;
    if (byte_size) REQUIRE(base);
    *message = message_new(base, byte_size);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *message) {
    if (message != NULL) COUNT(live_messages, -1);
    free(message);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *message,
                                                                 const char **base, size_t *byte_size) {
    REQUIRE(message);
    TELL(base, message->text);
    TELL(byte_size, message->size);
    return NULL;
}

/* -- parameters */

static TRITONSERVER_Parameter *parameter_new(const char *name, TRITONSERVER_ParameterType type,
                                             const void *bytes, size_t size) {
    TRITONSERVER_Parameter *parameter = allocated(sizeof *parameter);
    parameter->name = copied(name == NULL ? "" : name);
    parameter->type = type;
    parameter->size = size;
    parameter->text = allocated(size + 1);
    if (size) memcpy(parameter->text, bytes, size);
    return parameter;
}

EXPORTED TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name,
                                                           const TRITONSERVER_ParameterType type,
                                                           const void *value) {
    if (value == NULL) return NULL;
    if (type == TRITONSERVER_PARAMETER_STRING) return parameter_new(name, type, value, strlen(value));
    if (type == TRITONSERVER_PARAMETER_BYTES) return NULL; /* its size is not known */
    TRITONSERVER_Parameter *parameter = parameter_new(name, type, NULL, 0);
    if (type == TRITONSERVER_PARAMETER_INT) parameter->value.integer = *(const int64_t *)value;
    if (type == TRITONSERVER_PARAMETER_BOOL) parameter->value.boolean = *(const bool *)value;
    if (type == TRITONSERVER_PARAMETER_DOUBLE) parameter->value.number = *(const double *)value;
    return parameter;
}

EXPORTED TRITONSERVER_Parameter *TRITONSERVER_ParameterBytesNew(const char *name, const void *byte_ptr,
                                                                const uint64_t size) {
    if (byte_ptr == NULL && size) return NULL;
    return parameter_new(name, TRITONSERVER_PARAMETER_BYTES, byte_ptr, size);
}

void parameters_delete(TRITONSERVER_Parameter *first) {
    while (first != NULL) {
        TRITONSERVER_Parameter *next = first->next;
        free(first->name);
        free(first->text);
        free(first);
        first = next;
    }
}

EXPORTED void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter *parameter) { parameters_delete(parameter); }

EXPORTED const char *TRITONSERVER_ParameterTypeString(TRITONSERVER_ParameterType paramtype) {
    static const char *const names[] = {"STRING", "INT", "BOOL", "DOUBLE", "BYTES"};
    return (unsigned)paramtype < 5 ? names[paramtype] : "<invalid>";
}

/* -- enumerations */

static const struct {
    const char *name;
    uint32_t size;
} datatypes[] = {
    {"<invalid>", 0}, {"BOOL", 1},  {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4},
    {"UINT64", 8},    {"INT8", 1},  {"INT16", 2}, {"INT32", 4},  {"INT64", 8},
    {"FP16", 2},      {"FP32", 4},  {"FP64", 8},  {"BYTES", 0},  {"BF16", 2},
};
enum { DATATYPES = sizeof datatypes / sizeof *datatypes };

uint32_t size_of(TRITONSERVER_DataType datatype) {
    return (unsigned)datatype < DATATYPES ? datatypes[datatype].size : 0;
}

EXPORTED const char *TRITONSERVER_DataTypeString(TRITONSERVER_DataType datatype) {
    return datatypes[(unsigned)datatype < DATATYPES ? datatype : 0].name;
}

EXPORTED TRITONSERVER_DataType TRITONSERVER_StringToDataType(const char *dtype) {
    for (unsigned at = 1; dtype != NULL && at < DATATYPES; ++at)
        if (strcmp(dtype, datatypes[at].name) == 0) return (TRITONSERVER_DataType)at;
    return TRITONSERVER_TYPE_INVALID;
}

EXPORTED uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType datatype) { return size_of(datatype); }

EXPORTED const char *TRITONSERVER_MemoryTypeString(TRITONSERVER_MemoryType memtype) {
    static const char *const names[] = {"CPU", "CPU_PINNED", "GPU"};
    return (unsigned)memtype < 3 ? names[memtype] : "<invalid>";
}

EXPORTED const char *TRITONSERVER_InstanceGroupKindString(TRITONSERVER_InstanceGroupKind kind) {
    static const char *const names[] = {"AUTO", "CPU", "GPU", "MODEL"};
    return (unsigned)kind < 4 ? names[kind] : "<invalid>";
}

EXPORTED const char *TRITONSERVER_InferenceTraceLevelString(TRITONSERVER_InferenceTraceLevel level) {
    switch ((int)level) {
        case 0: return "DISABLED";
        case 1: return "MIN";
        case 2: return "MAX";
        case 4: return "TIMESTAMPS";
        case 8: return "TENSORS";
        default: return "<unknown>";
    }
}

EXPORTED const char *TRITONSERVER_InferenceTraceActivityString(TRITONSERVER_InferenceTraceActivity activity) {
    static const char *const names[] = {
        "REQUEST_START",        "QUEUE_START",          "COMPUTE_START",         "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START", "COMPUTE_END",          "REQUEST_END",           "TENSOR_QUEUE_INPUT",
        "TENSOR_BACKEND_INPUT", "TENSOR_BACKEND_OUTPUT", "CUSTOM_ACTIVITY",
    };
    return (unsigned)activity < sizeof names / sizeof *names ? names[activity] : "<unknown>";
}

/* -- versions */

EXPORTED TRITONSERVER_Error *TRITONSERVER_ApiVersion(uint32_t *major, uint32_t *minor) {
    TELL(major, SERVER_MAJOR);
    TELL(minor, SERVER_MINOR);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor) {
    TELL(major, BACKEND_MAJOR);
    TELL(minor, BACKEND_MINOR);
    return NULL;
}

/* -- buffer attributes */

EXPORTED TRITONSERVER_Error *TRITONSERVER_BufferAttributesNew(TRITONSERVER_BufferAttributes **attributes) {
    REQUIRE(attributes);
    *attributes = allocated(sizeof **attributes);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_BufferAttributesDelete(TRITONSERVER_BufferAttributes *attributes) {
    free(attributes);
    return NULL;
}

/* A setter and a getter of one field. */
#define ATTRIBUTE(Name, type, field)                                                                         \
    EXPORTED TRITONSERVER_Error *TRITONSERVER_BufferAttributesSet##Name(                                     \
        TRITONSERVER_BufferAttributes *attributes, type field) {                                             \
        REQUIRE(attributes);                                                                                 \
        attributes->field = field;                                                                           \
        return NULL;                                                                                         \
    }                                                                                                        \
    EXPORTED TRITONSERVER_Error *TRITONSERVER_BufferAttributes##Name(                                        \
        TRITONSERVER_BufferAttributes *attributes, type *field) {                                            \
        REQUIRE(attributes);                                                                                 \
        TELL(field, attributes->field);                                                                      \
        return NULL;                                                                                         \
    }

ATTRIBUTE(MemoryTypeId, int64_t, memory_type_id)
ATTRIBUTE(MemoryType, TRITONSERVER_MemoryType, memory_type)
ATTRIBUTE(CudaIpcHandle, void *, cuda_ipc_handle)
ATTRIBUTE(ByteSize, size_t, byte_size)

/* -- log lines: they leave at once, since the process may be about to crash */

static LogLine log_to;
static bool verbose;

EXPORTED void tritium_log_to(LogLine callback, int with_verbose) {
    log_to = callback;
    verbose = with_verbose;
}

void log_line(TRITONSERVER_LogLevel level, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (log_to != NULL) log_to((int)level, "", 0, text);
}

EXPORTED bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel level) {
    return level != TRITONSERVER_LOG_VERBOSE || verbose;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_LogMessage(TRITONSERVER_LogLevel level, const char *filename,
                                                     const int line, const char *msg) {
    if (log_to != NULL && msg != NULL && TRITONSERVER_LogIsEnabled(level))
        log_to((int)level, filename == NULL ? "" : filename, line, msg);
    return NULL;
}

/* -- metrics: each keeps its value for the backend, and none is exported */

struct TRITONSERVER_MetricFamily {
    TRITONSERVER_MetricKind kind;
};

struct TRITONSERVER_Metric {
    TRITONSERVER_MetricKind kind;
    pthread_mutex_t lock;
    double value;
};

struct TRITONSERVER_MetricArgs {
    char nothing;
};

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily **family,
                                                          const TRITONSERVER_MetricKind kind,
                                                          const char *name, const char *description) {
    (void)description;
    REQUIRE(family);
    REQUIRE(name);
    *family = allocated(sizeof **family);
    (*family)->kind = kind;
    log_line(TRITONSERVER_LOG_WARN,
             "the metric '%s' of this library is kept, and not among the server's metrics", name);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily *family) {
    free(family);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_GetMetricFamilyKind(TRITONSERVER_MetricFamily *family,
                                                              TRITONSERVER_MetricKind *kind) {
    REQUIRE(family);
    TELL(kind, family->kind);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricArgsNew(TRITONSERVER_MetricArgs **args) {
    REQUIRE(args);
    *args = allocated(sizeof **args);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricArgsSetHistogram(TRITONSERVER_MetricArgs *args,
                                                                 const double *buckets,
                                                                 const uint64_t buckets_count) {
    (void)buckets, (void)buckets_count;
    REQUIRE(args);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricArgsDelete(TRITONSERVER_MetricArgs *args) {
    free(args);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricNewWithArgs(TRITONSERVER_Metric **metric,
                                                            TRITONSERVER_MetricFamily *family,
                                                            const TRITONSERVER_Parameter **labels,
                                                            const uint64_t label_count,
                                                            const TRITONSERVER_MetricArgs *args) {
    (void)labels, (void)label_count, (void)args;
    REQUIRE(metric);
    REQUIRE(family);
    *metric = allocated(sizeof **metric);
    (*metric)->kind = family->kind;
    pthread_mutex_init(&(*metric)->lock, NULL);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricNew(TRITONSERVER_Metric **metric,
                                                    TRITONSERVER_MetricFamily *family,
                                                    const TRITONSERVER_Parameter **labels,
                                                    const uint64_t label_count) {
    return TRITONSERVER_MetricNewWithArgs(metric, family, labels, label_count, NULL);
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricDelete(TRITONSERVER_Metric *metric) {
    if (metric != NULL) pthread_mutex_destroy(&metric->lock);
    free(metric);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_GetMetricKind(TRITONSERVER_Metric *metric,
                                                        TRITONSERVER_MetricKind *kind) {
    REQUIRE(metric);
    TELL(kind, metric->kind);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricValue(TRITONSERVER_Metric *metric, double *value) {
    REQUIRE(metric);
    if (metric->kind == TRITONSERVER_METRIC_KIND_HISTOGRAM)
        return fail(TRITONSERVER_ERROR_UNSUPPORTED, "%s: a histogram has no single value", __func__);
    pthread_mutex_lock(&metric->lock);
    TELL(value, metric->value);
    pthread_mutex_unlock(&metric->lock);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricIncrement(TRITONSERVER_Metric *metric, double value) {
    REQUIRE(metric);
    if (metric->kind == TRITONSERVER_METRIC_KIND_HISTOGRAM)
        return fail(TRITONSERVER_ERROR_UNSUPPORTED, "%s: a histogram is observed", __func__);
    if (metric->kind == TRITONSERVER_METRIC_KIND_COUNTER && value < 0)
        return fail(TRITONSERVER_ERROR_INVALID_ARG, "%s: a counter can't go down", __func__);
    pthread_mutex_lock(&metric->lock);
    metric->value += value;
    pthread_mutex_unlock(&metric->lock);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricSet(TRITONSERVER_Metric *metric, double value) {
    REQUIRE(metric);
    if (metric->kind != TRITONSERVER_METRIC_KIND_GAUGE)
        return fail(TRITONSERVER_ERROR_UNSUPPORTED, "%s: only a gauge can be set", __func__);
    pthread_mutex_lock(&metric->lock);
    metric->value = value;
    pthread_mutex_unlock(&metric->lock);
    return NULL;
}

EXPORTED TRITONSERVER_Error *TRITONSERVER_MetricObserve(TRITONSERVER_Metric *metric, double value) {
    (void)value;
    REQUIRE(metric);
    if (metric->kind != TRITONSERVER_METRIC_KIND_HISTOGRAM)
        return fail(TRITONSERVER_ERROR_UNSUPPORTED, "%s: only a histogram is observed", __func__);
    return NULL;
}

/* -- traces: no request has one here, so that a report has nowhere to go */

EXPORTED TRITONSERVER_Error *TRITONSERVER_InferenceTraceReportActivity(TRITONSERVER_InferenceTrace *trace,
                                                                       uint64_t timestamp,
                                                                       const char *activity_name) {
    (void)trace, (void)timestamp, (void)activity_name;
    return NULL;
}
