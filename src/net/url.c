/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* url.c -- http://host:port/base and host:port, taken apart. */
#include "net/http_get.h"

#include "base/fmt.h"

#include <string.h>

static bool parse_port(struct kvg_str text, uint16_t *out)
{
    uint32_t port = 0;

    if (text.bytes == 0 || text.bytes > 5)
        return false;
    for (size_t i = 0; i < text.bytes; i++) {
        if (text.data[i] < '0' || text.data[i] > '9')
            return false;
        port = port * 10 + (uint32_t)(text.data[i] - '0');
    }
    if (port > 65535)
        return false;
    *out = (uint16_t)port;
    return true;
}

static bool host_is_sane(struct kvg_str host)
{
    if (host.bytes == 0 || host.bytes >= KVN_HOST_BYTES)
        return false;
    for (size_t i = 0; i < host.bytes; i++) {
        unsigned char c = (unsigned char)host.data[i];

        if (c <= ' ' || c >= 127 || strchr("/?#@\\\"<>[]", c) != NULL)
            return false;
    }
    return true;
}

/* Splits "host", "host:port", "[v6]" and "[v6]:port"; *port_text is {NULL, 0} without one. */
static bool split_authority(
    struct kvg_str text, struct kvg_str *host, struct kvg_str *port_text)
{
    const char *end = text.data + text.bytes;
    const char *colon;

    *port_text = (struct kvg_str){NULL, 0};
    if (text.bytes > 0 && text.data[0] == '[') {
        const char *close = memchr(text.data, ']', text.bytes);

        if (close == NULL)
            return false;
        *host = (struct kvg_str){text.data + 1, (size_t)(close - text.data - 1)};
        if (close + 1 == end)
            return true;
        colon = close + 1;
        if (*colon != ':')
            return false;
    } else {
        colon = memchr(text.data, ':', text.bytes);
        if (colon == NULL) {
            *host = text;
            return true;
        }
        *host = (struct kvg_str){text.data, (size_t)(colon - text.data)};
    }
    *port_text = (struct kvg_str){colon + 1, (size_t)(end - colon - 1)};
    return true;
}

kvg_err kvn_host_port_parse(struct kvg_str text, const char *field,
    struct kvg_error *error, char host[KVN_HOST_BYTES], uint16_t *port_out)
{
    struct kvg_str name;
    struct kvg_str port;

    host[0] = '\0';
    *port_out = 0;
    if (text.bytes == 0 || !split_authority(text, &name, &port) || !host_is_sane(name) ||
        port.data == NULL || !parse_port(port, port_out))
        return kvi_fail(error, KVG_EINVAL, field,
            "is not host:port, e.g. 127.0.0.1:7433 or [::1]:7433");
    memcpy(host, name.data, name.bytes);
    host[name.bytes] = '\0';
    return KVG_OK;
}

static bool base_is_sane(struct kvg_str base)
{
    for (size_t i = 0; i < base.bytes; i++) {
        unsigned char c = (unsigned char)base.data[i];

        if (c <= ' ' || c >= 127 || c == '?' || c == '#')
            return false;
    }
    return base.bytes < KVN_HOST_BYTES;
}

kvg_err kvn_url_parse(
    struct kvg_str text, const char *field, struct kvg_error *error, struct kvn_url *out)
{
    static const char SCHEME[] = "http://";
    size_t scheme_bytes = sizeof(SCHEME) - 1;
    struct kvg_str host;
    struct kvg_str port;
    struct kvg_str base = {"", 0};
    const char *slash;

    memset(out, 0, sizeof(*out));
    if (text.bytes <= scheme_bytes || memcmp(text.data, SCHEME, scheme_bytes) != 0)
        goto refuse;
    text.data += scheme_bytes;
    text.bytes -= scheme_bytes;
    slash = memchr(text.data, '/', text.bytes);
    if (slash != NULL) {
        base = (struct kvg_str){slash, text.bytes - (size_t)(slash - text.data)};
        text.bytes -= base.bytes;
    }
    while (base.bytes > 0 && base.data[base.bytes - 1] == '/')
        base.bytes--;
    out->port = 80;
    if (!split_authority(text, &host, &port) || !host_is_sane(host) ||
        !base_is_sane(base) ||
        (port.data != NULL && (!parse_port(port, &out->port) || out->port == 0)))
        goto refuse;
    memcpy(out->host, host.data, host.bytes);
    memcpy(out->base, base.data, base.bytes);
    return KVG_OK;

refuse:
    memset(out, 0, sizeof(*out));
    return kvi_fail(
        error, KVG_EINVAL, field, "is not http://host:port, e.g. http://127.0.0.1:9003");
}
