kvgraft_test(test_tree_examples SOURCES unit/test_tree_examples.c support/tree_kit.c)
