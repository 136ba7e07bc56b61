"""What the machine can do at best, by which a workload has a floor: the least time that it could take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ceilings:
    """The best that either side did.

    Attributes:
        bandwidth: bytes a second by how many bytes the buffers had: the smaller they are, the nearer their cache.
        peak: flops a second by the name of a dtype.
        launch: seconds of a launch of a kernel that has nothing to do.
    """

    bandwidth: dict[int, float]
    peak: dict[str, float]
    launch: float

    def bandwidth_of(self, footprint: float) -> float:
        """The best of buffers of that size or more; the largest size that is not above it counts as the same."""
        below = [size for size in self.bandwidth if size <= footprint]
        least = max(below, default=min(self.bandwidth))
        return max(rate for size, rate in self.bandwidth.items() if size >= least)

    def floor(self, nbytes: float, flops: float, dtype: str, launches: int) -> float:
        """Seconds: of moving or of computing, whichever takes longer, and of the launches."""
        # What is read and written in place is moved twice, so half of the bytes may be all the memory that there is.
        moving = nbytes / self.bandwidth_of(nbytes / 2)
        return max(moving, flops / self.peak[dtype] if flops else 0) + launches * self.launch
