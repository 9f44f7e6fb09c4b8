/* Streams, events and graphs of the stand-in. What a stream is given waits in a queue until the host waits for the
 * stream or for an event behind it: code that does not wait sees nothing done. Only `driver.c` includes this. */

enum { CAPTURE_INVALIDATED = 901 };

typedef void (*HostFunc)(void *);
typedef struct Op { int kind; uint64_t to, from; size_t nbytes; HostFunc run; void *data; struct Stream *other; long until;
                    struct Op *next; } Op;
typedef struct Stream { Op *first, *last, *captured, *captured_last; int capturing; long given, done; } Stream;
typedef struct { Stream *stream; long until; } Event;
typedef struct { Op *first; } Recorded;
enum { TO_DEVICE, TO_HOST, WITHIN, ZERO, CALL, WAIT_FOR };

static int run_until(Stream *stream, long until);

static int perform(const Op *op) {
    switch (op->kind) {
    case TO_DEVICE: return copy("HtoD", op->to, op->from, op->nbytes, op->to);
    case TO_HOST: return copy("DtoH", op->to, op->from, op->nbytes, op->from);
    case WITHIN: return entry_of(op->to, op->nbytes) < 0 ? INVALID_VALUE : copy("DtoD", op->to, op->from, op->nbytes, op->from);
    case ZERO: if (entry_of(op->to, op->nbytes) < 0) return INVALID_VALUE;
        memset((void *)op->to, 0, op->nbytes); return SUCCESS;
    case CALL: if (usable()) return usable();
        op->run(op->data); return SUCCESS;
    default: return run_until(op->other, op->until);
    }
}

static int run_until(Stream *stream, long until) {
    int wrong = usable();
    while (!wrong && stream->first && stream->done < until) {
        Op *op = stream->first;
        stream->first = op->next;
        if (!stream->first) stream->last = NULL;
        stream->done++;
        wrong = perform(op);
        free(op);
    }
    return wrong;
}

static int give(Stream *stream, Op op) {
    int wrong = usable();
    if (wrong) return wrong;
    Op *kept = malloc(sizeof op);
    *kept = op;
    kept->next = NULL;
    if (stream->capturing) {
        if (stream->captured_last) stream->captured_last->next = kept; else stream->captured = kept;
        stream->captured_last = kept;
        return SUCCESS;
    }
    if (stream->last) stream->last->next = kept; else stream->first = kept;
    stream->last = kept;
    stream->given++;
    return SUCCESS;
}

int cuCtxGetStreamPriorityRange(int *lowest, int *highest) { *lowest = 0; *highest = -5; return usable(); }
int cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
    if (flags != 1 || priority > 0 || priority < -5) return INVALID_VALUE;
    *stream = calloc(1, sizeof **stream);
    return usable();
}
int cuStreamDestroy_v2(Stream *stream) { int wrong = run_until(stream, stream->given); free(stream); return wrong; }
int cuStreamSynchronize(Stream *stream) { return stream->capturing ? CAPTURE_INVALIDATED : run_until(stream, stream->given); }
int cuEventCreate(Event **event, unsigned flags) { (void)flags; *event = calloc(1, sizeof **event); return usable(); }
int cuEventDestroy_v2(Event *event) { free(event); return SUCCESS; }
int cuEventRecord(Event *event, Stream *stream) {
    if (stream->capturing) return CAPTURE_INVALIDATED;
    event->stream = stream; event->until = stream->given;
    return usable();
}
int cuEventSynchronize(Event *event) { return run_until(event->stream, event->until); }
int cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
    (void)flags;
    return give(stream, (Op){.kind = WAIT_FOR, .other = event->stream, .until = event->until});
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t nbytes, Stream *stream) {
    return give(stream, (Op){.kind = TO_DEVICE, .to = to, .from = (uintptr_t)from, .nbytes = nbytes});
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t nbytes, Stream *stream) {
    return give(stream, (Op){.kind = TO_HOST, .to = (uintptr_t)to, .from = from, .nbytes = nbytes});
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t nbytes, Stream *stream) {
    return give(stream, (Op){.kind = WITHIN, .to = to, .from = from, .nbytes = nbytes});
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t nbytes, Stream *stream) {
    return value ? INVALID_VALUE : give(stream, (Op){.kind = ZERO, .to = to, .nbytes = nbytes});
}
int cuLaunchHostFunc(Stream *stream, HostFunc run, void *data) {
    return give(stream, (Op){.kind = CALL, .run = run, .data = data});
}
int cuStreamBeginCapture_v2(Stream *stream, int mode) {
    if (mode != 1 || stream->capturing) return INVALID_VALUE;
    stream->capturing = 1;
    return usable();
}
int cuStreamEndCapture(Stream *stream, Recorded **graph) {
    if (!stream->capturing) return INVALID_VALUE;
    *graph = calloc(1, sizeof **graph);
    (*graph)->first = stream->captured;
    stream->captured = stream->captured_last = NULL;
    stream->capturing = 0;
    return usable();
}
int cuGraphInstantiateWithFlags(Recorded **made, Recorded *graph, uint64_t flags) {
    if (flags) return INVALID_VALUE;
    *made = calloc(1, sizeof **made);
    Op **end = &(*made)->first;
    for (Op *op = graph->first; op; op = op->next) { *end = malloc(sizeof *op); **end = *op; end = &(*end)->next; }
    *end = NULL;
    return usable();
}
static int forget(Recorded *graph) {
    for (Op *op = graph->first, *next; op; op = next) { next = op->next; free(op); }
    free(graph);
    return SUCCESS;
}
int cuGraphDestroy(Recorded *graph) { return forget(graph); }
int cuGraphExecDestroy(Recorded *graph) { return forget(graph); }
int cuGraphLaunch(Recorded *graph, Stream *stream) {
    int wrong = usable();
    record("graph", 0);
    for (Op *op = graph->first; op && !wrong; op = op->next) wrong = give(stream, *op);
    return wrong;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 8 : attribute == 76 ? 6 : 0;
    return attribute == 75 || attribute == 76 ? SUCCESS : INVALID_VALUE;
}
