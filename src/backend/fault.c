/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* fault.c -- the wrapper `fault+...:`: any store, made to misbehave on purpose.
 *
 *     fault+file:/tmp/x?bytes=1GiB&fault.seed=7&fault.fail=put:3&fault.delay=get:10%&fault.ms=50
 *
 * Each parameter names what goes wrong; its value says when: a list, separated by commas, of
 * CALL:WHICH.  CALL is exists, put, get, remove, list, flush or any; WHICH is `3` (the third call
 * of that kind alone), `3+` (it and all later ones), `10%` (by chance, from the seed) or `*`.
 *
 *     fail      nothing is done, and the answer is KVG_EIO
 *     timeout   it is done, and the answer is KVG_ETIMEOUT all the same
 *     enospc    put: nothing is done, and the answer is KVG_ENOSPACE
 *     delay     it takes fault.ms milliseconds longer
 *     short     get: the memory is filled in part, and the answer is KVG_EIO
 *     flip      get: one bit of what was read is wrong, and the answer is KVG_OK
 *     torn      put: of each group only the first half of the parts arrives; KVG_EIO
 *     reorder   put: the groups of the call are written last first
 *
 * flip, torn and reorder break what store.h promises: they show whether the caller would notice.  A
 * store with flip does not promise KVG_STORE_CHECKSUMS, one with torn not KVG_STORE_ATOMIC.
 *
 * Threads: counters are atomic, the generator has a lock; which of two calls at the same time is
 * the third is a matter of chance, as ever. */
#include "backend/backend.h"

#include "base/alloc.h"
#include "base/fmt.h"
#include "base/rng.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RULES_MAX 32u

enum call {
    CALL_EXISTS,
    CALL_PUT,
    CALL_GET,
    CALL_REMOVE,
    CALL_LIST,
    CALL_FLUSH,
    CALL_ANY,
    CALL_COUNT
};
static const char CALLS[] = "exists|put|get|remove|list|flush|any";

enum fault_kind {
    FAULT_FAIL,
    FAULT_TIMEOUT,
    FAULT_ENOSPC,
    FAULT_DELAY,
    FAULT_SHORT,
    FAULT_FLIP,
    FAULT_TORN,
    FAULT_REORDER,
    FAULT_COUNT
};
static const char *const FAULTS[FAULT_COUNT] = {"fault.fail", "fault.timeout",
    "fault.enospc", "fault.delay", "fault.short", "fault.flip", "fault.torn",
    "fault.reorder"};

/* From call `first` to call `last` of a kind, or in so many of a hundred. */
struct rule {
    enum fault_kind fault;
    enum call call;
    uint64_t first;
    uint64_t last;
    uint32_t percent;
};

struct fault {
    const struct kvg_alloc *alloc;
    struct kvg_store *inner;
    struct rule rules[RULES_MAX];
    size_t rule_count;
    uint64_t delay_ms;
    _Atomic uint64_t calls[CALL_COUNT];
    pthread_mutex_t lock;
    struct kvi_rng rng;
};

/* ---- Rules --------------------------------------------------------------------------------- */

static bool read_which(struct kvg_str text, struct rule *rule)
{
    uint64_t number = 0;
    size_t i;

    rule->last = UINT64_MAX;
    if (text.bytes == 1 && text.data[0] == '*') {
        rule->first = 1;
        return true;
    }
    for (i = 0; i < text.bytes && i < 18 && text.data[i] >= '0' && text.data[i] <= '9';
         i++)
        number = number * 10 + (uint64_t)(text.data[i] - '0');
    if (i == 0 || number == 0)
        return false;
    rule->first = number;
    if (i == text.bytes) {
        rule->last = number;
        return true;
    }
    if (i + 1 != text.bytes)
        return false;
    if (text.data[i] == '%' && number <= 100) {
        rule->first = 1;
        rule->percent = (uint32_t)number;
        return true;
    }
    return text.data[i] == '+';
}

static bool read_call(struct kvg_str text, enum call *out)
{
    const char *at = CALLS;
    int call;

    for (call = 0; call < CALL_COUNT; call++) {
        size_t bytes = strcspn(at, "|");

        if (bytes == text.bytes && memcmp(at, text.data, bytes) == 0) {
            *out = (enum call)call;
            return true;
        }
        at += bytes + (at[bytes] == '|');
    }
    return false;
}

static bool read_rules(struct fault *fault, enum fault_kind kind, struct kvg_str text)
{
    while (text.bytes > 0) {
        const char *comma = memchr(text.data, ',', text.bytes);
        struct kvg_str one = {
            text.data, comma == NULL ? text.bytes : (size_t)(comma - text.data)};
        const char *colon = memchr(one.data, ':', one.bytes);
        struct rule rule = {.fault = kind};
        size_t call_bytes;

        if (colon == NULL || fault->rule_count == RULES_MAX)
            return false;
        call_bytes = (size_t)(colon - one.data);
        if (!read_call((struct kvg_str){one.data, call_bytes}, &rule.call) ||
            !read_which((struct kvg_str){colon + 1, one.bytes - call_bytes - 1}, &rule))
            return false;
        fault->rules[fault->rule_count++] = rule;
        text.data += one.bytes + (comma != NULL);
        text.bytes -= one.bytes + (comma != NULL);
    }
    return true;
}

static uint64_t chance(struct fault *fault, uint64_t below)
{
    uint64_t value;

    pthread_mutex_lock(&fault->lock);
    value = kvi_rng_below(&fault->rng, below);
    pthread_mutex_unlock(&fault->lock);
    return value;
}

/* Counts a call and says what is to go wrong with it: an or of 1 << fault. */
static uint32_t begin(struct fault *fault, enum call call)
{
    uint64_t number = atomic_fetch_add(&fault->calls[call], 1) + 1;
    uint64_t any = atomic_fetch_add(&fault->calls[CALL_ANY], 1) + 1;
    uint32_t wrong = 0;
    size_t i;

    for (i = 0; i < fault->rule_count; i++) {
        const struct rule *rule = &fault->rules[i];
        uint64_t at = rule->call == CALL_ANY ? any : number;

        if (rule->call != call && rule->call != CALL_ANY)
            continue;
        if (at < rule->first || at > rule->last)
            continue;
        if (rule->percent > 0 && chance(fault, 100) >= rule->percent)
            continue;
        wrong |= 1u << rule->fault;
    }
    if ((wrong & 1u << FAULT_DELAY) != 0) {
        struct timespec left = {
            (time_t)(fault->delay_ms / 1000), (long)(fault->delay_ms % 1000) * 1000000};

        while (nanosleep(&left, &left) < 0 && errno == EINTR)
            continue;
    }
    return wrong;
}

/* What is answered instead of doing it; KVG_OK: do it. */
static kvg_err refused(uint32_t wrong, struct kvg_error *error)
{
    if ((wrong & 1u << FAULT_FAIL) != 0)
        return kvi_fail(error, KVG_EIO, "fault.fail", "failed on purpose");
    if ((wrong & 1u << FAULT_ENOSPC) != 0)
        return kvi_fail(error, KVG_ENOSPACE, "fault.enospc", "full on purpose");
    return KVG_OK;
}

/* What is answered although it was done. */
static kvg_err answered(uint32_t wrong, kvg_err err, struct kvg_error *error)
{
    if ((wrong & 1u << FAULT_TIMEOUT) == 0)
        return err;
    return kvi_fail(error, KVG_ETIMEOUT, "fault.timeout", "late on purpose");
}

/* ---- Calls --------------------------------------------------------------------------------- */

static kvg_err fault_exists(void *self, const struct kvg_str *keys, size_t key_count,
    bool stop_at_gap, uint8_t *present, struct kvg_error *error)
{
    struct fault *fault = self;
    uint32_t wrong = begin(fault, CALL_EXISTS);
    size_t leading;
    kvg_err err = refused(wrong, error);

    if (err != KVG_OK)
        return err;
    if (stop_at_gap) {
        err = kvg_store_exists(fault->inner, keys, key_count, NULL, &leading, error);
        memset(present, 1, leading);
    } else {
        err = kvg_store_exists(fault->inner, keys, key_count, present, NULL, error);
    }
    return answered(wrong, err, error);
}

static void put_reversed(struct fault *fault, struct kvg_store_group *groups,
    size_t group_count, struct kvg_error *error)
{
    size_t i;

    for (i = group_count; i > 0; i--)
        (void)!kvg_store_put(fault->inner, &groups[i - 1], 1, error);
}

static kvg_err put_torn(struct fault *fault, struct kvg_store_group *groups,
    size_t group_count, struct kvg_error *error)
{
    size_t i;

    for (i = 0; i < group_count; i++) {
        struct kvg_store_group half = groups[i];

        half.part_count /= 2;
        if (half.part_count > 0)
            (void)!kvg_store_put(fault->inner, &half, 1, NULL);
        groups[i].result = KVG_EIO;
    }
    return kvi_fail(error, KVG_EIO, "fault.torn", "torn on purpose");
}

static kvg_err fault_put(void *self, struct kvg_store_group *groups, size_t group_count,
    struct kvg_error *error)
{
    struct fault *fault = self;
    uint32_t wrong = begin(fault, CALL_PUT);
    kvg_err err = refused(wrong, error);
    size_t i;

    if (err != KVG_OK)
        return err;
    if ((wrong & 1u << FAULT_TORN) != 0)
        return put_torn(fault, groups, group_count, error);
    if ((wrong & 1u << FAULT_REORDER) != 0)
        put_reversed(fault, groups, group_count, error);
    else
        err = kvg_store_put(fault->inner, groups, group_count, error);
    for (i = 0; i < group_count && answered(wrong, KVG_OK, error) != KVG_OK; i++)
        groups[i].result = KVG_ETIMEOUT;
    return err;
}

/* Flips one bit somewhere in what was read. */
static void flip(struct fault *fault, struct kvg_store_get *gets, size_t get_count)
{
    struct kvg_store_get *get = &gets[chance(fault, get_count)];
    const struct kvg_store_range *range;

    if (get->result != KVG_OK || get->range_count == 0)
        return;
    range = &get->ranges[chance(fault, get->range_count)];
    if (range->bytes > 0)
        ((uint8_t *)range->memory)[chance(fault, range->bytes)] ^=
            (uint8_t)(1u << chance(fault, 8));
}

/* Spoils the second half of each range, as if the read had ended there. */
static void cut_short(struct kvg_store_get *gets, size_t get_count)
{
    size_t i;
    size_t r;

    for (i = 0; i < get_count; i++) {
        for (r = 0; gets[i].result == KVG_OK && r < gets[i].range_count; r++) {
            const struct kvg_store_range *range = &gets[i].ranges[r];
            size_t kept = range->bytes / 2;

            memset((uint8_t *)range->memory + kept, 0xa5, range->bytes - kept);
        }
        if (gets[i].result == KVG_OK)
            gets[i].result = KVG_EIO;
    }
}

static kvg_err fault_get(
    void *self, struct kvg_store_get *gets, size_t get_count, struct kvg_error *error)
{
    struct fault *fault = self;
    uint32_t wrong = begin(fault, CALL_GET);
    kvg_err err = refused(wrong, error);
    size_t i;

    if (err != KVG_OK)
        return err;
    err = kvg_store_get(fault->inner, gets, get_count, error);
    if ((wrong & 1u << FAULT_FLIP) != 0)
        flip(fault, gets, get_count);
    if ((wrong & 1u << FAULT_SHORT) != 0)
        cut_short(gets, get_count);
    for (i = 0; i < get_count && answered(wrong, KVG_OK, error) != KVG_OK; i++)
        gets[i].result = KVG_ETIMEOUT;
    return err;
}

static kvg_err fault_remove(void *self, const struct kvg_str *keys, size_t key_count,
    kvg_err *results, struct kvg_error *error)
{
    struct fault *fault = self;
    uint32_t wrong = begin(fault, CALL_REMOVE);
    kvg_err err = refused(wrong, error);
    size_t i;

    if (err != KVG_OK)
        return err;
    err = kvg_store_remove(fault->inner, keys, key_count, results, error);
    for (i = 0; i < key_count && answered(wrong, KVG_OK, error) != KVG_OK; i++)
        results[i] = KVG_ETIMEOUT;
    return err;
}

static kvg_err fault_list(void *self, struct kvg_store_cursor *cursor, size_t item_max,
    bool (*visit)(void *context, const struct kvg_store_item *item), void *context,
    struct kvg_error *error)
{
    struct fault *fault = self;
    uint32_t wrong = begin(fault, CALL_LIST);
    kvg_err err = refused(wrong, error);

    if (err != KVG_OK)
        return err;
    err = kvg_store_list(fault->inner, cursor, item_max, visit, context, error);
    return answered(wrong, err, error);
}

static kvg_err fault_clear(void *self, struct kvg_error *error)
{
    return kvg_store_clear(((struct fault *)self)->inner, error);
}

static kvg_err fault_flush(void *self, struct kvg_error *error)
{
    struct fault *fault = self;
    uint32_t wrong = begin(fault, CALL_FLUSH);
    kvg_err err = refused(wrong, error);

    if (err != KVG_OK)
        return err;
    return answered(wrong, kvg_store_flush(fault->inner, error), error);
}

static kvg_err fault_poll(void *self, struct kvg_error *error)
{
    return kvg_store_poll(((struct fault *)self)->inner, error);
}

static void fault_stats(void *self, struct kvg_store_stats *out)
{
    struct kvg_store_stats inner = {.struct_bytes = sizeof(inner)};

    kvg_store_stats(((struct fault *)self)->inner, &inner);
#define KEEP(name) inner.name = out->name;
    KVG_STORE_COUNTED(KEEP)
#undef KEEP
    *out = inner;
}

static kvg_err fault_check(void *self, bool repair,
    void (*say)(void *context, const char *line), void *context,
    struct kvg_store_report *out, struct kvg_error *error)
{
    return kvg_store_check(
        ((struct fault *)self)->inner, repair, say, context, out, error);
}

/* ---- Life ---------------------------------------------------------------------------------- */

static void fault_close(void *self)
{
    struct fault *fault = self;

    kvg_store_close(fault->inner);
    pthread_mutex_destroy(&fault->lock);
    KVI_FREE(fault->alloc, fault);
}

static kvg_err read_url(
    struct fault *fault, const struct kvg_store_url *url, struct kvg_error *error)
{
    uint64_t seed = 1;
    int kind;
    kvg_err err = kvg_store_param_u64(url, "fault.seed", 0, UINT64_MAX, &seed, error);

    fault->delay_ms = 10;
    if (err == KVG_OK)
        err = kvg_store_param_ms(url, "fault.ms", 0, 600000, &fault->delay_ms, error);
    for (kind = 0; kind < FAULT_COUNT && err == KVG_OK; kind++) {
        struct kvg_str text = kvg_store_param(url, FAULTS[kind]);

        if (text.data != NULL && !read_rules(fault, (enum fault_kind)kind, text))
            err = kvi_fail(error, KVG_EINVAL, FAULTS[kind],
                "is a list of CALL:WHICH, as put:3 or get:10%25 or any:5+; CALL is "
                "exists, "
                "put, get, remove, list, flush or any");
    }
    fault->rng.state = seed;
    return err;
}

static kvg_err fault_open(const struct kvg_store_url *url,
    const struct kvg_store_options *options, void **out, uint32_t *flags_out,
    struct kvg_error *error)
{
    struct fault *fault = KVI_NEW(options->alloc, struct fault);
    size_t i;
    kvg_err err;

    if (fault == NULL)
        return kvi_fail(error, KVG_ENOMEM, "store", "out of memory");
    fault->alloc = options->alloc;
    pthread_mutex_init(&fault->lock, NULL);
    err = read_url(fault, url, error);
    if (err == KVG_OK)
        err = kvg_store_open_with(url->inner, options, &fault->inner, error);
    if (err != KVG_OK) {
        fault_close(fault);
        return err;
    }
    *flags_out = kvg_store_flags(fault->inner);
    for (i = 0; i < fault->rule_count; i++) {
        if (fault->rules[i].fault == FAULT_FLIP)
            *flags_out &= ~(uint32_t)KVG_STORE_CHECKSUMS;
        if (fault->rules[i].fault == FAULT_TORN)
            *flags_out &= ~(uint32_t)KVG_STORE_ATOMIC;
    }
    *out = fault;
    return KVG_OK;
}

static const char *const PARAMETERS[] = {"fault.seed", "fault.ms", "fault.fail",
    "fault.timeout", "fault.enospc", "fault.delay", "fault.short", "fault.flip",
    "fault.torn", "fault.reorder", NULL};

const struct kvg_store_backend kvi_store_fault = {
    .struct_bytes = sizeof(kvi_store_fault),
    .version = KVG_STORE_BACKEND_VERSION,
    .scheme = "fault",
    .summary = "fault+URL?fault.fail=put:3&...  any store, made to misbehave",
    .parameters = PARAMETERS,
    .is_wrapper = true,
    .open = fault_open,
    .close = fault_close,
    .exists = fault_exists,
    .put = fault_put,
    .get = fault_get,
    .remove = fault_remove,
    .clear = fault_clear,
    .list = fault_list,
    .flush = fault_flush,
    .poll = fault_poll,
    .stats = fault_stats,
    .check = fault_check,
};
