# The suite that every backend passes (store/conformance.h).
add_library(kvgraft_store_suite STATIC
  store/conformance.c store/conformance_evict.c store/conformance_many.c)
target_compile_definitions(kvgraft_store_suite PRIVATE _GNU_SOURCE)
target_include_directories(kvgraft_store_suite PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(kvgraft_store_suite
  PUBLIC kvgraft_test_support PRIVATE kvgraft_flags)

kvgraft_test(test_publisher SOURCES unit/test_publisher.c)
kvgraft_test(test_store_memory SOURCES store/test_memory.c LIBRARIES kvgraft_store_suite)
foreach(sync IN ITEMS none batch each)
  kvgraft_test(test_store_file_${sync} SOURCES store/test_file.c
    LIBRARIES kvgraft_store_suite ARGS ${sync})
endforeach()

kvgraft_test(test_store_hash SOURCES store/test_hash.c)
kvgraft_test(test_store_runs SOURCES store/test_runs.c)
foreach(io IN ITEMS direct uring)
  kvgraft_test(test_store_file_${io} SOURCES store/test_file.c
    LIBRARIES kvgraft_store_suite ARGS none ${io})
  kvgraft_test(test_store_runs_${io} SOURCES store/test_runs.c ARGS "&io=${io}")
  target_include_directories(test_store_runs_${io} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
endforeach()
target_include_directories(test_store_hash PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(test_store_runs PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})

# Mooncake's library is loaded at run time; this one stands in for it.
add_library(kvgraft_standin_mooncake MODULE standin/mooncake.c)
target_compile_definitions(kvgraft_standin_mooncake PRIVATE _GNU_SOURCE)
target_include_directories(kvgraft_standin_mooncake PRIVATE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(kvgraft_standin_mooncake PRIVATE kvgraft_flags Threads::Threads)
kvgraft_test(test_store_mooncake SOURCES store/test_mooncake.c
  LIBRARIES kvgraft_store_suite ${CMAKE_DL_LIBS})
target_include_directories(test_store_mooncake PRIVATE standin)
target_compile_definitions(test_store_mooncake PRIVATE
  KVT_STANDIN_MOONCAKE="$<TARGET_FILE:kvgraft_standin_mooncake>")
add_dependencies(test_store_mooncake kvgraft_standin_mooncake)
kvgraft_test(test_store_redis SOURCES store/test_redis.c
  LIBRARIES kvgraft_store_suite LABELS full TIMEOUT 600)

# The file backend on a disk that forgets.
kvgraft_test(test_store_crash SOURCES store/test_crash.c store/disk.c)
kvgraft_test(test_store_crash_more SOURCES store/test_crash.c store/disk.c
  ARGS 1500 1000 LABELS full TIMEOUT 600)
target_include_directories(test_store_crash PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(test_store_crash_more PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
# Found once: a segment whose maker died before its name was on disk.
add_test(NAME test_store_crash_nameless COMMAND test_store_crash 1 2685)
set_tests_properties(test_store_crash_nameless PROPERTIES LABELS quick)

kvgraft_test(test_store_fault SOURCES store/test_fault.c LIBRARIES kvgraft_store_suite)
kvgraft_test(test_store_url SOURCES store/test_url.c LIBRARIES kvgraft_store_suite)
kvgraft_test(test_store_damage SOURCES store/test_damage.c LIBRARIES kvgraft_store_suite)
kvgraft_test(test_store_damage_more SOURCES store/test_damage.c
  LIBRARIES kvgraft_store_suite ARGS 200 LABELS full TIMEOUT 600)
kvgraft_mutants(store_mutants LIST store.txt
  PROGRAMS test_store_url test_store_damage test_store_crash test_store_runs test_store_memory)

kvgraft_fuzz(fuzz_store_url SOURCES fuzz/fuzz_store_url.c CORPUS store_url)
kvgraft_fuzz(fuzz_store_journal SOURCES fuzz/fuzz_store_journal.c store/disk.c
  CORPUS store_journal)
target_include_directories(fuzz_store_journal_replay PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
if(KVGRAFT_FUZZ)
  target_include_directories(fuzz_store_journal PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
endif()
