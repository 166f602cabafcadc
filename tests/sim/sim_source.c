/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Simulations of a source and a store from one seed: whatever goes wrong, the index is never
 * called fresh while it is wrong for a reason that could be known, and it becomes fresh, and
 * right, once things have calmed down.
 *
 *     sim_source            the seeds of the quick tier
 *     sim_source N          N seeds more, from the one in KVG_SEED or from 1000
 *     sim_source seed S     seed S only
 */
#include "test.h"

#include "sim_store.h"

#define STEPS 250u
#define CALM_MS 200000u

static const struct sim_faults NONE = {0};
static const struct sim_faults SOME = {.loss = 10,
    .duplicate = 20,
    .repeat = 20,
    .drop = 10,
    .silent = 5,
    .restart = 3,
    .disconnect = 5,
    .garbage = 3,
    .clear = 2,
    .ask_fails = 20,
    .outage = 2};

static unsigned seeds_quick = 15;
static uint64_t first_seed = 1;
static uint64_t fresh_checks;

/* Every seed its own mixture: each fault may be absent, usual, or frequent. */
static struct sim_faults mixture(uint64_t seed)
{
    struct kvi_rng rng = {.state = seed * 77};
    struct sim_faults faults = SOME;
    uint32_t *each = (uint32_t *)&faults;
    size_t i;

    for (i = 0; i < sizeof(faults) / sizeof(*each); i++) {
        uint64_t how = kvi_rng_below(&rng, 4);

        each[i] = how < 2 ? 0 : how == 2 ? each[i] : each[i] * 8;
    }
    return faults;
}

static void report(struct sim *sim, uint64_t seed, unsigned step)
{
    fail_msg("seed %llu, step %u: %s", (unsigned long long)seed, step, sim->failure);
}

enum publisher {
    MASTER,
    EXACT, /* It says its epoch. */
    EXACT_WITH_REPLAY
};

static void simulate(uint64_t seed, const struct sim_faults *faults, bool has_admin,
    enum publisher publisher)
{
    struct sim *sim = malloc(sizeof(*sim));
    uint64_t begun_ms;
    unsigned step;

    CHECK(sim != NULL);
    if (publisher == MASTER)
        sim_init(sim, seed, faults, has_admin);
    else
        sim_init_exact(sim, seed, faults, has_admin, publisher == EXACT_WITH_REPLAY);
    begun_ms = sim->rig.now_ms;
    if (seed % 4 != 0 && !sim_run(sim, 10)) /* Else it joins a running stream. */
        report(sim, seed, 0);
    for (step = 0; step < STEPS; step++) {
        sim_operate(sim);
        if (!sim_run(sim, kvi_rng_below(&sim->rng, 20) == 0
                              ? kvi_rng_below(&sim->rng, 20000)
                              : kvi_rng_below(&sim->rng, 120)))
            report(sim, seed, step);
    }
    sim_calm(sim);
    if (!sim_run(sim, CALM_MS))
        report(sim, seed, step);
    if (has_admin) {
        if (rig_confidence(&sim->rig) != KVG_CONFIDENCE_FRESH)
            fail_msg("seed %llu: not fresh again, reasons %x", (unsigned long long)seed,
                rig_reasons(&sim->rig));
        if (!sim_index_is_right(sim, false))
            fail_msg("seed %llu: fresh again, and wrong", (unsigned long long)seed);
    }
    /* Statuses each 100 ms at the most, listings each 250. */
    if (getenv("KVG_VERBOSE") != NULL && publisher != MASTER) {
        struct kvg_source_stats stats = rig_stats(&sim->rig);

        printf("exact: %llu replays (%llu failed), %llu replayed, %llu exact listings\n",
            (unsigned long long)stats.replays, (unsigned long long)stats.replays_failed,
            (unsigned long long)stats.replayed_messages,
            (unsigned long long)stats.listings_exact);
    }
    if (sim->actions > 100 + (sim->rig.now_ms - begun_ms) / 50)
        fail_msg("seed %llu: %llu actions", (unsigned long long)seed,
            (unsigned long long)sim->actions);
    if (sim->listings_asked > 5 + (sim->rig.now_ms - begun_ms) / 250)
        fail_msg("seed %llu: %llu listings", (unsigned long long)seed,
            (unsigned long long)sim->listings_asked);
    fresh_checks += sim->fresh_checks;
    if (getenv("KVG_VERBOSE") != NULL) {
        struct kvg_source_stats stats = rig_stats(&sim->rig);

        printf("seed %llu: %llu checks, %llu gaps, %llu restarts, %llu duplicates, %llu "
               "late, "
               "%llu listings (%llu broken, %llu failed), %llu drifts, %llu actions\n",
            (unsigned long long)seed, (unsigned long long)sim->fresh_checks,
            (unsigned long long)stats.gaps, (unsigned long long)stats.restarts,
            (unsigned long long)stats.duplicates, (unsigned long long)stats.late_messages,
            (unsigned long long)stats.listings, (unsigned long long)stats.listings_broken,
            (unsigned long long)stats.listings_failed, (unsigned long long)stats.drifts,
            (unsigned long long)sim->actions);
    }
    sim_end(sim);
    free(sim);
}

TEST(without_faults_it_is_fresh_and_right_all_the_time)
{
    struct sim *sim = malloc(sizeof(*sim));
    unsigned step;

    CHECK(sim != NULL);
    sim_init(sim, 7, &NONE, true);
    if (!sim_run(sim, 1000))
        report(sim, 7, 0);
    for (step = 0; step < 400; step++) {
        CHECK_EQ(rig_confidence(&sim->rig), KVG_CONFIDENCE_FRESH);
        sim_operate(sim);
        if (!sim_run(sim, kvi_rng_below(&sim->rng, 100)))
            report(sim, 7, step);
    }
    CHECK(sim->fresh_checks > 300);
    CHECK_EQ(rig_stats(&sim->rig).gaps, 0);
    CHECK_EQ(rig_stats(&sim->rig).drifts, 0);
    sim_end(sim);
    free(sim);
}

TEST(fresh_is_never_wrong_and_always_comes_back)
{
    uint64_t seed;

    for (seed = first_seed; seed < first_seed + seeds_quick; seed++) {
        struct sim_faults faults = mixture(seed);

        simulate(seed, &faults, true, MASTER);
    }
    CHECK(fresh_checks > 0);
}

TEST(without_an_admin_port_fresh_is_never_wrong)
{
    uint64_t seed;

    for (seed = first_seed; seed < first_seed + seeds_quick; seed++) {
        struct sim_faults faults = mixture(seed);

        faults.silent = 0;
        simulate(seed, &faults, false, MASTER);
    }
}

TEST(with_an_epoch_fresh_is_the_store_after_exactly_that_message)
{
    uint64_t seed;

    for (seed = first_seed; seed < first_seed + (seeds_quick + 1) / 2; seed++) {
        struct sim_faults faults = mixture(seed);

        simulate(seed, &faults, true, EXACT);
        simulate(seed, &faults, true, EXACT_WITH_REPLAY);
        simulate(seed, &faults, false, EXACT_WITH_REPLAY);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        RUN(without_faults_it_is_fresh_and_right_all_the_time),
        RUN(fresh_is_never_wrong_and_always_comes_back),
        RUN(without_an_admin_port_fresh_is_never_wrong),
        RUN(with_an_epoch_fresh_is_the_store_after_exactly_that_message)};
    const char *seed = getenv("KVG_SEED");

    if (argc == 2) {
        seeds_quick = (unsigned)strtoul(argv[1], NULL, 10);
        first_seed = seed == NULL ? 1000 : strtoull(seed, NULL, 10);
    } else if (argc == 3) {
        seeds_quick = 1;
        first_seed = strtoull(argv[2], NULL, 10);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
