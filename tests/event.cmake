kvgraft_test(test_event SOURCES unit/test_event.c support/event_samples.c)
kvgraft_test(test_event_engine
  SOURCES unit/test_event_engine.c support/event_samples.c)
kvgraft_test(test_kvcap SOURCES unit/test_kvcap.c)
kvgraft_test(test_event_writer
  SOURCES unit/test_event_writer.c support/event_samples.c support/capture.c)
kvgraft_test(prop_predict SOURCES property/prop_predict.c support/event_equal.c)

find_library(JANSSON_LIBRARY NAMES jansson)
if(JANSSON_LIBRARY)
  kvgraft_test(test_captures SOURCES unit/test_captures.c support/capture.c
    LIBRARIES ${JANSSON_LIBRARY})
  add_test(NAME test_captures_large COMMAND test_captures large)
  set_tests_properties(test_captures_large PROPERTIES LABELS full TIMEOUT 300
    SKIP_RETURN_CODE 77)
else()
  message(STATUS "test_captures is left out: jansson is not installed (libjansson-dev)")
endif()

find_library(MSGPACKC_LIBRARY NAMES msgpackc msgpack-c)
if(MSGPACKC_LIBRARY)
  kvgraft_test(prop_msgpack SOURCES property/prop_msgpack.c LIBRARIES ${MSGPACKC_LIBRARY})
else()
  message(STATUS "prop_msgpack is left out: msgpack-c is not installed (libmsgpack-dev)")
endif()

kvgraft_fuzz(fuzz_msgpack SOURCES fuzz/fuzz_msgpack.c CORPUS msgpack)
kvgraft_fuzz(fuzz_event SOURCES fuzz/fuzz_event.c support/event_equal.c CORPUS event)
kvgraft_fuzz(fuzz_kvcap SOURCES fuzz/fuzz_kvcap.c CORPUS kvcap)

# Makes the corpora anew: make_event_corpus tests/fuzz/corpus
add_executable(make_event_corpus EXCLUDE_FROM_ALL
  fuzz/make_event_corpus.c support/event_samples.c support/capture.c)
target_compile_definitions(make_event_corpus PRIVATE _GNU_SOURCE
  KVG_TEST_DATA="${CMAKE_CURRENT_SOURCE_DIR}/data" KVG_SHARED_DIR="")
target_link_libraries(make_event_corpus PRIVATE kvgraft_test_support kvgraft_flags)
