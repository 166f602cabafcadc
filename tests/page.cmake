kvgraft_test(test_page SOURCES unit/test_page.c)
kvgraft_test(test_page_memo SOURCES unit/test_page_memo.c)
kvgraft_test(prop_page_memo SOURCES property/prop_page_memo.c)
kvgraft_fuzz(fuzz_page_memo SOURCES fuzz/fuzz_page_memo.c CORPUS page_memo)

# OpenSSL is the second opinion of the tests; the library does not use it.
find_package(OpenSSL QUIET COMPONENTS Crypto)
if(OpenSSL_FOUND)
  kvgraft_test(prop_page_openssl SOURCES property/prop_page_openssl.c
    LIBRARIES OpenSSL::Crypto)
  target_compile_definitions(prop_page_openssl PRIVATE OPENSSL_API_COMPAT=10101)
endif()

# Planted bugs, each of which a test must catch.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND AND OpenSSL_FOUND AND CMAKE_GENERATOR STREQUAL "Ninja")
  add_test(NAME page_mutants COMMAND Python3::Interpreter
    ${CMAKE_CURRENT_SOURCE_DIR}/mutants/run.py ${CMAKE_CURRENT_SOURCE_DIR}/mutants/page.txt
    ${CMAKE_BINARY_DIR} test_page test_page_memo prop_page_memo prop_page_openssl)
  set_tests_properties(page_mutants PROPERTIES LABELS full TIMEOUT 600)
endif()
