kvgraft_test(test_arena SOURCES unit/test_arena.c)
kvgraft_mutants(host_mutants LIST host.txt PROGRAMS test_arena)
