kvgraft_test(test_cli SOURCES unit/test_cli.c LIBRARIES kvgraft_commands)
kvgraft_test(test_trace SOURCES unit/test_trace.c LIBRARIES kvgraft_commands)
kvgraft_fuzz(fuzz_trace SOURCES fuzz/fuzz_trace.c LIBRARIES kvgraft_commands CORPUS trace)
kvgraft_fuzz(fuzz_tokens SOURCES fuzz/fuzz_tokens.c LIBRARIES kvgraft_commands CORPUS tokens)
kvgraft_test(test_simulate SOURCES unit/test_simulate.c support/sim_reference.c
  LIBRARIES kvgraft_commands)
kvgraft_test(test_simulate_traces SOURCES unit/test_simulate_traces.c support/sim_reference.c
  LIBRARIES kvgraft_commands LABELS full TIMEOUT 900)
kvgraft_fuzz(fuzz_simulate_args SOURCES fuzz/fuzz_simulate_args.c LIBRARIES kvgraft_commands
  CORPUS simulate_args)
