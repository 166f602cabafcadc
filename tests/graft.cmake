kvgraft_test(test_linker_seed SOURCES unit/test_linker_seed.c support/linker_kit.c
  support/mem_transport.c)
kvgraft_test(test_linker_loads SOURCES unit/test_linker_loads.c support/linker_kit.c
  support/mem_transport.c)
