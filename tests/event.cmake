kvgraft_test(test_event SOURCES unit/test_event.c support/event_samples.c)
kvgraft_test(test_kvcap SOURCES unit/test_kvcap.c)
kvgraft_test(test_event_writer
  SOURCES unit/test_event_writer.c support/event_samples.c support/capture.c)
