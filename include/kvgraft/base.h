/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* base.h -- what every part of kvgraft shares: errors, memory, strings, keys, logging.
 *
 * Rules that hold for the whole library, unless a function says otherwise:
 *
 *   - A call that fails leaves its objects as they were.
 *   - Results leave through the last parameter, `out`, which is set to NULL or zero first.
 *   - Absence is not an error: look-ups return a count or a bool.
 *   - The library starts no thread, reads no clock, prints nothing and never exits.
 *     Memory, time, randomness and a place to log come in as arguments.
 *   - A pointer that goes in is borrowed for the call, and copied if needed longer.
 *   - Objects are made by _new and ended by _free (NULL is allowed); structs that the
 *     caller owns are readied by _init.
 *   - A struct that may grow carries `struct_bytes` first; the caller sets it to sizeof.
 */
#ifndef KVGRAFT_BASE_H
#define KVGRAFT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define KVG_BEGIN_DECLS extern "C" {
#define KVG_END_DECLS }
#else
#define KVG_BEGIN_DECLS
#define KVG_END_DECLS
#endif

#if defined(KVG_BUILDING)
#define KVG_API __attribute__((visibility("default")))
#else
#define KVG_API
#endif
#define KVG_MUST_CHECK __attribute__((warn_unused_result))
#define KVG_PRINTF(fmt_index, first_arg) \
    __attribute__((format(printf, fmt_index, first_arg)))

KVG_BEGIN_DECLS

#define KVG_VERSION_MAJOR 0
#define KVG_VERSION_MINOR 1
#define KVG_VERSION_PATCH 0

/* The version of the library that is loaded, as "0.1.0".  Compare it with the macros. */
KVG_API const char *kvg_version(void);

/* Every error the library returns: the code, then the sentence a person reads. */
#define KVG_ERRORS(X)                                              \
    X(KVG_OK, 0, "no error")                                       \
    X(KVG_ENOMEM, -1, "out of memory")                             \
    X(KVG_EINVAL, -2, "an argument is out of range")               \
    X(KVG_ELIMIT, -3, "a limit would be exceeded")                 \
    X(KVG_EFORMAT, -4, "the bytes are not of the expected form")   \
    X(KVG_EVERSION, -5, "the data was written by a newer version") \
    X(KVG_ECHECKSUM, -6, "a checksum does not match")              \
    X(KVG_ENOENT, -7, "there is no such thing")                    \
    X(KVG_EEXIST, -8, "it exists already")                         \
    X(KVG_EBUSY, -9, "it is in use")                               \
    X(KVG_ESTATE, -10, "the call does not fit the object's state") \
    X(KVG_EIO, -11, "reading or writing failed")                   \
    X(KVG_ETIMEOUT, -12, "it took too long")                       \
    X(KVG_ENOSPACE, -13, "there is no space left")                 \
    X(KVG_EMISMATCH, -14, "two things that must agree do not")     \
    X(KVG_ECANCELED, -15, "it was cancelled")                      \
    X(KVG_EUNSUPPORTED, -16, "this build or machine cannot do that")

typedef enum kvg_err {
#define KVG_ERROR_ENUM(name, value, sentence) name = (value),
    KVG_ERRORS(KVG_ERROR_ENUM)
#undef KVG_ERROR_ENUM
} kvg_err;

/* The name ("KVG_ENOMEM") and the sentence of an error.  Never NULL. */
KVG_API const char *kvg_err_name(kvg_err err);
KVG_API const char *kvg_strerror(kvg_err err);

/* Detail of a failure, on the caller's stack.  Functions that take one accept NULL.
 * `field` names what was wrong ("layout.tp_size"), `message` says what and what is allowed. */
struct kvg_error {
    kvg_err code;
    char field[64];
    char message[192];
};

/* A run of bytes that somebody else owns; not terminated by zero.  {NULL, 0} is "absent",
 * {"", 0} is "present and empty" where a function tells the two apart. */
struct kvg_str {
    const char *data;
    size_t bytes;
};

/* Memory.  All three functions may be called from any thread that uses the object made with
 * the allocator.  `allocate` returns NULL when there is no memory, else zeroed or not, aligned
 * for any type; `release` gets the size that was asked for. */
struct kvg_alloc {
    void *(*allocate)(void *context, size_t bytes);
    void (*release)(void *context, void *memory, size_t bytes);
    void *context;
};

/* malloc and free, for whoever has no allocator of their own. */
KVG_API const struct kvg_alloc *kvg_alloc_default(void);

/* Logging.  `write` gets whole lines without a line end and must not call back into the
 * object that logs.  A NULL log is silence. */
enum kvg_level {
    KVG_LOG_DEBUG,
    KVG_LOG_INFO,
    KVG_LOG_WARN,
    KVG_LOG_ERROR
};
struct kvg_log {
    void (*write)(
        void *context, enum kvg_level level, const char *component, const char *message);
    void *context;
};

/* A page key: SHA-256(previous page's key, if any, then the page's units as u32 LE).  It
 * identifies the page and everything before it. */
#define KVG_KEY_BYTES 32
struct kvg_key {
    uint8_t bytes[KVG_KEY_BYTES];
};

/* Writes 64 lower-case hex digits and a zero to `out`. */
#define KVG_KEY_HEX_BYTES 65
KVG_API void kvg_key_to_hex(const struct kvg_key *key, char out[KVG_KEY_HEX_BYTES]);

/* Reads exactly 64 hex digits of either case.  False, and *out zero, for anything else. */
KVG_API bool kvg_key_from_hex(struct kvg_str hex, struct kvg_key *out);

/* Where a store keeps a part.  Names in the wild are mapped, never renamed (event.h). */
enum kvg_medium {
    KVG_MEDIUM_UNKNOWN, /* Not said, or a name we do not know. */
    KVG_MEDIUM_DEVICE,  /* An engine's own memory: GPU, DEVICE. */
    KVG_MEDIUM_CPU,     /* Host memory, an engine's or a store's. */
    KVG_MEDIUM_DISK,
    KVG_MEDIUM_EXTERNAL,
    KVG_MEDIUM_COUNT
};
KVG_API const char *kvg_medium_name(enum kvg_medium medium);

/* What an answer is worth.  Zero pages and "I cannot know" are different answers. */
enum kvg_confidence {
    KVG_CONFIDENCE_BLIND,      /* Nothing is known: no stream, or none yet. */
    KVG_CONFIDENCE_SUSPECT,    /* What is held may be stale or incomplete. */
    KVG_CONFIDENCE_REBUILDING, /* Suspect, and a listing is on its way in. */
    KVG_CONFIDENCE_FRESH       /* The index follows the store. */
};
KVG_API const char *kvg_confidence_name(enum kvg_confidence confidence);

KVG_END_DECLS

#endif
