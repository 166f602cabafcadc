kvgraft_test(test_presence SOURCES unit/test_presence.c)
kvgraft_test(test_presence_dump SOURCES unit/test_presence_dump.c)
kvgraft_test(prop_presence SOURCES property/prop_presence.c)
kvgraft_fuzz(fuzz_presence_load SOURCES fuzz/fuzz_presence_load.c CORPUS presence_load)
