"""vLLM's OpenAI-compatible server in a process of its own, on a free port of this machine, and what asks it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tqdm import tqdm

MODEL: Final = Path(os.environ["ENGINES_MODEL"])
CONTEXT: Final = 256
MOST_REQUESTS: Final = 16
BEGINNING: Final = 600
"""Seconds within which a server has to answer, on a busy machine too."""
ENDING: Final = 60
ANSWERING: Final = 300
OPTIONS: Final = (
    *("--served-model-name", "demo", "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"),
    *("--max-model-len", str(CONTEXT), "--max-num-seqs", str(MOST_REQUESTS)),
    *("--worker-extension-cls", "counting.Counting"),
)
VLLM: Final = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, *OPTIONS)
VARIABLES: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else to a core that may be busy with something else
    "OMP_NUM_THREADS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /collective_rpc
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class Answer(NamedTuple):
    """What a server says to one request."""

    status: int
    body: Any

    @property
    def token_ids(self) -> list[list[int]]:
        """Of each choice."""
        return [choice["token_ids"] for choice in self.body["choices"]]

    @property
    def texts(self) -> list[str]:
        """Of each choice."""
        return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in self.body["choices"]]


class Server:
    """A server that runs.

    Args:
        port: where, on the loopback interface.
    """

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> str:
        """Returns what is at a path."""
        with urllib.request.urlopen(f"{self.address}{path}", timeout=ANSWERING) as answer:
            text: str = answer.read().decode()
        return text

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        """Asks once; returns an answer with an error's status too."""
        try:
            with urllib.request.urlopen(self._request(path, body), timeout=ANSWERING) as answer:
                return Answer(answer.status, json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode())

    def ask(self, **body: Any) -> Answer:
        """Asks for completions, or for a chat where there are messages."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        return self.post(path, {"model": "demo", "return_token_ids": True} | body)

    def stream(self, **body: Any) -> list[dict[str, Any]]:
        """Asks for one completion that comes in pieces; returns their first choices."""
        *events, end = self.events({"model": "demo", "return_token_ids": True, "stream": True} | body)
        assert end == "[DONE]"
        return [json.loads(event)["choices"][0] for event in events]

    def events(self, body: dict[str, Any]) -> list[str]:
        """Asks for one completion; returns the events that it comes in."""
        with urllib.request.urlopen(self._request("/v1/completions", body), timeout=ANSWERING) as answer:
            lines = answer.read().decode().splitlines()
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    def ask_together(self, requests: Sequence[dict[str, Any]], progress: str = "") -> list[Answer]:
        """Asks `MOST_REQUESTS` at a time; returns the answers in the order of the requests."""
        with ThreadPoolExecutor(MOST_REQUESTS) as threads:
            answers = threads.map(lambda body: self.ask(**body), requests)
            return [*tqdm(answers, progress, len(requests), disable=not progress, mininterval=5)]

    def counted(self) -> dict[str, dict[str, int]]:
        """Returns what the worker counted, of vLLM's steps and of the plugin's."""
        answer = self.post("/collective_rpc", {"method": "counted"})
        assert answer.status == 200, answer.body
        (found,) = answer.body["results"]
        return dict(found)

    def _request(self, path: str, body: dict[str, Any]) -> urllib.request.Request:
        return urllib.request.Request(
            f"{self.address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )


def free_port() -> int:
    """Returns a port of the loopback interface that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def serving(log: Path, *options: str, command: Sequence[str | Path] = VLLM, **variables: str) -> Iterator[Server]:
    """Starts a server, and ends it behind the block.

    Args:
        log: the file for what it prints.
        options: beside those of the command.
        command: starts it; the port comes behind it.
        variables: of its environment, beside `VARIABLES`.
    """
    port = free_port()
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--port", str(port), *options],
            env=os.environ | VARIABLES | variables,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that whatever it starts can be ended with it
        )
    try:
        server = Server(port)
        _wait_until_it_answers(server, process, log)
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_it_answers(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + BEGINNING
    while process.poll() is None and time.monotonic() < deadline:
        try:
            server.get("/health")
        except OSError:
            time.sleep(1)
        else:
            return
    tail = "\n".join(log.read_text().splitlines()[-40:])
    raise RuntimeError(f"the server has not begun to answer (status {process.poll()}):\n{tail}")
