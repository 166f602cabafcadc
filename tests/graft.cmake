# kvgraft_test(test_graft SOURCES unit/test_graft.c)
