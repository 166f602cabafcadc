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
if(OpenSSL_FOUND)
  kvgraft_mutants(page_mutants LIST page.txt
    PROGRAMS test_page test_page_memo prop_page_memo prop_page_openssl)
endif()
