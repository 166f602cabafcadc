# kvgraft_test(test_layout SOURCES unit/test_layout.c)
