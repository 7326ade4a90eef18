"""Lets other processes and threads do something between the steps of a store."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

X = np.arange(300_000)


def publish(store: Any, name: str, x: Any) -> None:
    """Publishes an array, and waits until it is in the store."""
    store.publish(name, {"x": x})
    store.flush(name)


@contextmanager
def once(
    where: Any,
    name: str,
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Patches `where.name`: its next call also calls `before` first, and `after` last."""
    old = getattr(where, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        patched.stop()
        before()
        result = old(*args, **kwargs)
        after()
        return result

    patched = mock.patch.object(where, name, call)
    patched.start()
    try:
        yield
    finally:
        patched.stop()


def in_thread(act: Callable[[], Any]) -> Callable[[], Any]:
    """Calls `act` in a thread. Returns a function that waits for its result or exception."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append(act())
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(60)
        return done[0]

    return result
