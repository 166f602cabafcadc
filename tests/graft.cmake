kvgraft_test(test_linker_seed SOURCES unit/test_linker_seed.c support/linker_kit.c
  support/mem_transport.c)
kvgraft_test(test_engine SOURCES unit/test_engine.c support/mem_transport.c)
kvgraft_test(test_engine_requests SOURCES unit/test_engine_requests.c support/linker_kit.c
  support/mem_transport.c)
kvgraft_test(test_ranks SOURCES unit/test_ranks.c support/mem_transport.c)
kvgraft_test(test_linker_contract SOURCES unit/test_linker_contract.c support/linker_kit.c
  support/mem_transport.c)
kvgraft_test(test_tree_suite SOURCES unit/test_tree_suite.c support/tree_kit.c)
kvgraft_test(test_field_reports SOURCES unit/test_field_reports.c support/tree_kit.c
  support/mem_transport.c)
kvgraft_test(test_linker_loads SOURCES unit/test_linker_loads.c support/linker_kit.c
  support/mem_transport.c)

# Four engines, a store, a network: few seeds at each commit, more in CI, many by hand; each seed
# does the same again; and each planted mistake must be caught.
set(KVGRAFT_SIM_ENGINES sim/sim_engines.c sim/sim_network.c sim/sim_truth.c
  support/mem_transport.c)
kvgraft_test(sim_engines SOURCES ${KVGRAFT_SIM_ENGINES} ARGS 1 10)
add_test(NAME sim_engines_twice COMMAND sim_engines --twice 20)
set_tests_properties(sim_engines_twice PROPERTIES LABELS full TIMEOUT 600)
add_test(NAME sim_engines_full COMMAND sim_engines 1 300)
set_tests_properties(sim_engines_full PROPERTIES LABELS full TIMEOUT 600)
add_test(NAME sim_engines_long COMMAND sim_engines 1 10000 4000)
set_tests_properties(sim_engines_long PROPERTIES LABELS long TIMEOUT 7200)
set(KVGRAFT_GRAFT_SOURCES)
foreach(name agree cache complete engine engine_audit linker lookup memory offload publish request
    restore retention rids room transfer)
  list(APPEND KVGRAFT_GRAFT_SOURCES ${PROJECT_SOURCE_DIR}/src/graft/${name}.c)
endforeach()
foreach(plant RANGE 1 11)
  kvgraft_test(sim_plant_${plant} SOURCES ${KVGRAFT_SIM_ENGINES} ${KVGRAFT_GRAFT_SOURCES}
    ARGS --must-fail 200 LABELS full)
  target_compile_definitions(sim_plant_${plant} PRIVATE KVI_GRAFT_PLANT=${plant} KVG_BUILDING)
endforeach()
