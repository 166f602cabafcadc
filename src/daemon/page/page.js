/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* page.js -- the live page.
 *
 *     /v1/live?since=N every second --> rows, sources, slowest --> tiles, charts, lists
 *     /v1/hot every 2 seconds       --> nodes --> boxes one can click into
 *     /v1/explain when asked        --> a sentence, a picture of the pages
 *
 * Whatever comes from outside is written as text (textContent, attributes of our own), never as
 * markup: names of sources, tenants and models are not ours.  Nothing is asked of anybody but the
 * daemon that served this file.
 */
"use strict";

/* Words and numbers ------------------------------------------------------------------------- */

const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function element(tag, options, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function drawn(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const number = n => n >= 1e6 ? (n / 1e6).toFixed(n >= 1e8 ? 0 : 1) + " M"
  : n >= 1e4 ? (n / 1e3).toFixed(n >= 1e5 ? 0 : 1) + " k"
  : n >= 100 || Number.isInteger(n) ? whole.format(n) : n.toFixed(1);
const percent = share => (share * 100).toFixed(share > 0 && share < .1 ? 1 : 0) + " %";
const duration = us => us < 1000 ? Math.round(us) + " µs"
  : us < 1e6 ? (us / 1000).toFixed(us < 1e4 ? 1 : 0) + " ms" : (us / 1e6).toFixed(1) + " s";

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
  return n.toFixed(unit === 0 || n >= 100 ? 0 : 1) + " " + units[unit];
}

function ago(ms) {
  const s = Math.round(ms / 1000);
  return s < 2 ? "just now" : s < 120 ? s + " s ago" : Math.round(s / 60) + " min ago";
}

function span(ms) {
  const s = Math.floor(ms / 1000);
  return s < 120 ? s + " s" : s < 7200 ? Math.floor(s / 60) + " min"
    : s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " days";
}

const fact = (name, value) => element("div", {}, element("dt", { text: name }),
  element("dd", { text: value }));

/* Asking the daemon ------------------------------------------------------------------------- */

const session = {
  get token() { try { return sessionStorage.getItem("kvgraft-token") || ""; } catch { return this.kept || ""; } },
  set token(value) { this.kept = value; try { sessionStorage.setItem("kvgraft-token", value); } catch { /* Kept here. */ } },
};

class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || "status " + status);
    this.status = status;
  }
}

async function ask(path, body) {
  const headers = session.token ? { Authorization: "Bearer " + session.token } : {};
  const options = { headers, cache: "no-store", signal: AbortSignal.timeout(10000) };
  if (body !== undefined) {
    options.method = "POST";
    options.body = body;
    headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, said);
  return said;
}

/* What is known ----------------------------------------------------------------------------- */

/* Rows of one series by number: { span_ms, lookups, ... } and for each source its own. */
const known = { started: null, next: 0, rowsMax: 600, rows: [], sources: [], live: null };

function rowsOf(series) {
  const names = Object.keys(series).filter(name => name !== "first");
  const count = names.length ? series[names[0]].length : 0;
  return Array.from({ length: count }, (_, i) => {
    const row = { number: series.first + i };
    for (const name of names) row[name] = series[name][i];
    return row;
  });
}

/* Joins what is new to what was there. */
function joined(old, fresh) {
  const from = fresh.length ? fresh[0].number : Infinity;
  return old.filter(row => row.number < from).concat(fresh).slice(-known.rowsMax);
}

function takeIn(live) {
  if (known.started !== null && (known.started !== live.started_s || live.next < known.next)) {
    Object.assign(known, { started: live.started_s, next: 0, rows: [], sources: [] });
    return false; /* Another daemon: ask for all of its rows. */
  }
  known.started = live.started_s;
  known.rowsMax = live.rows_max;
  known.rows = joined(known.rows, rowsOf(live.lookups));
  known.sources = live.sources.map(source => {
    const before = known.sources.find(s => s.name === source.name);
    const rows = source.history ? rowsOf(source.history) : [];
    return { ...source, rows: joined(before ? before.rows : [], rows) };
  });
  known.next = live.next;
  known.live = live;
  return true;
}

/* The rows of the window, oldest first, with their age at the end and the chosen sources' sums. */
function inWindow() {
  const wanted = Number($("window").value) * 1000;
  const chosen = known.sources.filter(s => !$("which").value || s.name === $("which").value);
  const byNumber = chosen.map(s => new Map(s.rows.map(row => [row.number, row])));
  const out = [];
  let age = 0;
  for (let i = known.rows.length - 1; i >= 0 && age < wanted; i--) {
    const row = { ...known.rows[i], age, events: 0, lag_us: null, cpu_pages: 0, disk_pages: 0, held: false };
    for (const rows of byNumber) {
      const own = rows.get(row.number);
      if (!own) continue;
      row.held = true;
      row.events += own.events;
      row.cpu_pages += own.cpu_pages;
      row.disk_pages += own.disk_pages;
      if (own.messages > 0) row.lag_us = Math.max(row.lag_us || 0, own.lag_us);
    }
    age += row.span_ms;
    out.push(row);
  }
  return out.reverse();
}

/* Charts ------------------------------------------------------------------------------------ */

const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);
const rate = (rows, name) => {
  const ms = sum(rows, "span_ms");
  return ms > 0 ? sum(rows, name) * 1000 / ms : null;
};
const shareOf = (rows, ...names) => {
  const pages = sum(rows, "pages");
  return pages > 0 ? names.reduce((total, name) => total + sum(rows, name), 0) / pages : null;
};
const last = (rows, name) => rows.length && rows[rows.length - 1].held ? rows[rows.length - 1][name] : null;
const worst = (rows, name) => rows.reduce((most, row) => row[name] === null ? most : Math.max(most ?? 0, row[name]), null);

/* Each line: its name, and its value for the rows of one point. */
const CHARTS = [
  { id: "share", title: "Shared share", max: 1, format: percent, area: true, lines: [
    { name: "usable", value: rows => shareOf(rows, "contiguous_pages") },
    { name: "with pages behind gaps", value: rows => shareOf(rows, "contiguous_pages", "beyond_pages") }] },
  { id: "lookups", title: "Lookups a second", format: number, area: true, lines: [
    { name: "lookups", value: rows => rate(rows, "lookups") }] },
  { id: "took", title: "Mean time of a lookup", format: duration, lines: [
    { name: "page keys and index", value: rows => sum(rows, "lookups") > 0 ? sum(rows, "lookup_us") / sum(rows, "lookups") : null }] },
  { id: "pages", title: "Pages by medium", format: number, lines: [
    { name: "memory", value: rows => last(rows, "cpu_pages") },
    { name: "disk", value: rows => last(rows, "disk_pages") }] },
  { id: "events", title: "Events a second", format: number, area: true, lines: [
    { name: "events", value: rows => rate(rows, "events") }] },
  { id: "lag", title: "Lag, the worst", format: duration, lines: [
    { name: "lag", value: rows => worst(rows, "lag_us") }] },
];
const EDGE = { top: 8, bottom: 16, left: 2, right: 2 };

function makeCharts() {
  for (const chart of CHARTS) {
    chart.output = element("output");
    chart.svg = drawn("svg", { role: "img", tabindex: "0", "aria-label": chart.title });
    const title = element("span", { text: chart.title });
    const keys = element("span");
    if (chart.lines.length > 1)
      chart.lines.forEach((line, i) => keys.append(element("span", { class: i ? "key-b" : "key-a", text: line.name + " " })));
    chart.figure = element("figure", { id: "chart-" + chart.id },
      element("figcaption", {}, title, chart.output), chart.svg);
    if (chart.lines.length > 1) chart.figure.append(element("figcaption", {}, keys));
    $("charts").append(chart.figure);
    const point = event => {
      const box = chart.svg.getBoundingClientRect();
      setCursor(1 - (event.clientX - box.left) / box.width);
    };
    chart.svg.addEventListener("pointermove", point);
    chart.svg.addEventListener("pointerleave", () => setCursor(null));
    chart.svg.addEventListener("blur", () => setCursor(null));
    chart.svg.addEventListener("keydown", event => {
      const step = { ArrowLeft: .02, ArrowRight: -.02 }[event.key];
      if (step === undefined) return;
      setCursor(Math.min(1, Math.max(0, (cursor ?? 0) + step)));
      event.preventDefault();
    });
  }
}

let cursor = null; /* Share of the window before now, or null. */
function setCursor(at) {
  cursor = at;
  drawCharts(inWindow());
}

/* Puts the rows into as many points as there is room for. */
function points(rows, width) {
  const wanted = Number($("window").value) * 1000;
  const count = Math.max(20, Math.min(200, Math.floor(width / 4)));
  const bins = Array.from({ length: count }, () => []);
  for (const row of rows) {
    const at = Math.floor((1 - (row.age + row.span_ms / 2) / wanted) * count);
    if (at >= 0 && at < count) bins[at].push(row);
  }
  return bins;
}

function niceMax(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map(times => times * power).find(n => n >= value * .999);
}

/* One path a run of points without a hole in the data; few empty points are no hole. */
function pathsOf(values, x, y) {
  const runs = [];
  let run = [];
  let empty = 0;
  values.forEach((value, i) => {
    if (value === null) { empty++; return; }
    if (run.length && empty > Math.max(3, values.length / 50)) { runs.push(run); run = []; }
    empty = 0;
    run.push([x(i), y(value)]);
  });
  if (run.length) runs.push(run);
  return runs;
}

const toPath = run => run.length === 1
  ? `M${run[0][0] - 1} ${run[0][1]}h2`
  : "M" + run.map(([x, y]) => x.toFixed(1) + " " + y.toFixed(1)).join("L");

function drawChart(chart, bins, width) {
  const height = 120;
  const bottom = height - EDGE.bottom;
  const lines = chart.lines.map(line => bins.map(rows => rows.length ? line.value(rows) : null));
  const max = chart.max || niceMax(Math.max(0, ...lines.flat().filter(v => v !== null)));
  const x = i => EDGE.left + (i + .5) / bins.length * (width - EDGE.left - EDGE.right);
  const y = value => bottom - value / max * (bottom - EDGE.top);
  const shapes = [];
  for (const part of [0, .5, 1])
    shapes.push(drawn("line", { class: "grid", x1: 0, x2: width, y1: y(max * part), y2: y(max * part) }));
  lines.forEach((values, l) => pathsOf(values, x, y).forEach(run => {
    if (chart.area && l === 0)
      shapes.push(drawn("path", { class: "under",
        d: toPath(run) + `L${run[run.length - 1][0].toFixed(1)} ${bottom}L${run[0][0].toFixed(1)} ${bottom}Z` }));
    shapes.push(drawn("path", { class: l ? "b" : "a", d: toPath(run) }));
  }));
  if (lines.flat().some(value => value !== null))
    shapes.push(drawn("text", { x: 3, y: EDGE.top + 11 }, chart.format(max)));
  shapes.push(drawn("text", { x: 3, y: height - 3 }, Number($("window").value) / 60 + " min ago"));
  shapes.push(drawn("text", { x: width - 2, y: height - 3, "text-anchor": "end" }, "now"));
  let at = bins.length - 1;
  if (cursor !== null) {
    at = Math.min(at, Math.max(0, Math.floor((1 - cursor) * bins.length)));
    shapes.push(drawn("line", { class: "cursor", x1: x(at), x2: x(at), y1: EDGE.top, y2: bottom }));
  } else {
    while (at > 0 && lines.every(values => values[at] === null)) at--;
  }
  chart.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.svg.replaceChildren(...shapes);
  const said = chart.lines.map((line, l) => lines[l][at] === null ? "–" : chart.format(lines[l][at])).join(" / ");
  chart.output.textContent = said;
  chart.svg.setAttribute("aria-label", chart.title + ": " + said);
}

function drawCharts(rows) {
  for (const chart of CHARTS) {
    const width = Math.max(120, Math.round(chart.svg.clientWidth));
    drawChart(chart, points(rows, width), width);
  }
}

function drawTiles(rows) {
  const minute = rows.filter(row => row.age < 60000);
  const recent = rows.filter(row => row.age < 10000);
  const chosen = known.sources.filter(s => !$("which").value || s.name === $("which").value);
  const total = name => chosen.reduce((all, s) => all + (s[name] || 0), 0);
  const share = shareOf(minute, "contiguous_pages");
  const tile = (name, value, small) => element("div", {}, element("dt", { text: name }),
    element("dd", { text: value }, element("small", { text: small })));
  const sized = chosen.filter(s => s.cpu_bytes !== null && s.cpu_bytes !== undefined);
  const medium = which => {
    const all = sized.length === chosen.length && sized.length > 0;
    return all ? bytes(total(which + "_bytes")) : "";
  };
  const lag = worst(recent, "lag_us");
  $("tiles").replaceChildren(
    tile("shared, last minute", share === null ? "–" : percent(share), share === null ? "nothing was asked" : "of pages asked for"),
    tile("lookups", number(rate(recent, "lookups") || 0) + " /s", "last 10 s"),
    tile("pages in memory", number(total("cpu_pages")), medium("cpu")),
    tile("pages on disk", number(total("disk_pages")), medium("disk")),
    tile("events", number(rate(recent, "events") || 0) + " /s", "last 10 s"),
    tile("lag", lag === null ? "–" : duration(lag), lag === null ? "no event lately" : "the worst of 10 s"));
}

/* Sources ----------------------------------------------------------------------------------- */

function sourceItem(source) {
  const worth = source.confidence || "";
  const item = element("li", {},
    element("h3", {}, element("span", { text: source.name }),
      worth ? element("span", { class: "worth " + worth, text: worth }) : element("span", { text: source.profile })));
  if (source.reasons && source.reasons.length)
    item.append(element("ul", {}, ...source.reasons.map(r => element("li", { text: r.sentence }))));
  const facts = element("dl", { class: "facts" });
  const sized = (pages, size) => number(pages) + (size === null || size === undefined ? "" : " · " + bytes(size));
  if (source.pages !== undefined)
    facts.append(fact("pages", number(source.pages)),
      fact("in memory", sized(source.cpu_pages, source.cpu_bytes)),
      fact("on disk", sized(source.disk_pages, source.disk_bytes)));
  else
    facts.append(fact("object keys", number(source.present_keys || 0)));
  facts.append(fact("last message", source.age_ms === null ? "never" : ago(source.age_ms)),
    fact("events", number(source.events)), fact("gaps / restarts", number(source.gaps) + " / " + number(source.restarts)),
    fact("workers usable", source.workers_usable + " of " + source.workers), fact("tenant", source.tenant));
  if (source.messages_dropped > 0) facts.append(fact("messages dropped", number(source.messages_dropped)));
  if (source.admin_failure) facts.append(fact("admin port", source.admin_failure));
  if (source.memory_bytes_max) {
    const label = "index " + bytes(source.memory_bytes) + " of " + bytes(source.memory_bytes_max) +
      (source.partial ? ", full: absent may mean forgotten" : "");
    facts.append(element("div", { class: "wide" }, element("dt", { text: label }), element("dd", {},
      element("meter", { min: 0, max: source.memory_bytes_max, value: source.memory_bytes, "aria-label": label }))));
  }
  item.append(facts);
  return item;
}

/* A list of choices, kept if nothing changed, so that an open one stays open. */
function setChoices(select, names, first) {
  const wanted = JSON.stringify(names);
  if (select.dataset.names === wanted) return;
  const value = select.value;
  select.dataset.names = wanted;
  select.replaceChildren(element("option", { value: "", text: first }),
    ...names.map(name => element("option", { value: name, text: name })));
  select.value = names.includes(value) ? value : "";
}

function drawSources() {
  const names = known.sources.map(s => s.name);
  setChoices($("which"), names, "all");
  setChoices($("ask-source"), names, "the first");
  $("which").parentElement.hidden = names.length < 2;
  const items = known.sources.map(sourceItem);
  if (!items.length)
    items.push(element("li", { text: "No source is configured: name one in the configuration, or POST /register." }));
  $("sources").replaceChildren(...items);
}

/* Slow lookups ------------------------------------------------------------------------------ */

function drawSlow(slowest) {
  const labels = [...document.querySelectorAll("#slow th")].map(th => th.textContent.trim());
  $("slow").hidden = slowest.length === 0;
  $("slow-empty").hidden = slowest.length > 0;
  $("slow").tBodies[0].replaceChildren(...slowest.slice(0, 10).map(s => {
    const cells = [duration(s.hash_us + s.lookup_us), duration(s.hash_us), duration(s.lookup_us),
      s.tokens ? whole.format(s.tokens) : "keys", whole.format(s.pages),
      s.pages ? percent(s.contiguous_pages / s.pages) : "–", s.confidence, s.source, s.tenant || "–", ago(s.age_ms)];
    return element("tr", {}, ...cells.map((text, i) => {
      const cell = element("td", { "data-label": labels[i], text: i === 6 ? "" : text });
      if (i === 6) cell.append(element("span", { class: "worth " + text, text }));
      return cell;
    }));
  }));
}

/* Hot prefixes ------------------------------------------------------------------------------ */

const ROW = 34;
const ROWS_MAX = 14;
/* Where we look: null (everything), or what to ask for. */
const hot = { at: null, answer: null, boxes: new Map(), shown: [], focus: null, about: null, trail: [null] };

const spaceOf = (answer, index) => answer.spaces.find(s => s.space === index);
const spaceName = s => s ? `${s.source} / ${s.tenant}, pages of ${s.page_size}` : "?";

function pagesText(first, end) {
  return first === end ? "page " + first : `pages ${first}–${end}`;
}

/* The tree as boxes, each a run of pages that are asked for together. */
function boxTree(answer) {
  const boxes = answer.nodes.map(node => ({
    key: [node.space, node.prefix, node.page].join(" "), node, parent: null, children: [] }));
  for (const box of boxes) {
    box.parent = box.node.parent === null ? null : boxes[box.node.parent];
    if (box.parent) box.parent.children.push(box);
  }
  let root = boxes[0];
  if (root && root.node.space === null && root.children.length === 1 && !root.node.more) {
    root = root.children[0];
    root.parent = null;
  }
  return root;
}

function boxText(answer, box) {
  if (box.node.space === null) return "everything";
  if (box.node.page === null) return spaceName(spaceOf(answer, box.node.space));
  return pagesText(box.node.page, box.node.last_page);
}

const presentShare = box => box.node.last_lookups > 0 ? box.node.last_present / box.node.last_lookups : 0;

/* Where each box lies: left and width as shares, row as a number. */
function place(box, left, width, row, pixels, out, rests) {
  out.push({ box, left, width, row });
  if (row + 1 >= ROWS_MAX) return;
  let at = left;
  let small = 0;
  for (const child of box.children) {
    const share = width * Math.min(1, child.node.lookups / Math.max(box.node.lookups, 1e-9));
    if (share * pixels < 7) { small += share; continue; }
    place(child, at, share, row + 1, pixels, out, rests);
    at += share;
  }
  if (small * pixels >= 2) rests.push({ left: at, width: small, row: row + 1 });
}

function describe(answer, box) {
  const space = spaceOf(answer, box.node.space);
  const about = [fact("what", boxText(answer, box))];
  if (box.node.page !== null && space) {
    about.push(fact("tokens", whole.format(box.node.page * space.page_size) + " to " +
      whole.format((box.node.last_page + 1) * space.page_size - 1)),
      fact("tenant", space.source + " / " + space.tenant), fact("page key begins", box.node.last_prefix));
  }
  const most = box.node.lookups_at_most - box.node.lookups;
  about.push(fact("asked for", number(box.node.lookups) + " lookups" + (most >= 1 ? ", at most " + number(box.node.lookups_at_most) : "")),
    fact("of everything", percent(answer.lookups > 0 ? box.node.lookups / answer.lookups : 0)));
  if (box.node.page !== null) about.push(fact("in the store when asked for", percent(presentShare(box))));
  return about;
}

function showAbout(box) {
  hot.about = box ? box.key : null;
  if (box) $("hot-about").replaceChildren(...describe(hot.answer, box));
  else $("hot-about").replaceChildren();
}

function drawHot() {
  const answer = hot.answer;
  const root = answer && answer.lookups > 0 ? boxTree(answer) : null;
  const area = $("hot");
  const pixels = Math.max(200, area.clientWidth || area.parentElement.clientWidth);
  const placed = [];
  const rests = [];
  if (root) place(root, 0, 1, 0, pixels, placed, rests);
  hot.shown = placed.map(p => p.box);
  const kept = new Set();
  for (const p of placed) {
    let made = hot.boxes.get(p.box.key);
    if (!made) {
      made = element("button", { type: "button", tabindex: "-1" });
      made.addEventListener("click", () => into(made.box));
      made.addEventListener("focus", () => { hot.focus = made.box.key; showAbout(made.box); });
      /* Moves only: a box that comes to lie under a resting pointer is not pointed at. */
      made.addEventListener("pointermove", () => { if (hot.about !== made.box.key) showAbout(made.box); });
      hot.boxes.set(p.box.key, made);
      area.append(made);
    }
    kept.add(p.box.key);
    made.box = p.box;
    p.box.button = made;
    const share = percent(presentShare(p.box));
    const text = boxText(answer, p.box);
    made.className = p.box.node.page === null ? "p0" : "p" + Math.min(4, Math.floor(presentShare(p.box) * 4.999));
    made.style.left = p.left * 100 + "%";
    made.style.width = p.width * 100 + "%";
    made.style.top = p.row * ROW + "px";
    made.textContent = p.width * pixels < 30 ? "" : p.box.node.page === null ? text : `${text} · ${number(p.box.node.lookups)}×`;
    made.setAttribute("aria-label", `${text}: ${number(p.box.node.lookups)} lookups` +
      (p.box.node.page === null ? "" : `, in the store ${share} of them`));
  }
  for (const [key, made] of hot.boxes) {
    if (kept.has(key)) continue;
    const hadFocus = made === document.activeElement;
    made.remove();
    hot.boxes.delete(key);
    if (hadFocus && root) root.button.focus();
  }
  area.querySelectorAll(".rest").forEach(rest => rest.remove());
  for (const r of rests) {
    const rest = element("div", { class: "rest", title: "many that few ask for" });
    rest.style.left = r.left * 100 + "%";
    rest.style.width = r.width * 100 + "%";
    rest.style.top = r.row * ROW + "px";
    if (r.width * pixels > 180) rest.append(element("span", { text: "many that few ask for" }));
    area.append(rest);
  }
  const rows = [...placed, ...rests].reduce((most, p) => Math.max(most, p.row + 1), 0);
  area.style.height = Math.max(2, rows) * ROW + "px";
  area.hidden = !root;
  $("hot-empty").hidden = !!root;
  $("hot-empty").textContent = hot.at ? "This prefix is not asked for any more." : "Nothing has been asked for lately.";
  const tabbed = hot.shown.find(box => box.key === hot.focus) || root;
  hot.shown.forEach(box => box.button.setAttribute("tabindex", box === tabbed ? "0" : "-1"));
  showAbout(hot.shown.find(box => box.key === hot.about) || tabbed);
  drawCrumbs();
}

function drawCrumbs() {
  const answer = hot.answer;
  const crumbs = [{ text: "everything", at: null }];
  if (hot.at && answer) {
    const own = answer.nodes.length ? [answer.nodes[0]] : [];
    let run = null; /* Pages before this one are one step. */
    for (const node of [...answer.path, ...own]) {
      if (node.space === null) continue;
      const space = spaceOf(answer, node.space);
      if (node.page === null) {
        crumbs.push({ text: spaceName(space), at: question(space, null) });
        continue;
      }
      if (run && node !== own[0] && node.lookups_at_most >= run.node.lookups * .97) { run.end = node.page; continue; }
      run = { node, end: node.page, at: question(space, node.prefix) };
      crumbs.push(run);
    }
  }
  const items = crumbs.map((crumb, i) => {
    const text = crumb.text || pagesText(crumb.node.page, crumb.end) + (i === crumbs.length - 1 ? " on" : "");
    const button = element("button", { type: "button", text });
    if (i === crumbs.length - 1) button.setAttribute("aria-current", "location");
    button.addEventListener("click", () => goTo(crumb.at));
    return element("li", {}, button);
  });
  const wanted = items.map(item => item.textContent).join("|");
  hot.trail = crumbs.map(crumb => crumb.at);
  if ($("crumbs").dataset.shown === wanted && hot.at === hot.crumbsFor) return;
  $("crumbs").dataset.shown = wanted;
  hot.crumbsFor = hot.at;
  $("crumbs").replaceChildren(...items);
}

function question(space, prefix) {
  return { source: space.source, tenant: space.tenant, page_size: space.page_size, ...(prefix ? { prefix } : {}) };
}

function into(box) {
  if (box.node.space === null) goTo(null);
  else goTo(question(spaceOf(hot.answer, box.node.space), box.node.prefix));
}

function goTo(at) {
  hot.at = at;
  hot.focus = null;
  hot.about = null;
  askHot().then(() => {
    const first = hot.shown[0];
    if (first && !$("crumbs").contains(document.activeElement)) first.button.focus();
  });
}

async function askHot() {
  const at = hot.at;
  try {
    const answer = await ask("/v1/hot" + (at ? "?" + new URLSearchParams(at) : ""));
    if (at !== hot.at) return; /* Somebody clicked meanwhile. */
    hot.answer = answer;
    const looked = answer.sampled_one_in === 1 ? "Every lookup is looked at"
      : `One lookup in ${answer.sampled_one_in} is looked at, and counts for as many`;
    const passed = answer.dropped > 0 ? `, but for ${whole.format(answer.dropped)} so far that came in bursts` : "";
    $("hot-note").textContent = `${looked}${passed}. The first ${answer.depth_max} pages count; ` +
      `after ${answer.half_life_s} s a lookup counts half.`;
    drawHot();
  } catch (error) {
    if (error.status === 404 && at && at === hot.at) { hot.at = null; await askHot(); }
  }
}

function moveInHot(event) {
  const box = event.target.box;
  if (event.key === "Escape") {
    if (hot.trail.length > 1) {
      hot.trail.pop(); /* At once: the next press may come before the answer. */
      goTo(hot.trail[hot.trail.length - 1]);
      event.preventDefault();
    }
    return;
  }
  if (!box) return;
  const shown = list => list.filter(b => hot.shown.includes(b));
  const beside = box.parent ? shown(box.parent.children) : [];
  const target = event.key === "ArrowUp" ? box.parent : event.key === "ArrowDown" ? shown(box.children)[0]
    : event.key === "ArrowRight" ? beside[beside.indexOf(box) + 1]
    : event.key === "ArrowLeft" ? beside[beside.indexOf(box) - 1]
    : event.key === "Home" ? hot.shown[0] : undefined;
  if (!event.key.startsWith("Arrow") && event.key !== "Home") return;
  event.preventDefault();
  if (!target) return;
  hot.shown.forEach(b => b.button.setAttribute("tabindex", b === target ? "0" : "-1"));
  target.button.focus();
}

/* Explain ----------------------------------------------------------------------------------- */

/* The request that was pasted; throws what is wrong with it, in words. */
function readQuestion(text) {
  text = text.trim();
  if (text === "") throw new Error("Paste tokens first: numbers, as a tokenizer makes them.");
  if (text.startsWith("{")) {
    let whole;
    try { whole = JSON.parse(text); } catch (error) { throw new Error("This is not JSON: " + error.message); }
    return whole;
  }
  const items = text.replace(/^\[|\]$/g, " ").split(/[\s,;]+/).filter(item => item !== "");
  if (!items.length) throw new Error("There is no token in it.");
  const tokens = items.map((item, i) => {
    const value = /^\d+$/.test(item) ? Number(item) : NaN;
    if (!(value <= 4294967295)) {
      const shown = item.length > 20 ? item.slice(0, 20) + "…" : item;
      throw new Error(`Item ${i + 1}, "${shown}", is not a token: whole numbers from 0 to 4294967295.`);
    }
    return value;
  });
  return { tokens };
}

function withFields(request) {
  const put = (name, value) => { if (value !== "" && request[name] === undefined) request[name] = value; };
  put("source", $("ask-source").value);
  put("tenant", $("ask-tenant").value.trim());
  put("extra_key", $("ask-extra").value);
  const size = $("ask-page-size").value.trim();
  if (size !== "" && !/^\d+$/.test(size)) throw new Error("The page size is not a whole number.");
  if (size !== "") put("page_size", Number(size));
  return request;
}

const stateOf = page => page.present ? "all" : page.parts > 0 ? "some" : "none";
const STATES = { all: "whole, can be loaded", some: "parts of it are missing", none: "not in the store" };

function mediaText(page) {
  const media = [];
  if (page.cpu_parts > 0) media.push(`${page.cpu_parts} in memory`);
  if (page.disk_parts > 0) media.push(`${page.disk_parts} on disk`);
  return media.join(", ") || "–";
}

/* Cells in rows, one a page. */
function pagePicture(pages, width) {
  const cell = pages.length > 800 ? 7 : 11;
  const columns = Math.max(1, Math.floor(width / cell));
  const rows = Math.ceil(pages.length / columns);
  const paths = { all: "", some: "", none: "" };
  pages.forEach((page, i) => {
    const x = i % columns * cell + .5;
    const y = Math.floor(i / columns) * cell + .5;
    paths[stateOf(page)] += `M${x} ${y}h${cell - 2}v${cell - 2}h${2 - cell}z`;
  });
  const wide = Math.min(columns, pages.length) * cell;
  const svg = drawn("svg", { role: "img", width: wide, height: rows * cell, viewBox: `0 0 ${wide} ${rows * cell}`,
    "aria-label": `${pages.filter(p => p.present).length} of ${pages.length} pages are whole` });
  for (const [state, d] of Object.entries(paths)) if (d) svg.append(drawn("path", { class: state, d }));
  return svg;
}

/* Pages that are alike stand in one row. */
function runsOf(pages) {
  const runs = [];
  for (const page of pages) {
    const like = stateOf(page) + mediaText(page);
    const run = runs[runs.length - 1];
    if (run && run.like === like) { run.end = page; continue; }
    runs.push({ like, first: page, end: page });
  }
  return runs;
}

function explainedTable(answer) {
  const runs = runsOf(answer.explained);
  const names = ["pages", "from token", "state", "parts a page"];
  const body = element("tbody");
  for (const run of runs.slice(0, 60)) {
    const state = stateOf(run.first);
    const cells = [pagesText(run.first.page, run.end.page), whole.format(run.first.first_token),
      element("span", { class: "swatch " + state, text: STATES[state] }), mediaText(run.first)];
    body.append(element("tr", {}, ...cells.map((cell, i) => element("td", { "data-label": names[i] }, cell))));
  }
  const head = element("thead", {}, element("tr", {}, ...names.map(text => element("th", { scope: "col", text }))));
  const out = [element("table", {}, head, body)];
  if (runs.length > 60) out.push(element("p", { class: "hint", text: `And ${runs.length - 60} more runs.` }));
  return out;
}

function showExplained(answer) {
  const parts = [element("p", { class: "why", text: answer.why + "." })];
  const sure = element("p", {}, `${whole.format(answer.contiguous_pages)} of ${whole.format(answer.pages)} pages can be loaded from the start ` +
    `(${whole.format(answer.contiguous_tokens)} of ${whole.format(answer.tokens)} tokens); the answer is `,
    element("span", { class: "worth " + answer.confidence, text: answer.confidence }));
  if (answer.reasons.length) sure.append(" because of: " + answer.reasons.join(", "));
  sure.append(`. Layout ${answer.layout.index}: pages of ${answer.layout.page_size} tokens, ${answer.layout.parts_per_page} parts each` +
    (answer.layout.prefix ? `, prefix "${answer.layout.prefix}".` : "."));
  parts.push(sure);
  if (answer.explained.length) parts.push(pagePicture(answer.explained, $("explained").clientWidth), ...explainedTable(answer));
  if (answer.next_page !== null)
    parts.push(element("p", { class: "hint", text: `Shown are the first ${whole.format(answer.next_page)} pages.` }));
  if (answer.first_missing) {
    parts.push(element("p", {}, `First missing: page ${answer.first_missing.page}, key `,
      element("code", { text: answer.first_missing.page_key }), ". Objects that it lacks:"));
    parts.push(element("ul", {}, ...answer.first_missing.missing_objects.map(key => element("li", {}, element("code", { text: key })))));
  }
  $("explained").replaceChildren(...parts);
}

async function explain(event) {
  event.preventDefault();
  $("explain-error").textContent = "";
  try {
    const request = withFields(readQuestion($("tokens").value));
    showExplained(await ask("/v1/explain", JSON.stringify(request)));
  } catch (error) {
    $("explained").replaceChildren();
    $("explain-error").textContent = error instanceof TypeError ? "The daemon did not answer." : error.message;
  }
}

/* The turn ---------------------------------------------------------------------------------- */

const turn = { failures: 0, lostSince: null, hotAt: 0, timer: null, busy: false };

function draw() {
  const rows = inWindow();
  drawTiles(rows);
  drawCharts(rows);
  drawSources();
  drawSlow(known.live.slowest);
  $("about").textContent = `kvgraft ${known.live.version}, up ${span(known.live.uptime_ms)}`;
  $("links").hidden = session.token !== "";
}

function setLink(state, text) {
  $("link").className = state;
  if ($("link").textContent !== text) $("link").textContent = text;
  document.body.classList.toggle("lost", state === "lost");
  document.title = state === "lost" ? "kvgraft: no answer" : "kvgraft";
}

function askForToken(show) {
  $("login").hidden = !show;
  $("main").hidden = show;
  if (show) setLink("", "token needed");
  if (show && document.activeElement === document.body) $("token").focus();
}

function lost(error) {
  turn.failures++;
  turn.lostSince ??= Date.now();
  const seconds = Math.round((Date.now() - turn.lostSince) / 1000);
  setLink("lost", "no answer");
  $("gone").hidden = false;
  const text = error.status ? `The daemon refuses: ${error.message}` : "The daemon does not answer";
  $("gone").textContent = `${text}. What is shown is ${seconds < 2 ? "from before" : span(seconds * 1000) + " old"}; trying again.`;
}

async function takeTurn() {
  clearTimeout(turn.timer);
  if (turn.busy) return;
  turn.busy = true;
  let wait = 1000;
  try {
    let live = await ask("/v1/live?since=" + known.next);
    if (!takeIn(live)) takeIn(live = await ask("/v1/live?since=0"));
    turn.failures = 0;
    turn.lostSince = null;
    askForToken(false);
    setLink("live", "live");
    $("gone").hidden = true;
    draw();
    if (Date.now() - turn.hotAt >= 2000) {
      turn.hotAt = Date.now();
      await askHot();
    }
  } catch (error) {
    if (error.status === 401) {
      if (session.token) $("login-note").textContent = "That is not this daemon's token.";
      session.token = "";
      askForToken(true);
      return; /* Goes on when there is a token. */
    }
    lost(error);
    wait = Math.min(5000, 500 * 2 ** Math.min(turn.failures, 4));
  } finally {
    turn.busy = false;
  }
  turn.timer = setTimeout(takeTurn, document.hidden ? 5000 : wait);
}

makeCharts();
$("login").addEventListener("submit", event => {
  event.preventDefault();
  session.token = $("token").value;
  $("token").value = "";
  $("login-note").textContent = "";
  takeTurn();
});
$("explain").addEventListener("submit", explain);
$("hot").addEventListener("keydown", moveInHot);
for (const id of ["which", "window"]) $(id).addEventListener("change", () => { if (known.live) draw(); });
addEventListener("resize", () => { if (known.live) { drawCharts(inWindow()); drawHot(); } });
document.addEventListener("visibilitychange", () => { if (!document.hidden && $("login").hidden) takeTurn(); });
takeTurn();
