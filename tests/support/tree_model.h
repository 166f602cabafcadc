/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* tree_model.h -- programs of operations run on the tree and on a plain model of it.
 *
 * The model is a list of pages, each with a parent, its tokens and its slots: no runs of pages, no
 * splits, no lists, searched from end to end.  A program is bytes, OP_BYTES an operation; any
 * bytes are a program.  After every operation the tree is checked, compared with the model page
 * by page, and every slot is accounted for.
 */
#ifndef KVT_TREE_MODEL_H
#define KVT_TREE_MODEL_H

#include <kvgraft/tree.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OP_BYTES 8

struct model_setup {
    uint32_t components, page_size, window;
    bool eagle;
    enum kvg_policy policy;
};

/* NULL if everything agreed, else what did not (static memory). */
const char *model_run(
    const struct model_setup *setup, const uint8_t *program, size_t bytes, bool verbose);

/* Removes operations while the program still fails; returns its new length.  The program is
 * changed in place. */
size_t model_shrink(const struct model_setup *setup, uint8_t *program, size_t bytes);

/* The `index`-th of all set-ups worth trying: component sets, page sizes 1, 2, 4, 16, EAGLE. */
#define MODEL_SETUPS 32
struct model_setup model_setup_at(size_t index);

#endif
