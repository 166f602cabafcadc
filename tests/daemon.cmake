# kvgraft_test(test_daemon SOURCES unit/test_daemon.c)
