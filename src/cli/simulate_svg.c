/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* simulate_svg.c -- the sweep as a picture (simulate.h).
 *
 *     +--------------------------------------------------------+
 *     | title, subtitle                                        |
 *     | 40 % |- - - - - - - - - - - - - - - - - -   -- ideal   |  one such diagram a trace,
 *     |      |            o-----o                   o- lru     |  PART_HEIGHT high
 *     | 20 % |    o-----o'                          s- lfu     |
 *     |  0 % +----+-----+-----+-----+                          |
 *     |         1 GiB 2 GiB 4 GiB 8 GiB   capacity             |
 *     +--------------------------------------------------------+
 *
 * The x axis is logarithmic.  A policy has its colour and its mark, and earlier lines are wider,
 * so that lines which lie on one another can still be told apart.  Text is escaped; nothing
 * refers to anything outside.
 */
#include "cli/simulate.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define WIDTH 860.0
#define PART_HEIGHT 430.0
#define PLOT_LEFT 78.0
#define PLOT_RIGHT 720.0
#define PLOT_TOP 66.0
#define PLOT_BOTTOM 358.0
#define LETTER_WIDTH 7.0
#define GRID_STEPS_MAX 6

/* Colours that people with any colour vision can tell apart on white. */
static const char *const COLORS[KVG_POLICY_COUNT] = {
    [KVG_POLICY_LRU] = "#0072b2",
    [KVG_POLICY_LFU] = "#d55e00",
    [KVG_POLICY_FIFO] = "#009e73",
    [KVG_POLICY_MRU] = "#cc79a7",
    [KVG_POLICY_FILO] = "#8c6d1f",
    [KVG_POLICY_PRIORITY] = "#56b4e9",
    [KVG_POLICY_SLRU] = "#e69f00",
    [KVG_POLICY_TLRU] = "#555555",
};

struct axes {
    double low; /* log2 of capacities in pages. */
    double high;
    double ratio_high;
    double ratio_step;
    double top; /* Of the part in the picture. */
};

static double x_of(const struct axes *axes, const struct kvc_sim_job *job)
{
    double span = axes->high - axes->low;
    double at = log2((double)job->setup.capacity_pages) - axes->low;

    return PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * (span > 0 ? at / span : 0.5);
}

static double y_of(const struct axes *axes, double ratio)
{
    return axes->top + PLOT_BOTTOM - (PLOT_BOTTOM - PLOT_TOP) * ratio / axes->ratio_high;
}

static double hit_ratio(const struct kvc_sim_result *result)
{
    return result->pages == 0 ? 0 : (double)result->pages_hit / (double)result->pages;
}

static bool is_drawn(const struct kvc_sim_job *job)
{
    return job->capacity.unit != KVC_SIM_UNLIMITED;
}

static struct axes axes_of(const struct kvc_sim_part *part, double top)
{
    static const double STEPS[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2};
    struct axes axes = {.low = INFINITY, .high = -INFINITY, .top = top};
    double highest = hit_ratio(&part->ideal);
    size_t i;

    for (i = 0; i < part->job_count; i++) {
        double at = log2((double)part->jobs[i].setup.capacity_pages);

        if (!is_drawn(&part->jobs[i]))
            continue;
        axes.low = at < axes.low ? at : axes.low;
        axes.high = at > axes.high ? at : axes.high;
    }
    axes.ratio_step = STEPS[0];
    for (i = 1; i < KVC_COUNT(STEPS) && axes.ratio_step * (GRID_STEPS_MAX - 1) < highest;
         i++)
        axes.ratio_step = STEPS[i];
    axes.ratio_high = axes.ratio_step * ceil(highest / axes.ratio_step + 0.15);
    return axes;
}

static void print_escaped(const char *text, FILE *to)
{
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;

        if (byte == '<' || byte == '&' || byte == '>' || byte == '"')
            fprintf(to, "&#%u;", byte);
        else if (byte >= 0x20 && byte < 0x7f)
            fputc(byte, to);
        else
            fputc('?', to); /* A path need not be text. */
    }
}

static void print_title(const struct kvc_sim_report *report,
    const struct kvc_sim_part *part, const struct axes *axes, FILE *to)
{
    const char *name = strrchr(part->trace->path, '/');
    char a[KVC_NUMBER_BYTES];
    char b[KVC_NUMBER_BYTES];

    fprintf(
        to, "<text class=\"title\" x=\"%.0f\" y=\"%.0f\">", PLOT_LEFT, axes->top + 28);
    print_escaped(name == NULL ? part->trace->path : name + 1, to);
    fprintf(to,
        "</text>\n<text class=\"note\" x=\"%.0f\" y=\"%.0f\">%s requests, %s pages of "
        "%" PRIu32 " tokens; eviction of %s",
        PLOT_LEFT, axes->top + 48, kvc_count_text(part->ideal.requests, a),
        kvc_count_text(part->ideal.pages, b), report->page_size,
        report->grain == KVC_SIM_GRAIN_PAGE ? "single pages" : "whole nodes");
    if (report->engines > 1)
        fprintf(to, "; %" PRIu32 " engines in turn", report->engines);
    fprintf(to, "</text>\n");
}

static void print_y_axis(const struct axes *axes, FILE *to)
{
    int decimals = axes->ratio_step < 0.01 ? 1 : 0;
    double ratio;

    for (ratio = 0; ratio <= axes->ratio_high * 1.0001; ratio += axes->ratio_step) {
        double y = y_of(axes, ratio);

        fprintf(to,
            "<line class=\"%s\" x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\"/>\n"
            "<text class=\"tick\" text-anchor=\"end\" x=\"%.0f\" y=\"%.1f\">%.*f "
            "%%</text>\n",
            ratio == 0 ? "axis" : "grid", PLOT_LEFT, y, PLOT_RIGHT, y, PLOT_LEFT - 8,
            y + 4, decimals, 100 * ratio);
    }
    fprintf(to,
        "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(22 %.0f) "
        "rotate(-90)\">pages hit</text>\n",
        axes->top + (PLOT_TOP + PLOT_BOTTOM) / 2);
}

static const char *axis_label(const struct kvc_sim_report *report)
{
    return report->engines > 1 ? "capacity of each engine" : "capacity";
}

/* Capacities that the first policy has: as many as have room.  The ends have priority. */
static void print_x_axis(const struct kvc_sim_report *report,
    const struct kvc_sim_part *part, const struct axes *axes, FILE *to)
{
    double last = -INFINITY;
    size_t i;

    for (i = 0; i < part->job_count; i++) {
        const struct kvc_sim_job *job = &part->jobs[i];
        bool is_end = log2((double)job->setup.capacity_pages) >= axes->high;
        char text[KVC_NUMBER_BYTES];
        double room;
        double x;

        if (job->setup.policy != part->jobs[0].setup.policy || !is_drawn(job))
            continue;
        x = x_of(axes, job);
        fprintf(to,
            "<line class=\"axis\" x1=\"%.1f\" y1=\"%.0f\" x2=\"%.1f\" y2=\"%.0f\"/>\n", x,
            axes->top + PLOT_BOTTOM, x, axes->top + PLOT_BOTTOM + 5);
        kvc_sim_capacity_text(&job->capacity, text);
        room = LETTER_WIDTH * (double)strlen(text) + 16;
        if (!is_end && (x - last < room || PLOT_RIGHT - x < room))
            continue;
        last = x;
        fprintf(to,
            "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" "
            "y=\"%.0f\">%s</text>\n",
            x, axes->top + PLOT_BOTTOM + 21, text);
    }
    fprintf(to,
        "<text class=\"label\" text-anchor=\"middle\" x=\"%.0f\" y=\"%.0f\">%s</text>\n",
        (PLOT_LEFT + PLOT_RIGHT) / 2, axes->top + PLOT_BOTTOM + 46, axis_label(report));
}

/* A mark at (x, y): another shape for each policy. */
static void print_mark(enum kvg_policy policy, double x, double y, FILE *to)
{
    static const char *const SHAPES[KVG_POLICY_COUNT] = {
        [KVG_POLICY_LRU] = "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        [KVG_POLICY_LFU] = "m-4 -4h8v8h-8z",
        [KVG_POLICY_FIFO] = "m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
        [KVG_POLICY_MRU] = "m0 -5l5 9h-10z",
        [KVG_POLICY_FILO] = "m0 5l5 -9h-10z",
        [KVG_POLICY_PRIORITY] = "m-6 0h12m-6 -6v12",
        [KVG_POLICY_SLRU] = "m-4.5 -4.5l9 9m0 -9l-9 9",
        [KVG_POLICY_TLRU] = "m-6 -2.5h12v5h-12z",
    };

    fprintf(to, "<path class=\"mark\" stroke=\"%s\" d=\"M%.1f %.1f%s\"/>\n",
        COLORS[policy], x, y, SHAPES[policy]);
}

/* A line is wider than those drawn over it. */
static double width_of(const struct kvc_sim_part *part, size_t first)
{
    double width = 2;
    size_t i;

    for (i = first + 1; i < part->job_count; i++)
        width += part->jobs[i].setup.policy != part->jobs[i - 1].setup.policy ? 0.9 : 0;
    return width;
}

/* The jobs [first, end) of one policy. */
static void print_line(const struct kvc_sim_part *part, const struct axes *axes,
    size_t first, size_t end, FILE *to)
{
    enum kvg_policy policy = part->jobs[first].setup.policy;
    const char *separator = "";
    size_t i;

    fprintf(to, "<polyline class=\"line\" stroke=\"%s\" stroke-width=\"%.1f\" points=\"",
        COLORS[policy], width_of(part, first));
    for (i = first; i < end; i++) {
        const struct kvc_sim_job *job = &part->jobs[i];

        if (!is_drawn(job))
            continue;
        fprintf(to, "%s%.1f,%.1f", separator, x_of(axes, job),
            y_of(axes, hit_ratio(&job->result)));
        separator = " ";
    }
    fprintf(to, "\"/>\n");
    for (i = first; i < end; i++) {
        const struct kvc_sim_job *job = &part->jobs[i];

        if (is_drawn(job))
            print_mark(policy, x_of(axes, job), y_of(axes, hit_ratio(&job->result)), to);
    }
}

static void print_legend(
    enum kvg_policy policy, const struct axes *axes, size_t row, FILE *to)
{
    double y = axes->top + PLOT_TOP + 10 + 22 * (double)(row + 1);
    double x = PLOT_RIGHT + 26;

    fprintf(to,
        "<line class=\"line\" stroke=\"%s\" stroke-width=\"2\" x1=\"%.0f\" y1=\"%.1f\" "
        "x2=\"%.0f\" "
        "y2=\"%.1f\"/>\n",
        COLORS[policy], x, y, x + 28, y);
    print_mark(policy, x + 14, y, to);
    fprintf(to, "<text class=\"label\" x=\"%.0f\" y=\"%.1f\">%s</text>\n", x + 36, y + 4,
        kvc_sim_policy_name(policy));
}

static void print_ideal(
    const struct kvc_sim_part *part, const struct axes *axes, FILE *to)
{
    double y = y_of(axes, hit_ratio(&part->ideal));
    double legend_y = axes->top + PLOT_TOP + 10;
    double x = PLOT_RIGHT + 26;

    fprintf(to,
        "<line class=\"ideal\" x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\"/>\n"
        "<line class=\"ideal\" x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\"/>\n"
        "<text class=\"label\" x=\"%.0f\" y=\"%.1f\">ideal %.1f %%</text>\n",
        PLOT_LEFT, y, PLOT_RIGHT, y, x, legend_y, x + 28, legend_y, x + 36, legend_y + 4,
        100 * hit_ratio(&part->ideal));
}

static void print_part(const struct kvc_sim_report *report,
    const struct kvc_sim_part *part, double top, FILE *to)
{
    struct axes axes = axes_of(part, top);
    size_t first;
    size_t end;
    size_t row = 0;

    print_title(report, part, &axes, to);
    print_y_axis(&axes, to);
    if (axes.low <= axes.high)
        print_x_axis(report, part, &axes, to);
    print_ideal(part, &axes, to);
    for (first = 0; first < part->job_count && axes.low <= axes.high; first = end) {
        end = first + 1;
        while (end < part->job_count &&
               part->jobs[end].setup.policy == part->jobs[first].setup.policy)
            end++;
        print_line(part, &axes, first, end, to);
        print_legend(part->jobs[first].setup.policy, &axes, row++, to);
    }
}

void kvc_sim_print_svg(const struct kvc_sim_report *report, FILE *to)
{
    double height = PART_HEIGHT * (double)report->part_count;
    size_t i;

    fprintf(to,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
        "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\">\n"
        "<title>Hit ratio over cache capacity</title>\n"
        "<style>\n"
        ".title{font-size:17px;font-weight:bold;fill:#222222}\n"
        ".note{font-size:12px;fill:#555555}\n"
        ".label{font-size:13px;fill:#222222}\n"
        ".tick{font-size:12px;fill:#444444}\n"
        ".axis{stroke:#444444}\n"
        ".grid{stroke:#ddd}\n"
        ".ideal{stroke:#222222;stroke-width:1.5;stroke-dasharray:7 5}\n"
        ".line{fill:none;stroke-linejoin:round}\n"
        ".mark{fill:none;stroke-width:1.8}\n"
        "</style>\n"
        "<rect width=\"%.0f\" height=\"%.0f\" fill=\"#fff\"/>\n",
        WIDTH, height, WIDTH, height, WIDTH, height);
    for (i = 0; i < report->part_count; i++)
        print_part(report, &report->parts[i], PART_HEIGHT * (double)i, to);
    fprintf(to, "</svg>\n");
}
