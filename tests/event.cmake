kvgraft_test(test_event SOURCES unit/test_event.c support/event_samples.c)
