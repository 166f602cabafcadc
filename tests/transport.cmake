set(KVGRAFT_MOVER_KIT support/mover_kit.c support/gate_store.c)
kvgraft_test(test_transport SOURCES unit/test_transport.c ${KVGRAFT_MOVER_KIT})
kvgraft_test(test_engines_store SOURCES unit/test_engines_store.c ${KVGRAFT_MOVER_KIT})
kvgraft_mutants(transport_mutants LIST transport.txt PROGRAMS test_transport)
