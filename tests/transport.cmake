set(KVGRAFT_MOVER_KIT support/mover_kit.c support/gate_store.c)
kvgraft_test(test_transport SOURCES unit/test_transport.c ${KVGRAFT_MOVER_KIT})
