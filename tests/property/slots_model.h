/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* slots_model.h -- the objects under test and the arrays they are compared with; only
 * slots_machine.c, slots_model.c and slots_bugs.c include it. */
#ifndef KVT_SLOTS_MODEL_H
#define KVT_SLOTS_MODEL_H

#include <kvgraft/slots.h>

#include "fault_alloc.h"
#include "slots_machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define REQUESTS 6
#define CONTEXT 300
#define PAGES_MAX 9000
#define SPANS_MAX 9000
#define NOBODY 0
#define LOAD 200 /* Owner of what is allocated for a load; requests are 1 to 6. */
#define UNMAPPED UINT32_MAX

struct request {
    bool used;
    kvg_row row;
    uint32_t length;
    uint64_t slots[CONTEXT];
};

struct machine {
    struct fault_alloc fault;
    struct kvg_window *window;
    struct kvg_rows *rows;
    struct kvg_audit *full_audit;
    struct kvg_audit *swa_audit; /* NULL for a ring. */
    struct kvg_span items[SPANS_MAX];
    struct kvg_spans spans;
    uint64_t refused; /* Calls that had to be refused, and were. */

    /* The model. */
    uint32_t page_slots;
    uint32_t full_pages;
    uint32_t swa_pages;
    uint64_t full_first; /* Slots. */
    uint64_t swa_first;
    bool ring;
    bool exact;
    uint8_t full_owner[PAGES_MAX];
    uint8_t swa_owner[PAGES_MAX];
    uint32_t map[PAGES_MAX];
    struct request requests[REQUESTS];
};

extern struct machine M;
extern char machine_failure[300];

#define FAIL(...)                                                        \
    do {                                                                 \
        snprintf(machine_failure, sizeof(machine_failure), __VA_ARGS__); \
        return machine_failure;                                          \
    } while (0)

/* Slots and pages of the two pools. */
uint64_t model_full_slot(uint64_t page);
uint64_t model_swa_slot(uint64_t page);
uint64_t model_full_page(uint64_t slot);

uint32_t model_count_owned(const uint8_t *owners, uint32_t pages, uint8_t owner);

/* Empties M.spans, with room for `max`. */
void model_start_list(size_t max);

/* Lists up to `max` pages of `owner`, from page `from` on, as spans; returns the pages. */
uint32_t model_list_owned(struct kvg_spans *list, const uint8_t *owners, uint32_t pages,
    uint64_t first_slot, uint8_t owner, uint32_t from, uint32_t max);

/* Whether a release of spans must work: each slot is the pool's, whole pages are named, all
 * of them in use; and, if `once`, no slot is named twice. */
bool model_release_is_right(const struct kvg_span *spans, size_t count,
    const uint8_t *owners, uint32_t pages, uint64_t first_slot, bool once);

/* Compares every page, row and audit with the arrays.  NULL, or what differs. */
const char *model_compare_all(void);

/* Plants a bug, if there is a place for it now. */
bool model_plant(enum machine_bug bug);

#endif
