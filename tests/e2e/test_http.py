# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""The HTTP API: its answers have the form that its own description states, and hold.

The description is the one the running daemon serves.  Every operation in it is asked here, well
and badly; status, content type and body must be among what it promises.
"""
import json
import re
import socket
import struct
import urllib.parse

import pytest

from conftest import eventually
from standin import object_keys
from test_follow import LAYOUT, is_fresh, source_of, state


class Schema:
    """As much of JSON Schema as an OpenAPI 3.1 file needs, strictly."""

    def __init__(self, root):
        self.root = root

    def resolve(self, schema):
        while "$ref" in schema:
            node = self.root
            for part in schema["$ref"].lstrip("#/").split("/"):
                node = node[part.replace("~1", "/").replace("~0", "~")]
            schema = node
        return schema

    TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}

    def is_type(self, value, name):
        if name == "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        if name == "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        return isinstance(value, self.TYPES[name])

    def check(self, value, schema, where="body"):
        schema = self.resolve(schema)
        for key in ("oneOf", "anyOf"):
            if key in schema:
                faults = []
                for option in schema[key]:
                    try:
                        return self.check(value, option, where)
                    except AssertionError as fault:
                        faults.append(str(fault))
                raise AssertionError("%s fits no option: %s" % (where, faults))
        for option in schema.get("allOf", []):
            self.check(value, option, where)
        kinds = schema.get("type")
        if kinds is not None:
            kinds = [kinds] if isinstance(kinds, str) else kinds
            assert any(self.is_type(value, kind) for kind in kinds), \
                "%s is %r, not %s" % (where, value, kinds)
        if "enum" in schema:
            assert value in schema["enum"], "%s is %r" % (where, value)
        if "pattern" in schema and isinstance(value, str):
            assert re.search(schema["pattern"], value), "%s is %r" % (where, value)
        if "minimum" in schema and not isinstance(value, (str, type(None))):
            assert value >= schema["minimum"], "%s is %r" % (where, value)
        if isinstance(value, dict):
            self.check_object(value, schema, where)
        if isinstance(value, list) and "items" in schema:
            for i, item in enumerate(value):
                self.check(item, schema["items"], "%s[%d]" % (where, i))
        return None

    def check_object(self, value, schema, where):
        known = schema.get("properties", {})
        for name in schema.get("required", []):
            assert name in value, "%s has no %s" % (where, name)
        for name, member in value.items():
            more = schema.get("additionalProperties", not known)
            if name in known:
                self.check(member, known[name], where + "." + name)
            elif isinstance(more, dict):
                self.check(member, more, where + "." + name)
            else:
                assert more, "%s.%s is not described" % (where, name)


@pytest.fixture
def daemon(master, make_daemon):
    it = make_daemon([source_of(master)]).start()
    master.wait_subscriber()
    eventually(lambda: state(it)["connected"], "connected")
    master.publish(stored=object_keys(30, 10))
    eventually(lambda: is_fresh(it), "fresh")
    return it


TOKENS = list(range(1, 41))
WORDS = struct.pack("<40I", *TOKENS)
BINARY = "application/octet-stream"
HEX = "ab" * 32

# (method, path, query, body, content type, status expected)
ASKED = [
    ("POST", "/v1/lookup", "", {"tokens": TOKENS}, None, 200),
    ("POST", "/v1/lookup", "", {"token_ids": TOKENS, "page_size": 4, "start": 1}, None, 200),
    ("POST", "/v1/lookup", "", {"page_keys": [HEX, HEX]}, None, 200),
    ("POST", "/v1/lookup", "page_size=4&tenant=default", WORDS, BINARY, 200),
    ("POST", "/v1/lookup", "", {"tokens": TOKENS, "tenant": "somebody else"}, None, 200),
    ("POST", "/v1/lookup", "", {"tokens": TOKENS, "extra_key": "a", "cache_salt": "b"}, None,
     200),
    ("POST", "/v1/lookup", "", {"tokens": []}, None, 200),
    ("POST", "/v1/lookup", "", {"tokens": TOKENS, "page_size": 64}, None, 409),
    ("POST", "/v1/lookup", "", {"tokens": TOKENS, "source": "nosuch"}, None, 404),
    ("POST", "/v1/lookup", "", {"tokens": TOKENS, "worker_id": 99}, None, 404),
    ("POST", "/v1/lookup", "", {"tokens": [1, -1]}, None, 400),
    ("POST", "/v1/lookup", "", {"tokens": [1, 2**32]}, None, 400),
    ("POST", "/v1/lookup", "", {"tokens": "1,2"}, None, 400),
    ("POST", "/v1/lookup", "", {"tokens": TOKENS, "nosuch": 1}, None, 400),
    ("POST", "/v1/lookup", "", {}, None, 400),
    ("POST", "/v1/lookup", "", b"{", None, 400),
    ("POST", "/v1/lookup", "", b"", None, 400),
    ("POST", "/v1/lookup", "", WORDS[:-1], BINARY, 400),
    ("POST", "/v1/lookup", "", b"<xml/>", "text/xml", 415),
    ("POST", "/v1/explain", "", {"tokens": TOKENS}, None, 200),
    ("POST", "/v1/explain", "page_from=2&page_to=4", WORDS, BINARY, 200),
    ("POST", "/v1/explain", "", {"tokens": [None]}, None, 400),
    ("POST", "/query", "", {"token_ids": TOKENS, "model": "m", "block_size": 4}, None, 200),
    ("POST", "/query", "", {"model": "m"}, None, 400),
    ("POST", "/query_by_hash", "", {"seq_hashes": [HEX], "block_size": 4}, None, 200),
    ("POST", "/query_by_hash", "", {"seq_hashes": ["zz"]}, None, 400),
    ("POST", "/check_blocks", "", {"tokens": TOKENS, "block_size": 4}, None, 200),
    ("POST", "/check_blocks", "", {"block_hashes": [HEX]}, None, 200),
    ("POST", "/check_blocks", "", {"block_hashes": 7}, None, 400),
    ("GET", "/v1/workers", "", None, None, 200),
    ("GET", "/v1/workers", "source=nosuch", None, None, 404),
    ("PUT", "/v1/workers", "", {"1": LAYOUT, "2": {"backend": "mooncake"}}, None, 200),
    ("PUT", "/v1/workers", "", {"x": LAYOUT}, None, 400),
    ("PUT", "/v1/workers", "", b"[]", None, 400),
    ("GET", "/v1/sources", "", None, None, 200),
    ("POST", "/v1/listing", "", {}, None, 202),
    ("POST", "/v1/listing", "source=nosuch", {}, None, 404),
    ("GET", "/v1/dump", "", None, None, 200),
    ("GET", "/v1/dump", "format=json", None, None, 200),
    ("GET", "/healthz", "", None, None, 200),
    ("GET", "/readyz", "", None, None, 200),
    ("GET", "/readyz", "min=nosuch", None, None, 400),
    ("GET", "/metrics", "", None, None, 200),
    ("GET", "/openapi.json", "", None, None, 200),
    ("GET", "/v1/live", "", None, None, 200),
    ("GET", "/v1/live", "since=3", None, None, 200),
    ("GET", "/v1/live", "since=-1", None, None, 400),
    ("GET", "/v1/live", "since=99999999999999999999", None, None, 400),
    ("GET", "/v1/live", "nosuch=1", None, None, 400),
    ("GET", "/v1/hot", "", None, None, 200),
    ("GET", "/v1/hot", "nodes=1", None, None, 200),
    ("GET", "/v1/hot", "nodes=0", None, None, 400),
    ("GET", "/v1/hot", "nodes=2049", None, None, 400),
    ("GET", "/v1/hot", "prefix=" + "0" * 16, None, None, 404),
    ("GET", "/v1/hot", "prefix=xyz", None, None, 400),
    ("GET", "/v1/hot", "tenant=nosuch", None, None, 404),
    ("GET", "/", "", None, None, 200),
    ("GET", "/page.css", "", None, None, 200),
    ("GET", "/page.js", "", None, None, 200),
    ("GET", "/page.svg", "", None, None, 200),
    ("POST", "/register", "", {"instance_id": "two", "endpoint": "tcp://127.0.0.1:1",
                               "type": "Mooncake", "block_size": 4}, None, 201),
    ("POST", "/register", "", {"endpoint": "tcp://127.0.0.1:1"}, None, 400),
    ("POST", "/register", "", {"instance_id": "x", "endpoint": "tcp://127.0.0.1:1",
                               "type": "vLLM"}, None, 501),
    ("POST", "/unregister", "", {"instance_id": "two"}, None, 200),
    ("POST", "/unregister", "", {"instance_id": "nosuch"}, None, 404),
]


def check_answer(api, method, path, answer):
    operation = api["paths"][path][method.lower()]
    responses = operation["responses"]
    described = responses.get(str(answer.status)) or responses.get(
        "%dXX" % (answer.status // 100)) or responses.get("default")
    where = "%s %s %d" % (method, path, answer.status)
    assert described, where + " is not described"
    schema = Schema(api)
    content = schema.resolve(described).get("content", {})
    kind = answer.headers.get("Content-Type", "").split(";")[0]
    assert kind in content, "%s is %s, described are %s" % (where, kind, list(content))
    if kind.endswith("json") and "schema" in content[kind]:
        schema.check(json.loads(answer.body), content[kind]["schema"], where)


def test_every_answer_has_the_form_that_the_api_describes(daemon):
    api = daemon.get("/openapi.json").json
    left = {(m.upper(), p) for p, ms in api["paths"].items() for m in ms
            if m in ("get", "put", "post", "delete")}
    for method, path, query, body, kind, status in ASKED:
        full = path + ("?" + query if query else "")
        answer = daemon.ask(method, full, body, kind=kind or "application/json")
        where = "%s %s %s" % (method, full, body)
        assert answer.status == status, "%s: %d %s" % (where, answer.status, answer.body)
        assert path in api["paths"] and method.lower() in api["paths"][path], \
            where + " is not described"
        check_answer(api, method, path, answer)
        left.discard((method, path))
    assert not left, "described, but not asked here: %s" % left


def test_a_problem_says_what_to_change(daemon):
    for method, path, query, body, kind, status in ASKED:
        if status < 400:
            continue
        answer = daemon.ask(method, path + "?" + query, body, kind=kind or "application/json")
        assert answer.headers["Content-Type"].startswith("application/problem+json")
        problem = answer.json
        assert problem["status"] == status
        assert problem["type"] and problem["title"] and len(problem["detail"]) > 10
        assert daemon.metric("kvgraft_http_requests_total") > 0


@pytest.mark.parametrize("method,path,status", [
    ("GET", "/nosuch", 404), ("DELETE", "/v1/lookup", 405), ("GET", "/v1/lookup", 405),
    ("PUT", "/metrics", 405)])
def test_what_is_not_there_is_told(daemon, method, path, status):
    answer = daemon.ask(method, path)
    assert answer.status == status
    assert (status != 405) or answer.headers["Allow"]


def test_a_body_over_the_limit_is_refused_and_the_daemon_lives(master, make_daemon):
    daemon = make_daemon([source_of(master)], http={"body_bytes_max": "64KiB"}).start()
    try:
        answer = daemon.ask("POST", "/v1/lookup", bytes(200_000), kind=BINARY)
        assert answer.status == 413
    except OSError:
        pass  # Closed while we were still sending.
    assert daemon.post("/v1/lookup", {"tokens": [1]}).status == 200


def test_requests_that_are_no_http_do_no_harm(daemon):
    for rubbish in (b"\0" * 1000, b"GET\r\n\r\n", b"POST /v1/lookup HTTP/1.1\r\n" * 50,
                    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
                    b"POST /v1/lookup HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                    b"zzz\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", daemon.port)) as peer:
            try:
                peer.sendall(rubbish)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(1 << 16)
            except OSError:
                pass
    assert daemon.get("/healthz").status == 200


def test_a_token_is_asked_for_where_one_is_set(master, make_daemon):
    daemon = make_daemon([source_of(master)], http={"token": "secret"})
    daemon.start()
    assert daemon.get("/healthz").status == 200
    assert daemon.post("/v1/lookup", {"tokens": [1]}).status == 401
    for wrong in ("Bearer secre", "Bearer secrets", "Basic secret", "Bearer  secret"):
        assert daemon.post("/v1/lookup", {"tokens": [1]},
                           headers={"Authorization": wrong}).status == 401
    assert daemon.post("/v1/lookup", {"tokens": [1]},
                       headers={"Authorization": "Bearer secret"}).status == 200
    assert "secret" not in daemon.log


def test_metrics_are_prometheus_text(daemon):
    text = daemon.get("/metrics").body.decode()
    helped, typed, seen = set(), {}, set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split()[2])
        elif line.startswith("# TYPE "):
            typed[line.split()[2]] = line.split()[3]
        elif line:
            match = re.fullmatch(
                r"([a-z_:][a-z0-9_:]*)(\{[a-z0-9_]+=\"[^\"]*\"(,[a-z0-9_]+=\"[^\"]*\")*\})? "
                r"[-+0-9.eEinfaN]+", line)
            assert match, line
            name = re.sub(r"_(bucket|sum|count)$", "", match[1]) if re.sub(
                r"_(bucket|sum|count)$", "", match[1]) in typed else match[1]
            assert name in typed and name in helped, line
            assert line.split(" ")[0] not in seen, "twice: " + line
            seen.add(line.split(" ")[0])
            assert name.startswith(("kvgraft_", "process_"))
            if typed[name] == "counter":
                assert name.endswith("_total"), name
    assert len(typed) > 20


def test_the_shape_that_conductors_clients_expect(daemon, master):
    keys = object_keys(31, 1)
    master.publish(stored=keys)
    answer = daemon.post("/query", {"token_ids": TOKENS, "block_size": 4}).json
    assert answer["instances"]["store"]["longest_matched"] == 0
    answer = daemon.post("/query_by_hash", {"seq_hashes": [keys[0][:64]]})
    eventually(lambda: daemon.post("/query_by_hash", {"seq_hashes": [keys[0][:64]]})
               .json["instances"]["store"]["longest_matched"] == 4, "found by its key")


def test_a_parameter_may_stand_in_the_query_string_or_in_the_body(daemon):
    one = daemon.post("/v1/lookup?" + urllib.parse.urlencode({"tenant": "a b&c"}),
                      {"tokens": TOKENS}).json
    two = daemon.post("/v1/lookup", {"tokens": TOKENS, "tenant": "a b&c"}).json
    assert one["tenant"] == two["tenant"] == "a b&c"
