/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* slots_bugs.c -- bugs planted behind the machine's back (slots_machine.h): each is a state
 * that some mistake in the code would leave. */
#include "slots_model.h"

#include "slots/window.h"

static uint64_t first_owned(const uint8_t *owners, uint32_t pages, bool owned)
{
    uint64_t i;

    for (i = 0; i < pages; i++)
        if ((owners[i] != NOBODY) == owned)
            return i;
    return KVI_NONE;
}

static bool plant_in_pool(enum machine_bug bug)
{
    struct kvg_slots *full = M.window->full;
    struct kvi_freemap *map = &full->map;
    uint64_t used = first_owned(M.full_owner, M.full_pages, true);
    uint64_t unused = first_owned(M.full_owner, M.full_pages, false);
    uint64_t mixed = kvi_bitset_next(&map->mixed, 0);
    uint64_t u;

    switch ((int)bug) {
    case BUG_FREE_BIT:
        if (used != KVI_NONE)
            map->free[used / 64] ^= UINT64_C(1) << (used % 64);
        return used != KVI_NONE;
    case BUG_OWNED_PAGE_FREE:
        if (used != KVI_NONE)
            kvi_slots_put(full, (struct kvi_run){used, 1});
        return used != KVI_NONE;
    case BUG_PAGE_LOST:
        if (unused == KVI_NONE)
            return false;
        kvi_freemap_use(map, (struct kvi_run){unused, 1});
        full->allocated_pages++;
        full->free_pages_min = 0;
        return true;
    case BUG_MIXED_BIT:
        if (mixed != KVI_NONE)
            kvi_bitset_remove(&map->mixed, mixed);
        return mixed != KVI_NONE;
    case BUG_WHOLE_BIT:
        for (u = 0; u < kvi_words_for(kvi_words_for(map->page_count)); u++)
            if (map->whole[u] != 0) {
                map->whole[u] &= map->whole[u] - 1;
                return true;
            }
        return false;
    case BUG_WHOLE_MIXED_BIT:
        u = kvi_bitset_next(&map->whole_mixed, 0);
        if (u != KVI_NONE)
            kvi_bitset_remove(&map->whole_mixed, u);
        return u != KVI_NONE;
    case BUG_UPPER_LEVEL:
        if (map->mixed.level_count < 2 || map->mixed.level[1][0] == 0)
            return false;
        map->mixed.level[1][0] &= map->mixed.level[1][0] - 1;
        return true;
    default: /* BUG_COUNT */
        map->free_count++;
        return true;
    }
}

static bool plant_in_mapping(enum machine_bug bug)
{
    struct kvg_window *window = M.window;
    uint32_t *to_window = window->to_window;
    uint32_t pages[2];
    uint32_t found = 0;
    uint32_t i;

    if (bug == BUG_MAP_COUNT) {
        window->mapped_count++;
        return !M.ring;
    }
    for (i = 0; i < M.full_pages && found < 2; i++)
        if (M.map[i] != UNMAPPED)
            pages[found++] = i;
    if (found < 2)
        return false;
    if (bug == BUG_MAP_SWAPPED) {
        uint32_t other = to_window[pages[0]];

        to_window[pages[0]] = to_window[pages[1]];
        to_window[pages[1]] = other;
        window->to_full[other] = pages[1];
        window->to_full[to_window[pages[0]]] = pages[0];
    } else if (bug == BUG_MAP_ONE_SIDED) {
        to_window[pages[0]] = KVI_NO_PAGE;
    } else if (bug == BUG_WINDOW_FREED) {
        kvi_slots_put(window->swa, (struct kvi_run){to_window[pages[0]], 1});
    } else {
        to_window[pages[0]] |= KVI_FRESH;
    }
    return true;
}

bool model_plant(enum machine_bug bug)
{
    int i;

    if (bug <= BUG_COUNT)
        return plant_in_pool(bug);
    if (bug <= BUG_MARK_LEFT)
        return plant_in_mapping(bug);
    if (bug == BUG_WRONG_PAGE) {
        for (i = 0; i + 1 < (int)M.full_pages; i++)
            if (M.full_owner[i] != NOBODY && M.full_owner[i + 1] == NOBODY) {
                kvi_slots_put(M.window->full, (struct kvi_run){(uint64_t)i, 1});
                kvi_freemap_use(
                    &M.window->full->map, (struct kvi_run){(uint64_t)i + 1, 1});
                M.window->full->allocated_pages++;
                return true;
            }
        return false;
    }
    for (i = 0; i < REQUESTS; i++) {
        size_t count = 0;

        if (M.requests[i].used && M.requests[i].length > 0) {
            /* The table is const for callers only. */
            uint32_t *table =
                (uint32_t *)(uintptr_t)kvg_rows_table(M.rows, M.requests[i].row, &count);

            table[0]++;
            return true;
        }
    }
    return false;
}
