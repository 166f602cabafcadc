/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* err.c -- names and sentences of errors, media and confidences. */
#include <kvgraft/base.h>

#define STRING_OF(x) #x
#define VERSION_STRING(a, b, c) STRING_OF(a) "." STRING_OF(b) "." STRING_OF(c)

const char *kvg_version(void)
{
    return VERSION_STRING(KVG_VERSION_MAJOR, KVG_VERSION_MINOR, KVG_VERSION_PATCH);
}

const char *kvg_err_name(kvg_err err)
{
    switch (err) {
#define ERROR_NAME(name, value, sentence) \
    case name:                            \
        return #name;
        KVG_ERRORS(ERROR_NAME)
#undef ERROR_NAME
    }
    return "KVG_E?";
}

const char *kvg_strerror(kvg_err err)
{
    switch (err) {
#define ERROR_SENTENCE(name, value, sentence) \
    case name:                                \
        return sentence;
        KVG_ERRORS(ERROR_SENTENCE)
#undef ERROR_SENTENCE
    }
    return "an unknown error";
}

const char *kvg_medium_name(enum kvg_medium medium)
{
    static const char *const NAMES[KVG_MEDIUM_COUNT] = {
        [KVG_MEDIUM_UNKNOWN] = "unknown",
        [KVG_MEDIUM_DEVICE] = "device",
        [KVG_MEDIUM_CPU] = "cpu",
        [KVG_MEDIUM_DISK] = "disk",
        [KVG_MEDIUM_EXTERNAL] = "external",
    };

    return (unsigned)medium < KVG_MEDIUM_COUNT ? NAMES[medium] : "unknown";
}

const char *kvg_confidence_name(enum kvg_confidence confidence)
{
    switch (confidence) {
    case KVG_CONFIDENCE_BLIND:
        return "blind";
    case KVG_CONFIDENCE_SUSPECT:
        return "suspect";
    case KVG_CONFIDENCE_REBUILDING:
        return "rebuilding";
    case KVG_CONFIDENCE_FRESH:
        return "fresh";
    }
    return "blind";
}
