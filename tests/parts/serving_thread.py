"""A thread in which a server of a test serves."""

from __future__ import annotations

import socketserver
import threading

POLL_S = 0.01
"""How often the server looks whether it shall stop."""


def start_serving(server: socketserver.BaseServer) -> threading.Thread:
    """Let a server serve in a thread of its own, and return the thread once it runs.

    Under coverage, Python 3.11 sometimes ends a thread before it runs because another one starts at the same
    moment ("Cannot install a trace function ..."). A server without its thread can never be shut down: the
    test would wait for ever. So such a thread is replaced.
    """
    while True:
        is_running = threading.Event()

        def serve(is_running: threading.Event = is_running) -> None:
            is_running.set()
            server.serve_forever(POLL_S)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        while thread.is_alive() and not is_running.wait(POLL_S):
            pass
        if is_running.is_set():
            return thread
