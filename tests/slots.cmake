kvgraft_test(test_slots SOURCES unit/test_slots.c)
kvgraft_test(test_rows SOURCES unit/test_rows.c)
kvgraft_test(test_window SOURCES unit/test_window.c)

set(slots_machine property/slots_machine.c property/slots_model.c property/slots_bugs.c)
kvgraft_test(prop_slots SOURCES property/prop_slots.c ${slots_machine})
kvgraft_test(prop_slots_more SOURCES property/prop_slots.c ${slots_machine}
  ARGS 7 1500 LABELS full TIMEOUT 600)
kvgraft_fuzz(fuzz_slots SOURCES fuzz/fuzz_slots.c ${slots_machine} CORPUS slots)
