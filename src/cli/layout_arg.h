/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* layout_arg.h -- the --layout of a command: a worker's advertised JSON, inline or in a file. */
#ifndef KVC_LAYOUT_ARG_H
#define KVC_LAYOUT_ARG_H

#include <kvgraft/workers.h>

#define KVC_LAYOUT_HELP \
    "worker's JSON, inline or a file: page_size, tp_size, pp_size, is_mla_model, ..."

/* Reads `text`, which is JSON if it begins with '{', else a path.  Only page_size must be there;
 * what is left out is one rank of plain MHA.  The layout lives in *workers, which the caller
 * frees. */
KVG_MUST_CHECK kvg_err kvc_layout_arg(const char *text, struct kvg_error *error,
    struct kvg_workers **workers, const struct kvg_layout **layout_out);

#endif
