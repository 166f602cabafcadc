kvgraft_test(test_slots SOURCES unit/test_slots.c)
