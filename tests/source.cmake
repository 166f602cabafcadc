kvgraft_test(test_workers SOURCES unit/test_workers.c)
kvgraft_test(test_source SOURCES unit/test_source.c support/source_rig.c)
kvgraft_test(test_source_repair
  SOURCES unit/test_source_repair.c support/source_rig.c)
kvgraft_test(test_source_worth
  SOURCES unit/test_source_worth.c support/source_rig.c)
kvgraft_test(sim_source
  SOURCES sim/sim_source.c support/sim_store.c support/sim_exact.c support/source_rig.c)
add_test(NAME sim_source_more COMMAND sim_source 150)
set_tests_properties(sim_source_more PROPERTIES LABELS full TIMEOUT 300)
kvgraft_test(test_source_captures
  SOURCES unit/test_source_captures.c support/source_rig.c support/capture.c)

kvgraft_fuzz(fuzz_source SOURCES fuzz/fuzz_source.c CORPUS source)

# Negative controls: the source with one planted bug, which a named test must catch.  The bug is a
# piece of text replaced in one file; the build stops when the text is no longer there.
# kvgraft_source_mutant(name FILE file.c TEST test FROM "text" TO "text")
function(kvgraft_source_mutant name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "FILE;TEST;FROM;TO" "")
  set(original ${PROJECT_SOURCE_DIR}/src/source/${ARG_FILE})
  set(mutant ${CMAKE_CURRENT_BINARY_DIR}/mutants/${name}/${ARG_FILE})
  file(READ ${original} text)
  string(FIND "${text}" "${ARG_FROM}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "mutant ${name}: ${ARG_FILE} has no \"${ARG_FROM}\" any more")
  endif()
  string(REPLACE "${ARG_FROM}" "${ARG_TO}" text "${text}")
  file(CONFIGURE OUTPUT ${mutant} CONTENT "${text}" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${original})
  get_target_property(sources ${ARG_TEST} SOURCES)
  kvgraft_test(mutant_source_${name} SOURCES ${sources} ${mutant} LABELS full)
  # What a planted bug leaves unused is no finding.
  target_compile_options(mutant_source_${name} PRIVATE -w)
  set_tests_properties(mutant_source_${name} PROPERTIES WILL_FAIL TRUE)
endfunction()

kvgraft_source_mutant(ignores_a_gap FILE source.c TEST sim_source
  FROM "    kvi_source_lose(source, KVG_REASON_GAP);
}" TO "}")
kvgraft_source_mutant(keeps_old_content FILE source.c TEST sim_source
  FROM "    kvg_presence_cleared(source->index, (struct kvg_str){NULL, 0});" TO "")
kvgraft_source_mutant(applies_a_repeat FILE source.c TEST sim_source
  FROM "source->stats.duplicates++;
        break;" TO "return true;")
kvgraft_source_mutant(trusts_other_tenants FILE source.c TEST sim_source
  FROM "source->other_reasons |= KVG_REASON_UNLISTABLE;" TO "source->losses++;")
kvgraft_source_mutant(ignores_a_bad_payload FILE source.c TEST sim_source
  FROM "        kvi_source_lose(source, KVG_REASON_BAD_MESSAGE);
        kvi_source_log(source, KVI_LOG_BAD, KVG_LOG_WARN, \"message # cannot"
  TO "        kvi_source_log(source, KVI_LOG_BAD, KVG_LOG_WARN, \"message # cannot")
kvgraft_source_mutant(believes_a_broken_listing FILE repair.c TEST sim_source
  FROM "listing->losses == source->losses && !listing->tainted" TO "true")
kvgraft_source_mutant(waits_for_ever FILE ask.c TEST sim_source
  FROM "    if (source->now_ms < behind->deadline_ms)" TO "    if (true)")
kvgraft_source_mutant(never_pauses FILE ask.c TEST sim_source
  FROM "    return pause - kvi_rng_below(&source->rng, pause / 2 + 1);" TO "    return 0;")
kvgraft_source_mutant(loses_the_last_line FILE repair.c TEST test_source_repair
  FROM "        end_line(source, (struct kvg_str){NULL, 0});" TO "")
kvgraft_source_mutant(counts_for_nothing FILE ask.c TEST test_source_captures
  FROM "    kvi_source_lose(source, KVG_REASON_DRIFT);" TO "")
kvgraft_source_mutant(trusts_numbers_alone FILE life.c TEST test_source
  FROM "        if (mark->first_id <= life->last.last_id)" TO "        if (false)")
kvgraft_source_mutant(takes_a_restart_for_a_repeat FILE life.c TEST test_source
  FROM "    if (mark->sequence <= 1)
        return KVI_MESSAGE_RESTART;" TO "    return KVI_MESSAGE_DUPLICATE;")
kvgraft_source_mutant(takes_an_epoch_for_noise FILE life.c TEST sim_source
  FROM "        *out = KVI_MESSAGE_RESTART;" TO "        *out = KVI_MESSAGE_NEXT;")
kvgraft_source_mutant(thinks_a_first_message_means_empty FILE life.c TEST sim_source
  FROM "mark->sequence == 1 && mark->is_empty_start" TO "mark->sequence == 1")
kvgraft_source_mutant(does_not_leap FILE repair.c TEST sim_source
  FROM "        kvi_life_skip(life, sequence);" TO "        life->epoch = epoch;")
kvgraft_source_mutant(forgets_what_it_held FILE replay.c TEST sim_source
  FROM "        if (first->sequence > source->life.position)
            kvi_source_take_message(source, &frames);" TO "        source->life.position = frames.sequence;")
kvgraft_source_mutant(takes_a_late_replay FILE replay.c TEST sim_source
  FROM "    if (frames->sequence != source->life.position + 1 ||
        !kvi_source_is_of_this_life(source, frames))
        return false;" TO "    source->life.position = frames->sequence - 1;")
