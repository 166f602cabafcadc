/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* store.h -- the shared store: where pages live when no engine holds them.
 *
 * A store keeps objects: a key (bytes, usually the name of a page's part, layout.h) and a value
 * that never changes.  One contract, several backends, chosen by a URL:
 *
 *     memory:?bytes=1GiB                     in this process, lost with it
 *     file:/var/lib/kvgraft?bytes=200GiB     segments in a directory, for several processes
 *     fault+file:/tmp/x?fault.fail=put:3     any other, made to misbehave
 *
 * Keys name content: two values put under one key are taken to be the same bytes.  So a put of a
 * key that exists writes nothing, and a value that was read is right whoever wrote it.
 *
 * Groups.  A group is the parts of one page.  All of them become visible together, or none:
 * whoever sees one part of a put that was never refused can read each of them, until it is
 * removed or evicted.  Eviction takes whole groups; a group that names the page before it
 * (`previous`) goes before that page does, so that no tail is kept whose head is gone.
 *
 * What is visible when.  A put is visible to every thread and, with KVG_STORE_SHARED, to every
 * process when it returns, and not before its data can be read.  A removed key is absent when
 * kvg_store_remove() returns; a read that began before it may still succeed, with the right bytes,
 * never with a mixture.  Every value is checked against a checksum when it is read, where the
 * backend keeps one (KVG_STORE_CHECKSUMS); one that fails is an absent key with the result
 * KVG_ECHECKSUM, and is dropped from the store.
 *
 * What survives.  Nothing of a backend without KVG_STORE_PERSISTENT.  Else the death of any
 * process, kill -9 included, loses no put that had returned; the death of the machine loses no
 * put that had returned before the last kvg_store_flush() that succeeded, and with the sync
 * policy `each` no put that had returned at all (with `none` it may lose everything).  What was
 * not acknowledged is there as a whole or not at all.
 *
 * Ownership.  Everything that goes in is borrowed for the call; results go to memory of the caller.
 * Nothing the store returns needs to be freed, but the store itself.
 *
 * Threads.  Any thread, any number at a time, on one store.  kvg_store_close() is the last call.
 * A store must not be used in the child of a fork(); the child opens its own.
 *
 * Errors.  A call over many keys gives each its own result.  It returns KVG_OK if each result is
 * KVG_OK, KVG_ENOENT or KVG_EEXIST, else the first result that is none of these, described in
 * *error; the other keys were served all the same.  If the call itself was wrong (KVG_EINVAL,
 * KVG_ELIMIT), nothing was done and each result is that.  Results:
 *
 *     KVG_OK            done
 *     KVG_ENOENT        there is no such key: no failure
 *     KVG_EEXIST        put: everything was there already: no failure
 *     KVG_EINVAL        the key, a range or a size is out of the limits
 *     KVG_ENOSPACE      full, and nothing could be evicted
 *     KVG_ECHECKSUM     the value was damaged; the key is absent from now on
 *     KVG_EIO           reading or writing failed; of a put, nothing is visible
 *     KVG_ETIMEOUT      no answer in time; a put may or may not become visible, as a whole
 *     KVG_ENOMEM        as everywhere
 *     KVG_ECANCELED     the store was closed, or the call given up, before this key's turn
 */
#ifndef KVGRAFT_STORE_H
#define KVGRAFT_STORE_H

#include <kvgraft/base.h>

KVG_BEGIN_DECLS

/* ---- Limits -------------------------------------------------------------------------------- */

#define KVG_STORE_KEY_MAX 511u                   /* Bytes of a key; at least 1. */
#define KVG_STORE_VALUE_MAX (UINT64_C(64) << 20) /* Bytes of a value; at least 1. */
#define KVG_STORE_BATCH_MAX 65536u      /* Keys, or parts of all groups, of a call. */
#define KVG_STORE_GROUP_PARTS_MAX 4096u /* Parts of a group. */
#define KVG_STORE_GROUP_ID_MAX 511u     /* Bytes of a group id. */
#define KVG_STORE_PIECES_MAX 65536u     /* Pieces of a part, ranges of a get. */
#define KVG_STORE_URL_MAX 4095u         /* Bytes of a URL. */
#define KVG_STORE_FINGERPRINT_MAX 255u  /* Bytes; 0: none. */
#define KVG_STORE_FINGERPRINT_TEXT_MAX 1023u

/* ---- Opening ------------------------------------------------------------------------------- */

struct kvg_store;
struct kvg_store_registry; /* store_backend.h: the backends to choose from. */

/* What the values mean: model, dtype, page size, TP and so on, as bytes that are equal if and only
 * if the layouts can share pages, and as text for people.  The first to open a persistent store
 * records it; whoever opens it with another one is refused with KVG_EMISMATCH, and the message
 * names both.  Opening without one is allowed, for tools. */
struct kvg_store_fingerprint {
    struct kvg_str bytes;
    struct kvg_str text; /* "llama-3-70b bf16 page 64 tp 8"; UTF-8. */
};

/* What happened to an object.  A change is told once, in the order in which it became true. */
enum kvg_store_change_kind {
    KVG_STORE_STORED,
    KVG_STORE_REMOVED, /* Somebody asked for it. */
    KVG_STORE_EVICTED, /* The store made room. */
    KVG_STORE_LOST,   /* Damaged, or its file is gone: found while reading or checking. */
    KVG_STORE_CLEARED /* Everything at once; no key. */
};

struct kvg_store_change {
    size_t struct_bytes;
    enum kvg_store_change_kind kind;
    enum kvg_medium medium;
    uint64_t epoch; /* Which numbering: another one after a clear, a repair or a loss. */
    uint64_t sequence; /* From 1, without a hole within an epoch. */
    struct kvg_str key;
    struct kvg_str group_id; /* {NULL, 0}: none. */
    uint64_t bytes;          /* Of the value. */
};

/* Gets every change, one at a time, in the order of its sequence, on whichever thread made or found
 * it.  Locks are held: be quick, and do not call the store.  Changes that other processes made to
 * a KVG_STORE_SHARED store come with the next call on this one, kvg_store_poll() for instance,
 * if KVG_STORE_FOLLOWS; else they do not come. */
struct kvg_store_hook {
    void (*changed)(void *context, const struct kvg_store_change *change);
    void *context;
};

/* Locks for a backend that lives in the core and cannot make its own.  All NULL: the store is used
 * by one thread only.  kvg_store_open() supplies the process's own. */
struct kvg_store_locks {
    void *(*make)(void *context); /* NULL: no memory. */
    void (*free)(void *context, void *lock);
    void (*lock)(void *context, void *lock);
    void (*unlock)(void *context, void *lock);
    void *context;
};

/* What somebody else knows: an index that follows the store's events, say.  True only if it is sure
 * that there is no such key; a backend whose questions cost something (a network, a lease) then
 * does not ask.  Called from any thread. */
struct kvg_store_absent {
    bool (*is_absent)(void *context, struct kvg_str key);
    void *context;
};

struct kvg_store_options {
    size_t struct_bytes;
    const struct kvg_alloc *alloc; /* NULL: kvg_alloc_default(). */
    const struct kvg_log *log;     /* NULL: silence. */
    struct kvg_store_fingerprint fingerprint;
    struct kvg_store_hook hook;
    struct kvg_store_locks locks;
    struct kvg_store_absent absent;            /* May be empty.  Used by: mooncake. */
    const struct kvg_store_registry *registry; /* NULL: those of the library. */
    uint64_t seed;  /* For what is random (the epoch of a store without disk); 0: any. */
    bool read_only; /* Nothing is written, created, evicted or repaired. */
};

/* Opens a store.  Options may be NULL.  Everything in them but `alloc`, `log` and the contexts is
 * copied.  On failure *out is NULL and the message says what to change; secrets of the URL
 * (password, and parameters whose name says so) appear as "***" there and in every log line.
 *
 * KVG_EINVAL        no such scheme, or a parameter that it does not know or allow
 * KVG_EMISMATCH     another fingerprint
 * KVG_EVERSION      written by a newer version
 * KVG_EFORMAT       there is something there, and it is no such store, or beyond reading
 * KVG_EIO, ...      what the backend met */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_open(const char *url,
    const struct kvg_store_options *options, struct kvg_store **out,
    struct kvg_error *error);

/* Flushes (a failure of that is logged) and ends the store.  NULL is allowed.  No call may be
 * running. */
KVG_API void kvg_store_close(struct kvg_store *store);

enum kvg_store_flag {
    KVG_STORE_SHARED = 1 << 0,     /* Other processes may use it at the same time. */
    KVG_STORE_PERSISTENT = 1 << 1, /* Survives its processes. */
    KVG_STORE_FOLLOWS = 1 << 2,    /* The hook hears what other processes do. */
    KVG_STORE_CHECKSUMS = 1 << 3,  /* Values are checked when read. */
    KVG_STORE_EVICTS = 1 << 4,     /* Makes room by itself, coldest first. */
    KVG_STORE_LISTS = 1 << 5,      /* kvg_store_list() works. */
    KVG_STORE_ATOMIC = 1 << 6, /* Groups appear as a whole; without it, only parts do. */
    KVG_STORE_RANGES = 1 << 7, /* A range costs its own bytes, not those of the value. */
    KVG_STORE_REMOVES = 1 << 8 /* Removal is by key, exact and at once. */
};

/* What this store promises: an or of kvg_store_flag. */
KVG_API uint32_t kvg_store_flags(const struct kvg_store *store);

/* Its URL with secrets masked.  Lives as long as the store. */
KVG_API const char *kvg_store_url_text(const struct kvg_store *store);

/* ---- Asking, writing, reading -------------------------------------------------------------- */

/* Are these keys there?  present[i] becomes 1 or 0; *leading_out how many are there before the
 * first that is not.  Either may be NULL; without `present` the search ends at the first gap.  A
 * question is not a use: it keeps nothing from being evicted.  On an error everything counts as
 * absent. */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_exists(struct kvg_store *store,
    const struct kvg_str *keys, size_t key_count, uint8_t *present, size_t *leading_out,
    struct kvg_error *error);

/* A run of bytes of a value: pieces are written one after the other. */
struct kvg_store_piece {
    const void *data;
    size_t bytes;
};

struct kvg_store_part {
    struct kvg_str key;
    const struct kvg_store_piece *pieces;
    size_t piece_count;
};

struct kvg_store_group {
    const struct kvg_store_part *parts;
    size_t part_count;
    struct kvg_str id;       /* A label for events; {NULL, 0}: none. */
    struct kvg_str previous; /* A key of the page before; {NULL, 0}: none or unknown. */
    kvg_err result;          /* Out. */
};

/* Writes groups.  Parts that are there already are left as they are, and not compared; the missing
 * ones appear together.  KVG_EEXIST if none was missing.  A key may come twice in one call: the
 * first counts.  Groups are tried in order and each for itself; later groups are those that a
 * prompt reaches later, and colder. */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_put(struct kvg_store *store,
    struct kvg_store_group *groups, size_t group_count, struct kvg_error *error);

/* A run of bytes of a value, and where they go. */
struct kvg_store_range {
    uint64_t offset;
    size_t bytes;
    void *memory;
};

struct kvg_store_get {
    struct kvg_str key;
    const struct kvg_store_range *ranges; /* None: only the size is asked for. */
    size_t range_count;
    kvg_err result;       /* Out. */
    uint64_t value_bytes; /* Out: bytes of the whole value, with KVG_OK; else 0. */
};

/* Reads values, or parts of them, into the caller's memory.  A range that leaves the value is
 * KVG_EINVAL for that key.  Memory of a key whose result is not KVG_OK may hold anything. */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_get(struct kvg_store *store,
    struct kvg_store_get *gets, size_t get_count, struct kvg_error *error);

/* Removes keys; absent ones do not matter.  `results` (NULL is allowed) says which were there:
 * KVG_OK or KVG_ENOENT.  Other parts of the same page stay. */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_remove(struct kvg_store *store,
    const struct kvg_str *keys, size_t key_count, kvg_err *results,
    struct kvg_error *error);

/* Removes everything and begins a new epoch. */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_clear(
    struct kvg_store *store, struct kvg_error *error);

/* ---- Listing ------------------------------------------------------------------------------- */

struct kvg_store_item {
    size_t struct_bytes;
    struct kvg_str key;
    struct kvg_str group_id;
    uint64_t bytes;
    enum kvg_medium medium;
};

/* Where a listing is.  Zero is its beginning.  The words belong to the backend. */
struct kvg_store_cursor {
    bool done;         /* Everything was listed. */
    uint64_t epoch;    /* Of the changes, when the listing began. */
    uint64_t sequence; /* The last change that the whole listing is sure to contain. */
    uint64_t words[5];
};

/* Lists at most `item_max` objects after the cursor, and moves it.  A key that is there from the
 * first call to the last is listed at least once, usually once; one that comes or goes meanwhile,
 * once or never.  So the listing, with every change after cursor->sequence applied to it, is the
 * store.  The cursor stays good however long it rests.  `visit` must not call the store; what an
 * item points to is gone when it returns; false ends the call after that item.
 * KVG_EUNSUPPORTED without KVG_STORE_LISTS. */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_list(struct kvg_store *store,
    struct kvg_store_cursor *cursor, size_t item_max,
    bool (*visit)(void *context, const struct kvg_store_item *item), void *context,
    struct kvg_error *error);

/* ---- The rest ------------------------------------------------------------------------------ */

/* Makes what was acknowledged as durable as the backend can.  With several threads: what had been
 * acknowledged when the call began. */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_flush(
    struct kvg_store *store, struct kvg_error *error);

/* Takes in what other processes did, and calls the hook for it.  Most backends: nothing. */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_poll(
    struct kvg_store *store, struct kvg_error *error);

struct kvg_store_stats {
    size_t struct_bytes;
    uint64_t objects;   /* In the store now; 0 if it cannot say. */
    uint64_t bytes;     /* Of their values. */
    uint64_t bytes_max; /* What it may hold; 0: no bound known. */
    uint64_t bytes_on_disk;
    uint64_t epoch, sequence; /* The last change. */
    /* Since this store was opened, by this process. */
    uint64_t exists_keys, exists_hits;
    uint64_t put_groups, put_parts, put_bytes; /* Written. */
    uint64_t put_present;                      /* Parts that were there already. */
    uint64_t put_failed;                       /* Groups. */
    uint64_t get_keys, get_hits, get_bytes;
    uint64_t get_failed; /* Neither found nor absent. */
    uint64_t removed;
    uint64_t evicted_objects, evicted_bytes;
    uint64_t lost_objects;      /* Damaged or gone, when somebody looked. */
    uint64_t checksum_failures; /* Of them. */
    uint64_t space_retries;     /* Puts that met a full disk, evicted and tried again. */
    uint64_t reconnects;
    uint64_t refused; /* Calls and keys outside the limits. */
};
KVG_API void kvg_store_stats(struct kvg_store *store, struct kvg_store_stats *out);

/* What a check found, and a repair did. */
struct kvg_store_report {
    size_t struct_bytes;
    uint64_t objects; /* Looked at. */
    uint64_t bytes;
    uint64_t damaged;      /* Objects that cannot be read. */
    uint64_t dropped;      /* Of them, those that the repair removed. */
    uint64_t bytes_unused; /* On disk, that belong to nothing. */
    uint64_t problems;     /* Everything that `say` was told. */
};

/* Reads everything and verifies it; with `repair` drops what is damaged.  `say` (NULL is allowed)
 * gets a line for each problem.  KVG_EUNSUPPORTED where there is nothing to check. */
KVG_API KVG_MUST_CHECK kvg_err kvg_store_check(struct kvg_store *store, bool repair,
    void (*say)(void *context, const char *line), void *context,
    struct kvg_store_report *out, struct kvg_error *error);

KVG_END_DECLS

#endif
