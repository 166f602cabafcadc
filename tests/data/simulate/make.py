#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""Makes small.jsonl: 400 requests of growing conversations, of the FAST'25 form, from one seed."""
import json
import os
import random

BLOCK = 512

rng = random.Random(20)
names = {}


def ids_of(blocks):
    """A block's id names it and all before it; ids are given out in order of appearance."""
    return [names.setdefault(tuple(blocks[:i + 1]), len(names)) for i in range(len(blocks))]


talks = []
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "small.jsonl"), "w",
          encoding="ascii") as file:
    for i in range(400):
        if len(talks) < 12 or rng.random() < 0.25:
            talks.append([("system",), ("tool", rng.randrange(3))])
        talk = rng.choice(talks[-16:])
        talk += [("said", i, j) for j in range(rng.choice([0, 1, 1, 2, 3, 5, 8]))]
        tail = rng.randrange(1, BLOCK + 1)
        blocks = talk + [("tail", i)]
        json.dump({"timestamp": i * 250, "input_length": (len(blocks) - 1) * BLOCK + tail,
                   "output_length": rng.randrange(1, 400), "hash_ids": ids_of(blocks)}, file)
        file.write("\n")
