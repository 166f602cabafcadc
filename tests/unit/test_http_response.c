/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of the response parser and of URLs. */
#include "base/fmt.h"
#include "net/http_get.h"
#include "net/http_response.h"
#include "test.h"

struct seen {
    char body[256];
    size_t bytes;
};

static void on_body(void *context, struct kvg_str bytes)
{
    struct seen *seen = context;

    assert_true(seen->bytes + bytes.bytes < sizeof(seen->body));
    memcpy(seen->body + seen->bytes, bytes.data, bytes.bytes);
    seen->bytes += bytes.bytes;
    seen->body[seen->bytes] = '\0';
}

/* Feeds the text `piece` bytes at a time, then the end. */
static kvg_err parse(const char *text, size_t piece, uint64_t body_max, struct seen *seen,
    struct kvn_http_response *response, struct kvg_error *error)
{
    size_t left = strlen(text);

    memset(seen, 0, sizeof(*seen));
    kvn_http_response_init(response, body_max, on_body, seen);
    while (left > 0) {
        size_t take = left < piece ? left : piece;
        kvg_err err =
            kvn_http_response_feed(response, (struct kvg_str){text, take}, error);

        if (err != KVG_OK)
            return err;
        text += take;
        left -= take;
    }
    return kvn_http_response_end(response, error);
}

static void expect(const char *text, uint32_t status, const char *body)
{
    struct kvn_http_response response;
    struct kvg_error error;
    struct seen seen;

    for (size_t piece = 1; piece < 80; piece += piece < 5 ? 1 : 7) {
        CHECK_EQ(parse(text, piece, 200, &seen, &response, &error), KVG_OK);
        CHECK_EQ(response.status, status);
        CHECK_STR(seen.body, body);
    }
}

static void expect_refused(const char *text, kvg_err code, const char *field)
{
    struct kvn_http_response response;
    struct kvg_error error = {.code = KVG_OK};
    struct seen seen;

    for (size_t piece = 1; piece < 80; piece += 13) {
        CHECK_EQ(parse(text, piece, 20, &seen, &response, &error), code);
        CHECK_STR(error.field, field);
        CHECK_EQ(response.state, KVN_HTTP_FAILED);
    }
}

TEST(a_body_ends_by_length_by_chunks_or_with_the_connection)
{
    expect("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello");
    expect("HTTP/1.1 200 OK\nContent-Length:5\n\nhello", 200, "hello");
    expect("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
           "3\r\nhel\r\n002;x=y\r\nlo\r\n0\r\nT: x\r\n\r\n",
        200, "hello");
    expect("HTTP/1.0 200 OK\r\n\r\nhello", 200, "hello");
    expect("HTTP/1.1 204\r\n\r\n", 204, "");
    expect("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", 404, "");
}

static void on_header(void *context, struct kvg_str name, struct kvg_str value)
{
    on_body(context, name);
    on_body(context, kvi_str("="));
    on_body(context, value);
    on_body(context, kvi_str(";"));
}

TEST(headers_that_do_not_concern_the_body_are_handed_on)
{
    static const char TEXT[] = "HTTP/1.1 200 OK\r\nX-Kvgraft-Epoch:  77 \r\n"
                               "Content-Length: 0\r\nx-empty:\r\n\r\n";
    struct kvn_http_response response;
    struct seen seen;

    for (size_t piece = 1; piece < sizeof(TEXT); piece++) {
        memset(&seen, 0, sizeof(seen));
        kvn_http_response_init(&response, 10, NULL, &seen);
        response.on_header = on_header;
        for (size_t at = 0; at < sizeof(TEXT) - 1; at += piece) {
            size_t left = sizeof(TEXT) - 1 - at;
            struct kvg_str bytes = {TEXT + at, left < piece ? left : piece};

            CHECK_EQ(kvn_http_response_feed(&response, bytes, NULL), KVG_OK);
        }
        CHECK_EQ(kvn_http_response_end(&response, NULL), KVG_OK);
        CHECK_STR(seen.body, "X-Kvgraft-Epoch=77;x-empty=;");
    }
}

TEST(interim_answers_are_passed_over)
{
    expect("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        200, "hi");
}

TEST(what_is_ambiguous_or_too_large_is_refused)
{
    expect_refused(
        "SSH-2.0-OpenSSH_9.2p1 Debian\r\n", KVG_EFORMAT, "response.status_line");
    expect_refused("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        KVG_EFORMAT, "response.content-length");
    expect_refused("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", KVG_EFORMAT,
        "response.content-length");
    expect_refused(
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        KVG_EFORMAT, "response.content-length");
    expect_refused("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", KVG_EFORMAT,
        "response.transfer-encoding");
    expect_refused(
        "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n", KVG_EFORMAT, "response.header");
    expect_refused("HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n", KVG_ELIMIT,
        "response.content-length");
    expect_refused(
        "HTTP/1.1 200 OK\r\n\r\n123456789012345678901", KVG_ELIMIT, "response.body");
    expect_refused("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        KVG_EFORMAT, "response.chunk");
    expect_refused("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
        KVG_EFORMAT, "response.chunk");
    expect_refused(
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", KVG_EFORMAT, "response");
    expect_refused("HTTP/1.1 101 Other\r\n\r\n", KVG_EFORMAT, "response.status");
}

TEST(a_line_or_a_heap_of_headers_without_end_is_refused)
{
    static char text[KVN_HTTP_LINE_BYTES_MAX + 64];
    struct kvn_http_response response;
    struct kvg_error error;
    struct seen seen;

    memset(text, 'x', sizeof(text) - 1);
    CHECK_EQ(parse(text, 1000, 20, &seen, &response, &error), KVG_ELIMIT);
    CHECK_STR(error.field, "response.line");

    snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\n");
    for (unsigned i = 0; i <= KVN_HTTP_HEADERS_MAX; i++)
        strncat(text, "A: b\r\n", sizeof(text) - strlen(text) - 1);
    CHECK_EQ(parse(text, 1000, 20, &seen, &response, &error), KVG_ELIMIT);
    CHECK_STR(error.field, "response.headers");
}

static kvg_err url(const char *text, struct kvn_url *out)
{
    struct kvg_error error;

    return kvn_url_parse(kvi_str(text), "admin_url", &error, out);
}

TEST(a_url_is_taken_apart_or_refused)
{
    struct kvn_url out;

    CHECK_EQ(url("http://127.0.0.1:9003", &out), KVG_OK);
    CHECK_STR(out.host, "127.0.0.1");
    CHECK_EQ(out.port, 9003);
    CHECK_STR(out.base, "");
    CHECK_EQ(url("http://[::1]:80/a/b/", &out), KVG_OK);
    CHECK_STR(out.host, "::1");
    CHECK_STR(out.base, "/a/b");
    CHECK_EQ(url("http://master", &out), KVG_OK);
    CHECK_EQ(out.port, 80);
    CHECK_EQ(url("https://master", &out), KVG_EINVAL);
    CHECK_EQ(url("http://", &out), KVG_EINVAL);
    CHECK_EQ(url("http://a:0", &out), KVG_EINVAL);
    CHECK_EQ(url("http://a:65536", &out), KVG_EINVAL);
    CHECK_EQ(url("http://user@a", &out), KVG_EINVAL);
    CHECK_EQ(url("http://a/b?c", &out), KVG_EINVAL);
    CHECK_EQ(url("http://a b", &out), KVG_EINVAL);
    CHECK_EQ(url("http://[::1", &out), KVG_EINVAL);
}

TEST_MAIN(RUN(a_body_ends_by_length_by_chunks_or_with_the_connection),
    RUN(headers_that_do_not_concern_the_body_are_handed_on),
    RUN(interim_answers_are_passed_over), RUN(what_is_ambiguous_or_too_large_is_refused),
    RUN(a_line_or_a_heap_of_headers_without_end_is_refused),
    RUN(a_url_is_taken_apart_or_refused))
