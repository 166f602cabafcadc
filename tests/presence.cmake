kvgraft_test(test_presence SOURCES unit/test_presence.c)
kvgraft_test(prop_presence SOURCES property/prop_presence.c)
