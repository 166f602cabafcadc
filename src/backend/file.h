/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file.h -- the backend `file:DIR`: what its files share.  docs/design/store.md explains it.
 *
 *     DIR/store            what this is: version, identity, fingerprint
 *     DIR/lock             nothing; its byte ranges are locked
 *     DIR/journal          every change, in one order; the truth
 *     DIR/segment-00000007 slots of one size; a part is in one slot
 *
 * Each process keeps a catalog of its own and brings it up to date by reading on in the
 * journal, before every call.  Nothing is shared in memory, so a process that dies leaves
 * nothing behind but the end of a record, which the next writer cuts off.
 *
 * Locks, in the order in which they are taken:
 *
 *     commit   mutex, and byte 0 of DIR/lock against other processes: who appends to the journal
 *     index    rwlock: catalog, segments, journal position of this process
 *     fds      mutex: opening segments
 *
 * Slots being written are locked byte by byte in DIR/lock, so that no other process takes them
 * and they are free again when their writer dies. */
#ifndef KVI_BACKEND_FILE_H
#define KVI_BACKEND_FILE_H

#include "backend/backend.h"
#include "backend/file_io.h"
#include "backend/hash.h"

#include "store/catalog.h"

#include <pthread.h>

#define FILE_VERSION 2u
#define SMALL_BYTES 65536u /* Up to here one checksum covers a part, */
#define CHUNK_BYTES 4096u  /* beyond, each so many bytes. */
#define CHUNKS_MAX ((size_t)(KVG_STORE_VALUE_MAX / CHUNK_BYTES))
#define SLICE_BYTES 262144u /* Moved at a time, so that the cache still has it. */
#define BLOCK_BYTES 4096u
#define SEGMENT_SLOTS_MAX 65536u
#define RECORD_BYTES_MAX (UINT32_C(4) << 20)
#define FILE_TOUCHED_MAX 256u
#define FILE_GET_MAX 64u /* Gets that are looked up and read together. */
#define FILE_FD_NONE (-1000000)
#define PLACE(segment, slot) (((uint64_t)(segment) << 32) | (slot))
#define PLACE_SEGMENT(place) ((uint32_t)((place) >> 32))
#define PLACE_SLOT(place) ((uint32_t)(place))

enum file_sync {
    FILE_SYNC_NONE,
    FILE_SYNC_BATCH,
    FILE_SYNC_EACH
};

/* How large parts are read (file_direct.c). */
enum file_io_mode {
    FILE_IO_MODE_PLAIN,
    FILE_IO_MODE_DIRECT,
    FILE_IO_MODE_URING
};

struct file_segment {
    uint32_t id;
    uint32_t slot_bytes;
    uint32_t slot_count;
    uint32_t live_count;
    uint32_t backed_count;
    uint32_t quarantine_count;
    uint64_t *live;       /* Bits: a part is in it. */
    uint64_t *backed;     /* It takes space on disk, with a part or without. */
    uint64_t *quarantine; /* Its part is gone, which may not be on disk yet. */
    uint64_t *reserved;   /* This process is writing to it, */
    uint64_t *fresh;      /* and it took no space before. */
    uint32_t *parts;      /* Of the catalog. */
    uint64_t last_put;    /* Journal offsets. */
    uint64_t last_drop;
    uint32_t cursor[2]; /* Where the last search for a slot ended: unbacked, backed. */
    bool dirty;         /* Holds data that no sync has covered. */
    _Atomic bool named; /* Its name is on disk, as far as the sync policy asks. */
    _Atomic int fd;
    int direct_fd; /* With `fds`; FILE_FD_NONE: not tried, negative: cannot be. */
};

/* The journal, as far as this process has taken it in. */
struct file_journal {
    int fd;
    uint64_t generation;
    uint64_t applied;        /* Offset after the last record taken in. */
    uint64_t synced;         /* Everything before it is on disk. */
    uint64_t snapshot_bytes; /* Where the records begin that are changes. */
    uint64_t reserved;       /* Space is set aside up to here. */
};

struct file_store {
    const struct kvg_alloc *alloc;
    const struct kvg_log *log;
    struct kvg_store_hook hook;
    const struct file_io *io;
    char *dir; /* With a slash at the end; followed by a zero. */
    size_t dir_bytes;
    int lock_fd;
    bool read_only;
    bool following; /* The hook is called for what is taken in. */
    uint32_t sync;
    uint32_t io_mode;
    uint64_t bytes_max, floor_bytes, sync_bytes, segment_bytes;

    pthread_mutex_t commit;
    pthread_mutex_t fds;
    pthread_rwlock_t index;
    struct kvi_catalog catalog;
    struct file_journal journal;
    struct file_segment **segments; /* By id; NULL: gone. */
    uint32_t segment_count;
    uint64_t backed_bytes; /* Of all slots that take space. */
    uint64_t reserved_bytes;
    uint64_t quarantine_count;
    uint64_t epoch, sequence;
    uint64_t generation; /* Of the catalog: listings begin again when it is rebuilt. */
    char boot[64];       /* Of the last opening that is in the journal. */

    _Atomic uint64_t unsynced_bytes; /* Written by this process since its last sync. */
    _Atomic uint64_t put_parts, put_bytes, put_present;
    _Atomic uint64_t evicted_objects, evicted_bytes, lost_objects, space_retries;
    pthread_mutex_t touched_lock;
    uint64_t touched[FILE_TOUCHED_MAX]; /* Places read since the last TOUCH. */
    uint32_t touched_count;
    pthread_mutex_t lanes_lock;
    struct file_lane *lanes; /* Of file_direct.c, not in use. */
    uint32_t lane_count;
    uint64_t bad_records; /* Skipped while opening. */
    uint64_t cut_bytes;   /* Of unfinished records, cut off. */
};

/* ---- Records (file_record.c) --------------------------------------------------------------- */

enum file_kind {
    RECORD_PUT = 1, /* A group, or parts that join one. */
    RECORD_DROP,    /* Places whose parts are gone, and why. */
    RECORD_TOUCH,   /* Places whose groups were used. */
    RECORD_SEGMENT, /* A new segment. */
    RECORD_PUNCH,   /* Free slots that gave their space back. */
    RECORD_BACKED,  /* Free slots that take space: of a snapshot. */
    RECORD_SYNCED,  /* Everything before this offset is on disk. */
    RECORD_BOOT,    /* The machine's boot id: a crash is noticed by another one. */
    RECORD_CLEAR    /* Everything is gone, or (with `keep`) only the numbering is new. */
};

enum {
    PUT_DURABLE = 1,  /* The data was synced before the record was written. */
    PUT_SNAPSHOT = 2, /* No change: written again by a compaction. */
};

#define RECORD_HEADER_BYTES 16u
#define JOURNAL_HEADER_BYTES 64u

/* Records being made: bytes that grow.  `failed` sticks. */
struct file_records {
    const struct kvg_alloc *alloc;
    uint8_t *data;
    size_t bytes;
    size_t capacity;
    size_t begun; /* Offset of the record being made. */
    bool failed;
};

void kvi_file_records_init(struct file_records *records, const struct kvg_alloc *alloc);
void kvi_file_records_fini(struct file_records *records);
void kvi_file_record_begin(struct file_records *records, enum file_kind kind);
void kvi_file_record_u32(struct file_records *records, uint32_t value);
void kvi_file_record_u64(struct file_records *records, uint64_t value);
void kvi_file_record_str(struct file_records *records, struct kvg_str text);
void kvi_file_record_end(struct file_records *records);
/* Gives every record its checksum, for a journal's generation and the offset of the first. */
void kvi_file_records_seal(
    struct file_records *records, uint64_t generation, uint64_t offset);

/* A record being read.  `failed` sticks; what is read then is 0 or empty. */
struct file_reader {
    const uint8_t *data;
    size_t bytes;
    size_t at;
    uint32_t kind;
    bool failed;
};

/* The record at the beginning of `data`; the bytes it takes, or 0 if there is no whole
 * and sound one (with *more_out: and more bytes could make it one). */
size_t kvi_file_record_read(const uint8_t *data, size_t bytes, uint64_t generation,
    uint64_t offset, struct file_reader *reader, bool *more_out);
uint32_t kvi_file_read_u32(struct file_reader *reader);
uint64_t kvi_file_read_u64(struct file_reader *reader);
struct kvg_str kvi_file_read_str(struct file_reader *reader);

void kvi_file_header_make(uint8_t header[JOURNAL_HEADER_BYTES],
    const struct file_journal *journal, uint64_t epoch, uint64_t sequence);
kvg_err kvi_file_header_read(const uint8_t header[JOURNAL_HEADER_BYTES],
    struct file_journal *journal, uint64_t *epoch, uint64_t *sequence,
    struct kvg_error *error);

/* ---- Taking in (file_apply.c) -------------------------------------------------------------- */

/* Takes in one record, with index held for writing.  KVG_ENOMEM changes nothing; KVG_EFORMAT: it
 * makes no sense. */
kvg_err kvi_file_apply(
    struct file_store *file, struct file_reader *reader, uint64_t offset);

/* The segment of an id, or NULL. */
struct file_segment *kvi_file_segment(const struct file_store *file, uint32_t id);
void kvi_file_segments_free(struct file_store *file);

static inline bool file_bit(const uint64_t *bits, uint32_t at)
{
    return (bits[at / 64] >> (at % 64) & 1) != 0;
}

static inline void file_bit_set(uint64_t *bits, uint32_t at, bool on)
{
    uint64_t bit = UINT64_C(1) << (at % 64);

    bits[at / 64] = on ? bits[at / 64] | bit : bits[at / 64] & ~bit;
}

/* ---- The journal (file_journal.c) ---------------------------------------------------------- */

/* Takes in what is new, and returns with index held for reading. */
kvg_err kvi_file_begin_read(struct file_store *file, struct kvg_error *error);
void kvi_file_end_read(struct file_store *file);

/* The commit lock, here and in other processes, with everything taken in. */
kvg_err kvi_file_begin_commit(struct file_store *file, struct kvg_error *error);
void kvi_file_end_commit(struct file_store *file);

/* Appends records and takes them in, with the commit lock. */
kvg_err kvi_file_append(
    struct file_store *file, struct file_records *records, struct kvg_error *error);

/* Syncs data and journal, and says so in it, with the commit lock. */
kvg_err kvi_file_sync_all(struct file_store *file, struct kvg_error *error);

/* Writes the journal anew if it has grown too long, with the commit lock. */
kvg_err kvi_file_compact(struct file_store *file, bool always, struct kvg_error *error);

/* Opening: reads the journal from its beginning, with the commit lock unless read_only. */
kvg_err kvi_file_journal_open(struct file_store *file, struct kvg_error *error);
kvg_err kvi_file_journal_create(
    struct file_store *file, uint64_t epoch, struct kvg_error *error);

/* ---- Space (file_space.c) ------------------------------------------------------------------ */

/* The bytes of a slot for a part of so many bytes. */
uint32_t kvi_file_slot_bytes(uint64_t bytes);

/* Finds and reserves a slot, evicting for it, with the commit lock.  KVG_ENOSPACE. */
kvg_err kvi_file_take_slot(
    struct file_store *file, uint64_t bytes, uint64_t *place, struct kvg_error *error);

/* The same for up to *count slots of one size that lie side by side: *place becomes the first,
 * *count how many, at least one. */
kvg_err kvi_file_take_slots(struct file_store *file, uint32_t slot_bytes, uint32_t *count,
    uint64_t *place, struct kvg_error *error);

/* Lets go of reserved slots, with the commit lock. */
void kvi_file_release_slot(struct file_store *file, uint64_t place);
void kvi_file_release_slots(
    struct file_store *file, const uint64_t *places, size_t count);

/* Evicts groups of at least so many bytes, with the commit lock; KVG_ENOSPACE if there is none. */
kvg_err kvi_file_evict(struct file_store *file, uint64_t bytes, struct kvg_error *error);

/* Gives the space of free slots back to the file system, at least so many bytes if there are. */
kvg_err kvi_file_punch(struct file_store *file, uint64_t bytes, struct kvg_error *error);

/* Drops places, with the commit lock. */
kvg_err kvi_file_drop(struct file_store *file, enum kvg_store_change_kind why,
    const uint64_t *places, size_t count, struct kvg_error *error);

/* ---- Data (file_data.c) -------------------------------------------------------------------- */

static inline size_t file_chunk_bytes(uint64_t part_bytes)
{
    return part_bytes <= SMALL_BYTES ? SMALL_BYTES : CHUNK_BYTES;
}

static inline size_t file_chunk_count(uint64_t bytes)
{
    return (size_t)((bytes + file_chunk_bytes(bytes) - 1) / file_chunk_bytes(bytes));
}

/* Makes the checksums of chunks of bytes that come in order, in any pieces. */
struct file_summer {
    struct kvi_checksum_state state;
    uint64_t *sums;
    size_t chunk_bytes;
    size_t chunk;
    size_t filled; /* Of the chunk that is not whole yet. */
};
void kvi_file_sum_add(struct file_summer *summer, const void *data, size_t bytes);
void kvi_file_sum_end(struct file_summer *summer);

/* What is needed to read a part, copied out of the catalog. */
struct file_found {
    uint32_t part;
    uint64_t serial;
    uint64_t place;
    uint64_t bytes;
    uint64_t check;
    uint32_t slot_bytes;
};

/* The descriptor of a place, with the index held or the slot reserved.  To be written to, it is
 * made if it is not there: whoever added the segment may have died before.  *table_out becomes
 * where its table is, unless it is NULL.  A negative errno. */
int kvi_file_place_fd(
    struct file_store *file, uint64_t place, bool to_write, uint64_t *table_out);

/* Reads ranges of a part and verifies what they touch.  KVG_ECHECKSUM for whatever is wrong with
 * the bytes, a missing segment and a short one included. */
kvg_err kvi_file_read_part(struct file_store *file, const struct file_found *found,
    const struct kvg_store_range *ranges, size_t range_count);

/* How many of the parts to be read, from the first on, lie side by side, are small and are wanted
 * whole; and those read together.  False if one of them is not sound: then none counts. */
size_t kvi_file_read_neighbours(
    const struct kvg_store_get *gets, const struct file_found *found, size_t count);
bool kvi_file_read_together(struct file_store *file, const struct kvg_store_get *gets,
    const struct file_found *found, size_t count);

/* Reads large parts past the page cache (file_direct.c); sets done[] of those that were read and
 * are sound.  The others are left to be read as usual. */
void kvi_file_read_direct(struct file_store *file, const struct kvg_store_get *gets,
    const struct file_found *found, size_t count, bool *done);
void kvi_file_lanes_free(struct file_store *file);

/* Reads and verifies all of a part. */
kvg_err kvi_file_verify_part(struct file_store *file, const struct file_found *found);

/* Opens a segment's file, if it is not open yet, with flags of file_io.h; a negative errno. */
int kvi_file_segment_fd(
    struct file_store *file, struct file_segment *segment, unsigned flags);

/* Makes the file of a segment that was just added, and opens it. */
int kvi_file_segment_make(struct file_store *file, struct file_segment *segment);

/* Fills *error for a failed system call. */
kvg_err kvi_file_failed(struct file_store *file, const char *what, const char *name,
    int negative_errno, struct kvg_error *error);

void kvi_file_log(struct file_store *file, enum kvg_level level, const char *format, ...)
    KVG_PRINTF(3, 4);

/* "DIR/NAME". */
#define FILE_PATH_MAX 1024
const char *kvi_file_path(
    const struct file_store *file, const char *name, char out[FILE_PATH_MAX]);
const char *kvi_file_segment_path(
    const struct file_store *file, uint32_t id, char out[FILE_PATH_MAX]);

/* ---- Life (file_open.c, file.c) ------------------------------------------------------------ */

/* Opens with another I/O table than the system's: for tests. */
kvg_err kvi_file_open_io(const struct kvg_store_url *url,
    const struct kvg_store_options *options, const struct file_io *io,
    struct file_store **out, struct kvg_error *error);
void kvi_file_close(void *self);

/* put of the backend's table (file_put.c). */
kvg_err kvi_file_put(void *self, struct kvg_store_group *groups, size_t group_count,
    struct kvg_error *error);

/* The number of the first broken invariant of the index (file_apply.c); 0: none. */
unsigned kvi_file_check_index(const struct file_store *file);

extern const struct kvg_store_backend kvi_store_file;

#endif
