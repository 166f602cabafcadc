/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* complete.c -- commits what all ranks have finished.
 *
 *     loads     [done][done][    ][done]        offloads  [done][done][done][    ]
 *                ^ 2 from the front                        ^ 3 from the front, by group
 *
 *     1  each rank counts from the front; all take the smallest counts      (every tick)
 *     2  each rank says what succeeded; success is success everywhere       (if 1 was not 0, 0)
 *
 * A rank that had nothing to load or to write has an empty entry in the same place, so fronts
 * correspond.  One rank alone needs no order among loads and takes whatever is done.
 */
#include "graft/linker.h"

#include "tree/tree.h"

kvg_err kvi_load_reserve(struct kvg_linker *linker, struct kvg_error *error)
{
    size_t wanted = linker->load_capacity == 0 ? 16 : linker->load_capacity * 2;
    void *loads = linker->loads;

    if (linker->load_count == linker->load_capacity) {
        if (!kvi_resize_array(&linker->alloc, &loads, linker->load_capacity, wanted,
                sizeof(*linker->loads)))
            return kvi_fail(error, KVG_ENOMEM, "load", "no memory for a record");
        linker->loads = loads;
        linker->load_capacity = wanted;
    }
    /* Every load may fail. */
    if (linker->failed_count + linker->load_count + 1 > linker->failed_capacity) {
        void *failed = linker->failed;
        wanted = 2 * (linker->failed_count + linker->load_count + 8);
        if (!kvi_resize_array(&linker->alloc, &failed, linker->failed_capacity, wanted,
                sizeof(*linker->failed)))
            return kvi_fail(error, KVG_ENOMEM, "load", "no memory for a record");
        linker->failed = failed;
        linker->failed_capacity = wanted;
    }
    return KVG_OK;
}

size_t kvi_load_find(const struct kvg_linker *linker, kvg_request_id id)
{
    for (size_t i = 0; i < linker->load_count; i++) {
        if (linker->loads[i].id == id)
            return i;
    }
    return SIZE_MAX;
}

static bool withdraw(struct kvg_linker *linker, kvg_node_id ack)
{
    if (kvg_tree_load_withdraw(linker->tree, ack, &linker->cache->evict_actions, NULL) !=
        KVG_OK)
        return false;
    (void)kvi_cache_do(linker->cache, &linker->cache->evict_actions, NULL);
    return true;
}

size_t kvg_linker_settle(struct kvg_linker *linker)
{
    size_t kept = 0;

    for (size_t i = 0; i < linker->failed_count; i++) {
        if (!withdraw(linker, linker->failed[i].ack))
            linker->failed[kept++] = linker->failed[i];
    }
    linker->failed_count = kept;
    return kept;
}

static void unlock(struct kvg_linker *linker, const struct kvi_load *load)
{
    if (load->receipt.node != KVG_NODE_NONE &&
        kvg_tree_unlock(linker->tree, load->ack, &load->receipt, false, NULL) != KVG_OK)
        KVI_ASSERT(false);
}

void kvi_load_abandon(struct kvg_linker *linker, const struct kvi_load *load)
{
    if (load->ack == KVG_NODE_NONE)
        return;
    unlock(linker, load);
    linker->stats.loads_withdrawn++;
    if (KVI_GRAFT_PLANTED(4) &&
        kvg_tree_load_confirm(linker->tree, load->ack, NULL) == KVG_OK)
        return;
    if (withdraw(linker, load->ack))
        return;
    KVI_ASSERT(linker->failed_count < linker->failed_capacity);
    linker->failed[linker->failed_count++] = (struct kvi_failed){load->id, load->ack};
}

void kvg_linker_release_request(struct kvg_linker *linker, kvg_request_id request)
{
    size_t index = kvi_load_find(linker, request);

    kvi_marker_drop(linker, request);
    if (index != SIZE_MAX && linker->loads[index].state == KVI_LOAD_QUEUED) {
        struct kvi_load load = linker->loads[index];
        if (load.ack == KVG_NODE_NONE ||
            linker->transport.cancel_load(linker->transport.context, request)) {
            linker->load_count--;
            memmove(linker->loads + index, linker->loads + index + 1,
                (linker->load_count - index) * sizeof(load));
            linker->stats.loads_cancelled++;
            kvi_load_abandon(linker, &load);
        }
    }
    (void)kvg_linker_settle(linker);
}

/* ---- The tick ------------------------------------------------------------------------------ */

int64_t kvg_linker_start_loads(struct kvg_linker *linker)
{
    bool any = false;

    for (size_t i = 0; i < linker->load_count; i++) {
        struct kvi_load *load = &linker->loads[i];
        if (load->state != KVI_LOAD_QUEUED)
            continue;
        load->state = load->ack == KVG_NODE_NONE ? KVI_LOAD_DONE : KVI_LOAD_STARTED;
        any = any || load->ack != KVG_NODE_NONE;
    }
    return any ? linker->transport.start_loads(linker->transport.context) : -1;
}

kvg_err kvg_linker_wait_layer(struct kvg_linker *linker, int64_t batch, uint32_t layer)
{
    if (batch < 0 || !linker->has_transport || linker->transport.wait_layer == NULL)
        return KVG_OK;
    return linker->transport.wait_layer(linker->transport.context, batch, layer);
}

/* Takes the transport's results into the records. */
static void poll(struct kvg_linker *linker)
{
    struct kvg_load_result loads[32];
    bool offloads[32];
    size_t count;
    size_t next = 0;

    if (!linker->has_transport)
        return;
    while ((count = linker->transport.take_loads(linker->transport.context, loads, 32)) !=
           0) {
        for (size_t i = 0; i < count; i++) {
            size_t index = kvi_load_find(linker, loads[i].request);
            if (index == SIZE_MAX || linker->loads[index].state != KVI_LOAD_STARTED) {
                linker->stats.results_unknown++;
                continue;
            }
            linker->loads[index].state = KVI_LOAD_DONE;
            linker->loads[index].success = loads[i].success;
        }
    }
    while ((count = linker->transport.take_offloads(
                linker->transport.context, offloads, 32)) != 0) {
        for (size_t i = 0; i < count; i++) {
            while (next < linker->offload_count && linker->offloads[next].done)
                next++;
            if (next == linker->offload_count) {
                linker->stats.results_unknown++;
                continue;
            }
            linker->offloads[next].done = true;
            linker->offloads[next].success = offloads[i];
        }
    }
}

/* Loads done, from the front; alone, brings the done ones to the front first. */
static int32_t count_loads(struct kvg_linker *linker)
{
    int32_t count = 0;

    for (size_t i = 0; i < linker->load_count && count < (int32_t)KVG_TICK_RESULTS_MAX;
         i++) {
        if (linker->loads[i].state != KVI_LOAD_DONE) {
            if (linker->agreement.min != NULL)
                break;
            continue;
        }
        struct kvi_load load = linker->loads[i];
        memmove(linker->loads + count + 1, linker->loads + count,
            (i - (size_t)count) * sizeof(load));
        linker->loads[count++] = load;
    }
    return count;
}

/* Index after the group that starts at `first`, and whether all of it is done and well. */
static size_t group_end(
    const struct kvg_linker *linker, size_t first, bool *done_out, bool *success_out)
{
    uint64_t group = linker->offloads[first].group;

    *done_out = *success_out = true;
    for (; first < linker->offload_count && linker->offloads[first].group == group;
         first++) {
        *done_out = *done_out && linker->offloads[first].done;
        *success_out = *success_out && linker->offloads[first].success;
    }
    return first;
}

/* Alone, every offload is a group of its own. */
static size_t next_offload(
    const struct kvg_linker *linker, size_t first, bool *done_out, bool *success_out)
{
    if (linker->agreement.min != NULL)
        return group_end(linker, first, done_out, success_out);
    *done_out = linker->offloads[first].done;
    *success_out = linker->offloads[first].success;
    return first + 1;
}

static int32_t count_offloads(const struct kvg_linker *linker)
{
    int32_t count = 0;
    bool done, success;

    for (size_t i = 0; i < linker->offload_count && count < (int32_t)KVG_TICK_RESULTS_MAX;
         count++) {
        i = next_offload(linker, i, &done, &success);
        if (!done)
            break;
    }
    return count;
}

static void commit_loads(struct kvg_linker *linker, size_t count)
{
    size_t total = linker->load_count;

    linker->load_count = total - count;
    for (size_t i = 0; i < count; i++) {
        const struct kvi_load *load = &linker->loads[i];
        bool success = linker->votes[i] > 0;
        linker->results[i] = (struct kvg_load_result){load->id, success};
        if (!success) {
            kvi_load_abandon(linker, load);
        } else if (load->ack != KVG_NODE_NONE) {
            if (kvg_tree_load_confirm(linker->tree, load->ack, NULL) != KVG_OK)
                KVI_ASSERT(false);
            unlock(linker, load);
            linker->stats.loads_done++;
        }
    }
    if (count != 0)
        memmove(linker->loads, linker->loads + count,
            (total - count) * sizeof(*linker->loads));
}

static void commit_offloads(struct kvg_linker *linker, size_t count, const int32_t *votes)
{
    size_t done = 0;
    bool ignored;

    for (size_t i = 0; i < count; i++) {
        size_t end = next_offload(linker, done, &ignored, &ignored);
        for (; done < end; done++)
            kvi_offload_end(
                linker, &linker->offloads[done], KVI_GRAFT_PLANTED(7) || votes[i] > 0);
    }
    linker->offload_count -= done;
    if (done != 0)
        memmove(linker->offloads, linker->offloads + done,
            linker->offload_count * sizeof(*linker->offloads));
}

kvg_err kvg_linker_tick(
    struct kvg_linker *linker, struct kvg_linker_tick *out, struct kvg_error *error)
{
    (void)error;
    *out = (struct kvg_linker_tick){.struct_bytes = sizeof(*out)};
    poll(linker);
    int32_t counts[2] = {count_loads(linker), count_offloads(linker)};
    kvi_agree(linker, counts, 2);
    size_t loads = (size_t)counts[0];
    size_t offloads = (size_t)counts[1];
    size_t at = 0;
    bool ignored;

    for (size_t i = 0; i < loads; i++)
        linker->votes[i] = linker->loads[i].success;
    for (size_t i = 0; i < offloads; i++) {
        bool success;
        at = next_offload(linker, at, &ignored, &success);
        linker->votes[loads + i] = success;
    }
    if (loads + offloads != 0)
        kvi_agree(linker, linker->votes, loads + offloads);
    commit_loads(linker, loads);
    commit_offloads(linker, offloads, linker->votes + loads);
    (void)kvg_linker_settle(linker);
    out->loads = linker->results;
    out->load_count = loads;
    out->offload_count = offloads;
    return KVG_OK;
}
