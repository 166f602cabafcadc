kvgraft_test(test_slots SOURCES unit/test_slots.c)
kvgraft_test(test_window SOURCES unit/test_window.c)
