/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* fuzz_store_journal.c -- a journal with records that no sound writer would make, under checksums
 * that are right: the store opens, or says why not, and what it then holds is sound.
 *
 * Input: records, each a byte for the kind, a byte for the payload's words, and the payload; a kind
 * of 200 and more puts the rest into the file as it is, without a checksum. */
#include "backend/file.h"
#include "store/disk.h"
#include "store/kit.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static struct disk D;

static void demand(bool good)
{
    if (!good)
        abort();
}

static struct kvg_store *open_fuzzed(void)
{
    struct kvg_store_options options = {
        .struct_bytes = sizeof(options), .registry = disk_registry(&D), .seed = 5};
    struct kvg_store *store = NULL;
    struct kvg_error error;

    if (kvg_store_open("file:d?floor=0&segment=40960&bytes=200000", &options, &store,
            &error) != KVG_OK)
        demand(store == NULL && error.message[0] != '\0');
    return store;
}

static void append_raw(const void *data, size_t bytes)
{
    struct disk_file *file = disk_find(&D, "journal");
    int fd = D.io.open(D.io.context, "d/journal", 0);
    struct iovec vector = {(void *)(uintptr_t)data, bytes};

    demand(D.io.writev(D.io.context, fd, &vector, 1, file->now.bytes) == (ssize_t)bytes);
    D.io.close(D.io.context, fd);
}

static void append_records(const uint8_t *data, size_t bytes)
{
    struct file_records records;

    while (bytes >= 2 && data[0] < 200) {
        size_t payload = (size_t)data[1] * 8;
        struct disk_file *file = disk_find(&D, "journal");
        size_t i;

        if (payload > bytes - 2)
            payload = bytes - 2;
        kvi_file_records_init(&records, kvg_alloc_default());
        kvi_file_record_begin(&records, (enum file_kind)(data[0] % 11));
        for (i = 0; i + 4 <= payload; i += 4) {
            uint32_t word;

            memcpy(&word, data + 2 + i, 4);
            kvi_file_record_u32(&records, word);
        }
        kvi_file_record_end(&records);
        kvi_file_records_seal(&records, 1, file->now.bytes);
        append_raw(records.data, records.bytes);
        kvi_file_records_fini(&records);
        data += 2 + payload;
        bytes -= 2 + payload;
    }
    if (bytes > 1)
        append_raw(data + 1, bytes - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvg_store_report report = {.struct_bytes = sizeof(report)};
    struct kvg_store *store;
    int round;

    disk_init(&D, 1);
    store = open_fuzzed();
    demand(store != NULL && kit_put(store, "a", 2, 5000, NULL) == KVG_OK);
    kvg_store_close(store);
    append_records(data, bytes);
    for (round = 0; round < 2; round++) {
        store = open_fuzzed();
        if (store == NULL)
            break;
        demand(kvg_store_check(store, true, NULL, NULL, &report, NULL) == KVG_OK);
        kit_put(store, "b", 2, 5000, "a");
        kit_put(store, "c", 3, 9000, "b");
        demand(kvg_store_check(store, true, NULL, NULL, &report, NULL) == KVG_OK);
        kvg_store_close(store);
    }
    disk_fini(&D);
    return 0;
}
