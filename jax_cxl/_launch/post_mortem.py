"""What the ranks of a job did last, read from their pool after they are gone."""

import os
import sys


class HeldPool:
    """A job's pool, kept open by the supervisor, which outlives the ranks."""

    def __init__(self) -> None:
        self._fd: int | None = None

    def hold(self, pid: int) -> None:
        """Opens the pool that a rank has; the latest counts."""
        from jax_cxl._status import pools

        for pool in pools.held_by(pid):
            try:
                fd = os.open(pool.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue  # It ended meanwhile.
            if self._fd is not None:
                os.close(self._fd)
            self._fd = fd

    def report(self, path: str | None) -> None:
        """Says on stderr who waited for whom, and keeps the recorders in a file, if asked to."""
        if self._fd is None:
            return
        from jax_cxl import _core, errors
        from jax_cxl._status import analysis

        try:
            snapshot = _core.read_snapshot(self._fd, 0, "the pool of the job")
            lines = analysis.sentences(analysis.read(snapshot, calls=64))
            if path is not None:
                with open(path, "wb") as file:
                    file.write(snapshot.to_bytes())
                lines.append(f"kept for python -m jax_cxl status: {path}")
        except (OSError, errors.PoolError) as error:
            lines = [f"no post mortem: {error}"]
        finally:
            os.close(self._fd)
            self._fd = None
        for line in lines:
            print(f"jax_cxl.launch: {line}", file=sys.stderr)
