# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""The live page, in a real Chromium: what it shows is what the daemon knows, and it does no harm.

Skipped where there is no Chromium (Debian: chromium).
"""
import json
import os
import random
import re

import pytest

import browser as browsers
from conftest import eventually
from standin import ROOT, object_keys
from test_commands import page_keys as page_keys_of
from test_follow import is_fresh, source_of, state

pytestmark = pytest.mark.skipif(browsers.find() is None, reason="no Chromium is installed")

EVIL = '<img src=x onerror="window.evil=1"><b>bold'
PAGE = os.path.join(ROOT, "src", "daemon", "page")


@pytest.fixture
def browser():
    with browsers.Browser() as it:
        yield it


@pytest.fixture
def daemon(master, make_daemon):
    it = make_daemon([source_of(master, part_bytes="1MiB")]).start()
    master.wait_subscriber()
    eventually(lambda: state(it)["connected"], "connected")
    master.publish(stored=object_keys(30, 10))
    eventually(lambda: is_fresh(it), "fresh")
    return it


SYSTEM = list(range(1000, 1040))  # Ten pages that every prompt begins with.


def page_keys(tokens):
    return page_keys_of(tokens, 4)


def store(master, tokens, pages=None):
    keys = page_keys(tokens)[:pages]
    master.publish(stored=[key + suffix for key in keys for suffix in ("_0_k", "_0_v")])


def ask_much(daemon, tenant="default", times=12):
    rng = random.Random(4)
    for i in range(times):
        tail = [10 ** 6 * (i % 3 + 1) + n for n in range(20)] + [rng.randrange(10 ** 6)] * 8
        assert daemon.post("/v1/lookup", {"tokens": SYSTEM + tail,
                                          "tenant": tenant}).status == 200


def open_page(browser, daemon):
    browser.go(daemon.url + "/")
    browser.until("document.getElementById('link')?.textContent === 'live'", "live")


def test_it_shows_what_the_daemon_knows(daemon, master, browser):
    store(master, SYSTEM)
    eventually(lambda: state(daemon)["pages"] == 20, "20 pages")
    ask_much(daemon)
    open_page(browser, daemon)
    # 12 prompts of 17 pages, of which the first 10 are there.
    browser.until("document.querySelector('#tiles dd').textContent.startsWith('59 %')",
                  "the shared share")
    tiles = browser.text("#tiles")
    assert re.search(r"pages in memory\s+20\s+40\.0 MiB", tiles), tiles
    assert re.search(r"pages on disk\s+0\s+0 B", tiles), tiles
    source = browser.text("#sources")
    assert "store" in source and "fresh" in source and "1 of 1" in source, source
    rows = browser.run("[...document.querySelectorAll('#slow tbody tr')].map(r => r.innerText)")
    assert rows and all("store" in row and "59 %" in row for row in rows), rows
    assert browser.run("document.querySelectorAll('figure svg path.a').length") >= 3
    assert browser.complaints() == []
    # Nothing is asked of anybody else.
    for url in browser.requested():
        assert url.startswith(daemon.url + "/"), url


def test_a_hot_prefix_can_be_clicked_into_and_left_by_the_keyboard(daemon, master, browser):
    store(master, SYSTEM)
    eventually(lambda: state(daemon)["pages"] == 20, "20 pages")
    ask_much(daemon)
    open_page(browser, daemon)
    box = "#hot button[aria-label^='pages 0–9: '][aria-label$=' in the store 100 % of them']"
    browser.until("document.querySelector(%s) !== null" % json.dumps(box), "ten pages in a box")
    assert browser.run("document.querySelectorAll('#hot button').length") >= 5
    browser.click(box)
    browser.until("document.querySelector('#crumbs').innerText.includes('page 0 on')", "inside")
    browser.until("document.activeElement.closest('#hot') !== null", "the focus is inside")
    about = browser.text("#hot-about")
    assert "0 to 39" in about and "store / default" in about, about
    assert page_keys(SYSTEM)[-1][:16] in about, about
    # Down to a child, Enter goes in, Escape goes back.
    browser.press("ArrowDown")
    browser.until("document.activeElement.getAttribute('aria-label')?.startsWith('page')"
                  " && document.activeElement.style.top !== '0px'", "a child")
    browser.press("Enter")
    browser.until("document.querySelectorAll('#crumbs li').length === 4", "one deeper")
    browser.press("Escape")
    browser.until("document.querySelectorAll('#crumbs li').length === 3", "back")
    browser.press("Escape")
    browser.press("Escape")
    browser.until("document.querySelectorAll('#crumbs li').length === 1", "at the root")
    assert browser.complaints() == []


def explain(browser, text):
    browser.run("""(() => { document.getElementById('tokens').value = %s;
        document.getElementById('explained').replaceChildren();
        document.getElementById('explain-error').textContent = '';
        document.querySelector('#explain button').click(); })()""" % json.dumps(text))
    browser.until("document.getElementById('explained').innerText + "
                  "document.getElementById('explain-error').innerText")
    return browser.text("#explained"), browser.text("#explain-error")


def test_a_pasted_prompt_is_explained(daemon, master, browser):
    store(master, SYSTEM, pages=6)
    eventually(lambda: state(daemon)["pages"] == 16, "16 pages")
    open_page(browser, daemon)
    for text in (" ".join(map(str, SYSTEM)), ",\n".join(map(str, SYSTEM)), json.dumps(SYSTEM),
                 json.dumps({"tokens": SYSTEM, "page_size": 4})):
        said, wrong = explain(browser, text)
        assert wrong == ""
        assert "6 of 10 pages can be loaded from the start (24 of 40 tokens)" in said, said
        assert "page 6 is the first gap" in said and "pages 6–9" in said, said
        assert page_keys(SYSTEM)[6] + "_0_k" in said
    for text, expected in (("", "Paste tokens"), ("1 2 hello", 'Item 3, "hello"'),
                           ("1 4294967296", "Item 2"), ("1 -1", "Item 2"), ("1.5", "Item 1"),
                           ("{", "not JSON"), ('{"tokens": [1], "nosuch": 2}', "nosuch"),
                           ('{"tokens": [1,2,3,4], "page_size": 64}', "pages of 4 tokens")):
        said, wrong = explain(browser, text)
        assert said == "" and expected in wrong, (text, wrong)
    assert all("400" in c or "409" in c for c in browser.complaints())


def test_names_from_outside_are_text(daemon, master, browser):
    store(master, SYSTEM)
    ask_much(daemon, tenant=EVIL)
    assert daemon.ask("PUT", "/v1/workers", {"1": {
        "backend": "mooncake", "page_size": 4, "tp_size": 1, "pp_size": 1,
        "is_mla_model": False, "is_eagle": False, "should_split_heads": False,
        "model_prefix": EVIL}}).status == 200
    open_page(browser, daemon)
    browser.until("document.getElementById('hot').innerText.includes('onerror')",
                  "the tenant's name")
    said, _ = explain(browser, "1 2 3 4 5 6 7 8")
    assert EVIL in said
    assert EVIL in browser.text("#slow")
    assert browser.run("window.evil === undefined && document.querySelector('main img, main b') === null")
    assert not [c for c in browser.complaints() if "Content Security" in c]


def test_it_says_so_when_the_daemon_is_gone_and_goes_on_when_it_is_back(daemon, browser):
    ask_much(daemon)
    open_page(browser, daemon)
    daemon.kill()
    browser.until("!document.getElementById('gone').hidden", "told")
    assert "does not answer" in browser.text("#gone")
    assert browser.run("document.title") == "kvgraft: no answer"
    daemon.start()
    browser.until("document.getElementById('gone').hidden && "
                  "document.getElementById('link').textContent === 'live'", "live again")
    # The new daemon's rows, not the old one's.
    assert browser.run("known.rows.length > 0 ? known.rows[0].number === 0 : true")


def test_a_token_is_asked_for_and_kept_to_the_tab(master, make_daemon, browser):
    daemon = make_daemon([source_of(master)], http={"token": "secret"})
    daemon.start()
    for path in ("/v1/live", "/v1/hot"):
        assert daemon.get(path).status == 401
    for path in ("/", "/page.js", "/page.css", "/page.svg"):
        assert daemon.get(path).status == 200
    browser.go(daemon.url + "/")
    for token, shown in (("wrong", "That is not"), ("secret", "")):
        browser.until("document.getElementById('login')?.hidden === false", "asked for a token")
        browser.run("document.getElementById('token').value = %s;"
                    "document.querySelector('#login button').click()" % json.dumps(token))
        if shown:
            browser.until("document.getElementById('login-note').textContent.startsWith(%s)"
                          % json.dumps(shown))
    browser.until("document.getElementById('link').textContent === 'live'", "live")
    assert browser.run("document.getElementById('login').hidden && localStorage.length === 0")
    assert not [url for url in browser.requested() if "secret" in url]
    assert "secret" not in daemon.log


@pytest.mark.parametrize("width", [360, 768, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_width_in_both_schemes_and_can_be_read(daemon, browser, width, dark):
    ask_much(daemon)
    ask_much(daemon, tenant="a-rather-long-tenants-name-without-any-blank-in-it", times=3)
    browser.look(width, 900, dark)
    open_page(browser, daemon)
    browser.until("document.querySelectorAll('#hot button').length > 2")
    explain(browser, " ".join(map(str, SYSTEM)))
    assert browser.run("document.documentElement.scrollWidth") <= width
    # Letters stand out from what is behind them: WCAG's contrast of 4.5 for small text.
    poor = browser.run("""(() => {
        const parse = c => c.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v =>
            v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
            .reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
        const behind = e => {
            for (; e; e = e.parentElement) {
                const c = parse(getComputedStyle(e).backgroundColor);
                if (c.length < 4 || c[3] > .9) return c;
            }
            return [255, 255, 255];
        };
        const poor = [];
        for (const e of document.querySelectorAll('body *')) {
            const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
            if (!own || e.closest('svg, [hidden], noscript') || !e.offsetParent) continue;
            const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
            const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
            if (contrast < 4.5) poor.push(e.textContent.trim().slice(0, 30) + ' ' + contrast);
        }
        return poor;
    })()""")
    assert poor == []
    assert browser.complaints() == []


def test_its_files_hold_no_address_and_write_no_markup(daemon):
    for name in ("page.html", "page.css", "page.js", "page.svg"):
        with open(os.path.join(PAGE, name), encoding="utf-8") as file:
            text = file.read()
        path = "/" if name == "page.html" else "/" + name
        answer = daemon.get(path)
        assert answer.body.decode() == text
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        found = set(re.findall(r"\w+://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}
        assert not found, "%s names %s" % (name, found)
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                     "new Function", "onclick=", "style="):
            assert word not in text, "%s: %s" % (name, word)
