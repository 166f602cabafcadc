/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* record.c -- the queue of events: what was stored, removed, cleared.
 *
 *     events  | stored DEVICE hashes [0,3) words [0,12) | removed DEVICE hashes [3,4) | ...
 *     hashes  | h0 h1 h2 h3 ...
 *     words   | tokens of the stored pages, pairs as two words
 *
 * An event joins the one before where that says the same of the pages right after it, so that a
 * node, or a path of nodes, is one event.  A caller takes the queue whole and gets its memory
 * until the next take: two queues change places.
 */
#include "tree/record.h"

struct event {
    enum kvg_tree_event_kind kind;
    enum kvg_medium medium;
    bool has_parent;
    int64_t parent;
    uint32_t hash_first, hash_count;
    uint32_t word_first, word_count;
    uint32_t text_first, salt_bytes, session_bytes;
    bool has_salt, has_session;
};

struct queue {
    struct event *events;
    int64_t *hashes;
    uint32_t *words;
    char *text;
    uint32_t event_count, event_capacity;
    uint32_t hash_count, hash_capacity;
    uint32_t word_count, word_capacity;
    uint32_t text_count, text_capacity;
};

struct kvi_recorder {
    struct queue queue, taken;
};

#define QUEUE_MIN 64u

static bool grow(struct kvg_tree *tree, void **array, uint32_t count, uint32_t *capacity,
    uint64_t more, size_t bytes)
{
    uint64_t wanted = count + more;
    uint64_t larger = *capacity == 0 ? QUEUE_MIN : *capacity;

    if (wanted <= *capacity)
        return true;
    while (larger < wanted)
        larger *= 2;
    if (larger > UINT32_MAX ||
        !kvi_resize_array(&tree->alloc, array, *capacity, (size_t)larger, bytes))
        return false;
    *capacity = (uint32_t)larger;
    return true;
}

static uint32_t words_a_unit(const struct kvg_tree *tree)
{
    return tree->eagle ? 2 : 1;
}

static kvg_err reserve(struct kvg_tree *tree, uint64_t event_count, uint64_t units,
    uint64_t text_bytes, struct kvg_error *error)
{
    struct queue *queue = &tree->recorder->queue;
    void *events = queue->events;
    void *hashes = queue->hashes;
    void *words = queue->words;
    void *text = queue->text;

    bool ok = grow(tree, &events, queue->event_count, &queue->event_capacity, event_count,
        sizeof(*queue->events));
    queue->events = events;
    ok = ok && grow(tree, &hashes, queue->hash_count, &queue->hash_capacity,
                   units / tree->options.page_size, sizeof(*queue->hashes));
    queue->hashes = hashes;
    ok = ok && grow(tree, &words, queue->word_count, &queue->word_capacity,
                   units * words_a_unit(tree), sizeof(*queue->words));
    queue->words = words;
    ok = ok && grow(tree, &text, queue->text_count, &queue->text_capacity, text_bytes,
                   sizeof(*queue->text));
    queue->text = text;
    return ok ? KVG_OK : kvi_fail(error, KVG_ENOMEM, "events", "no memory for an event");
}

/* Bytes of text one event may need: the longest salt is found by the caller's namespace. */
kvg_err kvi_record_reserve(struct kvg_tree *tree, uint64_t units, struct kvg_error *error)
{
    if (tree->recorder == NULL)
        return KVG_OK;
    uint64_t text = tree->insert.params.session_id.bytes +
                    tree->insert.params.key.space.cache_salt.bytes;
    return reserve(tree, 1, units, text, error);
}

kvg_err kvi_record_prepare(
    struct kvg_tree *tree, struct kvi_node *node, struct kvg_error *error)
{
    if (tree->recorder == NULL)
        return KVG_OK;
    if (kvi_event_keys_fill(tree, node) != KVG_OK)
        return kvi_fail(error, KVG_ENOMEM, "events", "no memory for page keys");
    uint64_t text = tree->insert.params.session_id.bytes;
    if (node->space != 0)
        text += tree->spaces.items[node->space].name.cache_salt.bytes;
    return reserve(tree, 1, node->length, text, error);
}

kvg_err kvi_record_prepare_many(struct kvg_tree *tree, const kvg_node_id *nodes,
    size_t node_count, struct kvg_error *error)
{
    uint64_t units = 0;
    uint64_t text = 0;

    if (tree->recorder == NULL)
        return KVG_OK;
    for (size_t i = 0; i < node_count; i++) {
        struct kvi_node *node = kvi_node_find(tree, nodes[i]);
        if (kvi_event_keys_fill(tree, node) != KVG_OK)
            return kvi_fail(error, KVG_ENOMEM, "events", "no memory for page keys");
        units += node->length;
        if (node->space != 0)
            text += tree->spaces.items[node->space].name.cache_salt.bytes;
    }
    return reserve(tree, node_count, units, text, error);
}

/* The integer that events publish for a key: its first 8 bytes. */
static int64_t published(const struct kvg_key *key)
{
    uint64_t value = 0;

    for (int i = 0; i < 8; i++)
        value = value << 8 | key->bytes[i];
    return (int64_t)value;
}

static struct kvg_str salt_of(const struct kvg_tree *tree, const struct kvi_node *node)
{
    return node->space == 0 ? (struct kvg_str){NULL, 0}
                            : tree->spaces.items[node->space].name.cache_salt;
}

static struct kvg_str event_salt(const struct queue *queue, const struct event *event)
{
    return (struct kvg_str){
        event->has_salt ? queue->text + event->text_first : NULL, event->salt_bytes};
}

static struct kvg_str event_session(const struct queue *queue, const struct event *event)
{
    return (struct kvg_str){
        event->has_session ? queue->text + event->text_first + event->salt_bytes : NULL,
        event->session_bytes};
}

static void add_hashes(
    struct kvg_tree *tree, const struct kvi_node *node, struct event *event)
{
    struct queue *queue = &tree->recorder->queue;
    const struct kvg_key *keys = kvi_node_event_keys(node);
    uint32_t pages = node->length / tree->options.page_size;

    KVI_ASSERT(queue->hash_count + pages <= queue->hash_capacity);
    for (uint32_t i = 0; i < pages; i++)
        queue->hashes[queue->hash_count++] = published(&keys[i]);
    event->hash_count += pages;
}

static void add_words(
    struct kvg_tree *tree, const struct kvi_node *node, struct event *event)
{
    struct queue *queue = &tree->recorder->queue;
    const uint32_t *tokens = kvi_node_tokens(node);

    KVI_ASSERT(queue->word_count + (uint64_t)node->length * words_a_unit(tree) <=
               queue->word_capacity);
    for (uint32_t i = 0; i < node->length; i++) {
        queue->words[queue->word_count++] = tokens[i];
        if (tree->eagle)
            queue->words[queue->word_count++] = tokens[i + 1];
    }
    event->word_count += node->length * words_a_unit(tree);
}

static struct event *add_event(
    struct queue *queue, enum kvg_tree_event_kind kind, enum kvg_medium medium)
{
    KVI_ASSERT(queue->event_count < queue->event_capacity);
    struct event *event = &queue->events[queue->event_count++];
    *event = (struct event){.kind = kind,
        .medium = medium,
        .hash_first = queue->hash_count,
        .word_first = queue->word_count,
        .text_first = queue->text_count};
    return event;
}

static uint32_t add_text(struct queue *queue, struct kvg_str text)
{
    KVI_ASSERT(queue->text_count + text.bytes <= queue->text_capacity);
    if (text.bytes != 0)
        memcpy(queue->text + queue->text_count, text.data, text.bytes);
    queue->text_count += (uint32_t)text.bytes;
    return (uint32_t)text.bytes;
}

static bool same_text(struct kvg_str a, struct kvg_str b)
{
    return (a.data == NULL) == (b.data == NULL) && kvi_str_equal(a, b);
}

void kvi_record_stored(struct kvg_tree *tree, struct kvi_node *node,
    enum kvg_medium medium, struct kvg_str session_id)
{
    if (tree->recorder == NULL)
        return;
    struct queue *queue = &tree->recorder->queue;
    struct kvg_str salt = salt_of(tree, node);
    struct kvi_node *parent = kvi_parent(tree, node);
    bool has_parent = !kvi_is_root(parent);
    int64_t parent_hash = 0;
    if (has_parent)
        parent_hash = published(
            kvi_node_event_keys(parent) + parent->length / tree->options.page_size - 1);

    struct event *event =
        queue->event_count == 0 ? NULL : &queue->events[queue->event_count - 1];
    if (event == NULL || event->kind != KVG_TREE_STORED || event->medium != medium ||
        !has_parent || queue->hashes[queue->hash_count - 1] != parent_hash ||
        !same_text(event_salt(queue, event), salt) ||
        !same_text(event_session(queue, event), session_id)) {
        event = add_event(queue, KVG_TREE_STORED, medium);
        event->has_parent = has_parent;
        event->parent = parent_hash;
        event->has_salt = salt.data != NULL;
        event->has_session = session_id.data != NULL;
        event->salt_bytes = add_text(queue, salt);
        event->session_bytes = add_text(queue, session_id);
    }
    add_hashes(tree, node, event);
    add_words(tree, node, event);
}

void kvi_record_removed(
    struct kvg_tree *tree, struct kvi_node *node, enum kvg_medium medium)
{
    if (tree->recorder == NULL)
        return;
    struct queue *queue = &tree->recorder->queue;
    struct event *event =
        queue->event_count == 0 ? NULL : &queue->events[queue->event_count - 1];

    if (event == NULL || event->kind != KVG_TREE_REMOVED || event->medium != medium)
        event = add_event(queue, KVG_TREE_REMOVED, medium);
    add_hashes(tree, node, event);
}

kvg_err kvg_tree_events_add_cleared(struct kvg_tree *tree)
{
    if (tree->recorder == NULL)
        return KVG_OK;
    kvg_err err = reserve(tree, 1, 0, 0, NULL);
    if (err == KVG_OK)
        add_event(&tree->recorder->queue, KVG_TREE_CLEARED, KVG_MEDIUM_UNKNOWN);
    return err;
}

size_t kvg_tree_events_take(struct kvg_tree *tree)
{
    struct kvi_recorder *recorder = tree->recorder;

    if (recorder == NULL)
        return 0;
    struct queue spent = recorder->taken;
    recorder->taken = recorder->queue;
    spent.event_count = 0;
    spent.hash_count = 0;
    spent.word_count = 0;
    spent.text_count = 0;
    recorder->queue = spent;
    return recorder->taken.event_count;
}

bool kvg_tree_event_get(
    const struct kvg_tree *tree, size_t index, struct kvg_tree_event *out)
{
    *out = (struct kvg_tree_event){.struct_bytes = sizeof(*out)};
    if (tree->recorder == NULL || index >= tree->recorder->taken.event_count)
        return false;
    const struct queue *queue = &tree->recorder->taken;
    const struct event *event = &queue->events[index];
    out->kind = event->kind;
    out->medium = event->medium;
    out->hashes = queue->hashes + event->hash_first;
    out->hash_count = event->hash_count;
    out->has_parent = event->has_parent;
    out->parent = event->parent;
    out->words = queue->words + event->word_first;
    out->word_count = event->word_count;
    out->words_per_unit = words_a_unit(tree);
    out->page_size = tree->options.page_size;
    out->cache_salt = event_salt(queue, event);
    out->session_id = event_session(queue, event);
    return true;
}

kvg_err kvi_recorder_new(struct kvg_tree *tree)
{
    tree->recorder = KVI_NEW(&tree->alloc, struct kvi_recorder);
    return tree->recorder == NULL ? KVG_ENOMEM : KVG_OK;
}

static void free_queue(struct kvg_tree *tree, struct queue *queue)
{
    kvi_release_array(
        &tree->alloc, queue->events, queue->event_capacity, sizeof(*queue->events));
    kvi_release_array(
        &tree->alloc, queue->hashes, queue->hash_capacity, sizeof(*queue->hashes));
    kvi_release_array(
        &tree->alloc, queue->words, queue->word_capacity, sizeof(*queue->words));
    kvi_release_array(&tree->alloc, queue->text, queue->text_capacity, 1);
}

void kvi_recorder_free(struct kvg_tree *tree)
{
    if (tree->recorder == NULL)
        return;
    free_queue(tree, &tree->recorder->queue);
    free_queue(tree, &tree->recorder->taken);
    KVI_FREE(&tree->alloc, tree->recorder);
    tree->recorder = NULL;
}
