"""Teams: the work-items that share a row, and find sums, largest elements and running sums of it together.

What a team does is written once (`team`), for one row and one element; its rendering follows from how rows lie
(`layout`): contiguous ones on a CPU (`row`), those of a few elements (`few`), of runs (`runs`), across memory
(`columns`); a GPU's group shares a row (`group`), or each work-item has one (`work_item`),
with the same loops (`members`).
"""

from torchgraft.codegen.teams.accumulators import RUN, Fields, bind
from torchgraft.codegen.teams.layout import Layout
from torchgraft.codegen.teams.runs import LANES
from torchgraft.codegen.teams.team import WIDTH, Team

__all__ = ["LANES", "RUN", "WIDTH", "Fields", "Layout", "Team", "bind"]
