/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Fuzzes the readers of capacities and policies: what they take is within the limits, and what
 * they do not take is explained. */
#include "cli/simulate.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(bool good)
{
    if (!good)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvc_sim_capacities capacities;
    struct kvc_sim_policies policies;
    char *text = malloc(bytes + 1);
    char item[KVC_NUMBER_BYTES];
    char why[256] = "";
    size_t i;

    if (text == NULL)
        return 0;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (kvc_sim_capacities_parse(text, &capacities, why, sizeof(why))) {
        check(capacities.count > 0 && capacities.count <= KVC_SIM_CAPACITIES_MAX);
        for (i = 0; i < capacities.count; i++) {
            const struct kvc_sim_capacity *capacity = &capacities.items[i];

            check(capacity->amount > 0 || capacity->unit == KVC_SIM_UNLIMITED);
            check(strlen(kvc_sim_capacity_text(capacity, item)) > 0);
        }
    } else {
        check(why[0] != '\0');
    }
    why[0] = '\0';
    if (kvc_sim_policies_parse(text, &policies, why, sizeof(why)))
        check(policies.count > 0 && policies.count <= KVG_POLICY_COUNT);
    else
        check(why[0] != '\0');
    free(text);
    return 0;
}
