kvgraft_test(test_tree_examples SOURCES unit/test_tree_examples.c support/tree_kit.c)
kvgraft_test(test_tree_evict SOURCES unit/test_tree_evict.c support/tree_kit.c)
