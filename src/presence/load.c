/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* load.c -- reading a dump back, merged into what an index holds (dump.h).
 *
 * A block is merged after its checksum was found right, and not before; of pages, after all of
 * the block were read without fault.  The dump's numbers of spaces and suffixes are its own: they
 * are translated into this index's at first sight.
 *
 * Pages come in the order of some table, this one's if the seed is the same: a table that grew
 * as they come would be full at its lower end and empty at its upper, and at the limit it would
 * lose the pages that come last, not the coldest.  So an empty table gets its size at the first
 * pages, by the number in the header.  The pages of a block are looked for in turn, and the
 * memory that finding one touches is asked for some pages ahead.
 */
#include "presence/dump.h"

#include "base/fmt.h"

/* A space of the dump: ours, and our number for each of its suffixes. */
struct loaded_space {
    struct kvi_space *space; /* NULL if it was refused. */
    uint16_t *parts;
    bool is_same; /* Its numbers are ours: nothing to translate. */
    uint32_t part_count;
    uint32_t part_capacity;
};

/* A page of a block of pages. */
struct read_page {
    struct kvi_page page; /* Of no space: it was refused. */
    const struct loaded_space *loaded;
    uint32_t heat;
    uint32_t group_count; /* As in the dump: 0 is one short group. */
    size_t groups_at;
};

struct loader {
    struct kvg_presence *index;
    bool (*read)(void *context, void *bytes, size_t byte_max, size_t *got);
    void *context;
    struct kvg_error *error;
    uint64_t checksum;
    uint64_t pages;
    uint64_t pages_expected;
    uint32_t key_bytes;
    bool has_size; /* The table was given its size. */
    bool ended;
    struct loaded_space *spaces;
    uint32_t space_count;
    uint32_t space_capacity;
    uint32_t read_count;
    struct read_page *read_pages; /* Of the block. */
    struct dump_buffer block;
};

#define PART_REFUSED UINT16_MAX
#define BLOCK_PAGES_MAX (DUMP_PAYLOAD_MAX / DUMP_PAGE_BYTES_MIN)
#define PAGES_AHEAD 16u /* Whose memory is asked for. */

static kvg_err fail(struct loader *loader, kvg_err err, const char *message)
{
    return kvi_fail(loader->error, err, "dump", message);
}

/* Appends exactly so many bytes to the buffer. */
static kvg_err read_bytes(struct loader *loader, size_t bytes)
{
    struct dump_buffer *block = &loader->block;

    KVI_ASSERT(bytes <= sizeof(block->bytes) - block->end);
    while (bytes > 0) {
        size_t got = 0;

        if (!loader->read(loader->context, block->bytes + block->end, bytes, &got))
            return fail(loader, KVG_EIO, "reading the dump failed");
        if (got == 0)
            return fail(loader, KVG_EFORMAT,
                "the dump ends early; what came before was taken in");
        KVI_ASSERT(got <= bytes);
        block->end += got;
        bytes -= got;
    }
    return KVG_OK;
}

/* Reads the checksum behind what is in the buffer, and compares. */
static kvg_err check_checksum(struct loader *loader)
{
    struct dump_buffer *block = &loader->block;
    size_t bytes = block->end;
    uint8_t digest[32];
    kvg_err err = read_bytes(loader, DUMP_CHECKSUM_BYTES);

    if (err != KVG_OK)
        return err;
    memcpy(block->bytes, &loader->checksum, DUMP_CHECKSUM_BYTES);
    kvg_sha256(block->bytes, bytes, digest);
    if (memcmp(digest, block->bytes + bytes, DUMP_CHECKSUM_BYTES) != 0)
        return fail(
            loader, KVG_ECHECKSUM, "a block is damaged; what came before was taken in");
    memcpy(&loader->checksum, digest, DUMP_CHECKSUM_BYTES);
    block->end = bytes;
    return KVG_OK;
}

static kvg_err load_header(struct loader *loader)
{
    struct dump_buffer *block = &loader->block;
    uint64_t version;
    kvg_err err;

    block->at = DUMP_CHECKSUM_BYTES;
    block->end = DUMP_CHECKSUM_BYTES;
    err = read_bytes(loader, DUMP_HEADER_BYTES);
    if (err != KVG_OK)
        return err;
    if (memcmp(block->bytes + block->at, DUMP_MAGIC, sizeof(DUMP_MAGIC)) != 0)
        return fail(loader, KVG_EFORMAT, "this is not a dump of a presence index");
    block->at += sizeof(DUMP_MAGIC);
    version = dump_get(block, 4);
    if (version > DUMP_VERSION)
        return fail(
            loader, KVG_EVERSION, "the dump was written by a newer version; it takes 1");
    loader->key_bytes = (uint32_t)dump_get(block, 4);
    loader->pages_expected = dump_get(block, 8);
    err = check_checksum(loader);
    if (err != KVG_OK)
        return err;
    if (version < 1 || (loader->key_bytes != 16 && loader->key_bytes != 32))
        return fail(loader, KVG_EFORMAT, "the header is out of range");
    if (loader->index->full_keys && loader->key_bytes != 32)
        return fail(loader, KVG_EMISMATCH,
            "the dump holds the first 16 bytes of keys only; this index keeps all 32");
    return KVG_OK;
}

static kvg_err grow_spaces(struct loader *loader)
{
    uint32_t capacity = loader->space_capacity == 0 ? 8 : loader->space_capacity * 2;
    void *memory = loader->spaces;

    if (loader->space_count < loader->space_capacity)
        return KVG_OK;
    if (!kvi_resize_array(&loader->index->alloc, &memory, loader->space_capacity,
            capacity, sizeof(*loader->spaces)))
        return fail(loader, KVG_ENOMEM, "out of memory for the dump's prefixes");
    loader->spaces = memory;
    loader->space_capacity = capacity;
    return KVG_OK;
}

static kvg_err load_space(struct loader *loader)
{
    struct dump_buffer *block = &loader->block;
    struct kvg_presence *index = loader->index;
    struct kvg_str tenant_name = dump_get_str(block, dump_get(block, 2));
    struct kvg_str prefix = dump_get_str(block, dump_get(block, 2));
    struct kvi_space *space = NULL;
    uint32_t tenant;
    kvg_err err;

    if (block->failed || tenant_name.bytes > KVG_PRESENCE_TENANT_BYTES_MAX ||
        prefix.bytes > KVG_LAYOUT_PREFIX_BYTES_MAX ||
        loader->space_count == KVG_PRESENCE_SPACES_MAX)
        return fail(loader, KVG_EFORMAT, "a prefix in the dump is out of range");
    err = grow_spaces(loader);
    if (err != KVG_OK)
        return err;
    err = kvi_presence_tenant_get(index, tenant_name, &tenant);
    if (err == KVG_OK) {
        kvg_presence_set_confidence(index, tenant_name, KVG_CONFIDENCE_SUSPECT);
        err = kvi_presence_space_get(index, tenant, prefix, &space);
    }
    if (err != KVG_OK)
        kvi_presence_count_refusal(index, &index->counters.refused_spaces, err);
    loader->spaces[loader->space_count++] =
        (struct loaded_space){.space = space, .is_same = space != NULL};
    return KVG_OK;
}

static kvg_err grow_parts(struct loader *loader, struct loaded_space *loaded)
{
    uint32_t capacity = loaded->part_capacity == 0 ? 16 : loaded->part_capacity * 2;
    void *memory = loaded->parts;

    if (loaded->part_count < loaded->part_capacity)
        return KVG_OK;
    if (!kvi_resize_array(&loader->index->alloc, &memory, loaded->part_capacity, capacity,
            sizeof(*loaded->parts)))
        return fail(loader, KVG_ENOMEM, "out of memory for the dump's suffixes");
    loaded->parts = memory;
    loaded->part_capacity = capacity;
    return KVG_OK;
}

static kvg_err load_suffix(struct loader *loader, struct loaded_space *loaded)
{
    struct kvg_presence *index = loader->index;
    struct kvg_str suffix = dump_get_str(&loader->block, dump_get(&loader->block, 1));
    uint32_t part = PART_REFUSED;
    kvg_err err;

    if (loader->block.failed || suffix.bytes < 2 ||
        suffix.bytes > KVG_LAYOUT_SUFFIX_BYTES_MAX || suffix.data[0] != '_')
        return fail(loader, KVG_EFORMAT, "a suffix in the dump is out of range");
    err = grow_parts(loader, loaded);
    if (err != KVG_OK)
        return err;
    if (loaded->space != NULL) {
        err = kvi_names_add(&loaded->space->suffixes, suffix, &part);
        if (err != KVG_OK) {
            part = PART_REFUSED;
            kvi_presence_count_refusal(index, &index->counters.refused_suffixes, err);
        }
    }
    loaded->is_same &= part == loaded->part_count;
    loaded->parts[loaded->part_count++] = (uint16_t)part;
    return KVG_OK;
}

static kvg_err load_suffixes(struct loader *loader)
{
    struct dump_buffer *block = &loader->block;
    uint64_t space = dump_get(block, 2);
    uint64_t first = dump_get(block, 2);
    uint64_t count = dump_get(block, 2);
    struct loaded_space *loaded;
    kvg_err err = KVG_OK;

    if (block->failed || space >= loader->space_count ||
        first != loader->spaces[space].part_count ||
        first + count > KVG_PRESENCE_SUFFIXES_MAX)
        return fail(loader, KVG_EFORMAT, "suffixes in the dump are out of order");
    loaded = &loader->spaces[space];
    while (count-- > 0 && err == KVG_OK)
        err = load_suffix(loader, loaded);
    return err;
}

/* Whether no part of a group from `first` on is beyond the suffixes that were named. */
static bool has_suffixes(
    const struct loaded_space *loaded, uint32_t first, struct kvi_group group)
{
    uint64_t bits = group.cpu | group.disk;

    if (first >= loaded->part_count)
        return bits == 0;
    return loaded->part_count - first >= 64 || bits >> (loaded->part_count - first) == 0;
}

static struct kvi_group get_group(struct dump_buffer *block, uint32_t group_count)
{
    size_t bytes = group_count == 0 ? 2 : 8;
    uint64_t cpu = dump_get(block, bytes);

    return (struct kvi_group){cpu, dump_get(block, bytes)};
}

static kvg_err read_page(struct loader *loader, struct read_page *out)
{
    struct dump_buffer *block = &loader->block;
    uint64_t space = dump_get(block, 2);
    struct kvg_str key_bytes = dump_get_str(block, loader->key_bytes);
    uint32_t heat = (uint32_t)dump_get(block, 4);
    uint32_t group_count = (uint32_t)dump_get(block, 1);
    uint32_t now = atomic_load_explicit(&loader->index->now, memory_order_relaxed);
    uint32_t stamp = (now - (heat >> HEAT_DEPTH_BITS)) & HEAT_STAMP_MASK;
    uint32_t i;

    if (block->failed || space >= loader->space_count || group_count > DUMP_GROUPS_MAX)
        return fail(loader, KVG_EFORMAT, "a page in the dump is out of range");
    *out = (struct read_page){.loaded = &loader->spaces[space],
        .heat = stamp << HEAT_DEPTH_BITS | (heat & HEAT_DEPTH_MAX),
        .group_count = group_count,
        .groups_at = block->at};
    if (out->loaded->space != NULL) {
        const struct kvg_key *key = (const struct kvg_key *)(const void *)key_bytes.data;

        out->page = kvi_make_page(key, out->loaded->space);
        if (loader->key_bytes == 16)
            out->page.tail = NULL;
    }
    for (i = 0; i < (group_count == 0 ? 1 : group_count); i++)
        if (!has_suffixes(out->loaded, i * 64, get_group(block, group_count)))
            return fail(loader, KVG_EFORMAT, "a part in the dump has no suffix");
    if (block->failed)
        return fail(loader, KVG_EFORMAT, "a page in the dump is cut short");
    return KVG_OK;
}

/* Sorts the parts of a group of the dump into groups by our numbers. */
static void translate(const struct loaded_space *loaded, uint32_t first, uint64_t word,
    struct kvi_group *groups, bool is_disk, uint32_t *group_count)
{
    while (word != 0) {
        uint32_t part = loaded->parts[first + (uint32_t)__builtin_ctzll(word)];
        uint64_t bit = UINT64_C(1) << part % 64;

        word &= word - 1;
        if (part == PART_REFUSED)
            continue;
        *(is_disk ? &groups[part / 64].disk : &groups[part / 64].cpu) |= bit;
        if (part / 64 + 1 > *group_count)
            *group_count = part / 64 + 1;
    }
}

static void merge_page(struct loader *loader, const struct read_page *read)
{
    struct kvg_presence *index = loader->index;
    struct kvi_group groups[DUMP_GROUPS_MAX];
    uint32_t given = read->group_count == 0 ? 1 : read->group_count;
    uint32_t group_count = 0;
    uint32_t i;
    kvg_err err;

    if (!read->loaded->is_same)
        memset(groups, 0, sizeof(groups));
    loader->block.at = read->groups_at;
    for (i = 0; i < given; i++) {
        struct kvi_group group = get_group(&loader->block, read->group_count);

        if (read->loaded->is_same) {
            groups[i] = group;
            group_count = (group.cpu | group.disk) != 0 ? i + 1 : group_count;
        } else {
            translate(read->loaded, i * 64, group.cpu, groups, false, &group_count);
            translate(read->loaded, i * 64, group.disk, groups, true, &group_count);
        }
    }
    if (group_count == 0)
        return;
    err = kvi_presence_merge(index, &read->page, groups, group_count, read->heat);
    if (err != KVG_OK)
        kvi_presence_count_refusal(index, &index->counters.refused_memory, err);
}

/* Sizes the table by what the header announced and by the records that these pages take. */
static void give_size(struct loader *loader)
{
    uint64_t record_bytes = 0;
    uint32_t i;

    for (i = 0; i < loader->read_count; i++)
        if (loader->read_pages[i].group_count != 0)
            record_bytes += kvi_presence_record_bytes(loader->read_pages[i].group_count);
    kvi_presence_segment_reserve(
        loader->index, loader->pages_expected, record_bytes / loader->read_count);
    loader->has_size = true;
}

static kvg_err load_pages(struct loader *loader)
{
    struct dump_buffer *block = &loader->block;
    struct kvg_presence *index = loader->index;
    uint32_t ahead = 0;
    uint32_t i;

    loader->read_count = 0;
    while (block->at < block->end) {
        kvg_err err = read_page(loader, &loader->read_pages[loader->read_count]);

        if (err != KVG_OK)
            return err;
        loader->read_count++;
    }
    if (!loader->has_size && loader->read_count != 0)
        give_size(loader);
    for (i = 0; i < loader->read_count; i++) {
        for (; ahead < loader->read_count && ahead <= i + PAGES_AHEAD; ahead++)
            kvi_presence_table_prefetch(index, loader->read_pages[ahead].page.head);
        if (loader->read_pages[i].loaded->space != NULL)
            merge_page(loader, &loader->read_pages[i]);
    }
    loader->pages += loader->read_count;
    block->at = block->end;
    return KVG_OK;
}

static kvg_err load_end(struct loader *loader)
{
    uint64_t pages = dump_get(&loader->block, 8);

    loader->ended = true;
    if (loader->block.failed || pages != loader->pages)
        return fail(loader, KVG_EFORMAT, "the dump's count of pages is wrong");
    return KVG_OK;
}

static kvg_err load_payload(struct loader *loader, uint64_t kind)
{
    struct dump_buffer *block = &loader->block;
    kvg_err err = KVG_OK;

    switch (kind) {
    case DUMP_SPACE:
        err = load_space(loader);
        break;
    case DUMP_SUFFIXES:
        err = load_suffixes(loader);
        break;
    case DUMP_PAGES:
        err = load_pages(loader);
        break;
    case DUMP_END:
        err = load_end(loader);
        break;
    default:
        return fail(loader, KVG_EFORMAT, "a block in the dump is of no known kind");
    }
    if (err == KVG_OK && block->at != block->end)
        err = fail(loader, KVG_EFORMAT, "a block in the dump is too long");
    return err;
}

static kvg_err load_block(struct loader *loader)
{
    struct dump_buffer *block = &loader->block;
    uint64_t kind;
    uint64_t bytes;
    kvg_err err;

    block->at = DUMP_CHECKSUM_BYTES;
    block->end = DUMP_CHECKSUM_BYTES;
    block->failed = false;
    err = read_bytes(loader, 8);
    if (err != KVG_OK)
        return err;
    kind = dump_get(block, 4);
    bytes = dump_get(block, 4);
    if (bytes > DUMP_PAYLOAD_MAX)
        return fail(loader, KVG_EFORMAT, "a block in the dump is longer than 4096 bytes");
    err = read_bytes(loader, bytes);
    if (err == KVG_OK)
        err = check_checksum(loader);
    return err == KVG_OK ? load_payload(loader, kind) : err;
}

kvg_err kvg_presence_load(struct kvg_presence *index,
    bool (*read)(void *context, void *bytes, size_t byte_max, size_t *got), void *context,
    struct kvg_error *error)
{
    struct read_page read_pages[BLOCK_PAGES_MAX];
    struct loader loader = {.index = index,
        .read = read,
        .context = context,
        .error = error,
        .read_pages = read_pages};
    kvg_err err = load_header(&loader);
    uint32_t i;

    while (err == KVG_OK && !loader.ended)
        err = load_block(&loader);
    index->table_is_fixed = false;
    for (i = 0; i < loader.space_count; i++)
        kvi_release_array(&index->alloc, loader.spaces[i].parts,
            loader.spaces[i].part_capacity, sizeof(*loader.spaces[i].parts));
    kvi_release_array(
        &index->alloc, loader.spaces, loader.space_capacity, sizeof(*loader.spaces));
    return err;
}
