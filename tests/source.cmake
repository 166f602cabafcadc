# kvgraft_test(test_source SOURCES unit/test_source.c)
