/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* file_open.c -- opening a directory: what it is, whose it is, and whether it is ours.
 *
 * DIR/store is text, a word and its value a line:
 *
 *     kvgraft-store 2           the version; another one is refused
 *     identity 0123456789abcdef
 *     fingerprint 01ff...       what its values mean, in hex; "-" until somebody says
 *     meaning llama bf16 ...    the same for people
 *
 * It is written whole, beside the old one, and renamed. */
#include "backend/file.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "base/hex.h"
#include "base/rng.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#define IDENTITY_BYTES_MAX 4096u
#define BYTES_DEFAULT (UINT64_C(10) << 30)
#define FLOOR_DEFAULT (UINT64_C(256) << 20)
#define SYNC_BYTES_DEFAULT (UINT64_C(256) << 20)
#define SEGMENT_MIN (UINT64_C(64) << 20)
#define SEGMENT_MAX (UINT64_C(4) << 30)

const char *kvi_file_path(
    const struct file_store *file, const char *name, char out[FILE_PATH_MAX])
{
    snprintf(out, FILE_PATH_MAX, "%s%s", file->dir, name);
    return out;
}

const char *kvi_file_segment_path(
    const struct file_store *file, uint32_t id, char out[FILE_PATH_MAX])
{
    snprintf(out, FILE_PATH_MAX, "%ssegment-%08x", file->dir, (unsigned)id);
    return out;
}

void kvi_file_log(struct file_store *file, enum kvg_level level, const char *format, ...)
{
    char line[512];
    va_list arguments;

    if (file->log == NULL)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    file->log->write(file->log->context, level, "store.file", line);
}

kvg_err kvi_file_failed(struct file_store *file, const char *what, const char *name,
    int negative_errno, struct kvg_error *error)
{
    char reason[64];
    char message[192];
    kvg_err err = negative_errno == -ENOSPC || negative_errno == -EDQUOT ? KVG_ENOSPACE
                  : negative_errno == -ENOENT                            ? KVG_ENOENT
                  : negative_errno == -ENOMEM                            ? KVG_ENOMEM
                                                                         : KVG_EIO;

    /* The GNU strerror_r returns the text. */
    snprintf(message, sizeof(message), "%s %.80s%s: %s", what, file->dir, name,
        strerror_r(-negative_errno, reason, sizeof(reason)));
    return kvi_fail(error, err, "store.file", message);
}

/* ---- What it is ---------------------------------------------------------------------------- */

struct identity {
    uint64_t id;
    uint8_t bytes[KVG_STORE_FINGERPRINT_MAX];
    size_t byte_count;
    char text[KVG_STORE_FINGERPRINT_TEXT_MAX + 1];
};

/* Text in a line: what could end it becomes a blank. */
static void write_text(char *out, struct kvg_str text)
{
    size_t i;

    for (i = 0; i < text.bytes; i++)
        out[i] = (unsigned char)text.data[i] < 0x20 ? ' ' : text.data[i];
    out[i] = '\0';
}

static kvg_err write_identity(
    struct file_store *file, const struct identity *identity, struct kvg_error *error)
{
    const struct file_io *io = file->io;
    char hex[2 * KVG_STORE_FINGERPRINT_MAX + 1] = "-";
    char content[IDENTITY_BYTES_MAX];
    char from[FILE_PATH_MAX];
    char to[FILE_PATH_MAX];
    struct iovec vector = {content, 0};
    ssize_t code;
    int fd;

    if (identity->byte_count > 0) {
        kvi_hex_encode(identity->bytes, identity->byte_count, hex);
        hex[2 * identity->byte_count] = '\0';
    }
    vector.iov_len = (size_t)snprintf(content, sizeof(content),
        "kvgraft-store %u\nidentity %016llx\nfingerprint %s\nmeaning %s\n", FILE_VERSION,
        (unsigned long long)identity->id, hex, identity->text);
    fd = io->open(io->context, kvi_file_path(file, "store.new", from),
        FILE_IO_CREATE | FILE_IO_TRUNCATE);
    if (fd < 0)
        return kvi_file_failed(file, "making", "store.new", fd, error);
    code = io->writev(io->context, fd, &vector, 1, 0);
    code = code == (ssize_t)vector.iov_len ? io->sync(io->context, fd)
           : code < 0                      ? code
                                           : -ENOSPC;
    io->close(io->context, fd);
    if (code == 0)
        code = io->rename(io->context, from, kvi_file_path(file, "store", to));
    if (code == 0)
        code = io->sync_dir(io->context, file->dir);
    return code == 0 ? KVG_OK
                     : kvi_file_failed(file, "writing", "store", (int)code, error);
}

/* The value of a line that begins with a word. */
static struct kvg_str line_of(struct kvg_str content, const char *word)
{
    size_t word_bytes = strlen(word);
    size_t at = 0;

    while (at < content.bytes) {
        size_t end = at;

        while (end < content.bytes && content.data[end] != '\n')
            end++;
        if (end - at > word_bytes && content.data[at + word_bytes] == ' ' &&
            memcmp(content.data + at, word, word_bytes) == 0)
            return (struct kvg_str){
                content.data + at + word_bytes + 1, end - at - word_bytes - 1};
        at = end + 1;
    }
    return (struct kvg_str){NULL, 0};
}

static kvg_err check_version(struct kvg_str version, struct kvg_error *error)
{
    unsigned long number = 0;
    size_t i;

    for (i = 0; i < version.bytes && version.data[i] >= '0' && version.data[i] <= '9' &&
                number < 100000000;
         i++)
        number = number * 10 + (unsigned long)(version.data[i] - '0');
    if (i == 0 || i != version.bytes)
        return kvi_fail(
            error, KVG_EFORMAT, "store.file", "the file \"store\" is no kvgraft store");
    if (number != FILE_VERSION) {
        kvi_fail_range(error, "store.file.version", number, FILE_VERSION, FILE_VERSION);
        if (error != NULL)
            error->code = KVG_EVERSION;
        return KVG_EVERSION;
    }
    return KVG_OK;
}

/* KVG_ENOENT: there is none. */
static kvg_err read_identity(
    struct file_store *file, struct identity *identity, struct kvg_error *error)
{
    const struct file_io *io = file->io;
    char path[FILE_PATH_MAX];
    char content[IDENTITY_BYTES_MAX];
    struct iovec vector = {content, sizeof(content)};
    struct kvg_str all = {content, 0};
    struct kvg_str value;
    uint8_t id[8];
    ssize_t got;
    int fd = io->open(io->context, kvi_file_path(file, "store", path), FILE_IO_READ_ONLY);
    kvg_err err;

    memset(identity, 0, sizeof(*identity));
    if (fd < 0)
        return kvi_file_failed(file, "opening", "store", fd, error);
    got = io->readv(io->context, fd, &vector, 1, 0);
    io->close(io->context, fd);
    if (got < 0)
        return kvi_file_failed(file, "reading", "store", (int)got, error);
    all.bytes = (size_t)got;
    err = check_version(line_of(all, "kvgraft-store"), error);
    if (err != KVG_OK)
        return err;
    value = line_of(all, "identity");
    if (value.bytes == 16 && kvi_hex_decode(value.data, 8, id))
        memcpy(&identity->id, id, 8);
    value = line_of(all, "fingerprint");
    if (value.bytes % 2 == 0 && value.bytes / 2 <= sizeof(identity->bytes) &&
        kvi_hex_decode(value.data, value.bytes / 2, identity->bytes))
        identity->byte_count = value.bytes / 2;
    value = line_of(all, "meaning");
    if (value.bytes < sizeof(identity->text) && value.bytes > 0)
        memcpy(identity->text, value.data, value.bytes);
    return KVG_OK;
}

/* Refuses a store of another meaning; records ours if it has none yet. */
static kvg_err check_fingerprint(struct file_store *file, struct identity *identity,
    const struct kvg_store_fingerprint *mine, struct kvg_error *error)
{
    char text[KVG_STORE_FINGERPRINT_TEXT_MAX + 1];
    char message[192];

    if (mine->bytes.bytes == 0)
        return KVG_OK;
    write_text(text, mine->text);
    if (identity->byte_count == 0) {
        if (file->read_only)
            return KVG_OK;
        memcpy(identity->bytes, mine->bytes.data, mine->bytes.bytes);
        identity->byte_count = mine->bytes.bytes;
        memcpy(identity->text, text, sizeof(text));
        return write_identity(file, identity, error);
    }
    if (identity->byte_count == mine->bytes.bytes &&
        memcmp(identity->bytes, mine->bytes.data, mine->bytes.bytes) == 0)
        return KVG_OK;
    snprintf(message, sizeof(message), "the store holds \"%.72s\", and this is \"%.72s\"",
        identity->text, text);
    return kvi_fail(error, KVG_EMISMATCH, "store.fingerprint", message);
}

/* ---- Opening ------------------------------------------------------------------------------- */

static bool journal_is_there(struct file_store *file)
{
    char path[FILE_PATH_MAX];
    int fd = file->io->open(
        file->io->context, kvi_file_path(file, "journal", path), FILE_IO_READ_ONLY);

    if (fd >= 0)
        file->io->close(file->io->context, fd);
    return fd >= 0;
}

static kvg_err open_store(struct file_store *file,
    const struct kvg_store_options *options, struct kvg_error *error)
{
    struct identity identity;
    uint64_t epoch = kvi_mix64(options->seed) | 1;
    bool is_new = false;
    kvg_err err = read_identity(file, &identity, error);

    if (err == KVG_ENOENT && !file->read_only) {
        if (journal_is_there(file))
            return kvi_fail(error, KVG_EFORMAT, "store.file",
                "there is a journal, and no file \"store\": is it one of ours?");
        identity.id = epoch;
        is_new = true;
        err = write_identity(file, &identity, error);
    }
    if (err != KVG_OK)
        return err;
    err = check_fingerprint(file, &identity, &options->fingerprint, error);
    if (err == KVG_OK && !file->read_only && !journal_is_there(file)) {
        if (!is_new)
            kvi_file_log(
                file, KVG_LOG_ERROR, "%s: there is no journal, so no objects", file->dir);
        err = kvi_file_journal_create(file, epoch, error);
    }
    return err == KVG_OK ? kvi_file_journal_open(file, error) : err;
}

static kvg_err open_locked(struct file_store *file,
    const struct kvg_store_options *options, struct kvg_error *error)
{
    const struct file_io *io = file->io;
    char path[FILE_PATH_MAX];
    int code;
    kvg_err err;

    code = file->read_only ? 0 : io->make_dir(io->context, file->dir);
    if (code < 0 && code != -EEXIST)
        return kvi_file_failed(file, "making", "", code, error);
    file->lock_fd = io->open(io->context, kvi_file_path(file, "lock", path),
        file->read_only ? FILE_IO_READ_ONLY : FILE_IO_CREATE);
    if (file->lock_fd == -ENOENT && file->read_only)
        return kvi_fail(error, KVG_EIO, "store.file",
            "there is no store in this directory yet: whoever opens it for writing makes "
            "one");
    if (file->lock_fd < 0)
        return kvi_file_failed(file, "opening", "lock", file->lock_fd, error);
    if (file->read_only)
        return open_store(file, options, error);
    code = io->lock(io->context, file->lock_fd, 0, 1, true);
    if (code < 0)
        return kvi_file_failed(file, "locking", "lock", code, error);
    err = open_store(file, options, error);
    io->unlock(io->context, file->lock_fd, 0, 1);
    return err;
}

static kvg_err read_params(
    const struct kvg_store_url *url, struct file_store *file, struct kvg_error *error)
{
    kvg_err err;

    file->bytes_max = BYTES_DEFAULT;
    file->floor_bytes = FLOOR_DEFAULT;
    file->sync_bytes = SYNC_BYTES_DEFAULT;
    file->sync = FILE_SYNC_BATCH;
    err = kvg_store_param_bytes(
        url, "bytes", BLOCK_BYTES, UINT64_C(1) << 50, &file->bytes_max, error);
    if (err == KVG_OK)
        err = kvg_store_param_bytes(
            url, "floor", 0, UINT64_C(1) << 50, &file->floor_bytes, error);
    if (err == KVG_OK)
        err = kvg_store_param_choice(url, "sync", "none|batch|each", &file->sync, error);
    if (err == KVG_OK)
        err = kvg_store_param_choice(
            url, "io", "plain|direct|uring", &file->io_mode, error);
    if (err == KVG_OK)
        err = kvg_store_param_bytes(
            url, "sync_bytes", 1, UINT64_C(1) << 40, &file->sync_bytes, error);
    file->segment_bytes = file->bytes_max / 32;
    if (file->segment_bytes < SEGMENT_MIN)
        file->segment_bytes = SEGMENT_MIN;
    if (file->segment_bytes > SEGMENT_MAX)
        file->segment_bytes = SEGMENT_MAX;
    if (err == KVG_OK)
        err = kvg_store_param_bytes(
            url, "segment", BLOCK_BYTES, UINT64_C(1) << 40, &file->segment_bytes, error);
    if (err != KVG_OK)
        return err;
    if (url->authority.bytes > 0)
        return kvi_fail(error, KVG_EINVAL, "store.url",
            "file: takes no host; three slashes, or none: file:///DIR, file:DIR");
    if (url->path.bytes == 0 || url->path.bytes > FILE_PATH_MAX - 32)
        return kvi_fail_range(
            error, "store.url.path", url->path.bytes, 1, FILE_PATH_MAX - 32);
    return KVG_OK;
}

static bool make_file(struct file_store *file, const struct kvg_store_url *url,
    const struct kvg_store_options *options)
{
    file->dir_bytes = url->path.bytes + 1;
    file->dir = kvi_alloc_array(file->alloc, file->dir_bytes + 1, 1);
    if (file->dir == NULL)
        return false;
    memcpy(file->dir, url->path.data, url->path.bytes);
    file->dir[url->path.bytes] = '/';
    return kvi_catalog_init(&file->catalog, file->alloc, options->seed);
}

kvg_err kvi_file_open_io(const struct kvg_store_url *url,
    const struct kvg_store_options *options, const struct file_io *io,
    struct file_store **out, struct kvg_error *error)
{
    struct file_store *file = KVI_NEW(options->alloc, struct file_store);
    pthread_rwlockattr_t kind;
    kvg_err err;

    *out = NULL;
    if (file == NULL)
        return kvi_fail(error, KVG_ENOMEM, "store.file", "out of memory");
    file->alloc = options->alloc;
    file->log = options->log;
    file->hook = options->hook;
    file->io = io;
    file->lock_fd = file->journal.fd = -1;
    file->read_only = options->read_only;
    pthread_mutex_init(&file->commit, NULL);
    pthread_mutex_init(&file->fds, NULL);
    pthread_mutex_init(&file->lanes_lock, NULL);
    pthread_mutex_init(&file->touched_lock, NULL);
    pthread_rwlockattr_init(&kind);
    /* Readers that come without end must not keep the writer out; none takes it twice. */
    pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&file->index, &kind);
    pthread_rwlockattr_destroy(&kind);
    err = read_params(url, file, error);
    if (err == KVG_OK && !make_file(file, url, options))
        err = kvi_fail(error, KVG_ENOMEM, "store.file", "out of memory");
    if (err == KVG_OK && io->boot_id(io->context, file->boot) < 0)
        memset(file->boot, 0, sizeof(file->boot));
    if (err == KVG_OK)
        err = open_locked(file, options, error);
    if (err != KVG_OK) {
        kvi_file_close(file);
        return err;
    }
    file->following = true;
    *out = file;
    return KVG_OK;
}

void kvi_file_close(void *self)
{
    struct file_store *file = self;

    kvi_file_lanes_free(file);
    kvi_file_segments_free(file);
    kvi_catalog_fini(&file->catalog);
    if (file->journal.fd >= 0)
        file->io->close(file->io->context, file->journal.fd);
    if (file->lock_fd >= 0)
        file->io->close(file->io->context, file->lock_fd);
    pthread_mutex_destroy(&file->commit);
    pthread_mutex_destroy(&file->fds);
    pthread_mutex_destroy(&file->lanes_lock);
    pthread_mutex_destroy(&file->touched_lock);
    pthread_rwlock_destroy(&file->index);
    kvi_release_array(file->alloc, file->dir, file->dir_bytes + 1, 1);
    KVI_FREE(file->alloc, file);
}
