kvgraft_test(test_linker_seed SOURCES unit/test_linker_seed.c support/mem_transport.c)
