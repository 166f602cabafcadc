/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* memo.h -- what the tests of the memo may look at. */
#ifndef KVI_PAGE_MEMO_H
#define KVI_PAGE_MEMO_H

#include <kvgraft/page.h>

/* The first broken invariant of memo.c by its number, or NULL.  Hashes everything again. */
const char *kvi_page_memo_check(const struct kvg_page_memo *memo);

/* For negative controls: damages one remembered key.  False if there is none. */
bool kvi_page_memo_damage(struct kvg_page_memo *memo);

#endif
