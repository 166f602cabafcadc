/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* More of what the cache that this tree behaves like is tested for, under its own names: recency of
 * windows and states, early releases, the host tier's anchors. */
#include "test.h"
#include "tree_kit.h"

#define SWA_LIST(kit) kit_list_text(kit, KVG_COMPONENT_SWA, KVG_TIER_DEVICE)

static struct kit *new_kit(uint32_t components, uint32_t window, bool host)
{
    struct kit *kit =
        kit_new((struct kit_setup){.components = components, .window = window});
    struct kvg_tree_settings *settings = kvg_tree_settings(kit->tree);
    settings->host_tier = host;
    settings->swa_host_pool = host && (components & SWA) != 0;
    settings->write_through_hits = UINT64_MAX;
    kit->next_host = 100;
    return kit;
}

/* Appends `count` units 1, 2, ... to a branch of `old`; slot of unit i is 10 + i. */
static void grow(struct kit *kit, uint32_t old, uint32_t count, uint32_t mamba)
{
    uint32_t tokens[512], slots[512];
    for (uint32_t i = 0; i < old + count; i++) {
        tokens[i] = i + 1;
        slots[i] = 10 + i;
    }
    kit_insert(kit, (struct kit_insert){.tokens = {tokens, old + count},
                        .slots = {slots, old + count},
                        .prev = old,
                        .mamba = mamba});
}

static uint32_t has(struct kit *kit, uint64_t number, uint32_t component)
{
    return (uint32_t)kit_get(kit, number).value_length[component][KVG_TIER_DEVICE];
}

static uint32_t lock(struct kit *kit, uint64_t number, uint32_t component)
{
    return kit_get(kit, number).lock_count[component][KVG_TIER_DEVICE];
}

static void unlock_swa(
    struct kit *kit, uint64_t number, const struct kvg_lock_receipt *receipt)
{
    kit_must(kit, kvg_tree_unlock_swa(kit->tree, kit_node(kit, number), receipt,
                      &kit->actions, &kit->error));
}

static void unlock_rest(
    struct kit *kit, uint64_t number, const struct kvg_lock_receipt *receipt)
{
    kit_must(kit,
        kvg_tree_unlock(kit->tree, kit_node(kit, number), receipt, true, &kit->error));
}

static void demote(struct kit *kit, uint64_t number)
{
    struct kvg_tree_evicted out;
    kit_must(kit, kvg_tree_demote(kit->tree, kit_node(kit, number), &kit->actions, &out,
                      &kit->error));
    kit_clear(kit);
    kit_do_actions(kit);
}

/* ---- Windows ------------------------------------------------------------------------------- */

TEST(swa_unfinished_req_preserves_existing_eviction_boundary)
{
    struct kit *kit = new_kit(FULL | SWA, 4, false);
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6, 7, 8),
                        .slots = LIST(10, 11, 12, 13, 14, 15, 16, 17),
                        .cursor = 4});
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #3 [1 2 3 4] full 10+4\n"
                             "    #2 [5 6 7 8] full 14+4 swa 114+4 hits 1 leaf\n");
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8)),
        "8 at #2 best #2 full 8: 10 11 12 13 14 15 16 17");
    kit_free(kit);
}

/* A chain of segments, each a window's tail below its older part, and a branch beside it. */
TEST(swa_lru_walk_down_does_not_refresh_ancestors_during_insert)
{
    struct kit *kit = new_kit(FULL | SWA, 2, false);
    grow(kit, 0, 4, 0);
    grow(kit, 4, 4, 0);
    kit_insert_run(kit, LIST(50, 51), 60);
    CHECK_STR(SWA_LIST(kit), "#6 #4 #5 #2 #3"); /* Tails before the older parts. */
    grow(kit, 8, 4, 0);
    CHECK_STR(SWA_LIST(kit), "#7 #8 #6 #4 #5 #2 #3"); /* The branch is still ahead. */
    kit_free(kit);
}

TEST(swa_lru_match_only_refreshes_window_cushion)
{
    struct kit *kit = new_kit(FULL | SWA, 2, false);
    grow(kit, 0, 4, 0);
    grow(kit, 4, 4, 0);
    kit_insert_run(kit, LIST(50, 51), 60);
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8)),
        "8 at #4 best #4 full 8: 10 11 12 13 14 15 16 17");
    CHECK_STR(SWA_LIST(kit), "#4 #5 #6 #2 #3");
    for (int i = 0; i < 5; i++) /* The same again, and the tree stays sound. */
        kit_match(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8));
    CHECK_STR(SWA_LIST(kit), "#4 #5 #6 #2 #3");
    kit_free(kit);
}

TEST(swa_lru_old_ancestors_evict_first_under_pressure)
{
    struct kit *kit = new_kit(FULL | SWA, 2, false);
    grow(kit, 0, 4, 0);
    grow(kit, 4, 4, 0);
    kit_insert_run(kit, LIST(50, 51), 60);
    grow(kit, 8, 4, 0);
    CHECK_STR(kit_evict(kit, 0, 1, 0), "free_SWA(10 11)");
    CHECK_STR(SWA_LIST(kit), "#7 #8 #6 #4 #5 #2");
    CHECK_STR(kit_match(kit, LIST(50, 51)), "2 at #6 best #6 full 2: 60 61");
    kit_free(kit);
}

TEST(partial_match_keeps_unmatched_suffix_lru_position)
{
    struct kit *kit = new_kit(FULL | SWA, 8, false);
    grow(kit, 0, 4, 0);
    kit_insert_run(kit, LIST(50, 51), 60);
    CHECK_STR(SWA_LIST(kit), "#3 #2");
    CHECK_STR(kit_match(kit, LIST(1, 2)), "2 at #4 best #4 full 2: 10 11");
    CHECK_STR(SWA_LIST(kit), "#4 #3 #2");
    kit_free(kit);
}

TEST(swa_branching_seqlen_uses_device_full_hit)
{
    struct kit *kit = new_kit(FULL | SWA, 4, false);
    grow(kit, 0, 8, 0);
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6, 7, 8, 9),
                        .slots = LIST(10, 11, 12, 13, 14, 15, 16, 17, 30),
                        .prev = 8});
    CHECK_STR(kit_evict(kit, 0, 8, 0), "free_SWA(10 11 12 13) | free_SWA(14 15 16 17)");
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8)),
        "0 at #1 best #1 full 8 swa_branching 8");
    kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8), 40);
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4, 5, 6, 7, 8)),
        "8 at #2 best #2 full 8: 40 41 42 43 44 45 46 47");
    kit_free(kit);
}

/* ---- Early releases ------------------------------------------------------------------------ */

TEST(leaf_transition_swa_evict_spares_locked_full)
{
    struct kit *kit = new_kit(FULL | SWA | MAMBA, 4, false);
    grow(kit, 0, 2, 1);
    grow(kit, 2, 2, 2);
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, 0);
    unlock_swa(kit, 2, &receipt);
    CHECK_EQ(lock(kit, 2, KVG_COMPONENT_FULL), 1);
    CHECK_EQ(lock(kit, 2, KVG_COMPONENT_SWA), 0);
    CHECK_EQ(lock(kit, 2, KVG_COMPONENT_MAMBA), 0);
    CHECK_STR(kit_evict(kit, 2, 0, 0),
        "leaf #3: free_FULL(12 13); free_SWA(12 13); free_MAMBA(2)");
    CHECK_STR(SWA_LIST(kit), "#2"); /* A leaf now, and locked. */
    CHECK_STR(kit_evict(kit, 0, 2, 0), "free_SWA(10 11); free_MAMBA(1)");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1 2] full 10+2 lock 1/0/0 hits 2\n");
    unlock_rest(kit, 2, &receipt);
    kit_free(kit);
}

TEST(swa_early_release_preserves_an_owners_skipped_mamba_lock)
{
    struct kit *kit = new_kit(FULL | SWA | MAMBA, 4, false);
    grow(kit, 0, 2, 1);
    struct kvg_lock_receipt owner = kit_lock(kit, 2, 0);
    struct kvg_lock_receipt other = kit_lock(kit, 2, MAMBA);
    CHECK_EQ(lock(kit, 2, KVG_COMPONENT_MAMBA), 1);
    unlock_swa(kit, 2, &other); /* It never had the state's lock. */
    CHECK_EQ(lock(kit, 2, KVG_COMPONENT_MAMBA), 1);
    CHECK_EQ(lock(kit, 2, KVG_COMPONENT_SWA), 1);
    unlock_rest(kit, 2, &other);
    CHECK_EQ(lock(kit, 2, KVG_COMPONENT_MAMBA), 1);
    unlock_swa(kit, 2, &owner); /* Its own goes with the window. */
    CHECK_EQ(lock(kit, 2, KVG_COMPONENT_MAMBA), 0);
    CHECK_EQ(lock(kit, 2, KVG_COMPONENT_FULL), 1);
    unlock_rest(kit, 2, &owner);
    CHECK_EQ(lock(kit, 2, KVG_COMPONENT_FULL), 0);
    kit_free(kit);
}

TEST(dec_swa_lock_only_child_on_host_is_treated_as_a_device_leaf)
{
    struct kit *kit = new_kit(FULL | SWA | MAMBA, 4, true);
    grow(kit, 0, 2, 1);
    grow(kit, 2, 2, 2);
    kit_write(kit, 2);
    kit_write(kit, 3);
    demote(kit, 3);
    CHECK(kit_get(kit, 2).device_leaf);
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, 0);
    CHECK(!kit_get(kit, 2).device_leaf);
    unlock_swa(kit, 2, &receipt);
    CHECK_EQ(has(kit, 2, KVG_COMPONENT_SWA), 2); /* FULL is locked: it stays. */
    CHECK_STR(SWA_LIST(kit), "#2");
    unlock_rest(kit, 2, &receipt);
    CHECK(kit_get(kit, 2).device_leaf);
    kit_free(kit);
}

TEST(tombstone_cleanup_respects_locked_parent)
{
    struct kit *kit = new_kit(FULL | SWA, 8, false);
    grow(kit, 0, 2, 0);
    grow(kit, 2, 2, 0);
    CHECK_STR(kit_evict(kit, 0, 1, 0), "free_SWA(10 11)"); /* A tombstone now. */
    struct kvg_lock_receipt receipt = kit_lock(kit, 2, 0);
    CHECK_STR(kit_evict(kit, 2, 0, 0), "leaf #3: free_FULL(12 13); free_SWA(12 13)");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #2 [1 2] full 10+2 lock 1/1 hits 2\n");
    kit_unlock(kit, 2, &receipt);
    kit_free(kit);
}

/* ---- States -------------------------------------------------------------------------------- */

TEST(mamba_lru_match_refreshes_the_matched_state_only)
{
    struct kit *kit = new_kit(FULL | MAMBA, 0, false);
    grow(kit, 0, 2, 1);
    grow(kit, 2, 2, 2);
    kit_insert(kit,
        (struct kit_insert){.tokens = LIST(50, 51), .slots = LIST(60, 61), .mamba = 3});
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_MAMBA, KVG_TIER_DEVICE), "#4 #3 #2");
    kit_match(kit, LIST(1, 2, 3, 4));
    CHECK_STR(kit_list_text(kit, KVG_COMPONENT_MAMBA, KVG_TIER_DEVICE), "#3 #4 #2");
    kit_free(kit);
}

TEST(mamba_checkpoint_grid_floors_the_branching_length)
{
    static const struct {
        uint32_t page, grid, length;
        int64_t branching;
    } CASES[] = {{32, 64, 160, 128}, {96, 192, 288, 192}};
    for (size_t i = 0; i < 2; i++) {
        struct kit *kit = kit_new((struct kit_setup){.page_size = CASES[i].page,
            .components = FULL | MAMBA,
            .mamba_grid = CASES[i].grid});
        uint32_t tokens[384];
        struct kvg_tree_evicted out;
        for (uint32_t t = 0; t < 384; t++)
            tokens[t] = t + 1;
        grow(kit, 0, CASES[i].length, 1);
        grow(kit, CASES[i].length, CASES[i].page, 2);
        kit_must(kit,
            kvg_tree_evict_component(kit->tree, kit_node(kit, 2), KVG_COMPONENT_MAMBA,
                KVG_TIER_DEVICE, &kit->actions, &out, &kit->error));
        kit_clear(kit);
        kit_do_actions(kit);
        kit_match(kit, (struct kit_list){tokens, CASES[i].length});
        CHECK_EQ(kit->match.device_length, 0);
        CHECK_EQ(kit->match.full_length, CASES[i].length);
        CHECK_EQ(kit->match.mamba_branching, CASES[i].branching);
        kit_free(kit);
    }
}

/* ---- The host tier ------------------------------------------------------------------------- */

TEST(hicache_partial_match_splits_evicted_backed_up_node)
{
    struct kit *kit = new_kit(FULL, 0, true);
    grow(kit, 0, 4, 0);
    kit_write(kit, 2);
    demote(kit, 2);
    CHECK_STR(kit_match(kit, LIST(1, 2)), "0 at #1 best #3 full 2 host 2");
    CHECK_STR(kit_dump(kit), "#1 root\n"
                             "  #3 [1 2] full host 100+2 hits 1\n"
                             "    #2 [3 4] full host 102+2 hits 1 host-leaf\n");
    kit_free(kit);
}

TEST(hicache_full_temp_lock_covers_evicted_anchor_and_mirrors_on_release)
{
    struct kit *kit = new_kit(FULL, 0, true);
    grow(kit, 0, 2, 0);
    grow(kit, 2, 2, 0);
    kit_write(kit, 2);
    kit_write(kit, 3);
    demote(kit, 3);
    struct kvg_lock_receipt first = kit_lock(kit, 3, 0);
    CHECK_EQ(lock(kit, 3, KVG_COMPONENT_FULL), 1);
    CHECK_EQ(lock(kit, 2, KVG_COMPONENT_FULL), 1);
    struct kvg_lock_receipt second = kit_lock(kit, 3, 0);
    CHECK_EQ(lock(kit, 3, KVG_COMPONENT_FULL), 2);
    kit_unlock(kit, 3, &first);
    CHECK_EQ(lock(kit, 3, KVG_COMPONENT_FULL), 1);
    kit_unlock(kit, 3, &second);
    CHECK_EQ(lock(kit, 3, KVG_COMPONENT_FULL) + lock(kit, 2, KVG_COMPONENT_FULL), 0);
    kit_free(kit);
}

TEST(hicache_host_best_match_keeps_device_anchor)
{
    static const uint32_t SETS[] = {FULL | SWA, FULL | MAMBA};
    for (size_t i = 0; i < 2; i++) {
        struct kit *kit = new_kit(SETS[i], 4, true);
        grow(kit, 0, 4, i == 1 ? 1 : 0);
        grow(kit, 4, 2, i == 1 ? 2 : 0);
        kit_write(kit, 2);
        kit_write(kit, 3);
        demote(kit, 3);
        CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4, 5, 6)),
            i == 0 ? "4 at #2 best #3 full 6 host 2 swa_host 2: 10 11 12 13"
                   : "4 at #2 best #3 full 6 host 2 mamba_host 1: 10 11 12 13");
        kit_free(kit);
    }
}

TEST(swa_branching_seqlen_uses_host_full_hit)
{
    struct kit *kit = new_kit(FULL | SWA, 4, true);
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4, 5, 6),
                        .slots = LIST(10, 11, 12, 13, 14, 15),
                        .cursor = 6});
    CHECK_EQ(kit_write(kit, 2), 1); /* FULL; there is no window to write. */
    demote(kit, 2);
    CHECK_STR(
        kit_match(kit, LIST(1, 2, 3, 4, 5, 6)), "0 at #1 best #1 full 6 swa_branching 6");
    CHECK_STR(kit_insert_run(kit, LIST(1, 2, 3, 4, 5, 6), 30),
        "rebuild_swa(#2: 30 31 32 33 34 35) | backup(#2) => prefix 6 last #2");
    CHECK_EQ(kit_write(kit, 2), 1); /* The window alone. */
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4, 5, 6)),
        "6 at #2 best #2 full 6: 30 31 32 33 34 35");
    kit_free(kit);
}

TEST(mamba_branching_seqlen_under_hicache)
{
    struct kit *kit = new_kit(FULL | MAMBA, 0, true);
    struct kvg_tree_evicted out;
    grow(kit, 0, 4, 1);
    grow(kit, 4, 2, 2);
    kit_write(kit, 2);
    kit_must(
        kit, kvg_tree_evict_component(kit->tree, kit_node(kit, 2), KVG_COMPONENT_MAMBA,
                 KVG_TIER_DEVICE, &kit->actions, &out, &kit->error));
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4)),
        "free_MAMBA(1) 0 at #1 best #2 full 4 host 4 mamba_host 1");
    kit_must(
        kit, kvg_tree_evict_component(kit->tree, kit_node(kit, 2), KVG_COMPONENT_MAMBA,
                 KVG_TIER_HOST, &kit->actions, &out, &kit->error));
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4)),
        "free_host_MAMBA(104) 0 at #1 best #1 full 4 mamba_branching 4");
    kit_insert(kit, (struct kit_insert){.tokens = LIST(1, 2, 3, 4),
                        .slots = LIST(10, 11, 12, 13),
                        .prev = 4,
                        .mamba = 3});
    CHECK_EQ(kit_write(kit, 2), 1);
    CHECK_STR(kit_match(kit, LIST(1, 2, 3, 4)), "4 at #2 best #2 full 4: 10 11 12 13");
    kit_free(kit);
}

TEST(hicache_swa_backup_window_stops_at_pending_ancestor)
{
    struct kit *kit = new_kit(FULL | SWA, 4, true);
    struct kvg_tree_transfer transfers[KVG_COMPONENT_MAX];
    kvg_node_id first;
    size_t count;
    for (uint32_t i = 0; i < 3; i++)
        grow(kit, i, 1, 0);
    first = kit_node(kit, 2);
    kit_must(kit, kvg_tree_write_build(
                      kit->tree, kit_node(kit, 4), transfers, &count, &kit->error));
    CHECK_EQ(count, 2);
    CHECK_EQ(transfers[1].node_count, 3);
    kit_must(kit, kvg_tree_write_mark(kit->tree, &first, 1, first, &kit->error));
    kit_must(kit, kvg_tree_write_build(
                      kit->tree, kit_node(kit, 4), transfers, &count, &kit->error));
    CHECK_EQ(count, 2);
    CHECK_EQ(transfers[1].node_count, 2); /* Its window is on the way already. */
    kit_must(kit, kvg_tree_write_finish(kit->tree, &first, 1, first, &kit->error));
    kit_free(kit);
}

TEST(evict_host_drains_freed_host_values_to_the_pools)
{
    struct kit *kit = new_kit(FULL | SWA | MAMBA, 4, true);
    struct kvg_tree_evicted out;
    grow(kit, 0, 2, 1);
    grow(kit, 2, 2, 2);
    kit_write(kit, 2);
    kit_write(kit, 3);
    demote(kit, 3);
    demote(kit, 2);
    kit_must(kit, kvg_tree_evict_host(kit->tree, KVG_COMPONENT_MAMBA, 1, &kit->actions,
                      &out, &kit->error));
    kit_clear(kit);
    /* The oldest is a leaf: it goes with all it has. */
    CHECK_STR(kit_do_actions(kit),
        "free_host_FULL(105 106); free_host_SWA(107 108); free_host_MAMBA(109)");
    kit_must(kit, kvg_tree_evict_host(kit->tree, KVG_COMPONENT_FULL, 100, &kit->actions,
                      &out, &kit->error));
    kit_clear(kit);
    CHECK_STR(kit_do_actions(kit),
        "free_host_FULL(100 101); free_host_SWA(102 103); free_host_MAMBA(104)");
    CHECK_STR(kit_dump(kit), "#1 root\n");
    kit_free(kit);
}

TEST_MAIN(RUN(swa_unfinished_req_preserves_existing_eviction_boundary),
    RUN(swa_lru_walk_down_does_not_refresh_ancestors_during_insert),
    RUN(swa_lru_match_only_refreshes_window_cushion),
    RUN(swa_lru_old_ancestors_evict_first_under_pressure),
    RUN(partial_match_keeps_unmatched_suffix_lru_position),
    RUN(swa_branching_seqlen_uses_device_full_hit),
    RUN(leaf_transition_swa_evict_spares_locked_full),
    RUN(swa_early_release_preserves_an_owners_skipped_mamba_lock),
    RUN(dec_swa_lock_only_child_on_host_is_treated_as_a_device_leaf),
    RUN(tombstone_cleanup_respects_locked_parent),
    RUN(mamba_lru_match_refreshes_the_matched_state_only),
    RUN(mamba_checkpoint_grid_floors_the_branching_length),
    RUN(hicache_partial_match_splits_evicted_backed_up_node),
    RUN(hicache_full_temp_lock_covers_evicted_anchor_and_mirrors_on_release),
    RUN(hicache_host_best_match_keeps_device_anchor),
    RUN(swa_branching_seqlen_uses_host_full_hit),
    RUN(mamba_branching_seqlen_under_hicache),
    RUN(hicache_swa_backup_window_stops_at_pending_ancestor),
    RUN(evict_host_drains_freed_host_values_to_the_pools))
