/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Writes the corpora of fuzz_event, fuzz_msgpack and fuzz_kvcap into the folder it is given:
 * one payload of every form, small recorded ones, and short captures. */
#include "capture.h"
#include "event_samples.h"
#include "test.h"

#include <kvgraft/event.h>

static void write_file(
    const char *folder, const char *name, int number, int first, struct kvg_str bytes)
{
    char path[1024];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s%02d", folder, name, number);
    file = fopen(path, "wb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    if (first >= 0)
        fputc(first, file);
    fwrite(bytes.data, 1, bytes.bytes, file);
    fclose(file);
}

static void write_forms(const char *event_folder, const char *msgpack_folder)
{
    int i;

    for (i = 0; i < SAMPLE_FORM_COUNT; i++) {
        struct kvi_mp_buffer buffer;
        struct kvg_str bytes;

        kvi_mp_buffer_init(&buffer, kvg_alloc_default());
        sample_json(&buffer, SAMPLE_FORMS[i]);
        bytes = (struct kvg_str){(const char *)buffer.data, buffer.bytes};
        write_file(event_folder, "form", i, 0, bytes);
        write_file(event_folder, "limits", i, i + 1, bytes);
        write_file(msgpack_folder, "form", i, -1, bytes);
        kvi_mp_buffer_fini(&buffer);
    }
}

/* The smallest payload of each recorded stream, and the beginning of each. */
static void write_recorded(const char *event_folder, const char *kvcap_folder)
{
    int i;

    for (i = 0; i < CAPTURE_COUNT; i++) {
        struct kvg_str capture = test_data_read(CAPTURE_NAMES[i], "kvcap");
        struct kvg_str smallest = {NULL, SIZE_MAX};
        struct kvg_kvcap_reader reader;
        struct kvg_kvcap_message message;
        struct kvg_frames frames;

        if (kvg_kvcap_reader_init(&reader, capture, NULL) != KVG_OK)
            exit(1);
        while (kvg_kvcap_read(&reader, NULL, &message) == KVG_OK) {
            if (kvg_frames_parse(message.frames, message.frame_count, NULL, &frames) ==
                    KVG_OK &&
                frames.payload.bytes < smallest.bytes)
                smallest = frames.payload;
        }
        write_file(event_folder, "recorded", i, 0, smallest);
        write_file(kvcap_folder, "recorded", i, i * 5,
            (struct kvg_str){capture.data, 500u + (size_t)i * 331u});
        free((void *)(uintptr_t)capture.data);
    }
}

int main(int argc, char **argv)
{
    static const struct kvg_str VALUES[] = {{"\xc7\x03\x05"
                                             "abc",
                                                6},
        {"\xd8\xff"
         "0123456789abcdef",
            18},
        {"\xca\x7f\xc0\0\0", 5}, {"\xdc\0\3\1\xd0\x80\xd3\x80\0\0\0\0\0\0\0", 15},
        {"\x91\xdf\xff\xff\xff\xff", 6}, {"\xc6\0\0\0\2ab", 7},
        {"\x91\x91\x91\x91\xc1", 5}};
    static const struct kvg_str EMPTY[] = {{"KVCAP01\n", 8},
        {"KVCAP01\n\0\0\0\0\0\0\0\0\0\0\0\0", 20}, {"KVCAP02\n", 8},
        {"KVCAP01\n\0\0\0\0\0\0\0\0\x11\0\0\0", 20},
        {"KVCAP01\n\0\0\0\0\0\0\0\0\x01\0\0\0\xff\xff\xff\xff", 24}};
    char folders[3][900];
    int i;

    if (argc != 2) {
        fprintf(stderr, "usage: %s tests/fuzz/corpus\n", argv[0]);
        return 2;
    }
    snprintf(folders[0], sizeof(folders[0]), "%s/event", argv[1]);
    snprintf(folders[1], sizeof(folders[1]), "%s/msgpack", argv[1]);
    snprintf(folders[2], sizeof(folders[2]), "%s/kvcap", argv[1]);
    write_forms(folders[0], folders[1]);
    write_recorded(folders[0], folders[2]);
    for (i = 0; i < (int)(sizeof(VALUES) / sizeof(VALUES[0])); i++)
        write_file(folders[1], "value", i, -1, VALUES[i]);
    for (i = 0; i < (int)(sizeof(EMPTY) / sizeof(EMPTY[0])); i++)
        write_file(folders[2], "short", i, i, EMPTY[i]);
    return 0;
}
