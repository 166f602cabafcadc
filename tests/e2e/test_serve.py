# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvgraft authors
"""The daemon's life: start, reload, stop, and what it tells the init system."""
import json
import os
import signal
import socket
import stat

from conftest import eventually, free_port, run
from test_follow import LAYOUT, is_fresh, object_keys, source_of, state


def test_a_reload_takes_new_workers_and_sources_over(master, make_daemon):
    daemon = make_daemon([source_of(master)]).start()
    master.wait_subscriber()
    master.publish(stored=object_keys(50, 10))
    eventually(lambda: is_fresh(daemon), "fresh")
    assert daemon.get("/v1/workers").json["layouts"][0]["page_size"] == 4
    daemon.config["sources"][0]["workers"] = {"7": dict(LAYOUT, page_size=16)}
    daemon.config["sources"].append({"name": "second", "endpoint": "tcp://127.0.0.1:1"})
    path = os.path.join(daemon.folder, "kvgraft.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(daemon.config, file)
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: len(daemon.get("/v1/sources").json["sources"]) == 2, "two sources")
    eventually(lambda: daemon.get("/v1/workers").json["layouts"][0]["page_size"] == 16, "layout")
    assert state(daemon)["parts"] == 20  # The index stayed.
    assert daemon.process.poll() is None


def test_a_bad_reload_changes_nothing_and_is_logged(master, make_daemon):
    daemon = make_daemon([source_of(master)]).start()
    path = os.path.join(daemon.folder, "kvgraft.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"http": {"threads": 1000}}')
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: "http.threads" in daemon.log, "the mistake logged")
    assert daemon.get("/v1/workers").json["layouts"][0]["page_size"] == 4
    assert daemon.post("/v1/lookup", {"tokens": [1, 2, 3, 4]}).status == 200


def test_the_init_system_is_told(master, make_daemon, tmp_path, monkeypatch):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        listener.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        daemon = make_daemon([source_of(master)]).start()
        told = listener.recv(4096).decode()
        while "READY=1" not in told:
            told += listener.recv(4096).decode()
        assert daemon.stop() == 0
        told = ""
        while "STOPPING=1" not in told:
            told += listener.recv(4096).decode()


def test_the_unix_socket_is_the_owners_and_goes_with_the_daemon(master, make_daemon, tmp_path):
    path = tmp_path / "s"
    daemon = make_daemon([source_of(master)], http={"unix_socket": str(path)}).start()
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert path.stat().st_mode & stat.S_IRWXO == 0
    code, out, err = run("query", "--json", "--url", "unix:%s" % path, "1..8")
    assert code == 0, err
    assert daemon.stop() == 0
    assert not path.exists()
    # A socket that a killed daemon left behind is no obstacle.
    daemon.start()
    daemon.kill()
    assert path.exists()
    daemon.start()
    assert run("query", "--json", "--url", "unix:%s" % path, "1..8")[0] == 0


def test_a_configuration_that_cannot_be_used_is_told_before_anything_starts(tmp_path):
    path = tmp_path / "bad.json"
    for text, word in (('{"sources": [{"endpoint": "nonsense://x", "name": "a"}]}', "endpoint"),
                       ('{"http": {"listen": "nonsense"}}', "listen"),
                       ('{"http": {"threads": 0}}', "threads"),
                       ('{"http": {"token_file": "/no/such/file"}}', "/no/such/file"),
                       ('{"sources": [{"name": "a", "endpoint": "tcp://h:1"},'
                        ' {"name": "a", "endpoint": "tcp://h:2"}]}', "name"),
                       ('{', "line"), ('[]', "")):
        path.write_text(text)
        code, _, err = run("serve", "--config", path, timeout=20)
        assert code in (1, 2), text
        assert word in err, err
    assert run("serve", "--config", tmp_path / "nosuch")[0] in (1, 2)
    assert run("serve", "--nosuch")[0] == 2


def test_the_environment_sets_what_the_file_does_not(master, make_daemon, monkeypatch):
    port = free_port()
    monkeypatch.setenv("KVGRAFT_HTTP_LISTEN", "127.0.0.1:%d" % port)
    daemon = make_daemon([source_of(master)])
    daemon.config["http"].pop("listen")
    daemon.port = port
    daemon.start()
    assert daemon.get("/healthz").status == 200
