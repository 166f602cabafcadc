/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* sim_truth.c -- see sim_truth.h. */
#include "sim_truth.h"

void sim_truth_init(struct sim_truth *truth, uint32_t page_size, bool eagle)
{
    *truth = (struct sim_truth){.rule = {.page_size = page_size, .eagle = eagle}};
    mem_store_init(&truth->pages);
}

void sim_truth_fini(struct sim_truth *truth)
{
    mem_store_fini(&truth->pages);
}

void sim_truth_learn(struct sim_truth *truth, const uint32_t *tokens, size_t count)
{
    struct kvg_key keys[SIM_TOKENS_MAX];
    size_t pages = kvg_page_keys(&truth->rule, NULL, tokens, count, keys, SIM_TOKENS_MAX);
    uint64_t word = 0;

    for (size_t p = 0; p < pages; p++) {
        struct mem_page *page =
            mem_store_add(&truth->pages, KVG_COMPONENT_FULL, &keys[p]);
        for (uint32_t i = 0; i < truth->rule.page_size; i++) {
            word = sim_word(word, tokens[p * truth->rule.page_size + i]);
            page->words[i] = word;
        }
    }
}

bool sim_truth_holds(const struct sim_truth *truth, const struct mem_store *store)
{
    for (size_t i = 0; i < store->count; i++) {
        const struct mem_page *page = &store->pages[i];
        const struct mem_page *right =
            mem_store_find(&truth->pages, KVG_COMPONENT_FULL, &page->key);
        uint64_t turned = page->component == KVG_COMPONENT_SWA;
        if (right == NULL)
            return false;
        for (uint32_t j = 0; j < truth->rule.page_size; j++) {
            if (page->words[j] != (right->words[j] ^ turned))
                return false;
        }
    }
    return true;
}
