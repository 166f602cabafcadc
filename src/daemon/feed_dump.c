/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* feed_dump.c -- the index to a file and back.
 *
 * A dump goes to NAME.kvgdump.new, is synced and then takes the old one's place, so there is
 * always a whole one.  Writing happens on the loop's thread: messages wait in the subscriber's
 * queue meanwhile (about a quarter of a second a million pages), answers do not.
 */
#include "daemon/feed_internal.h"

#include "base/fmt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DUMP_PATH_BYTES (KVD_PATH_BYTES + KVD_NAME_BYTES + 32u)

static bool path_of(const struct kvd_feed *feed, const char *ending, char *out)
{
    int bytes;

    if (feed->context.dump_path == NULL || feed->context.dump_path[0] == '\0' ||
        feed->shared.index == NULL)
        return false;
    bytes = snprintf(out, DUMP_PATH_BYTES, "%s/%s.kvgdump%s", feed->context.dump_path,
        feed->shared.config.name, ending);
    return bytes > 0 && (size_t)bytes < DUMP_PATH_BYTES;
}

struct writing {
    FILE *file;
    struct kvn_loop *loop;
};

static bool write_bytes(void *context, const void *bytes, size_t byte_count)
{
    struct writing *writing = context;

    kvn_loop_touch(writing->loop); /* Long, but alive. */
    return fwrite(bytes, 1, byte_count, writing->file) == byte_count;
}

static bool read_bytes(void *context, void *bytes, size_t byte_max, size_t *got)
{
    *got = fread(bytes, 1, byte_max, context);
    return ferror((FILE *)context) == 0;
}

static kvg_err write_file(struct kvd_feed *feed, const char *path, const char **reason)
{
    FILE *file = fopen(path, "wbe");
    struct writing writing = {.file = file, .loop = feed->context.loop};
    kvg_err err;

    *reason = "";
    if (file == NULL) {
        *reason = strerror(errno);
        return KVG_EIO;
    }
    err = kvg_presence_dump(feed->shared.index, write_bytes, &writing);
    if (err == KVG_OK && (fflush(file) != 0 || fsync(fileno(file)) != 0))
        err = KVG_EIO;
    if (err != KVG_OK)
        *reason = errno != 0 ? strerror(errno) : kvg_strerror(err);
    if (fclose(file) != 0 && err == KVG_OK)
        err = KVG_EIO;
    return err;
}

kvg_err kvd_feed_dump(struct kvd_feed *feed, struct kvg_error *error)
{
    char fresh[DUMP_PATH_BYTES];
    char path[DUMP_PATH_BYTES];
    char message[192];
    const char *reason;
    uint64_t began_us = kvn_clock_us();
    kvg_err err;

    if (!path_of(feed, ".new", fresh) || !path_of(feed, "", path))
        return KVG_OK;
    err = write_file(feed, fresh, &reason);
    if (err == KVG_OK && rename(fresh, path) != 0) {
        err = KVG_EIO;
        reason = strerror(errno);
    }
    if (err != KVG_OK) {
        feed->dump_failures++;
        unlink(fresh);
        snprintf(message, sizeof(message), "cannot write %.120s: %.50s", path, reason);
        kvd_log(feed->context.log, KVG_LOG_ERROR, "dump", feed->shared.config.name, "%s",
            message);
        return kvi_fail(error, err, "dump.path", message);
    }
    feed->dumps++;
    kvd_log(feed->context.log, KVG_LOG_INFO, "dump", feed->shared.config.name,
        "wrote %s in %llu ms", path,
        (unsigned long long)((kvn_clock_us() - began_us) / 1000));
    return KVG_OK;
}

void kvd_feed_load(struct kvd_feed *feed)
{
    struct kvg_presence_stats stats = {.struct_bytes = sizeof(stats)};
    struct kvg_error error = {.code = KVG_OK};
    char path[DUMP_PATH_BYTES];
    FILE *file;
    kvg_err err;

    if (!feed->context.loads_dump || !path_of(feed, "", path))
        return;
    file = fopen(path, "rbe");
    if (file == NULL) {
        if (errno != ENOENT)
            kvd_log(feed->context.log, KVG_LOG_WARN, "dump", feed->shared.config.name,
                "cannot read %s: %s", path, strerror(errno));
        return;
    }
    err = kvg_presence_load(feed->shared.index, read_bytes, file, &error);
    fclose(file);
    kvg_presence_stats(feed->shared.index, &stats);
    feed->loaded_pages = stats.pages;
    if (err != KVG_OK)
        kvd_log(feed->context.log, KVG_LOG_WARN, "dump", feed->shared.config.name,
            "%s was not wholly read: %s %s", path, error.field, error.message);
    else
        kvd_log(feed->context.log, KVG_LOG_INFO, "dump", feed->shared.config.name,
            "loaded %llu pages from %s; suspect until compared",
            (unsigned long long)stats.pages, path);
}
