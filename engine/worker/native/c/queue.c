/* What the requests of a decoupled model have come to, until the host's thread takes it.
 *
 * The host takes everything that is there at once. What it has taken stays where it is until it comes again:
 * only then has it copied the tensors. */
#include "host.h"
#include "objects.h"

typedef struct Event {
    struct Event *next;
    uint64_t token;
    uint32_t index;
    uint8_t kind;
    TRITONBACKEND_Response *response;
} Event;

enum { HAS_RESPONSE = 1, FINAL = 2, GONE = 4 };

struct Queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    Event *first, **last;
    Event *taken;
    bool closed;
    Text text;
};

Queue *queue_new(void) {
    Queue *queue = allocated(sizeof *queue);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->filled, NULL);
    queue->last = &queue->first;
    return queue;
}

static void events_free(Event *event) {
    while (event != NULL) {
        Event *next = event->next;
        if (event->response != NULL) response_free(event->response);
        free(event);
        event = next;
    }
}

void queue_free(Queue *queue) {
    events_free(queue->first);
    events_free(queue->taken);
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->filled);
    free(queue->text.data);
    free(queue);
}

static void put(Queue *queue, uint64_t token, uint32_t index, uint8_t kind, TRITONBACKEND_Response *response) {
    Event *event = allocated(sizeof *event);
    event->token = token;
    event->index = index;
    event->kind = kind;
    event->response = response;
    pthread_mutex_lock(&queue->lock);
    *queue->last = event;
    queue->last = &event->next;
    pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->lock);
}

void queue_response(Queue *queue, TRITONBACKEND_Request *request, TRITONBACKEND_Response *response,
                    bool final) {
    const uint8_t kind = (uint8_t)((response != NULL ? HAS_RESPONSE : 0) | (final ? FINAL : 0));
    put(queue, request->batch->token, request->index, kind, response);
}

void queue_gone(Queue *queue, uint64_t token, uint32_t index) { put(queue, token, index, GONE, NULL); }

EXPORTED int tritium_next(TRITONBACKEND_Model *model, Outcome *outcome) {
    Queue *queue = model->queue;
    events_free(queue->taken);
    queue->taken = NULL;
    pthread_mutex_lock(&queue->lock);
    while (queue->first == NULL && !queue->closed) pthread_cond_wait(&queue->filled, &queue->lock);
    queue->taken = queue->first;
    queue->first = NULL;
    queue->last = &queue->first;
    pthread_mutex_unlock(&queue->lock);
    queue->text.size = 0;
    for (const Event *event = queue->taken; event != NULL; event = event->next) {
        write_bytes(&queue->text, &event->token, sizeof event->token);
        write_bytes(&queue->text, &event->index, sizeof event->index);
        write_bytes(&queue->text, &event->kind, sizeof event->kind);
        if (event->response != NULL) write_response(&queue->text, event->response);
    }
    outcome->data = queue->text.data;
    outcome->size = queue->text.size;
    return queue->taken != NULL;
}

EXPORTED void tritium_close(TRITONBACKEND_Model *model) {
    pthread_mutex_lock(&model->queue->lock);
    model->queue->closed = true;
    pthread_cond_broadcast(&model->queue->filled);
    pthread_mutex_unlock(&model->queue->lock);
}
