/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* kvcap.h -- the capture format: a recorded stream of messages with their times.
 *
 *     8 bytes "KVCAP01\n", then for each message, little-endian:
 *         u64 time_ns   since the recording began, on a monotonic clock
 *         u32 frames, then for each frame: u32 bytes, and the bytes as received
 *
 * A capture holds what came, not what should have come: any number of frames, of any bytes.
 * Nothing here opens a file.  A reader walks over bytes in memory (kvg_kvcap_reader_init) or
 * takes them from a callback (kvg_kvcap_stream_new); writing hands bytes to a callback.
 *
 * Errors: KVG_EFORMAT says which message, and the byte at which the file is wrong or ends.  What
 * was read before it is good: a recording that was cut off is read up to the cut.
 */
#ifndef KVGRAFT_KVCAP_H
#define KVGRAFT_KVCAP_H

#include <kvgraft/base.h>

KVG_BEGIN_DECLS

#define KVG_KVCAP_MAGIC "KVCAP01\n"
#define KVG_KVCAP_MAGIC_BYTES 8u
#define KVG_KVCAP_FRAMES_MAX 16u /* Frames a message. */
#define KVG_KVCAP_FRAME_BYTES_MAX (UINT32_C(256) << 20)

/* One message.  When read, the frames point into the bytes they were read from. */
struct kvg_kvcap_message {
    uint64_t time_ns;
    uint32_t frame_count;
    struct kvg_str frames[KVG_KVCAP_FRAMES_MAX];
};

/* In memory ------------------------------------------------------------------------------- */

struct kvg_kvcap_reader {
    uint64_t messages; /* Read so far. */
    uint64_t offset;   /* Of the next message. */
    const uint8_t *data;
    size_t bytes;
};

/* Begins a capture that lies in memory; it must stay while messages of it are used.  KVG_EFORMAT
 * if it does not begin as one. */
KVG_API KVG_MUST_CHECK kvg_err kvg_kvcap_reader_init(
    struct kvg_kvcap_reader *reader, struct kvg_str capture, struct kvg_error *error);

/* The next message.  KVG_OK; KVG_ENOENT at the end; KVG_EFORMAT, KVG_ELIMIT where it is
 * wrong, and again at every further call. */
KVG_API KVG_MUST_CHECK kvg_err kvg_kvcap_read(struct kvg_kvcap_reader *reader,
    struct kvg_error *error, struct kvg_kvcap_message *out);

/* From a callback ------------------------------------------------------------------------- */

struct kvg_kvcap_stream;

/* Up to `byte_max` bytes into `bytes`: how many in *got, 0 at the end.  False is a failure. */
typedef bool kvg_kvcap_read_fn(void *context, void *bytes, size_t byte_max, size_t *got);

/* Makes a reader over a callback.  It holds one message at a time: no more memory than the
 * largest of them needs, twice. */
KVG_API KVG_MUST_CHECK kvg_err kvg_kvcap_stream_new(const struct kvg_alloc *alloc,
    kvg_kvcap_read_fn *read, void *context, struct kvg_kvcap_stream **out);
KVG_API void kvg_kvcap_stream_free(struct kvg_kvcap_stream *stream);

/* As kvg_kvcap_read(), magic included; frames live until the next call.  KVG_EIO if the callback
 * failed, KVG_ENOMEM; both may be tried again. */
KVG_API KVG_MUST_CHECK kvg_err kvg_kvcap_stream_next(struct kvg_kvcap_stream *stream,
    struct kvg_error *error, struct kvg_kvcap_message *out);

/* Writing --------------------------------------------------------------------------------- */

/* Takes all of the bytes, or returns false. */
typedef bool kvg_kvcap_write_fn(void *context, const void *bytes, size_t byte_count);

/* The beginning of a capture.  KVG_EIO if the callback failed. */
KVG_API KVG_MUST_CHECK kvg_err kvg_kvcap_write_begin(
    kvg_kvcap_write_fn *write, void *context);
/* One message.  KVG_ELIMIT, and nothing written, for more frames or bytes than the limits;
 * KVG_EIO if the callback failed: then the capture may end within a message. */
KVG_API KVG_MUST_CHECK kvg_err kvg_kvcap_write(kvg_kvcap_write_fn *write, void *context,
    uint64_t time_ns, const struct kvg_str *frames, size_t frame_count);

KVG_END_DECLS

#endif
