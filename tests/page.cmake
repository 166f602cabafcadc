# kvgraft_test(test_page SOURCES unit/test_page.c)
