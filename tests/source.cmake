kvgraft_test(test_workers SOURCES unit/test_workers.c)
