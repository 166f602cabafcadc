/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* record_write.c -- the tree's events on the wire, through the writer of event.h. */
#include <kvgraft/event.h>
#include <kvgraft/tree.h>

#include "base/fmt.h"

/* The words engines use. */
static struct kvg_str medium_word(enum kvg_medium medium)
{
    switch (medium) {
    case KVG_MEDIUM_DEVICE:
        return kvi_str("GPU");
    case KVG_MEDIUM_CPU:
        return kvi_str("CPU_PINNED");
    case KVG_MEDIUM_DISK:
        return kvi_str("DISK");
    case KVG_MEDIUM_EXTERNAL:
        return kvi_str("EXTERNAL");
    default:
        return (struct kvg_str){NULL, 0};
    }
}

void kvg_tree_event_write(
    const struct kvg_tree_event *event, struct kvg_event_writer *writer)
{
    struct kvg_event out = {.form = KVG_FORM_ENGINE, .medium = event->medium};

    switch (event->kind) {
    case KVG_TREE_STORED:
        out.kind = KVG_EVENT_STORED;
        out.has_block_size = true;
        out.block_size = event->page_size;
        out.has_parent_hash = event->has_parent;
        out.parent_hash = (uint64_t)event->parent;
        out.token_pairs = event->words_per_unit == 2;
        out.salt = event->cache_salt;
        out.session_id = event->session_id;
        break;
    case KVG_TREE_REMOVED:
        out.kind = KVG_EVENT_REMOVED;
        break;
    case KVG_TREE_CLEARED:
        out.kind = KVG_EVENT_CLEARED;
        break;
    }
    out.medium_name = medium_word(event->medium);
    kvg_event_writer_add(writer, &out, (const uint64_t *)event->hashes, event->hash_count,
        event->words, event->word_count);
}
