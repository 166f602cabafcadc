/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* http_response.c -- the response parser.
 *
 *     STATUS_LINE -> HEADER_LINE ... -> BODY_LENGTH -----------------------> DONE
 *          ^              |        +--> BODY_TO_END --(connection ends)---> DONE
 *          |  (1xx)       |        +--> CHUNK_SIZE -> CHUNK_DATA -> CHUNK_END
 *          +--------------+                  |  ^________________________|
 *                                            +--(0)--> TRAILER_LINE ... -> DONE
 *
 * Lines are gathered in a fixed buffer and handled whole; body bytes are handed out where they
 * lie.
 *
 * Invariants:
 *
 *     H1  line_bytes < KVN_HTTP_LINE_BYTES_MAX.
 *     H2  body_bytes <= body_bytes_max, checked before bytes are handed out.
 *     H3  Once failed, always failed; nothing is handed out any more.
 */
#include "net/http_response.h"

#include "base/fmt.h"

#include <string.h>

void kvn_http_response_init(struct kvn_http_response *response, uint64_t body_bytes_max,
    void (*on_body)(void *context, struct kvg_str bytes), void *context)
{
    memset(response, 0, sizeof(*response));
    response->body_bytes_max = body_bytes_max;
    response->on_body = on_body;
    response->context = context;
}

static kvg_err refuse(struct kvn_http_response *response, struct kvg_error *error,
    kvg_err code, const char *field, const char *message)
{
    response->state = KVN_HTTP_FAILED;
    return kvi_fail(error, code, field, message);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

/* Whether `text` is `word` (in lower case), whatever its case. */
static bool is_word(struct kvg_str text, const char *word)
{
    size_t i;

    for (i = 0; i < text.bytes && word[i] != '\0'; i++) {
        if (lower(text.data[i]) != word[i])
            return false;
    }
    return i == text.bytes && word[i] == '\0';
}

static struct kvg_str trim(struct kvg_str text)
{
    while (text.bytes > 0 && (text.data[0] == ' ' || text.data[0] == '\t')) {
        text.data++;
        text.bytes--;
    }
    while (text.bytes > 0 &&
           (text.data[text.bytes - 1] == ' ' || text.data[text.bytes - 1] == '\t'))
        text.bytes--;
    return text;
}

/* "HTTP/1.x NNN reason" */
static kvg_err take_status_line(
    struct kvn_http_response *response, struct kvg_str line, struct kvg_error *error)
{
    const char *at = line.data;

    if (line.bytes < 12 || memcmp(at, "HTTP/1.", 7) != 0 || !is_digit(at[7]) ||
        at[8] != ' ' || !is_digit(at[9]) || !is_digit(at[10]) || !is_digit(at[11]) ||
        (line.bytes > 12 && at[12] != ' '))
        return refuse(response, error, KVG_EFORMAT, "response.status_line",
            "is not \"HTTP/1.x NNN\": is this an HTTP port?");
    response->status =
        (uint32_t)((at[9] - '0') * 100 + (at[10] - '0') * 10 + (at[11] - '0'));
    if (response->status < 100)
        return refuse(response, error, KVG_EFORMAT, "response.status", "is below 100");
    response->state = KVN_HTTP_HEADER_LINE;
    response->header_count = 0;
    response->has_length = false;
    response->chunked = false;
    return KVG_OK;
}

static kvg_err take_length(
    struct kvn_http_response *response, struct kvg_str value, struct kvg_error *error)
{
    uint64_t length = 0;

    if (value.bytes == 0 || value.bytes > 18)
        return refuse(response, error, KVG_EFORMAT, "response.content-length",
            "is not a number of 1 to 18 digits");
    for (size_t i = 0; i < value.bytes; i++) {
        if (!is_digit(value.data[i]))
            return refuse(response, error, KVG_EFORMAT, "response.content-length",
                "is not a number of 1 to 18 digits");
        length = length * 10 + (uint64_t)(value.data[i] - '0');
    }
    if (response->has_length && response->left != length)
        return refuse(response, error, KVG_EFORMAT, "response.content-length",
            "is given twice with different values");
    response->has_length = true;
    response->left = length;
    return KVG_OK;
}

static kvg_err take_header_line(
    struct kvn_http_response *response, struct kvg_str line, struct kvg_error *error)
{
    const char *colon = memchr(line.data, ':', line.bytes);
    struct kvg_str name;
    struct kvg_str value;

    if (++response->header_count > KVN_HTTP_HEADERS_MAX)
        return refuse(
            response, error, KVG_ELIMIT, "response.headers", "are more than 128");
    if (colon == NULL || colon == line.data || line.data[0] == ' ' ||
        line.data[0] == '\t')
        return refuse(response, error, KVG_EFORMAT, "response.header",
            "is not \"name: value\" on one line");
    name = (struct kvg_str){line.data, (size_t)(colon - line.data)};
    value = trim((struct kvg_str){colon + 1, line.bytes - name.bytes - 1});
    if (is_word(name, "content-length"))
        return take_length(response, value, error);
    if (is_word(name, "transfer-encoding")) {
        if (!is_word(value, "chunked"))
            return refuse(response, error, KVG_EFORMAT, "response.transfer-encoding",
                "is not \"chunked\"");
        response->chunked = true;
    } else if (response->on_header != NULL) {
        response->on_header(response->context, name, value);
    }
    return KVG_OK;
}

/* The empty line: what comes now? */
static kvg_err end_headers(struct kvn_http_response *response, struct kvg_error *error)
{
    if (response->status < 200) {
        if (response->status == 101 || ++response->interim_count > KVN_HTTP_INTERIM_MAX)
            return refuse(response, error, KVG_EFORMAT, "response.status",
                "asks for another protocol, or interim answers do not end");
        response->state = KVN_HTTP_STATUS_LINE;
        return KVG_OK;
    }
    if (response->chunked && response->has_length)
        return refuse(response, error, KVG_EFORMAT, "response.content-length",
            "is given beside chunks");
    if (response->status == 204 || response->status == 304)
        response->state = KVN_HTTP_DONE;
    else if (response->chunked)
        response->state = KVN_HTTP_CHUNK_SIZE;
    else if (!response->has_length)
        response->state = KVN_HTTP_BODY_TO_END;
    else if (response->left > response->body_bytes_max)
        return refuse(response, error, KVG_ELIMIT, "response.content-length",
            "is over the limit of the body");
    else
        response->state = response->left > 0 ? KVN_HTTP_BODY_LENGTH : KVN_HTTP_DONE;
    return KVG_OK;
}

static int hex_digit(char c)
{
    if (is_digit(c))
        return c - '0';
    c = lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static kvg_err take_chunk_size(
    struct kvn_http_response *response, struct kvg_str line, struct kvg_error *error)
{
    uint64_t size = 0;
    size_t i;

    for (i = 0; i < line.bytes && hex_digit(line.data[i]) >= 0; i++) {
        if (i == 15)
            return refuse(
                response, error, KVG_ELIMIT, "response.chunk", "has more than 15 digits");
        size = size * 16 + (uint64_t)hex_digit(line.data[i]);
    }
    if (i == 0 || (i < line.bytes && line.data[i] != ';' && line.data[i] != ' ' &&
                      line.data[i] != '\t'))
        return refuse(response, error, KVG_EFORMAT, "response.chunk",
            "does not begin with its size");
    response->left = size;
    response->state = size > 0 ? KVN_HTTP_CHUNK_DATA : KVN_HTTP_TRAILER_LINE;
    response->header_count = 0;
    return KVG_OK;
}

static kvg_err take_line(
    struct kvn_http_response *response, struct kvg_str line, struct kvg_error *error)
{
    switch (response->state) {
    case KVN_HTTP_STATUS_LINE:
        return take_status_line(response, line, error);
    case KVN_HTTP_HEADER_LINE:
        return line.bytes == 0 ? end_headers(response, error)
                               : take_header_line(response, line, error);
    case KVN_HTTP_CHUNK_SIZE:
        return take_chunk_size(response, line, error);
    case KVN_HTTP_CHUNK_END:
        if (line.bytes != 0)
            return refuse(response, error, KVG_EFORMAT, "response.chunk",
                "is longer than its size");
        response->state = KVN_HTTP_CHUNK_SIZE;
        return KVG_OK;
    default: /* A trailer: skipped, but counted. */
        if (line.bytes == 0)
            response->state = KVN_HTTP_DONE;
        else if (++response->header_count > KVN_HTTP_HEADERS_MAX)
            return refuse(
                response, error, KVG_ELIMIT, "response.trailers", "are more than 128");
        return KVG_OK;
    }
}

/* Gathers a line; *used bytes were taken. */
static kvg_err feed_line(struct kvn_http_response *response, struct kvg_str bytes,
    size_t *used, struct kvg_error *error)
{
    const char *end = memchr(bytes.data, '\n', bytes.bytes);
    size_t take = end == NULL ? bytes.bytes : (size_t)(end - bytes.data);
    struct kvg_str line;

    if (take >= KVN_HTTP_LINE_BYTES_MAX - response->line_bytes) /* H1 */
        return refuse(
            response, error, KVG_ELIMIT, "response.line", "is longer than 8192 bytes");
    memcpy(response->line + response->line_bytes, bytes.data, take);
    response->line_bytes += (uint32_t)take;
    *used = take;
    if (end == NULL)
        return KVG_OK;
    *used = take + 1;
    line = (struct kvg_str){response->line, response->line_bytes};
    if (line.bytes > 0 && line.data[line.bytes - 1] == '\r')
        line.bytes--;
    response->line_bytes = 0;
    return take_line(response, line, error);
}

static kvg_err feed_body(struct kvn_http_response *response, struct kvg_str bytes,
    size_t *used, struct kvg_error *error)
{
    bool to_end = response->state == KVN_HTTP_BODY_TO_END;
    size_t take = bytes.bytes;

    if (!to_end && take > response->left)
        take = (size_t)response->left;
    if (take > response->body_bytes_max - response->body_bytes) /* H2 */
        return refuse(response, error, KVG_ELIMIT, "response.body",
            "is over the limit of the body");
    response->body_bytes += take;
    if (response->on_body != NULL)
        response->on_body(response->context, (struct kvg_str){bytes.data, take});
    *used = take;
    if (to_end)
        return KVG_OK;
    response->left -= take;
    if (response->left == 0)
        response->state =
            response->state == KVN_HTTP_CHUNK_DATA ? KVN_HTTP_CHUNK_END : KVN_HTTP_DONE;
    return KVG_OK;
}

kvg_err kvn_http_response_feed(
    struct kvn_http_response *response, struct kvg_str bytes, struct kvg_error *error)
{
    if (response->state == KVN_HTTP_FAILED) /* H3 */
        return kvi_fail(error, KVG_ESTATE, "response", "has failed before");
    while (bytes.bytes > 0 && response->state != KVN_HTTP_DONE) {
        bool body = response->state == KVN_HTTP_BODY_LENGTH ||
                    response->state == KVN_HTTP_BODY_TO_END ||
                    response->state == KVN_HTTP_CHUNK_DATA;
        size_t used = 0;
        kvg_err err = body ? feed_body(response, bytes, &used, error)
                           : feed_line(response, bytes, &used, error);

        if (err != KVG_OK)
            return err;
        bytes.data += used;
        bytes.bytes -= used;
    }
    return KVG_OK;
}

kvg_err kvn_http_response_end(struct kvn_http_response *response, struct kvg_error *error)
{
    if (response->state == KVN_HTTP_BODY_TO_END)
        response->state = KVN_HTTP_DONE;
    if (response->state == KVN_HTTP_DONE)
        return KVG_OK;
    return refuse(response, error, KVG_EFORMAT, "response", "ended before it was whole");
}
