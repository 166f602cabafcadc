/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* seen.h -- what a stream turned out to be: sums over the messages and events of a publisher.
 *
 * Memory is fixed: of names (tenants, models, suffixes, ...) the first KVC_NAMES_MAX are kept and
 * the rest is counted.  Threads: belongs to its caller.
 */
#ifndef KVC_SEEN_H
#define KVC_SEEN_H

#include <kvgraft/event.h>

#define KVC_NAMES_MAX 16u
#define KVC_NAME_BYTES 64u

struct kvc_names {
    unsigned count;
    uint64_t others; /* Sightings of names that found no room. */
    uint64_t seen[KVC_NAMES_MAX];
    char names[KVC_NAMES_MAX][KVC_NAME_BYTES];
};

/* What one message did to the sequence. */
enum kvc_step {
    KVC_STEP_FIRST,
    KVC_STEP_NEXT,
    KVC_STEP_GAP,
    KVC_STEP_DUPLICATE,
    KVC_STEP_RESTART
};

struct kvc_seen {
    uint64_t messages;
    uint64_t bytes;
    uint64_t bad_frames;
    uint64_t events[3]; /* By enum kvg_event_kind. */
    uint64_t forms[2];
    uint64_t encodings[2];
    uint64_t media[KVG_MEDIUM_COUNT];
    uint64_t blocks; /* Of engine events. */
    bool has_sequence;
    uint64_t first_sequence;
    uint64_t last_sequence;
    uint64_t gaps;
    uint64_t missed_sequences;
    uint64_t duplicates;
    uint64_t restarts;
    uint64_t foreign_keys; /* Object keys without a page key in them. */
    struct kvc_names topics;
    struct kvc_names block_sizes;
    struct kvc_names tenants;
    struct kvc_names backends;
    struct kvc_names models;
    struct kvc_names prefixes; /* Of object keys. */
    struct kvc_names suffixes;
    struct kvc_names ranks;
};

enum kvc_step kvc_seen_sequence(struct kvc_seen *seen, uint64_t sequence);
void kvc_seen_event(struct kvc_seen *seen, const struct kvg_event *event);
void kvc_names_add(struct kvc_names *names, struct kvg_str name);

/* "Mooncake master, maps", "inference engine, arrays", "nothing yet". */
const char *kvc_seen_dialect(const struct kvc_seen *seen);

#endif
