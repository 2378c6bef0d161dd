"""How workers share the tests: one computes, the others run what mostly waits, so that processors have enough to do.

What measures time never has more neighbours of its kind than there are other workers; the one that computes has a low
priority. All files that share a Spark are for one worker: each worker would start its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

__all__ = ["OneComputes"]


class OneComputes(LoadFileScheduling):
    """A file is for one worker; files of `computing` folders are for the first, and for others when they are done."""

    def __init__(
        self, config: pytest.Config, log: Producer, computing: tuple[str, ...], one_spark: str
    ) -> None:
        super().__init__(config, log)
        self._computing, self._one_spark = computing, one_spark
        self._computer: WorkerController | None = None

    def _split_scope(self, nodeid: str) -> str:
        return self._one_spark if nodeid.startswith(self._one_spark) else super()._split_scope(nodeid)

    def schedule(self) -> None:
        if self._computer is None and self.numnodes > 1:
            self._computer = self.nodes[0]
        super().schedule()

    def _reschedule(self, node: WorkerController) -> None:
        # With two workers there is nobody else; with more, it would disturb those who measure time.
        if node is self._computer and self.numnodes > 2 and self._first(computing=True) is None:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        wanted = self._first(computing=node is self._computer)
        if wanted is not None:
            self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)

    def _first(self, *, computing: bool) -> str | None:
        """The first file, or folder, of this kind that is left; the one with Spark is the longest and goes first."""
        left = [scope for scope in self.workqueue if scope.startswith(self._computing) == computing]
        return self._one_spark if self._one_spark in left else next(iter(left), None)
