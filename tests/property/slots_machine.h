/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* slots_machine.h -- bytes become operations on a window pool, rows and audits, each of
 * which is compared with a model: plain arrays that say who owns which page. */
#ifndef KVT_SLOTS_MACHINE_H
#define KVT_SLOTS_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A program is a head and any number of operations. */
#define MACHINE_HEAD_BYTES 8
#define MACHINE_STEP_BYTES 8

/* What is done to the objects behind the machine's back, to see whether it notices. */
enum machine_bug {
    BUG_NONE,
    BUG_FREE_BIT,        /* A used page looks free, nothing else knows. */
    BUG_OWNED_PAGE_FREE, /* A used page is free as well: two owners. */
    BUG_PAGE_LOST,       /* A free page is marked used: a leak. */
    BUG_MIXED_BIT,       /* A begun word has left its set. */
    BUG_WHOLE_BIT,       /* A whole word is no longer marked. */
    BUG_WHOLE_MIXED_BIT,
    BUG_UPPER_LEVEL, /* The upper level of a set forgets a word. */
    BUG_COUNT,       /* One page more is counted. */
    BUG_MAP_SWAPPED, /* Two pages have exchanged window pages, on both sides. */
    BUG_MAP_ONE_SIDED,
    BUG_WINDOW_FREED, /* A mapped window page is free. */
    BUG_MAP_COUNT,
    BUG_MARK_LEFT,  /* A pair still carries the mark of an unfinished map. */
    BUG_ROW_TABLE,  /* A row points to another page. */
    BUG_WRONG_PAGE, /* A page was freed in place of its neighbour. */
    MACHINE_BUGS
};

/* Runs a program with a bug planted before step `bug_step`.  NULL if everything agreed to
 * the end, else a sentence that stays valid until the next run.  *planted says whether the
 * bug found a place. */
const char *machine_run(const uint8_t *program, size_t bytes, enum machine_bug bug,
    size_t bug_step, bool *planted);

#endif
