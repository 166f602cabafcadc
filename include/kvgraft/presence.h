/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* presence.h -- the index: which parts of which pages a shared store holds.
 *
 * One index follows one store.  It is fed object keys ("stored", "removed", a listing) and
 * answers, for a prompt's page keys, which pages are there with all their parts.  It stores a
 * page once, with bits for its parts per medium, whatever the tensor parallelism; several
 * layouts, prefixes and tenants share it.
 *
 *     words: a *space* is one (tenant, prefix): equal page keys in two spaces are two pages.
 *            a *view* is a layout bound to a space: what a query asks with.
 *
 * Threads: one writer at a time (every function without `reader`), any number of readers.  A
 * reader takes no lock, allocates nothing and never waits.  It never reports a page whose parts
 * were not all present at some moment of the call; it may miss a change made meanwhile.
 *
 * Memory: `memory_bytes_max` bounds everything.  At the limit the coldest tails go first: pages
 * not asked for longest, and of one chain the last pages; heads that are still queried stay.
 * Nothing is ever cleared because it grew.  Since a page that gave way is still in the store,
 * answers say then that they come from a part of what is known (`partial`).
 *
 * Keys: the index keeps the first 16 bytes of a page key.  That identifies it; only what must
 * write whole object keys (kvg_presence_each, a dump for such an index) needs all 32.
 */
#ifndef KVGRAFT_PRESENCE_H
#define KVGRAFT_PRESENCE_H

#include <kvgraft/layout.h>

KVG_BEGIN_DECLS

struct kvg_presence;        /* The index. */
struct kvg_presence_reader; /* One thread's seat at it. */
struct kvg_presence_view;   /* A layout bound to a tenant of this index. */

#define KVG_PRESENCE_SPACES_MAX 4096u
#define KVG_PRESENCE_SUFFIXES_MAX 4096u /* Different part suffixes a space. */
#define KVG_PRESENCE_TENANTS_MAX 4096u
#define KVG_PRESENCE_TENANT_BYTES_MAX 255u
#define KVG_PRESENCE_READERS_MAX 1024u
#define KVG_PRESENCE_MEMORY_BYTES_MIN ((size_t)1 << 20)

struct kvg_presence_options {
    size_t struct_bytes;
    size_t memory_bytes_max; /* 0: 1 GiB; at least 1 MiB. */
    uint64_t seed;           /* Secret: spreads keys over the table. */
    bool full_keys;          /* Keep all 32 key bytes: 16 more bytes a slot. */
};

KVG_API KVG_MUST_CHECK kvg_err kvg_presence_new(const struct kvg_alloc *alloc,
    const struct kvg_presence_options *options, struct kvg_error *error,
    struct kvg_presence **out);
/* Frees the index.  Close its readers and free its views first.  NULL is allowed.  `options` may
 * be NULL: all defaults. */
KVG_API void kvg_presence_free(struct kvg_presence *index);

/* The writer's side ----------------------------------------------------------------------- */

/* One object appeared or went.  An absent or empty tenant is "default".  An object key that does
 * not parse, or is beyond a limit (spaces, suffixes, memory), is counted, and false is returned:
 * the index did not change.  Storing twice, or removing what is not there, is harmless (true).
 * `medium`: CPU or DISK; anything else counts as CPU.  Removing with KVG_MEDIUM_UNKNOWN takes
 * the part off every medium, which is what the older publisher means; so does removing from a
 * medium where it was not known to be, because then what was known is wrong. */
KVG_API bool kvg_presence_stored(struct kvg_presence *index, struct kvg_str tenant,
    struct kvg_str object_key, enum kvg_medium medium);
KVG_API bool kvg_presence_removed(struct kvg_presence *index, struct kvg_str tenant,
    struct kvg_str object_key, enum kvg_medium medium);

/* Many events, with the same outcome as one after the other, but faster: the memory of the next
 * ones is fetched while the first are applied.  An object key may point anywhere that lives as
 * long as the call. */
struct kvg_presence_event {
    struct kvg_str tenant;
    struct kvg_str object_key;
    enum kvg_medium medium;
    bool is_removal; /* As kvg_presence_removed(), else as kvg_presence_stored(). */
    bool is_known;   /* Out: what that returns. */
};
KVG_API void kvg_presence_apply(
    struct kvg_presence *index, struct kvg_presence_event *events, size_t count);

/* Everything of a tenant went; with an absent tenant ({NULL, 0}), of all tenants. */
KVG_API void kvg_presence_cleared(struct kvg_presence *index, struct kvg_str tenant);

/* Comparing with a listing.  Between begin and end every event goes on being applied; a listed
 * key is added, as a part in CPU memory, unless it is known on some medium or an event since the
 * beginning spoke of it (then the event knows better); at the end every part of the tenant that
 * neither the listing nor an event named is dropped.  One listing at a time (KVG_EBUSY); a
 * listing that is given up leaves what it added, and drops nothing.  The work of the end is
 * done in steps, so that no call takes long: kvg_presence_listing_end() looks at `slot_max`
 * slots and returns true when it is done. */
struct kvg_presence_listing_result {
    uint64_t listed;  /* Keys given that parsed. */
    uint64_t foreign; /* Keys given that did not. */
    uint64_t added;   /* Parts the index had missed. */
    uint64_t dropped; /* Parts the store had lost. */
};
KVG_API KVG_MUST_CHECK kvg_err kvg_presence_listing_begin(
    struct kvg_presence *index, struct kvg_str tenant);
KVG_API bool kvg_presence_listing_key(
    struct kvg_presence *index, struct kvg_str object_key);
KVG_API bool kvg_presence_listing_end(
    struct kvg_presence *index, size_t slot_max, struct kvg_presence_listing_result *out);
KVG_API void kvg_presence_listing_abort(struct kvg_presence *index);

/* What answers about a tenant are worth; an absent tenant sets all, and those to come. */
KVG_API void kvg_presence_set_confidence(
    struct kvg_presence *index, struct kvg_str tenant, enum kvg_confidence confidence);

/* Moves the clock of recency.  Any monotonic number; a step is what "longest not asked for" is
 * measured in (seconds are right). */
KVG_API void kvg_presence_set_time(struct kvg_presence *index, uint64_t now_s);

/* Binds a layout to a tenant (absent: "default").  The view copies what it needs.  Views are
 * made and freed by the writer and used by any reader; free one when no look-up uses it.  Bind
 * layouts before their events if you can: then a page of up to 16 parts takes one word.
 * KVG_ELIMIT: too many tenants, spaces or suffixes; KVG_ENOMEM. */
KVG_API KVG_MUST_CHECK kvg_err kvg_presence_view_new(struct kvg_presence *index,
    const struct kvg_layout *layout, struct kvg_str tenant, struct kvg_error *error,
    struct kvg_presence_view **out);
KVG_API void kvg_presence_view_free(struct kvg_presence_view *view);

/* Calls `on_object` for every part on every medium, as object keys; for checks and people.
 * Returns how many.  Without `full_keys` the last 32 digits of a page key are not known and
 * written as '?'. */
KVG_API uint64_t kvg_presence_each(struct kvg_presence *index,
    void (*on_object)(void *context, struct kvg_str tenant, struct kvg_str object_key,
        enum kvg_medium medium),
    void *context);

/* Dump to and load from bytes (own format, versioned, checksummed; docs/dump-format.md).  `write`
 * and `read` return false to stop (KVG_EIO); read returns the bytes got in *got, 0 at the end.
 * What is loaded is merged, and the tenants it names become `suspect`.  A dump is checked block
 * by block: if one is damaged (KVG_ECHECKSUM, KVG_EFORMAT) or missing, what stood before it has
 * been merged, and the error says so.  KVG_EVERSION: written by a newer version; KVG_EMISMATCH:
 * it lacks the whole keys that this index keeps; in both cases nothing was merged. */
KVG_API KVG_MUST_CHECK kvg_err kvg_presence_dump(struct kvg_presence *index,
    bool (*write)(void *context, const void *bytes, size_t byte_count), void *context);
KVG_API KVG_MUST_CHECK kvg_err kvg_presence_load(struct kvg_presence *index,
    bool (*read)(void *context, void *bytes, size_t byte_max, size_t *got), void *context,
    struct kvg_error *error);

struct kvg_presence_stats {
    size_t struct_bytes;
    uint64_t pages;
    uint64_t parts; /* Over media: a part in cpu and disk counts twice. */
    uint64_t spaces;
    uint64_t slots; /* Room in the table. */
    size_t memory_bytes;
    size_t memory_bytes_max;
    uint64_t stored_applied;
    uint64_t removed_applied;
    uint64_t removed_unknown;
    uint64_t cleared_applied;
    uint64_t foreign_keys;   /* Did not parse. */
    uint64_t refused_spaces; /* Over KVG_PRESENCE_SPACES_MAX. */
    uint64_t refused_suffixes;
    uint64_t refused_memory; /* The allocator said no; the part is not known. */
    uint64_t evicted_pages;  /* Gave way at the limit. */
    uint64_t objects;        /* Parts whatever the media: each object counts once.  What a
                                store's own key count is compared with. */
    /* Pages gave way or were refused, and no listing since was held whole. */
    bool partial;
    /* Pages of which a part is in that medium (a page in both counts in both), and their parts;
     * the parts add up to `parts`. */
    uint64_t cpu_pages;
    uint64_t disk_pages;
    uint64_t cpu_parts;
    uint64_t disk_parts;
};
/* Any thread may ask. */
KVG_API void kvg_presence_stats(
    const struct kvg_presence *index, struct kvg_presence_stats *out);

/* The readers' side ----------------------------------------------------------------------- */

/* Opens a seat for the calling thread.  Any thread may close it. */
KVG_API KVG_MUST_CHECK kvg_err kvg_presence_reader_open(
    struct kvg_presence *index, struct kvg_presence_reader **out);
KVG_API void kvg_presence_reader_close(struct kvg_presence_reader *reader);

/* A run of present pages: [begin, end). */
struct kvg_range {
    uint32_t begin;
    uint32_t end;
};

#define KVG_MEDIUM_BIT(medium) (1u << (medium))

/* One prompt's question and its answer.
 *
 * A page is *present* when all parts of all-pages pools are there, on whatever medium, be it a
 * mix.  Parts of trailing-pages pools count in `contiguous` only: from `start` it reaches to the
 * last page behind which every such pool holds its last pages (those before `start` are the
 * asker's own business).  In a layout without all-pages pools a page is present when it has all
 * parts, and `contiguous` asks for the trailing pages only. */
struct kvg_lookup {
    /* In. */
    const struct kvg_presence_view *view;
    const struct kvg_key *keys; /* From the first page on: their number is their depth. */
    uint32_t key_count;
    uint32_t start;           /* `contiguous` counts from here. */
    struct kvg_range *ranges; /* Room for range_max; may be NULL with 0. */
    uint32_t range_max;
    /* Out. */
    uint32_t range_count; /* All there are, also those without room. */
    uint32_t total;       /* Present pages. */
    uint32_t contiguous;  /* Present pages from `start` without a hole, for which trailing
                                 pools hold what they must: what an engine can load. */
    uint32_t
        first_missing; /* First absent page at or after `start`; key_count if none. */
    uint32_t missing_parts; /* Of that page: parts of the layout that are absent. */
    uint32_t media;         /* KVG_MEDIUM_BIT()s: media that alone hold all parts of the
                                 contiguous pages; 0 if it takes a mix. */
    enum kvg_confidence confidence;
    bool partial;     /* The index is at its limit: absent may mean forgotten. */
    uint32_t retries; /* Slots that had to be read again. */
    uint32_t gave_up; /* Slots that changed too often: counted as absent. */
};

/* Answers a batch of questions.  Lock-free, allocates nothing. */
KVG_API void kvg_presence_lookup(
    struct kvg_presence_reader *reader, struct kvg_lookup *lookups, size_t lookup_count);

/* Present pages at or after page `page`, holes allowed: what the seed calls hits_beyond.  Needs
 * range_max >= range_count. */
KVG_API uint32_t kvg_lookup_hits_beyond(const struct kvg_lookup *lookup, uint32_t page);

/* One page in detail, for `explain`: bit p % 8 of byte p / 8 is part p of the view's layout.
 * Returns whether the index knows the page at all.  `bits_bytes` is the room in each. */
KVG_API bool kvg_presence_page_parts(struct kvg_presence_reader *reader,
    const struct kvg_presence_view *view, const struct kvg_key *key, uint8_t *cpu_bits,
    uint8_t *disk_bits, size_t bits_bytes);

/* What an index that follows a store can tell that store's backend, so that questions about what
 * is not there cost neither a round trip nor a lease:
 *
 *     struct kvg_presence_filter filter = {view, layout};
 *     options.absent = (struct kvg_store_absent){kvg_presence_filter_absent, &filter};
 *
 * True only if the object key is a part of the layout, in the view's tenant and prefix, that
 * the index does not hold while it is `fresh` and whole (not `partial`).  Else nobody is sure,
 * and the store is asked.  What others stored a moment ago, and no event has told yet, counts as
 * absent: an engine then computes what it might have loaded, and its put finds it there.
 *
 * Any thread; each call takes a seat for its time, and is not sure when there is none.  View
 * and layout are the caller's and must live as long. */
struct kvg_presence_filter {
    const struct kvg_presence_view *view;
    const struct kvg_layout *layout; /* That of the view. */
};
KVG_API bool kvg_presence_filter_absent(void *context, struct kvg_str object_key);

KVG_END_DECLS

#endif
