/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* space.c -- tenants, and spaces: a tenant and a prefix.
 *
 * Both get small numbers at first sight and keep them.  A space has its own vocabulary of part
 * suffixes, numbered at first sight too: so events may come before any layout is known, and
 * layouts may change or stand side by side over the same objects.
 */
#include "presence/index.h"

#include "base/fmt.h"

#define SPACE_NAME_BYTES_MAX (2 + KVG_LAYOUT_PREFIX_BYTES_MAX)

static const char DEFAULT_TENANT[] = "default";

static struct kvg_str tenant_or_default(struct kvg_str name)
{
    return name.bytes == 0 ? (struct kvg_str){DEFAULT_TENANT, sizeof(DEFAULT_TENANT) - 1}
                           : name;
}

int32_t kvi_presence_tenant_find(struct kvg_presence *index, struct kvg_str name)
{
    int32_t found;

    name = tenant_or_default(name);
    if (index->tenant_names.count != 0 &&
        kvi_str_equal(kvi_names_get(&index->tenant_names, index->last_tenant), name))
        return (int32_t)index->last_tenant;
    found = kvi_names_find(&index->tenant_names, name);
    if (found >= 0)
        index->last_tenant = (uint32_t)found;
    return found;
}

/* Makes room for one more pointer in an array that is indexed by a name's number. */
static bool grow_pointers(
    struct kvg_presence *index, void **array, uint32_t count, uint32_t *capacity)
{
    uint32_t larger = *capacity == 0 ? 8 : *capacity * 2;

    if (count < *capacity)
        return true;
    if (!kvi_resize_array(&index->alloc, array, *capacity, larger, sizeof(void *)))
        return false;
    *capacity = larger;
    return true;
}

kvg_err kvi_presence_tenant_get(
    struct kvg_presence *index, struct kvg_str name, uint32_t *out)
{
    int32_t found = kvi_presence_tenant_find(index, name);
    void *array = index->tenants;
    struct kvi_tenant *tenant;
    kvg_err err;

    *out = 0;
    if (found >= 0) {
        *out = (uint32_t)found;
        return KVG_OK;
    }
    if (name.bytes > KVG_PRESENCE_TENANT_BYTES_MAX)
        return KVG_ELIMIT;
    if (!grow_pointers(
            index, &array, index->tenant_names.count, &index->tenants_capacity))
        return KVG_ENOMEM;
    index->tenants = array;
    tenant = KVI_NEW(&index->alloc, struct kvi_tenant);
    if (tenant == NULL)
        return KVG_ENOMEM;
    atomic_store_explicit(
        &tenant->confidence, (uint32_t)index->confidence_default, memory_order_release);
    err = kvi_names_add(&index->tenant_names, tenant_or_default(name), out);
    if (err != KVG_OK) {
        KVI_FREE(&index->alloc, tenant);
        return err;
    }
    index->tenants[*out] = tenant;
    return KVG_OK;
}

static struct kvg_str space_name(
    uint32_t tenant, struct kvg_str prefix, char buffer[SPACE_NAME_BYTES_MAX])
{
    buffer[0] = (char)(tenant & 0xff);
    buffer[1] = (char)(tenant >> 8);
    if (prefix.bytes != 0)
        memcpy(buffer + 2, prefix.data, prefix.bytes);
    return (struct kvg_str){buffer, 2 + prefix.bytes};
}

struct kvg_str kvi_presence_space_prefix(
    const struct kvg_presence *index, const struct kvi_space *space)
{
    struct kvg_str name = kvi_names_get(&index->space_names, space->id);

    return (struct kvg_str){name.data + 2, name.bytes - 2};
}

struct kvi_space *kvi_presence_space_find(
    struct kvg_presence *index, uint32_t tenant, struct kvg_str prefix)
{
    char buffer[SPACE_NAME_BYTES_MAX];
    int32_t found;

    if (index->last_space != NULL && index->last_space->tenant == tenant &&
        kvi_str_equal(kvi_presence_space_prefix(index, index->last_space), prefix))
        return index->last_space;
    if (prefix.bytes > KVG_LAYOUT_PREFIX_BYTES_MAX)
        return NULL;
    found = kvi_names_find(&index->space_names, space_name(tenant, prefix, buffer));
    if (found < 0)
        return NULL;
    index->last_space = index->spaces[found];
    return index->last_space;
}

kvg_err kvi_presence_space_get(struct kvg_presence *index, uint32_t tenant,
    struct kvg_str prefix, struct kvi_space **out)
{
    char buffer[SPACE_NAME_BYTES_MAX];
    void *array = index->spaces;
    struct kvi_space *space = kvi_presence_space_find(index, tenant, prefix);
    kvg_err err;

    *out = space;
    if (space != NULL)
        return KVG_OK;
    if (prefix.bytes > KVG_LAYOUT_PREFIX_BYTES_MAX)
        return KVG_ELIMIT;
    if (!grow_pointers(index, &array, index->space_names.count, &index->spaces_capacity))
        return KVG_ENOMEM;
    index->spaces = array;
    space = KVI_NEW(&index->alloc, struct kvi_space);
    if (space == NULL)
        return KVG_ENOMEM;
    err = kvi_names_add(
        &index->space_names, space_name(tenant, prefix, buffer), &space->id);
    if (err != KVG_OK) {
        KVI_FREE(&index->alloc, space);
        return err;
    }
    space->tenant = tenant;
    space->salt = kvi_mix64(index->seed ^ kvi_mix64(space->id + UINT64_C(1)));
    kvi_names_init(&space->suffixes, &index->alloc, KVG_PRESENCE_SUFFIXES_MAX,
        kvi_mix64(space->salt + 1));
    index->spaces[space->id] = space;
    kvi_count(&index->counters.spaces, 1);
    *out = space;
    return KVG_OK;
}

void kvi_presence_spaces_fini(struct kvg_presence *index)
{
    uint32_t i;

    for (i = 0; i < index->space_names.count; i++) {
        kvi_names_fini(&index->spaces[i]->suffixes);
        KVI_FREE(&index->alloc, index->spaces[i]);
    }
    for (i = 0; i < index->tenant_names.count; i++)
        KVI_FREE(&index->alloc, index->tenants[i]);
    kvi_release_array(
        &index->alloc, index->spaces, index->spaces_capacity, sizeof(void *));
    kvi_release_array(
        &index->alloc, index->tenants, index->tenants_capacity, sizeof(void *));
    kvi_names_fini(&index->space_names);
    kvi_names_fini(&index->tenant_names);
}
