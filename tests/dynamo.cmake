set(seed_stream support/seed_stream.c support/event_samples.c)
kvgraft_test(test_dynamo SOURCES unit/test_dynamo.c ${seed_stream})
kvgraft_test(test_dynamo_strict SOURCES unit/test_dynamo_strict.c ${seed_stream})
kvgraft_fuzz(fuzz_dynamo SOURCES fuzz/fuzz_dynamo.c CORPUS dynamo)
kvgraft_test(prop_dynamo
  SOURCES property/prop_dynamo.c support/seed_model.c ${seed_stream} TIMEOUT 300)
kvgraft_test(prop_presence_vs_strings
  SOURCES property/prop_presence_vs_strings.c support/seed_model.c TIMEOUT 300)
kvgraft_test(test_seed_default
  SOURCES unit/test_seed_default.c support/default_client.c ${seed_stream})
kvgraft_test(test_profiles
  SOURCES unit/test_profiles.c support/default_client.c ${seed_stream})
kvgraft_test(test_dynamo_captures
  SOURCES unit/test_dynamo_captures.c support/capture.c)

# Planted bugs, each of which a test must catch.
kvgraft_mutants(dynamo_mutants LIST dynamo.txt
  PROGRAMS test_dynamo test_dynamo_strict prop_dynamo)
kvgraft_mutants(strings_mutants LIST strings.txt
  PROGRAMS prop_presence_vs_strings test_presence_doubt)
