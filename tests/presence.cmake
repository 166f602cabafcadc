# kvgraft_test(test_presence SOURCES unit/test_presence.c)
