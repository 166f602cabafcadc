# kvgraft_test(test_dynamo SOURCES unit/test_dynamo.c)
