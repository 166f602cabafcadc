# kvgraft_test(test_e2e SOURCES unit/test_e2e.c)
