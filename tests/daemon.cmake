if(KVGRAFT_DAEMON)
  kvgraft_test(test_loop SOURCES unit/test_loop.c LIBRARIES kvgraft_net)
  kvgraft_test(test_http_response SOURCES unit/test_http_response.c LIBRARIES kvgraft_net)
  kvgraft_test(test_net SOURCES unit/test_net.c LIBRARIES kvgraft_net)
  kvgraft_test(test_config SOURCES unit/test_config.c LIBRARIES kvgraft_daemon)
  kvgraft_test(test_scan SOURCES unit/test_scan.c LIBRARIES kvgraft_daemon)

  kvgraft_test(test_hot SOURCES unit/test_hot.c LIBRARIES kvgraft_daemon)
  kvgraft_test(test_pulse SOURCES unit/test_pulse.c LIBRARIES kvgraft_daemon)
  kvgraft_mutants(page_data_mutants LIST hot.txt PROGRAMS test_hot test_pulse)

  kvgraft_test(test_daemon SOURCES unit/test_daemon.c support/rig.c
    LIBRARIES kvgraft_daemon)
  set_tests_properties(test_daemon test_net PROPERTIES ENVIRONMENT
    "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/support/tsan.supp")

  kvgraft_fuzz(fuzz_http_response SOURCES fuzz/fuzz_http_response.c
    LIBRARIES kvgraft_net CORPUS http_response)
  kvgraft_fuzz(fuzz_scan SOURCES fuzz/fuzz_scan.c LIBRARIES kvgraft_daemon CORPUS scan)
  kvgraft_fuzz(fuzz_config SOURCES fuzz/fuzz_config.c LIBRARIES kvgraft_daemon CORPUS config)
endif()
