kvgraft_test(test_workers SOURCES unit/test_workers.c)
kvgraft_test(test_source SOURCES unit/test_source.c support/source_rig.c)
kvgraft_test(test_source_repair
  SOURCES unit/test_source_repair.c support/source_rig.c)
kvgraft_test(sim_source
  SOURCES sim/sim_source.c support/sim_store.c support/source_rig.c)
kvgraft_test(test_source_captures
  SOURCES unit/test_source_captures.c support/source_rig.c support/capture.c)
