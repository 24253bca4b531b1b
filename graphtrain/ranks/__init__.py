"""The processes of a run: how they start, what they agree on, and how they exchange gradients.

Promise: nothing outside of this room imports `torch.distributed`; a single process is a world of size 1. What the rest
needs is `Ranks`: bytes gathered from all ranks, tensors summed over them, and a store in which a rank that fails leaves
the reason.

Other rooms use:
    alive: is_alive
    buckets: GradientSums
    current: current_ranks, failure_of, is_one_of_several, leave
    launcher: launched
    sharded: is_sharded, refuse_meshes, reshard, sum_gradients, whole_norms, whole_of_part
"""

from graphtrain.ranks.current import current_ranks as current_ranks
from graphtrain.ranks.current import is_one_of_several as is_one_of_several
from graphtrain.ranks.current import on_all_ranks as on_all_ranks
from graphtrain.ranks.current import prints as prints
from graphtrain.ranks.current import using_ranks as using_ranks
from graphtrain.ranks.ranks import LostRankError as LostRankError
from graphtrain.ranks.ranks import Ranks as Ranks
