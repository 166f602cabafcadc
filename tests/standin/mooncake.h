/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* What a test may do to the stand-in for Mooncake's C library, beside calling it.
 *
 * The stand-in is a shared object with the nineteen functions of the real one, loaded at run
 * time like it.  All handles of a process reach one store in the memory of that process.  Its
 * clock is its own: leases end when a test moves it.  Find these functions with dlsym().
 *
 * Threads: any. */
#ifndef KVT_STANDIN_MOONCAKE_H
#define KVT_STANDIN_MOONCAKE_H

#include <stdint.h>

struct standin_stats {
    uint64_t objects, bytes;
    uint64_t exist_calls, exist_keys; /* Calls, and keys asked for in them. */
    uint64_t leases;                  /* Given or renewed. */
    uint64_t put_calls, put_keys, get_calls, get_keys;
    uint64_t evicted;
    uint64_t registered, handles; /* Buffers and handles that live. */
};

/* Everything as at the start; handles stay good. */
void standin_reset(void);
/* Bytes the store holds; a put beyond that evicts what has no lease, or fails with -200. */
void standin_capacity(uint64_t bytes);
/* The time that reads and existence checks protect an object for; the real one takes 10,000. */
void standin_lease_ms(uint64_t lease_ms);
void standin_advance_ms(uint64_t ms);
/* Every read takes so long on the stand-in's clock: longer than the lease, and it is lost. */
void standin_read_takes_ms(uint64_t ms);
/* The owner of the memory died: keys exist, and reads fail with -800. */
void standin_owner_dead(int dead);
/* The next so many puts fail with -200 although there is room. */
void standin_full_for(uint64_t puts);
/* After so many more puts, each one fails with -200. */
void standin_full_after(uint64_t puts);
/* The next so many puts find an unfinished one in the way: -705, and the key does not exist. */
void standin_unfinished(uint64_t puts);
/* setup() fails with this code; 0: it does not. */
void standin_refuse_setup(int code);
void standin_stats(struct standin_stats *out);

#endif
