kvgraft_test(test_tree_examples SOURCES unit/test_tree_examples.c support/tree_kit.c)
kvgraft_test(test_tree_evict SOURCES unit/test_tree_evict.c support/tree_kit.c)
kvgraft_test(prop_tree SOURCES property/prop_tree.c support/tree_model.c support/tree_world.c)
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND AND CMAKE_GENERATOR STREQUAL "Ninja")
  add_test(NAME tree_mutants COMMAND Python3::Interpreter
    ${CMAKE_CURRENT_SOURCE_DIR}/mutants/run.py ${CMAKE_CURRENT_SOURCE_DIR}/mutants/tree.txt
    ${CMAKE_BINARY_DIR} prop_tree test_tree_examples test_tree_evict)
  set_tests_properties(tree_mutants PROPERTIES LABELS full TIMEOUT 600)
endif()
kvgraft_test(test_tree_oom SOURCES unit/test_tree_oom.c)
kvgraft_fuzz(fuzz_tree SOURCES fuzz/fuzz_tree.c support/tree_model.c support/tree_world.c CORPUS tree)
kvgraft_test(test_tree_host SOURCES unit/test_tree_host.c support/tree_kit.c)
kvgraft_test(test_tree_events SOURCES unit/test_tree_events.c support/tree_kit.c)
