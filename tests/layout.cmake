kvgraft_test(test_layout SOURCES unit/test_layout.c)
kvgraft_fuzz(fuzz_object_key SOURCES fuzz/fuzz_object_key.c CORPUS object_key)
