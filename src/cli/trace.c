/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* trace.c -- reads request traces line by line (trace.h).
 *
 *     buffer   |  line  \n  line  \n  li|        begin: first byte not yet used
 *               ^begin                   ^end
 *
 * A line that does not fit is skipped to its end and reported once, so that a file without line
 * ends costs KVC_TRACE_LINE_BYTES_MAX of memory and no more.
 *
 * Not here: what a request means (workload.c).
 */
#include "cli/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvc_trace {
    kvc_trace_read *read;
    void *context;
    FILE *file; /* Own, or NULL. */
    uint64_t line;
    size_t begin;
    size_t end;
    bool at_end;
    uint64_t blocks[KVC_TRACE_BLOCKS_MAX];
    char buffer[KVC_TRACE_LINE_BYTES_MAX];
};

static kvg_err fail(const struct kvc_trace *trace, struct kvg_error *error, kvg_err code,
    const char *what)
{
    error->code = code;
    snprintf(error->field, sizeof(error->field), "line %" PRIu64, trace->line);
    snprintf(error->message, sizeof(error->message), "%s", what);
    return code;
}

kvg_err kvc_trace_new(kvc_trace_read *read, void *context, struct kvc_trace **out)
{
    struct kvc_trace *trace = malloc(sizeof(*trace));

    *out = NULL;
    if (trace == NULL)
        return KVG_ENOMEM;
    trace->read = read;
    trace->context = context;
    trace->file = NULL;
    trace->line = 0;
    trace->begin = 0;
    trace->end = 0;
    trace->at_end = false;
    *out = trace;
    return KVG_OK;
}

static size_t read_stdio(void *context, char *bytes, size_t byte_max)
{
    size_t got = fread(bytes, 1, byte_max, context);

    return got == 0 && ferror((FILE *)context) ? (size_t)-1 : got;
}

kvg_err kvc_trace_open(const char *path, struct kvg_error *error, struct kvc_trace **out)
{
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "rb");
    kvg_err err;

    *out = NULL;
    if (file == NULL) {
        error->code = KVG_EIO;
        snprintf(error->field, sizeof(error->field), "%.60s", path);
        snprintf(error->message, sizeof(error->message), "%s", strerror(errno));
        return KVG_EIO;
    }
    err = kvc_trace_new(read_stdio, file, out);
    if (err == KVG_OK && !is_stdin)
        (*out)->file = file;
    else if (err != KVG_OK && !is_stdin)
        fclose(file);
    return err;
}

void kvc_trace_free(struct kvc_trace *trace)
{
    if (trace == NULL)
        return;
    if (trace->file != NULL)
        fclose(trace->file);
    free(trace);
}

uint64_t kvc_trace_line(const struct kvc_trace *trace)
{
    return trace->line;
}

/* Reads more behind what is held.  False at the end, or with *err set. */
static bool fill(struct kvc_trace *trace, kvg_err *err)
{
    size_t got;

    if (trace->at_end)
        return false;
    if (trace->begin > 0) {
        memmove(trace->buffer, trace->buffer + trace->begin, trace->end - trace->begin);
        trace->end -= trace->begin;
        trace->begin = 0;
    }
    got = trace->read(
        trace->context, trace->buffer + trace->end, sizeof(trace->buffer) - trace->end);
    if (got == (size_t)-1) {
        *err = KVG_EIO;
        trace->at_end = true;
        return false;
    }
    if (got == 0)
        trace->at_end = true;
    trace->end += got;
    return got > 0;
}

/* Finds the next line.  It stays in the buffer until the next call. */
static kvg_err next_line(struct kvc_trace *trace, struct kvg_str *line, bool *got)
{
    size_t searched = 0;
    bool too_long = false;
    kvg_err err = KVG_OK;

    *got = false;
    for (;;) {
        char *from = trace->buffer + trace->begin;
        size_t held = trace->end - trace->begin;
        char *stop = memchr(from + searched, '\n', held - searched);

        if (stop != NULL || (trace->at_end && (held > 0 || too_long))) {
            size_t bytes = stop == NULL ? held : (size_t)(stop - from);

            *line = (struct kvg_str){from, bytes};
            trace->begin += bytes + (stop != NULL);
            trace->line++;
            *got = true;
            return too_long ? KVG_ELIMIT : err;
        }
        searched = held;
        if (held == sizeof(trace->buffer)) {
            too_long = true;
            trace->begin = trace->end;
            searched = 0;
        }
        if (!fill(trace, &err) && (err != KVG_OK || trace->end == trace->begin) &&
            !too_long)
            return err;
    }
}

/* A whole number 0 to 2^53 out of a JSON number; some traces write 12.0. */
static bool whole(const json_t *value, uint64_t *out)
{
    double number = json_number_value(value);

    if (!json_is_number(value) || !(number >= 0) || number > 9007199254740992.0 ||
        number != floor(number))
        return false;
    *out =
        json_is_integer(value) ? (uint64_t)json_integer_value(value) : (uint64_t)number;
    return true;
}

static kvg_err read_request(struct kvc_trace *trace, const json_t *root,
    struct kvc_trace_request *out, struct kvg_error *error)
{
    const json_t *ids = json_object_get(root, "hash_ids");
    size_t count = json_array_size(ids);
    size_t i;

    if (!json_is_object(root))
        return fail(trace, error, KVG_EFORMAT, "is no JSON object");
    if (!whole(json_object_get(root, "timestamp"), &out->timestamp_ms))
        return fail(trace, error, KVG_EFORMAT, "timestamp: a whole number is needed");
    if (!whole(json_object_get(root, "input_length"), &out->input_tokens))
        return fail(trace, error, KVG_EFORMAT, "input_length: a whole number is needed");
    if (!whole(json_object_get(root, "output_length"), &out->output_tokens))
        return fail(trace, error, KVG_EFORMAT, "output_length: a whole number is needed");
    if (!json_is_array(ids))
        return fail(trace, error, KVG_EFORMAT, "hash_ids: an array is needed");
    if (count > KVC_TRACE_BLOCKS_MAX)
        return fail(trace, error, KVG_ELIMIT, "hash_ids: more than 65536 blocks");
    for (i = 0; i < count; i++) {
        if (!whole(json_array_get(ids, i), &trace->blocks[i]))
            return fail(trace, error, KVG_EFORMAT, "hash_ids: whole numbers are needed");
    }
    out->blocks = trace->blocks;
    out->block_count = count;
    return KVG_OK;
}

static bool is_blank(struct kvg_str line)
{
    size_t i;

    for (i = 0; i < line.bytes; i++) {
        if (line.data[i] != ' ' && line.data[i] != '\t' && line.data[i] != '\r')
            return false;
    }
    return true;
}

kvg_err kvc_trace_next(struct kvc_trace *trace, struct kvc_trace_request *out, bool *got,
    struct kvg_error *error)
{
    struct kvg_str line = {NULL, 0};
    json_error_t where;
    json_t *root;
    kvg_err err;

    *out = (struct kvc_trace_request){0};
    do {
        err = next_line(trace, &line, got);
        if (err == KVG_ELIMIT)
            return fail(trace, error, err, "is longer than the allowed 1 MiB");
        if (err != KVG_OK)
            return fail(trace, error, err, "cannot be read");
        if (!*got)
            return KVG_OK;
    } while (is_blank(line));
    root = json_loadb(line.data, line.bytes, 0, &where);
    if (root == NULL)
        err = fail(trace, error, KVG_EFORMAT, where.text);
    else
        err = read_request(trace, root, out, error);
    json_decref(root);
    if (err != KVG_OK)
        *out = (struct kvc_trace_request){0};
    return err;
}
