/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* Unit tests of what the commands share: options, tokens, numbers as text, sums of a stream. */
#include "cli/cli.h"
#include "cli/seen.h"
#include "cli/tokens.h"
#include "test.h"

struct values {
    struct kvc_common common;
    uint64_t number;
    uint64_t size;
    uint64_t time;
    double ratio;
    const char *text;
    int choice;
    bool flag;
};

static const struct kvc_option OPTIONS[] = {
    {"number", 'n', KVC_U64, KVC_FIELD(struct values, number), "N", "7", "KVT_NUMBER", 1,
        99, "a number"},
    {"size", 0, KVC_BYTES, KVC_FIELD(struct values, size), "SIZE", "64KiB", NULL, 0,
        UINT64_MAX, "a size"},
    {"time", 0, KVC_DURATION, KVC_FIELD(struct values, time), "TIME", "250ms", NULL, 0,
        UINT64_MAX, "a time"},
    {"ratio", 0, KVC_RATIO, KVC_FIELD(struct values, ratio), "X", "1", NULL, 0, 0,
        "a ratio"},
    {"text", 't', KVC_TEXT, KVC_FIELD(struct values, text), "TEXT", NULL, NULL, 0, 0,
        "some text"},
    {"choice", 0, KVC_CHOICE, KVC_FIELD(struct values, choice), "red|green", "green",
        NULL, 0, 0, "a colour"},
    {"flag", 'f', KVC_FLAG, KVC_FIELD(struct values, flag), NULL, NULL, NULL, 0, 0,
        "a flag"},
};
static const struct kvc_usage USAGE = {
    "test", "[ARGUMENT...]", "Test", OPTIONS, KVC_COUNT(OPTIONS), NULL};

/* Parses a line split at blanks; the explanation goes nowhere. */
static int parse(const char *line, struct values *values, int *exit_code)
{
    static char copy[256];
    static char *argv[16];
    int argc = 0;
    char *word;
    char *rest = copy;
    FILE *said = stderr;
    int first;

    *values = (struct values){0};
    snprintf(copy, sizeof(copy), "test %s", line);
    while ((word = strsep(&rest, " ")) != NULL) {
        if (word[0] != '\0')
            argv[argc++] = word;
    }
    argv[argc] = NULL;
    stderr = fopen("/dev/null", "w");
    first = kvc_options(&USAGE, argc, argv, values, exit_code);
    fclose(stderr);
    stderr = said;
    return first < 0 ? -1 : argc - first;
}

TEST(options_have_defaults)
{
    struct values values;
    int code;

    CHECK_EQ(parse("", &values, &code), 0);
    CHECK_EQ(values.number, 7);
    CHECK_EQ(values.size, 65536);
    CHECK_EQ(values.time, 250);
    CHECK_EQ(values.choice, 1);
    CHECK(values.text == NULL);
    CHECK(!values.flag && !values.common.json);
}

TEST(options_may_stand_before_and_after_arguments)
{
    struct values values;
    int code;

    CHECK_EQ(parse("-n 5 one --flag --time=2min two --json -t x", &values, &code), 2);
    CHECK_EQ(values.number, 5);
    CHECK_EQ(values.time, 120000);
    CHECK(values.flag && values.common.json);
    CHECK_STR(values.text, "x");
    CHECK_EQ(parse("-- -n", &values, &code), 1);
}

TEST(a_wrong_option_or_value_is_misuse)
{
    static const char *const LINES[] = {"--nosuch", "-n", "--number 0", "--number 100",
        "--number x", "--number -1", "--number 18446744073709551616", "--size 1XB",
        "--size 99999999999TiB", "--time 5", "--ratio -1", "--ratio x", "--choice blue",
        "--choice re", "--flag=1"};
    struct values values;
    size_t i;

    for (i = 0; i < KVC_COUNT(LINES); i++) {
        int code = -7;

        CHECK_EQ(parse(LINES[i], &values, &code), -1);
        CHECK_EQ(code, KVC_MISUSED);
    }
}

TEST(the_environment_is_weaker_than_the_command_line_and_checked_alike)
{
    struct values values;
    int code;

    setenv("KVT_NUMBER", "42", 1);
    CHECK_EQ(parse("", &values, &code), 0);
    CHECK_EQ(values.number, 42);
    CHECK_EQ(parse("--number 3", &values, &code), 0);
    CHECK_EQ(values.number, 3);
    setenv("KVT_NUMBER", "100", 1);
    CHECK_EQ(parse("", &values, &code), -1);
    CHECK_EQ(code, KVC_MISUSED);
    unsetenv("KVT_NUMBER");
}

static kvg_err add(struct kvc_tokens *tokens, const char *text,
    enum kvc_token_format format, struct kvg_error *error)
{
    return kvc_tokens_add(tokens, (struct kvg_str){text, strlen(text)}, format, error);
}

TEST(tokens_are_read_as_text_json_and_words)
{
    struct kvc_tokens tokens = {0};
    struct kvg_error error;

    CHECK_EQ(add(&tokens, "1,2 3\n5..7", KVC_TOKENS_AUTO, &error), KVG_OK);
    CHECK_EQ(add(&tokens, " [8, 4294967295]", KVC_TOKENS_AUTO, &error), KVG_OK);
    CHECK_EQ(add(&tokens, "{\"tokens\":[9]}", KVC_TOKENS_AUTO, &error), KVG_OK);
    CHECK_EQ(kvc_tokens_add(&tokens, (struct kvg_str){"\x01\x02\x00\x80", 4},
                 KVC_TOKENS_AUTO, &error),
        KVG_OK);
    CHECK_EQ(tokens.count, 10);
    CHECK_EQ(tokens.ids[2], 3);
    CHECK_EQ(tokens.ids[5], 7);
    CHECK_EQ(tokens.ids[7], UINT32_MAX);
    CHECK_EQ(tokens.ids[8], 9);
    CHECK_EQ(tokens.ids[9], 0x80000201);
    kvc_tokens_fini(&tokens);
}

TEST(bad_tokens_say_where_and_add_nothing)
{
    static const struct {
        const char *text;
        const char *message;
    } CASES[] = {
        {"1,x", "a number was expected at byte 2; allowed: 1,2,3 or 1 2 3 or 1..64"},
        {"1 4294967296", "the number at byte 2 is no token id: at most 4294967295"},
        {"9..3", "a range that falls ends at byte 4; write it as LOW..HIGH"},
        {"[1,-2]", "element 1 is no token id: a whole number, 0 to 4294967295"},
        {"[1,", "no JSON: see line 1"},
        {"{}", "the JSON must be an array, or an object with \"tokens\" (0 found)"},
        {"abc", "3 bytes are not a whole number of u32 words"},
        {"0..4294967295", "more than the allowed 16777216 tokens"},
    };
    struct kvc_tokens tokens = {0};
    struct kvg_error error;
    size_t i;

    CHECK_EQ(add(&tokens, "1", KVC_TOKENS_AUTO, &error), KVG_OK);
    for (i = 0; i < KVC_COUNT(CASES); i++) {
        enum kvc_token_format format =
            i < 3 || i == 7 ? KVC_TOKENS_TEXT : KVC_TOKENS_AUTO;

        CHECK(add(&tokens, CASES[i].text, format, &error) != KVG_OK);
        CHECK_STR(error.message, CASES[i].message);
        CHECK_EQ(tokens.count, 1);
    }
    kvc_tokens_fini(&tokens);
}

TEST(numbers_are_written_for_people)
{
    char text[KVC_NUMBER_BYTES];

    CHECK_STR(kvc_count_text(0, text), "0");
    CHECK_STR(kvc_count_text(999, text), "999");
    CHECK_STR(kvc_count_text(1234567, text), "1,234,567");
    CHECK_STR(kvc_bytes_text(1023, text), "1023 B");
    CHECK_STR(kvc_bytes_text(1536, text), "1.5 KiB");
    CHECK_STR(kvc_time_text(950, text), "950 ns");
    CHECK_STR(kvc_time_text(2500000, text), "2.50 ms");
}

TEST(a_sequence_tells_gap_duplicate_and_restart_apart)
{
    struct kvc_seen seen = {0};

    CHECK_EQ(kvc_seen_sequence(&seen, 5), KVC_STEP_FIRST);
    CHECK_EQ(kvc_seen_sequence(&seen, 6), KVC_STEP_NEXT);
    CHECK_EQ(kvc_seen_sequence(&seen, 6), KVC_STEP_DUPLICATE);
    CHECK_EQ(kvc_seen_sequence(&seen, 9), KVC_STEP_GAP);
    CHECK_EQ(kvc_seen_sequence(&seen, 1), KVC_STEP_RESTART);
    CHECK_EQ(kvc_seen_sequence(&seen, 2), KVC_STEP_NEXT);
    CHECK_EQ(seen.gaps, 1);
    CHECK_EQ(seen.missed_sequences, 2);
    CHECK_EQ(seen.restarts, 1);
}

TEST(names_beyond_the_room_are_counted)
{
    struct kvc_names names = {0};
    unsigned i;

    for (i = 0; i < KVC_NAMES_MAX + 3; i++) {
        char name[8];
        int bytes = snprintf(name, sizeof(name), "n%u", i);

        kvc_names_add(&names, (struct kvg_str){name, (size_t)bytes});
    }
    kvc_names_add(&names, (struct kvg_str){"n0", 2});
    CHECK_EQ(names.count, KVC_NAMES_MAX);
    CHECK_EQ(names.others, 3);
    CHECK_EQ(names.seen[0], 2);
}

TEST_MAIN(RUN(options_have_defaults), RUN(options_may_stand_before_and_after_arguments),
    RUN(a_wrong_option_or_value_is_misuse),
    RUN(the_environment_is_weaker_than_the_command_line_and_checked_alike),
    RUN(tokens_are_read_as_text_json_and_words),
    RUN(bad_tokens_say_where_and_add_nothing), RUN(numbers_are_written_for_people),
    RUN(a_sequence_tells_gap_duplicate_and_restart_apart),
    RUN(names_beyond_the_room_are_counted))
