/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Configuration text, workers and the admin port's answers: anything may be in them. */
#include "daemon/admin.h"
#include "daemon/advertised.h"
#include "daemon/config_table.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void read_config(struct kvg_str text)
{
    struct kvd_config *config = malloc(sizeof(*config));
    struct kvg_error error = {.code = KVG_OK};

    if (config == NULL)
        return;
    kvd_config_init(config);
    if (kvd_config_parse(config, text, &error) != KVG_OK && error.message[0] == '\0')
        abort();
    config->http_token_file[0] = '\0';
    if (kvd_config_finish(config, &error) == KVG_OK &&
        config->source_count > KVD_SOURCES_MAX)
        abort();
    kvd_config_fini(config);
    free(config);
}

static void read_workers(struct kvg_str text)
{
    struct kvg_workers *workers;
    struct kvg_error error = {.code = KVG_OK};

    if (kvg_workers_new(kvg_alloc_default(), &workers) != KVG_OK)
        return;
    if (kvd_advertised_read(workers, text, &error) != KVG_OK && error.message[0] == '\0')
        abort();
    kvg_workers_free(workers);
}

static void read_answers(struct kvg_str text)
{
    struct kvd_admin_count count;
    struct kvg_source_status status;

    kvd_admin_count_init(&count);
    kvd_admin_count_feed(&count, text);
    if (kvd_admin_count_end(&count, NULL) == KVG_OK && !count.found)
        abort();
    if (kvd_admin_status(text, NULL, &status) != KVG_OK && status.enabled)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvg_str text = {(const char *)data + 1, bytes - 1};

    if (bytes < 1)
        return 0;
    switch (data[0] % 3) {
    case 0:
        read_config(text);
        break;
    case 1:
        read_workers(text);
        break;
    default:
        read_answers(text);
        break;
    }
    return 0;
}
