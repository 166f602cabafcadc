/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* simulate_args.c -- capacities and policies as people type them (simulate.h).
 *
 *     list      = item *("," item)
 *     item      = "unlimited" / quantity / quantity ".." quantity [":" steps]
 *     quantity  = digits unit
 *     unit      = "KiB" ... "TiB" / "KB" ... "TB" / "B" / ["k" / "M"] ("tokens" / "pages")
 */
#include "cli/simulate.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#define ITEM_BYTES_MAX 80

static const struct unit {
    const char *name;
    enum kvc_sim_unit unit;
    uint64_t factor;
} UNITS[] = {
    {"B", KVC_SIM_BYTES, 1},
    {"KiB", KVC_SIM_BYTES, UINT64_C(1) << 10},
    {"MiB", KVC_SIM_BYTES, UINT64_C(1) << 20},
    {"GiB", KVC_SIM_BYTES, UINT64_C(1) << 30},
    {"TiB", KVC_SIM_BYTES, UINT64_C(1) << 40},
    {"KB", KVC_SIM_BYTES, 1000},
    {"MB", KVC_SIM_BYTES, 1000000},
    {"GB", KVC_SIM_BYTES, 1000000000},
    {"TB", KVC_SIM_BYTES, UINT64_C(1000000000000)},
    {"tokens", KVC_SIM_TOKENS, 1},
    {"ktokens", KVC_SIM_TOKENS, 1000},
    {"Mtokens", KVC_SIM_TOKENS, 1000000},
    {"pages", KVC_SIM_PAGES, 1},
    {"kpages", KVC_SIM_PAGES, 1000},
    {"Mpages", KVC_SIM_PAGES, 1000000},
};

/* One item of a list, as a string of its own, without blanks around it. */
struct item {
    char text[ITEM_BYTES_MAX];
};

/* Moves *text behind the next item.  False if it is too long to be one. */
static bool next_item(const char **text, struct item *out)
{
    size_t bytes = strcspn(*text, ",");
    const char *from = *text;

    *text += bytes + ((*text)[bytes] == ',');
    while (bytes > 0 && from[0] == ' ') {
        from++;
        bytes--;
    }
    while (bytes > 0 && from[bytes - 1] == ' ')
        bytes--;
    snprintf(out->text, sizeof(out->text), "%.*s", (int)(bytes < 79 ? bytes : 79), from);
    return bytes < sizeof(out->text);
}

static bool read_digits(const char **text, uint64_t *out)
{
    const char *from = *text;
    uint64_t value = 0;

    for (; **text >= '0' && **text <= '9'; (*text)++) {
        uint64_t digit = (uint64_t)(**text - '0');

        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    return *text > from;
}

static bool read_quantity(const char *text, size_t bytes, struct kvc_sim_capacity *out)
{
    const char *end = text + bytes;
    uint64_t number;
    size_t i;

    if (!read_digits(&text, &number))
        return false;
    while (text < end && *text == ' ')
        text++;
    for (i = 0; i < KVC_COUNT(UNITS); i++) {
        const struct unit *unit = &UNITS[i];

        if (strlen(unit->name) != (size_t)(end - text) ||
            strncasecmp(unit->name, text, (size_t)(end - text)) != 0)
            continue;
        if (number == 0 || number > (UINT64_C(1) << 62) / unit->factor)
            return false;
        *out = (struct kvc_sim_capacity){unit->unit, number * unit->factor};
        return true;
    }
    return false;
}

static bool add(struct kvc_sim_capacities *list, enum kvc_sim_unit unit, uint64_t amount)
{
    const struct kvc_sim_capacity *last = &list->items[list->count];

    if (list->count > 0 && last[-1].unit == unit && last[-1].amount == amount)
        return true; /* Steps too fine for whole numbers. */
    if (list->count == KVC_SIM_CAPACITIES_MAX)
        return false;
    list->items[list->count++] = (struct kvc_sim_capacity){unit, amount};
    return true;
}

/* Doubling, and the end itself. */
static bool add_doubling(struct kvc_sim_capacities *list, struct kvc_sim_capacity from,
    struct kvc_sim_capacity to)
{
    uint64_t amount;

    for (amount = from.amount; amount < to.amount; amount *= 2) {
        if (!add(list, from.unit, amount))
            return false;
    }
    return add(list, to.unit, to.amount);
}

static bool add_steps(struct kvc_sim_capacities *list, struct kvc_sim_capacity from,
    struct kvc_sim_capacity to, uint64_t steps)
{
    double ratio = (double)to.amount / (double)from.amount;
    uint64_t i;

    if (!add(list, from.unit, from.amount))
        return false;
    for (i = 1; i + 1 < steps; i++) {
        double amount = (double)from.amount * pow(ratio, (double)i / (double)(steps - 1));

        if (!add(list, from.unit, (uint64_t)llround(amount)))
            return false;
    }
    return add(list, to.unit, to.amount);
}

static bool refuse_form(const char *item, char *why, size_t why_bytes)
{
    snprintf(why, why_bytes,
        "\"%s\" is no capacity; it takes 64GiB, 3Mtokens, 30000pages, unlimited, or a "
        "range of two: 1GiB..64GiB doubles, 1GiB..64GiB:9 takes 9 steps",
        item);
    return false;
}

/* A range whose second half begins at `dots`. */
static bool add_range(const char *item, const char *dots, struct kvc_sim_capacities *list,
    char *why, size_t why_bytes)
{
    const char *second = dots + 2;
    const char *colon = strchr(second, ':');
    size_t second_bytes = colon == NULL ? strlen(second) : (size_t)(colon - second);
    struct kvc_sim_capacity from;
    struct kvc_sim_capacity to;
    uint64_t steps = 0;
    bool room;

    if (!read_quantity(item, (size_t)(dots - item), &from) ||
        !read_quantity(second, second_bytes, &to))
        return refuse_form(item, why, why_bytes);
    if (from.unit != to.unit || from.amount > to.amount) {
        snprintf(why, why_bytes,
            "the range \"%s\" must go from the smaller to the larger, in one kind of "
            "unit",
            item);
        return false;
    }
    if (colon != NULL) {
        const char *digits = colon + 1;

        if (!read_digits(&digits, &steps) || *digits != '\0' || steps < 2 ||
            steps > KVC_SIM_CAPACITIES_MAX) {
            snprintf(why, why_bytes, "the range \"%s\" may take 2 to %u steps", item,
                KVC_SIM_CAPACITIES_MAX);
            return false;
        }
    }
    room = steps == 0 ? add_doubling(list, from, to) : add_steps(list, from, to, steps);
    if (!room)
        snprintf(why, why_bytes, "there are more than the allowed %u capacities",
            KVC_SIM_CAPACITIES_MAX);
    return room;
}

bool kvc_sim_capacities_parse(
    const char *text, struct kvc_sim_capacities *out, char *why, size_t why_bytes)
{
    struct kvc_sim_capacity one;
    struct item item;

    out->count = 0;
    do {
        const char *dots;

        if (!next_item(&text, &item))
            return refuse_form(item.text, why, why_bytes);
        dots = strstr(item.text, "..");
        if (dots != NULL) {
            if (!add_range(item.text, dots, out, why, why_bytes))
                return false;
            continue;
        }
        if (strcasecmp(item.text, "unlimited") == 0)
            one = (struct kvc_sim_capacity){KVC_SIM_UNLIMITED, 0};
        else if (!read_quantity(item.text, strlen(item.text), &one))
            return refuse_form(item.text, why, why_bytes);
        if (!add(out, one.unit, one.amount)) {
            snprintf(why, why_bytes, "there are more than the allowed %u capacities",
                KVC_SIM_CAPACITIES_MAX);
            return false;
        }
    } while (*text != '\0');
    return true;
}

const char *kvc_sim_capacity_text(
    const struct kvc_sim_capacity *capacity, char out[KVC_NUMBER_BYTES])
{
    static const char *const SIZES[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)capacity->amount;
    size_t unit = 0;
    char digits[KVC_NUMBER_BYTES];

    switch (capacity->unit) {
    case KVC_SIM_UNLIMITED:
        snprintf(out, KVC_NUMBER_BYTES, "unlimited");
        break;
    case KVC_SIM_PAGES:
    case KVC_SIM_TOKENS:
        kvc_count_text(capacity->amount, digits);
        snprintf(out, KVC_NUMBER_BYTES, "%.24s %s", digits,
            capacity->unit == KVC_SIM_PAGES ? "pages" : "tokens");
        break;
    case KVC_SIM_BYTES:
        for (; value >= 1024 && unit + 1 < KVC_COUNT(SIZES); unit++)
            value /= 1024;
        snprintf(out, KVC_NUMBER_BYTES, "%.*f %s", value == floor(value) ? 0 : 1, value,
            SIZES[unit]);
        break;
    }
    return out;
}

uint64_t kvc_sim_capacity_pages(
    const struct kvc_sim_capacity *capacity, uint64_t page_size, uint64_t bytes_per_token)
{
    switch (capacity->unit) {
    case KVC_SIM_BYTES:
        return capacity->amount / bytes_per_token / page_size;
    case KVC_SIM_TOKENS:
        return capacity->amount / page_size;
    case KVC_SIM_PAGES:
        return capacity->amount;
    case KVC_SIM_UNLIMITED:
        break;
    }
    return UINT64_MAX;
}

static const char *const POLICY_NAMES[KVG_POLICY_COUNT] = {
    [KVG_POLICY_LRU] = "lru",
    [KVG_POLICY_LFU] = "lfu",
    [KVG_POLICY_FIFO] = "fifo",
    [KVG_POLICY_MRU] = "mru",
    [KVG_POLICY_FILO] = "filo",
    [KVG_POLICY_PRIORITY] = "priority",
    [KVG_POLICY_SLRU] = "slru",
    [KVG_POLICY_TLRU] = "tlru",
};

const char *kvc_sim_policy_name(enum kvg_policy policy)
{
    return POLICY_NAMES[policy];
}

bool kvc_sim_policies_parse(
    const char *text, struct kvc_sim_policies *out, char *why, size_t why_bytes)
{
    struct item item;
    size_t i;

    out->count = 0;
    if (strcasecmp(text, "all") == 0) {
        for (; out->count < KVG_POLICY_COUNT; out->count++)
            out->items[out->count] = (enum kvg_policy)out->count;
        return true;
    }
    do {
        struct kvg_error error = {0};
        enum kvg_policy policy;

        if (!next_item(&text, &item) ||
            kvg_policy_parse((struct kvg_str){item.text, strlen(item.text)}, &policy,
                &error) != KVG_OK) {
            snprintf(why, why_bytes,
                "\"%s\" is no policy; there are lru, lfu, fifo, mru, filo, priority, "
                "slru, tlru, or all of them: all",
                item.text);
            return false;
        }
        for (i = 0; i < out->count; i++) {
            if (out->items[i] == policy) {
                snprintf(why, why_bytes, "the policy \"%s\" is named twice", item.text);
                return false;
            }
        }
        out->items[out->count++] = policy;
    } while (*text != '\0');
    return true;
}
