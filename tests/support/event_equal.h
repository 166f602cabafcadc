/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* event_equal.h -- whether two events that were read from the same bytes are the same. */
#ifndef KVT_EVENT_EQUAL_H
#define KVT_EVENT_EQUAL_H

#include <kvgraft/event.h>

/* Strings and arrays must be the same bytes at the same place. */
bool event_equal(const struct kvg_event *a, const struct kvg_event *b);

#endif
