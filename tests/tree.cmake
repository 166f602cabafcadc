# kvgraft_test(test_tree SOURCES unit/test_tree.c)
