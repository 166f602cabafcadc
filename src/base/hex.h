/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* hex.h -- bytes as hex digits and back. */
#ifndef KVI_BASE_HEX_H
#define KVI_BASE_HEX_H

#include <kvgraft/base.h>

/* Reads 2 * byte_count digits of either case.  False if one is not a digit; then `out` holds
 * rubbish. */
bool kvi_hex_decode(const char *hex, size_t byte_count, uint8_t *out);

/* Writes 2 * byte_count lower-case digits, no zero. */
void kvi_hex_encode(const uint8_t *bytes, size_t byte_count, char *out);

#endif
