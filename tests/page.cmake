kvgraft_test(test_page SOURCES unit/test_page.c)
kvgraft_test(test_page_memo SOURCES unit/test_page_memo.c)
kvgraft_test(prop_page_memo SOURCES property/prop_page_memo.c)

# OpenSSL is the second opinion of the tests; the library does not use it.
find_package(OpenSSL QUIET COMPONENTS Crypto)
if(OpenSSL_FOUND)
  kvgraft_test(prop_page_openssl SOURCES property/prop_page_openssl.c
    LIBRARIES OpenSSL::Crypto)
  target_compile_definitions(prop_page_openssl PRIVATE OPENSSL_API_COMPAT=10101)
endif()
